"""Whatever in a cell has a name: found by the whole of it, or by how it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from engine.model.queries import Named
from engine.model.specs import NodeState, WorkloadState
from engine.state.machine_orders import OrderState
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.state.cell_state import State

LEVELS = ("zone", "block", "rack")
MAX_HITS = 200
MAX_LOOKED = 200_000
"""Names of a kind that are looked at for how they begin, the newest workloads first. What is older is found by the
whole of its name."""


def find(state: State, name: str, kinds: Sequence[str], limit: int) -> tuple[Named, ...]:
    """What is called `name`, then what begins so: of these kinds, or of all; at most `limit` in all. The newest
    workloads come first. Costs a look-up for what is called so, and for the rest a pass over the names until there are
    enough."""
    wanted = [(kind, kind_hits) for kind, kind_hits in _KINDS.items() if not kinds or kind in kinds]
    limit = max(0, min(limit, MAX_HITS))
    exact = [hit for _, hits in wanted for hit in hits(state, name, True)]
    if len(exact) >= limit or (not name and not kinds):
        return tuple(exact[:limit])
    each = max(1, limit // len(wanted)) if wanted else 0
    begun = chain.from_iterable(islice(hits(state, name, False), each) for _, hits in wanted)
    found = dict.fromkeys(chain(exact, begun))
    return tuple(islice(found, limit))


def _named(names: Iterable[str], name: str) -> Iterator[str]:
    return (each for each in islice(names, MAX_LOOKED) if each.startswith(name))


def _workloads(state: State, name: str, exact: bool) -> Iterator[Named]:
    w = state.workloads
    ids = [name] if exact and name in w.row_of else () if exact else _named(reversed(w.ids), name)
    return (Named("workload", each, WorkloadState(w.state[w.row_of[each]]).label) for each in ids)


def _nodes(state: State, name: str, exact: bool) -> Iterator[Named]:
    c = state.capacity
    ids = [name] if exact and name in c.row_of else () if exact else _named(c.row_of, name)
    return (Named("node", each, NodeState(c.state[c.row_of[each]]).label) for each in ids)


def _queues(state: State, name: str, exact: bool) -> Iterator[Named]:
    rows = state.queues.row_of
    return (
        Named("queue", each) for each in ([name] if exact and name in rows else () if exact else _named(rows, name))
    )


def _pools(state: State, name: str, exact: bool) -> Iterator[Named]:
    return _alike("pool", (pool.name for pool in state.capacity.pools), name, exact)


def _reservations(state: State, name: str, exact: bool) -> Iterator[Named]:
    return _alike("reservation", (each.spec.name for each in state.bookings.reservations), name, exact)


def _orders(state: State, name: str, exact: bool) -> Iterator[Named]:
    """An order is called by its number."""
    orders = state.orders
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
    if exact and not (number >= 0 and str(number) == name and number < len(orders.pool)):
        return iter(())
    rows = [number] if exact else reversed(range(len(orders.pool)))
    named = (row for row in rows if str(row).startswith(name))
    return (Named("order", str(row), OrderState(orders.state[row]).label) for row in named)


def _domains(state: State, name: str, exact: bool) -> Iterator[Named]:
    """Two domains of one name at different levels are two hits."""
    c = state.capacity
    for code, each in enumerate(c.places.names):
        if each and (each == name if exact else each.startswith(name)):
            for level in LEVELS:
                if (view(getattr(c, level)) == code).any():
                    yield Named(level, each)


def _alike(kind: str, names: Iterable[str], name: str, exact: bool) -> Iterator[Named]:
    return (Named(kind, each) for each in names if (each == name if exact else each.startswith(name)))


_KINDS: dict[str, Callable[[State, str, bool], Iterator[Named]]] = {
    "workload": _workloads,
    "node": _nodes,
    "queue": _queues,
    "pool": _pools,
    "reservation": _reservations,
    "order": _orders,
    "domain": _domains,
}
