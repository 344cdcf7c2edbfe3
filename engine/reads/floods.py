"""Floods: tenants and teams of whom far more arrived in an hour than ever before, and whose work is most of the line.

No history of measurements is needed: the workloads themselves tell who submitted what and when. A tenant that is new
has no usual, so its share of the line, its order in it and what it holds decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.model.columns import Ints, view
from engine.model.specs import HOUR_MS, WorkloadState

if TYPE_CHECKING:
    from engine.state.cell_state import State

RECENT_H, KNOWN_H = 3, 28
"""The densest hour of the last three is compared with the densest of the day before them."""
MIN_LINE = 20
"""Waiting workloads, and arrivals in an hour, below which nothing is a flood."""
TIMES = 4
"""So many times the densest hour of the day before."""
LINE_PERMILLE = 500
"""Share of the line, by number or by what is asked for."""
HELD_PERMILLE = 100
"""Share of the cell that its recent work holds, from which it keeps others out whatever its priority."""
MIN_HURT = 3
"""Workloads of others behind it below which it is in hardly anybody's way."""
LATE_MS = 5 * 60_000
"""Others who have waited for less are not hurt yet."""


class Flood(NamedTuple):
    of: str
    """`tenant` or `team`."""
    name: str
    waiting: int
    line: int
    """Workloads that wait, of everybody."""
    arrived: int
    """In its densest hour of late."""
    usual: int
    """In the densest hour of the day before."""
    rows: tuple[int, ...]
    """Its waiting workloads, oldest first."""
    hurt: tuple[int, ...]
    """Waiting workloads of others behind it, oldest first."""
    held_permille: int
    """Of the cell, by what arrived of late."""


def floods(state: State, now_ms: int) -> list[Flood]:
    """Who floods the cell while others wait; the longest line first."""
    w = state.workloads
    queued = np.flatnonzero(view(w.state) == WorkloadState.QUEUED)
    if len(queued) < MIN_LINE:
        return []
    submitted = view(w.submitted)
    known = np.flatnonzero(submitted > now_ms - KNOWN_H * HOUR_MS)
    if now_ms - int(submitted.min()) < RECENT_H * HOUR_MS:
        # Of a cell that has just begun nothing is usual.
        return []
    ages = np.minimum((now_ms - submitted[known]) // HOUR_MS, KNOWN_H - 1)
    of_tenant = _of(state, "tenant", view(w.tenant), w.tenants.names, queued, known, ages, now_ms)
    if of_tenant:
        return of_tenant
    return _of(state, "team", view(w.team), w.teams.names, queued, known, ages, now_ms)


def _of(
    state: State, of: str, whose: Ints, names: list[str], queued: Ints, known: Ints, ages: Ints, now_ms: int
) -> list[Flood]:
    asked = demand(state)
    lines = np.bincount(whose[queued], minlength=len(names))
    wanted = np.bincount(whose[queued], weights=asked[queued], minlength=len(names))
    hours = np.zeros((len(names), KNOWN_H), np.int64)
    np.add.at(hours, (whose[known], ages), 1)
    recent, usual = hours[:, :RECENT_H].max(axis=1), hours[:, RECENT_H:].max(axis=1)
    most = (lines * 1000 >= LINE_PERMILLE * len(queued)) | (wanted * 1000 >= LINE_PERMILLE * wanted.sum())
    many = (lines >= MIN_LINE) & (recent >= np.maximum(MIN_LINE, TIMES * usual))
    found = []
    for row in np.flatnonzero(most & many).tolist():
        if not names[row]:
            continue
        mine = queued[whose[queued] == row]
        held = _held(state, known[(whose[known] == row) & (ages < RECENT_H)], asked)
        hurt = _hurt(state, mine, queued[whose[queued] != row], held, now_ms)
        if len(hurt) >= MIN_HURT:
            found.append(
                Flood(
                    of, names[row], len(mine), len(queued), int(recent[row]), int(usual[row]), tuple(mine.tolist()),
                    tuple(hurt.tolist()), held,
                )
            )  # fmt: skip
    return sorted(found, key=lambda flood: (-flood.waiting, flood.name))


def demand(state: State) -> Ints:
    """[workload row] what it asks for: milli-GPU, milli-CPU where the cell has no GPU."""
    w = state.workloads
    resource = 2 if state.capacity.totals[2] else 0
    by_class = np.array([cls.request[resource] for cls in w.classes], np.int64)
    found: Ints = by_class[view(w.cls)]
    return found


def _held(state: State, recent: Ints, asked: Ints) -> int:
    states = view(state.workloads.state)[recent]
    bound = recent[(states == WorkloadState.PLACED) | (states == WorkloadState.RUNNING)]
    return int(asked[bound].sum()) * 1000 // max(state.capacity.totals[2] or state.capacity.totals[0], 1)


def _hurt(state: State, mine: Ints, others: Ints, held: int, now_ms: int) -> Ints:
    """Those of the others that wait for pools which it fills, and do not go first."""
    w = state.workloads
    values = np.array(w.priority_value, np.int64)[view(w.priority)]
    pools = {
        pool for cls in np.unique(view(w.cls)[mine]).tolist() for s in w.classes[cls].shapes for pool in s.pool_set
    }
    same = np.array([any(not pools.isdisjoint(s.pool_set) for s in cls.shapes) for cls in w.classes], bool)
    late = now_ms - np.maximum(view(w.since)[others], view(w.submitted)[others]) > LATE_MS
    behind = (values[others] <= values[mine].max()) if held < HELD_PERMILLE else np.ones(len(others), bool)
    found: Ints = others[same[view(w.cls)[others]] & late & behind]
    return found
