"""Judging a canary: waits under the new setting against those before it, and against queues that kept the old one.

Measured over a window of cell time: the waits of first starts in it, and of what came in it and still waits at its end,
as long as it has waited by then. Without these a setting that starves large work would look good: what never starts has
no wait. What was started more than once is left out, because the wait of its first start is not kept.

A canary fails when the 95th percentile of its waits is more than `worst_permille` of what it was in as long a window
before it. Where the waits of other queues grew meanwhile, the canary is allowed to have grown as much: the cell was
busier. A wait below a minute counts as a minute, because a second in place of nothing is not a hundred times worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.model.specs import WorkloadState
from engine.tables.columns import view
from runbooks.plans.amounts import span
from runbooks.plans.checks import Verdict
from runbooks.plans.typed_plan import Act

if TYPE_CHECKING:
    from engine.control import Engine

SHORT_MS = 60_000
"""Waits below this are as good as none."""
Rows = np.ndarray[Any, np.dtype[Any]]


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What a group of queues looked like over one window."""

    starts: int
    p95_ms: int
    """Of the waits; SHORT_MS where they are shorter, or there are none."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    text: str
    """In words, with the figures."""
    before: Waits
    after: Waits
    others_permille: int
    """Waits of the other queues after it, in permille of those before it, at least 1000; 1000 where nothing can be said
    of them."""


def judge(engine: Engine, act: Act, since_ms: int) -> Judgement | None:
    """How the canary that began at that cell time has done. None while its window is not over. Raises NotFoundError for
    queues that are gone."""
    canary = act.canary
    assert canary is not None, "only a canary is judged"
    end_ms = since_ms + canary.window_ms
    if engine.now_ms < end_ms:
        return None
    mine = queues_of(engine, act)
    before = waits(engine, mine, since_ms - canary.window_ms, since_ms)
    after = waits(engine, mine, since_ms, end_ms)
    others = ~mine
    was, is_ = (waits(engine, others, end - canary.window_ms, end) for end in (since_ms, end_ms))
    known = min(was.starts, is_.starts) >= canary.least_starts
    others_permille = max(1000, is_.p95_ms * 1000 // was.p95_ms) if known else 1000
    found = after.p95_ms * 1000 // before.p95_ms
    text = (
        f"waits p95 {span(after.p95_ms)} of {after.starts:,} starts, before {span(before.p95_ms)} of "
        f"{before.starts:,}: {found / 10:,.12g}%"
    )
    if known:
        text += f"; of other queues {others_permille / 10:,.12g}%"
    verdict: Verdict = "success"
    if min(before.starts, after.starts) < canary.least_starts:
        verdict = "inconclusive"
        text += f"; {canary.least_starts:,} starts are needed on both sides"
    elif found * 1000 > canary.worst_permille * others_permille:
        verdict = "failure"
    return Judgement(verdict=verdict, text=text, before=before, after=after, others_permille=others_permille)


def queues_of(engine: Engine, act: Act) -> Rows:
    """By queue row: whether the canary is in it."""
    tree = engine.state.queues
    mine: Rows = np.zeros(len(tree.specs), bool)
    if act.canary is not None and act.canary.policy is not None:
        mine[:] = True
        return mine
    for name in act.targets:
        for leaf in engine.queue(name).leaves:
            mine[tree.row_of[leaf]] = True
    return mine


def waits(engine: Engine, queues: Rows, from_ms: int, to_ms: int) -> Waits:
    """Of the workloads in these queues, over a window of cell time that is over. Its end is no part of it: what starts
    at the moment of the change starts because of it."""
    w = engine.state.workloads
    none = Waits(starts=0, p95_ms=SHORT_MS)
    if not w.ids or not queues.any():
        return none
    came, started, attempts = view(w.submitted), view(w.started), view(w.attempts)
    mine = queues[view(w.queue)]
    begun = mine & (attempts == 1) & (started >= from_ms) & (started < to_ms)
    # What a person holds or that waits for others is not kept waiting by any order.
    later = (attempts == 1) & (started >= to_ms)
    waiting = mine & (came >= from_ms) & (came < to_ms) & (later | (view(w.state) == WorkloadState.QUEUED))
    waiting &= later | (attempts == 0)
    found = np.sort(np.concatenate(((started - came)[begun], to_ms - came[waiting])))
    if not len(found):
        return none
    nearest = -(-95 * len(found) // 100) - 1
    return Waits(starts=int(begun.sum()), p95_ms=max(SHORT_MS, int(found[nearest])))
