"""Which nodes have room for a task and yet are not for it: by their labels, their taints, or who is near."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from engine.capacity.index import OPEN, Capacity
from engine.capacity.node_attributes import Mask
from engine.capacity.task_shapes import Demand, Shape, tolerates
from engine.model.specs import LEVELS, NodeState
from engine.state.cell_state import BOUND, State
from engine.tables.columns import view

LABELS = "NodeLabels"
TAINTS = "NodeTaints"
APART = "KeptApart"
NEAR = "NotNear"
MAX_NAMED = 3


class Bar(NamedTuple):
    """Nodes that are not for it though they have room."""

    token: str
    nodes: int
    text: str
    """What they lack or have."""
    unblock: str


def bars(state: State, shape: Shape) -> list[Bar]:
    """What keeps tasks of the shape from ready, open nodes of its pools with room for one; each node counts for the
    first of labels, taints and bonds."""
    capacity = state.capacity
    mine = np.isin(view(capacity.pool), shape.pools)
    mine &= (view(capacity.state) == NodeState.READY) & (view(capacity.booking) == OPEN)
    rows = np.flatnonzero(mine & ~capacity.usable_mask(shape))
    left: Mask = np.zeros(len(mine), bool)
    left[rows[capacity.rooms(shape, rows) > 0]] = True
    found = []
    for demand in shape.labels:
        lacking = left & ~capacity.labelled((demand,))
        if lacking.any():
            wanted = condition(demand)
            text = f"have the label {wanted}" if demand.avoided else f"do not have the label {wanted}"
            found.append(Bar(LABELS, int(lacking.sum()), text, f"nodes whose label {demand.key} suits it"))
            left &= ~lacking
    tainted = left & ~_tolerated(capacity, shape)
    if tainted.any():
        names = named_taints(capacity, shape, tainted)
        found.append(
            Bar(TAINTS, int(tainted.sum()), f"have a taint it does not tolerate: {names}", f"tolerate {names}")
        )
    return found + list(_company(state, shape, left & ~tainted))


def condition(demand: Demand) -> str:
    """A condition on a label as people write it."""
    values = sorted(demand.values)
    if demand.any or not values:
        return demand.key
    more = f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else ""
    return f"{demand.key}={'|'.join(values[:MAX_NAMED])}{more}"


def _tolerated(capacity: Capacity, shape: Shape) -> Mask:
    """Nodes without a taint that keeps tasks of the shape away."""
    fine = [
        not any(taint.effect == "NoSchedule" and not tolerates(shape.tolerations, taint) for taint in taints)
        for taints in capacity.taint_sets
    ]
    found: Mask = np.array(fine, bool)[view(capacity.taints)]
    return found


def named_taints(capacity: Capacity, shape: Shape, nodes: Mask) -> str:
    """The first few of the taints that keep tasks of the shape from the nodes."""
    names = sorted(
        {
            taint.label.partition(":")[0]
            for row in np.unique(view(capacity.taints)[nodes]).tolist()
            for taint in capacity.taint_sets[row]
            if taint.effect == "NoSchedule" and not tolerates(shape.tolerations, taint)
        }
    )
    return _listed(names)


def _company(state: State, shape: Shape, left: Mask) -> Iterator[Bar]:
    """What bonds to other work keep the task from."""
    capacity, terms = state.capacity, shape.terms
    if terms is None:
        return
    company = capacity.company
    kinds = [(APART, term, terms._replace(near=(), apart=(term,), shunned=())) for term in terms.apart]
    kinds += [(APART, term, terms._replace(near=(), apart=(), shunned=(term,))) for term in terms.shunned]
    kinds += [(NEAR, term, terms._replace(near=(term,), apart=(), shunned=())) for term in terms.near]
    for token, term, only in kinds:
        barred = left & ~company.mask(capacity, only)
        if not barred.any():
            continue
        left = left & ~barred
        count = int(barred.sum())
        where = f"the {LEVELS[company.level[term]]}" if company.level[term] < len(LEVELS) - 1 else "the node"
        others = _listed(_who(state, term, keepers=bool(only.shunned)))
        if only.near:
            yield Bar(token, count, f"are not in {where} of {others}, which it must be near to", "")
        elif only.apart:
            text = f"are in {where} of {others}, from which it keeps apart"
            yield Bar(token, count, text, f"the end of {others}")
        else:
            text = f"are in {where} of {others}, which keeps apart from it"
            yield Bar(token, count, text, f"the end of {others}")


def _who(state: State, term: int, *, keepers: bool) -> list[str]:
    """Ids of the work on nodes that carries the term's tags, or of that which keeps apart from such."""
    w, company = state.workloads, state.capacity.company
    rows = np.flatnonzero(np.isin(view(w.state), BOUND)).tolist()
    return [w.ids[row] for row in rows if term in w.marks(row, company)[keepers]]


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
