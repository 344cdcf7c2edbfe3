"""How risky an action is on the targets it has: what raises its tier, which work it stops, and what that loses.

A tier only rises: the action's own is the floor, and nothing about the targets, nor one target more, lowers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from runbooks.actions.declaration import BOUND, Action
from runbooks.actions.lazy_modules import plan
from runbooks.actions.pool_sizes import nodes_of

if TYPE_CHECKING:
    from runbooks.plans.typed_plan import Act, Target, Tier

LARGE_SHARE_PERMILLE = 100
"""Taking more than this share of a pool (and more than one node) out of use is a tier riskier, and so is stopping more
than this share of the cell's running workloads (and more than one) by way of their queue."""
MANY = 10
"""Stopping more workloads than this by name, and more than that share of all that run, is a tier riskier too."""
LARGE_GROWTH = 2
"""Letting a pool become more than so many times as large as it is, by more than MANY nodes, is a tier riskier: it is
what runs up a bill."""


def tier_and_why(
    action: Action, act: Act, targets: tuple[Target, ...], pool_nodes: Mapping[str, int], running: int
) -> tuple[Tier, tuple[str, ...]]:
    """The tier of acting on these targets now, and what raised it above the action's own. `pool_nodes` is pool name ->
    how many nodes it has, `running` how many workloads of the cell are bound."""
    raises = (
        ("it throws away work that was done", discards_work(action, targets)),
        ("it takes a large share of a pool out of use", takes_large_share(action, act, targets, pool_nodes)),
        ("it stops work that runs", interrupts_work(action, targets)),
        ("it stops a large share of the work of the cell", stops_large_share(action, targets, running)),
        ("it may make a pool much larger", grows_much(action, act, targets)),
    )
    why = tuple(text for text, is_so in raises if is_so)
    return plan.TIERS[min(plan.TIERS.index(action.tier) + len(why), len(plan.TIERS) - 1)], why


def discards_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when it ends work that runs for good, or throws away what earlier attempts did."""
    return "discards" in action.impact and any(target.state in BOUND or target.worked_ms for target in targets)


def takes_large_share(action: Action, act: Act, targets: tuple[Target, ...], pool_nodes: Mapping[str, int]) -> bool:
    """True when the action takes a large share of any one pool out of use, or keeps it for some."""
    taken: Counter[str] = Counter()
    if "takes_nodes" in action.impact:
        taken.update(target.pool for target in targets)
    for target in targets:
        taken.update(pool for _, pool, _ in target.keeps)
        if target.size is not None and action.fewer is not None:
            taken[target.id] += action.fewer(act, target.size)
    return any(n > 1 and n * 1000 > LARGE_SHARE_PERMILLE * pool_nodes.get(pool, 0) for pool, n in taken.items())


def interrupts_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when an action that may leave running work alone stops some."""
    if action.interrupts:
        return any(target.state in BOUND for target in targets)
    return "displaces" in action.impact and any(target.work for target in targets)


def stops_large_share(action: Action, targets: tuple[Target, ...], running: int) -> bool:
    """True when what is done stops a large share of the cell's work: by way of queues, or many workloads by name."""
    if action.kind == "workload":
        stopped = {target.id for target in targets if loses_work(action, target)}
        least = MANY
    else:
        stopped = {id_ for target in targets for id_ in target.work} if action.kind == "queue" else set()
        least = 1
    return len(stopped) > least and len(stopped) * 1000 > LARGE_SHARE_PERMILLE * running


def grows_much(action: Action, act: Act, targets: tuple[Target, ...]) -> bool:
    """True when a pool may become much larger than it is."""
    for target in targets:
        if target.size is not None and action.more is not None:
            more, have = action.more(act, target.size), nodes_of(target.size)
            if more > MANY and have + more > LARGE_GROWTH * have:
                return True
    return False


# -- work that is stopped ---------------------------------------------------------------------------------------------


def loses_work(action: Action, target: Target) -> bool:
    """Whether the action can lose work done by this workload: a target, or one of those it stops besides."""
    if "discards" in action.impact:
        return target.state in BOUND or target.worked_ms > 0
    if target.state not in BOUND:
        return False
    # What gets another priority is a target, and goes on; what has to give way to it was read for itself.
    return "stops_targets" in action.impact or (action.stops_others and not target.was)


def loss_ms(action: Action, target: Target) -> int:
    """Run time lost if it happened now: all of it where that is discarded, else what no checkpoint has saved."""
    return target.worked_ms if "discards" in action.impact else target.unsaved_ms


def lost_by(stopped: Iterable[tuple[Action, Target]]) -> str:
    """Work lost when these actions stop these workloads: device hours, or core hours where none has devices."""
    pairs = list(stopped)
    gpu = sum(work.gpu_milli * loss_ms(action, work) for action, work in pairs)
    if gpu:
        return f"{gpu / 3_600_000_000:,.1f} GPU-h"
    return f"{sum(work.cpu_milli * loss_ms(action, work) for action, work in pairs) / 3_600_000_000:,.1f} CPU-h"


def lost(action: Action, stopped: Iterable[Target]) -> str:
    """As `lost_by`, where one action stops them all."""
    return lost_by((action, work) for work in stopped)
