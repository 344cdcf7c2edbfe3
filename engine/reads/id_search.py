"""Search by name: everything in a cell that has a name, found by the whole name or by its beginning.

Workload names are a column of texts that only grows, so a million of them are searched and sorted in milliseconds. A
full block of rows is stored as one string of folded bytes, for searching, and as the first bytes of each text in words
of 64 bits, for sorting. The rows of the last, unfinished block are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from engine.model.columns import Numbers, view
from engine.model.list_queries import Named
from engine.model.specs import NodeState, WorkloadState
from engine.state.machines import OrderState

if TYPE_CHECKING:
    from engine.state.cell_state import State


LEVELS = ("zone", "block", "rack")
MAX_HITS = 200
MAX_LOOKED = 200_000
"""Names of a kind that are looked at for how they begin, the newest workloads first. What is older is found by the
whole of its name."""


def find(
    state: State, name: str, kinds: Sequence[str], limit: int, shown: Callable[[Named], bool] | None = None
) -> tuple[Named, ...]:
    """Find the objects called `name`, then those whose names begin with it: of these kinds, or of all; at most `limit`
    in all. The newest workloads come first. Costs a look-up for the exact name, and for the rest a pass over the names
    until there are enough. `shown`: which of them count; None: all do.
    """
    wanted = [(kind, kind_hits) for kind, kind_hits in _KINDS.items() if not kinds or kind in kinds]
    limit = max(0, min(limit, MAX_HITS))
    exact = [hit for _, hits in wanted for hit in filter(shown, hits(state, name, True))]
    if len(exact) >= limit or (not name and not kinds):
        return tuple(exact[:limit])
    each = max(1, limit // len(wanted)) if wanted else 0
    begun = chain.from_iterable(islice(filter(shown, hits(state, name, False)), each) for _, hits in wanted)
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


BLOCK = 8_192
"""Rows that are put down together: takes a few milliseconds."""
WORDS = 4
"""Words of 8 bytes, from the start of a text. Texts equal in all of them are compared as text."""
SPARSE = 24
"""Hits in a block from which on all of it is compared at once."""
_BYTES = WORDS * 8


class Texts:
    """`values` is the column itself, which whoever owns it appends to."""

    def __init__(self, values: list[str]) -> None:
        self._values = values
        self._covered = 0
        self._folded: list[bytes | None] = []
        """By block: its texts with a zero byte between; None where one holds such a byte."""
        self._starts: list[Numbers] = []
        """By block: where each text starts."""
        self._words = [np.zeros(0, np.uint64) for _ in range(WORDS)]
        self._short = True
        """True if the words hold all of each text."""

    def cover(self) -> bool:
        """Put down the next block, if there is one."""
        end = self._covered + BLOCK
        if len(self._values) < end:
            return False
        values = self._values[self._covered : end]
        folded = "\0".join(values).casefold().encode("utf-8", "surrogatepass")
        starts = np.flatnonzero(np.frombuffer(folded, np.uint8) == 0) + 1
        plain = len(starts) == BLOCK - 1
        self._folded.append(folded if plain else None)
        self._starts.append(np.concatenate(([0], starts)).astype(np.int32) if plain else np.zeros(0, np.int32))
        words, short = _words_of(values)
        self._short = self._short and short
        for i, word in enumerate(words):
            if end > len(self._words[i]):
                self._words[i] = np.concatenate((self._words[i], np.zeros(max(end, BLOCK * 4), np.uint64)))
            self._words[i][self._covered : end] = word
        self._covered = end
        return True

    @property
    def covers(self) -> bool:
        """True if any block is stored."""
        return self._covered > 0

    def containing(self, text: str) -> Numbers:
        """Mask of the rows that hold the text, in upper or lower case."""
        folded = text.casefold()
        found = np.zeros(len(self._values), bool)
        if not folded:
            return ~found
        sought = folded.encode("utf-8", "surrogatepass")
        many = False
        for block in range(len(self._folded)):
            at = block * BLOCK
            many = self._search(block, sought, folded, found[at : at + BLOCK], many)
        tail = self._values[self._covered :]
        found[self._covered :] = [folded in value.casefold() for value in tail]
        return found

    def _search(self, block: int, sought: bytes, folded: str, found: Numbers, many: bool) -> bool:
        """Mark the rows of a block. `many`, and the answer: whether more than a few were found in the last one, so that
        it is quicker to look at all of it."""
        content, starts = self._folded[block], self._starts[block]
        if content is None:
            values = self._values[block * BLOCK : (block + 1) * BLOCK]
            found[:] = [folded in value.casefold() for value in values]
            return many
        if "\0" in folded:
            return many
        if many:
            return _mark_all(found, content, starts, sought) > SPARSE
        at, hits = content.find(sought), 0
        while at >= 0:
            if hits == SPARSE:
                _mark_all(found, content, starts, sought)
                return True
            hits += 1
            row = int(np.searchsorted(starts, at, "right")) - 1
            found[row] = True
            at = content.find(sought, int(starts[row + 1])) if row + 1 < len(starts) else -1
        return False

    def words(self, number: int, rows: Numbers | slice) -> Numbers:
        """The `number`th word of the text of each row: they order the rows as the texts do."""
        size = len(self._values)
        found = np.empty(size, np.uint64)
        found[: self._covered] = self._words[number][: self._covered]
        found[self._covered :] = _words_of(self._values[self._covered :])[0][number]
        return found[rows]

    def rank(self, rows: Numbers | slice) -> Numbers:
        """The order of rows whose words are all equal: that of their texts."""
        if self._short and _words_of(self._values[self._covered :])[1]:
            return np.zeros(len(self._values), np.int64)[rows]
        chosen = self._values[rows] if isinstance(rows, slice) else [self._values[row] for row in rows.tolist()]
        position = {text: i for i, text in enumerate(sorted(set(chosen)))}
        return np.fromiter((position[text] for text in chosen), np.int64, len(chosen))


def _words_of(values: list[str]) -> tuple[Numbers, bool]:
    """(the words, by number; whether they hold all of each text)"""
    content = [value.encode("utf-8", "surrogatepass") for value in values]
    short = all(len(each) <= _BYTES for each in content) and not any(b"\0" in each for each in content)
    words = np.array(content, f"S{_BYTES}").view(">u8").reshape(-1, WORDS).astype(np.uint64)
    return words.T, short


def _mark_all(found: Numbers, content: bytes, starts: Numbers, sought: bytes) -> int:
    """Mark the texts that hold it. Returns how often it is there."""
    data = np.frombuffer(content, np.uint8)
    hits = data == sought[0]
    for i, byte in enumerate(sought[1:], 1):
        hits[:-i] &= data[i:] == byte
        hits[-i:] = False
    at = np.flatnonzero(hits)
    row_of = np.repeat(np.arange(len(starts), dtype=np.int16), np.diff(starts, append=len(content)))
    found[row_of[at]] = True
    return len(at)
