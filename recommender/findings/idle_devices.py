"""GPUs that are held and do nothing, or little: by their owner, with the pattern of their use, and what they cost.

A GPU is idle while under IDLE_PERMILLE of its multiprocessors work, or, where that is not measured, while a kernel runs
under so much of the time. Work is judged once all of its GPUs have been idle for half an hour, and it has had them for
as long: shorter gaps are starts, checkpoints and evaluation. Without figures nothing is called idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.model.quantities import counted, lasting, usd
from recommender.findings.suggestions import MAX_TARGETS, Action, Benefit, Evidence, Expected, Suggestion
from recommender.history.gpu_use import SLOT_MS, SLOTS, GpuUse, HeldDevices, Holdings
from recommender.history.metrics import IDLE_GPU_PERCENT

HOUR_MS = 3_600_000
IDLE_SLOTS = 6
"""Half an hour."""
SOME_IDLE_SLOTS = 12
"""So long some of the GPUs of work must be idle beside others that are not: stages of a pipeline take turns."""
LOW = 35.0
"""Per cent of use below which a GPU that is fed slowly is found."""
STEADY = 0.6
"""Deviation over mean of the slots up to which low use is regular."""
FED_CPU, FED_IO = 60.0, 10.0
"""Per cent of CPU time of a node in use, or waiting for disks, from which its GPUs may be waiting for data."""
STAGING_CPU, STAGING_IO, STAGING_MS = 20.0, 5.0, 2 * HOUR_MS
"""Work that has not used its GPUs yet may be bringing its data while its nodes are as busy, for so long."""
STEADY_BUSY = 0.8
"""Share of busy slots in the two hours before it fell idle from which work did not pause by itself."""
BEFORE_SLOTS = 24
AT_REST = 0.4
"""Share of the power drawn while busy below which a GPU is at rest."""
SPINNING = 95.0
"""Use that kernels show which wait for each other."""
SERVICE_MS = 6 * HOUR_MS
"""A service may be without requests for so long."""
REQUEUE_MS = HOUR_MS
"""Work that has hung for so long is suggested for a new start."""
ANEW_H = 3
"""Hours that GPUs that become free are worth to work that waits."""
DAY_H = 24
MAX_LOOKED = 2_000
"""Pieces of work looked at closely, those with the most GPUs."""
MAX_NODES = 4
"""Nodes of one whose load is read."""
SHORT_MS = 2 * HOUR_MS

Load = Callable[[str, str, int, int], "float | None"]
"""The mean of (metric, node, since, until)."""


class IdleDevices(NamedTuple):
    suggestions: tuple[Suggestion, ...]
    unknown: tuple[str, ...]


class DevicesNow(NamedTuple):
    """The GPUs that work holds, and how each did lately."""

    rows: Any
    """[device] Row of the use."""
    work: Any
    """[device] Index of its holder."""
    known: Any
    """[device] Whether the last half hour is known, and was its holder's."""
    idle: Any
    """[device] Whether it was idle all of that time."""
    idle_long: Any
    """[device] The same of SOME_IDLE_SLOTS."""
    mean: Any
    """[device] Use over SOME_IDLE_SLOTS, nan where that is not known."""
    spins: Any
    """[device] Whether kernels run without pause, at the power of a GPU at rest."""


class WorkUse(NamedTuple):
    """One piece of work, slot by slot since it has its GPUs, oldest first; [slot] unless said otherwise."""

    work: HeldDevices
    nodes: tuple[str, ...]
    use: Any
    """Mean over its GPUs, nan where none is known."""
    idle: Any
    """Whether all of them that are known are."""
    idle_gpus: Any
    """How many."""
    power_w: Any
    """Mean of a GPU."""
    memory_mib: Any
    by_sm: bool
    """Whether multiprocessors are measured."""
    xid: int
    """The driver error that one of them has shown since; 0 for none."""
    devices: int
    """GPUs whose use is known."""
    spins: bool
    """Whether all of them run kernels without pause, at the power of a GPU at rest."""

    @property
    def idle_slots(self) -> int:
        """So many of the last slots it has been idle without a break; one slot that is not known breaks nothing."""
        gap = np.zeros(len(self.idle), bool)
        gap[1:-1] = ~np.isfinite(self.use[1:-1]) & self.idle[:-2] & self.idle[2:]
        other = np.flatnonzero(~(self.idle | gap))
        return len(self.idle) - (int(other[-1]) + 1 if len(other) else 0)


class IdleWork(NamedTuple):
    """Work whose GPUs are idle or starved, and what was seen of it."""

    seen: WorkUse
    pattern: str
    gpus: float
    """GPUs that do nothing."""
    lost_gpu_h: float
    """GPU-hours of the window that were of no use."""
    evidence: tuple[Evidence, ...]


def idle_devices(use: GpuUse, held: Holdings, load: Load, waiting_gpu_milli: int) -> IdleDevices:
    """All findings as of the last complete slot. `waiting_gpu_milli`: asked for by work that waits."""
    with use.reading():
        now = devices_now(use, held)
        chosen, left_out = candidates(now, held)
        seen = [work_use(use, held.work[at], now, now.work == at) for at in chosen]
        unknown = not_judged(now, held, left_out)
        last_ms, followed_ms = use.last_ms(), use.last_ms() - use.since_ms
    idle = idle_now(use, held)
    found = [each for work in seen if (each := judged(work, load, last_ms)) is not None]
    by_owner: dict[tuple[str, str], list[IdleWork]] = defaultdict(list)
    for each in found:
        by_owner[each.seen.work.tenant, each.pattern].append(each)
    told = [
        suggestion(owner, pattern, them, waiting_gpu_milli, idle.get(owner, 0), followed_ms)
        for (owner, pattern), them in sorted(by_owner.items())
    ]
    return IdleDevices(tuple(told), unknown)


def idle_now(use: GpuUse, held: Holdings) -> dict[str, int]:
    """Milli-GPU that have been idle for half an hour while held, by tenant."""
    with use.reading():
        now = devices_now(use, held)
    found: dict[str, int] = defaultdict(int)
    for at, count in zip(*np.unique(now.work[now.idle], return_counts=True), strict=True):
        found[held.work[at].tenant] += 1000 * int(count)
    return found


def devices_now(use: GpuUse, held: Holdings) -> DevicesNow:
    place = {work.id: n for n, work in enumerate(held.work)}
    mine = [
        (row, place[device.holder], device.since_ms)
        for row, device in enumerate(use.devices)
        if device.holder in place and not device.shared
    ]
    rows, work, since = np.array(mine, np.int64).reshape(-1, 3).T
    active, util = activity(use, rows, SOME_IDLE_SLOTS)
    begin = use.last_ms() - SLOT_MS * np.arange(SOME_IDLE_SLOTS, 0, -1)
    seen = np.isfinite(active) & (begin[None, :] + SLOT_MS > since[:, None])
    low = seen & (active < IDLE_GPU_PERCENT)
    count, last = seen.sum(axis=1), seen[:, -IDLE_SLOTS:].sum(axis=1)
    known = (last >= IDLE_SLOTS - 1) & (since <= begin[-IDLE_SLOTS])
    idle = known & (low[:, -IDLE_SLOTS:].sum(axis=1) == last)
    long = (count >= SOME_IDLE_SLOTS - 2) & (since <= begin[0])
    mean = np.where(long, np.where(seen, active, 0).sum(axis=1) / np.maximum(count, 1), np.nan)
    return DevicesNow(
        rows, work, known, idle, long & (low.sum(axis=1) == count), mean, known & spinning(use, rows, util)
    )


def activity(use: GpuUse, rows: Any, slots: int) -> tuple[Any, Any]:
    """[device, slot] Share of multiprocessors with work, or of time with a kernel where that is not measured; and the
    latter."""
    sm, util = (use.window(rows, name, slots) for name in ("gpu_sm_active", "gpu_util"))
    return np.where(np.isfinite(sm), sm, util), util


def spinning(use: GpuUse, rows: Any, util: Any) -> Any:
    """[device] A kernel that waits for others in a loop shows full use at little power."""
    power = use.window(rows, "gpu_power_w", 4 * SOME_IDLE_SLOTS)
    most = np.where(np.isfinite(power), power, 0).max(axis=1, initial=0)
    last = np.where(np.isfinite(power[:, -IDLE_SLOTS:]), power[:, -IDLE_SLOTS:], np.inf).max(axis=1, initial=0)
    full = np.where(np.isfinite(util[:, -IDLE_SLOTS:]), util[:, -IDLE_SLOTS:], 0).min(axis=1, initial=100) >= SPINNING
    return full & (last < AT_REST * most)


def candidates(now: DevicesNow, held: Holdings) -> tuple[list[int], int]:
    """Work to look at closely, and how many pieces more there would be."""
    size = len(held.work)

    def count(which: Any) -> Any:
        return np.bincount(now.work[which], minlength=size)

    known, idle, long, spins = (count(which) for which in (now.known, now.idle, now.idle_long, now.spins))
    low = count(now.mean < LOW)
    chosen = np.flatnonzero((known > 0) & ((idle == known) | (long > 0) | (spins == known) | (low == known)))
    order = sorted(chosen.tolist(), key=lambda at: (-held.work[at].gpus, held.work[at].id))
    return order[:MAX_LOOKED], max(len(order) - MAX_LOOKED, 0)


def not_judged(now: DevicesNow, held: Holdings, left_out: int) -> tuple[str, ...]:
    """Held GPUs of which nothing can be said, and why."""
    size = len(held.work)
    told = np.bincount(now.work, minlength=size)
    fresh = np.array([work.started_ms > held.now_ms - IDLE_SLOTS * SLOT_MS for work in held.work], bool)
    judged_of = np.bincount(now.work[now.known], minlength=size)
    lines = []
    dark = [work for at, work in enumerate(held.work) if not judged_of[at] and not fresh[at]]
    for which, why in (
        ([work for work in dark if work.part], "MIG or shared, without figures of its own"),
        ([work for work in dark if not work.part], "no figures of the last half hour, or nobody tells whose they are"),
    ):
        if which:
            gpus = sum(work.gpus for work in which)
            lines.append(f"use of {counted(gpus, 'GPU')} of {counted(len(which), 'workload')} is not known: {why}")
    partly = sum(
        work.gpus - int(told[at]) for at, work in enumerate(held.work) if 0 < told[at] < work.gpus and not work.part
    )
    if partly:
        lines.append(f"use of {counted(partly, 'GPU')} is not known: the others of their workloads are measured")
    if left_out:
        lines.append(f"{left_out:,} more workloads with idle GPUs were not looked at")
    return tuple(lines)


def work_use(use: GpuUse, work: HeldDevices, now: DevicesNow, own: Any) -> WorkUse:
    """`own`: which of the devices it has."""
    rows = now.rows[own]
    devices = [use.devices[row] for row in rows.tolist()]
    since_ms = np.array([device.since_ms for device in devices])
    begin_ms = max(int(since_ms.min()), use.since_ms)
    slots = int(min(max(-(-(use.last_ms() - begin_ms) // SLOT_MS), 1), SLOTS - 1))
    active, _ = activity(use, rows, slots)
    ends = use.last_ms() - SLOT_MS * np.arange(slots - 1, -1, -1)
    active = np.where(ends[None, :] > since_ms[:, None], active, np.nan)
    known = np.isfinite(active)
    idle = known & (active < IDLE_GPU_PERCENT)
    return WorkUse(
        work,
        tuple(dict.fromkeys(device.node for device in devices)),
        _mean(active),
        (idle.sum(axis=0) == known.sum(axis=0)) & known.any(axis=0),
        idle.sum(axis=0),
        _mean(use.window(rows, "gpu_power_w", slots)),
        _mean(use.window(rows, "gpu_memory_used_mib", slots)),
        bool(np.isfinite(use.window(rows, "gpu_sm_active", 1)).any()),
        max(device.xid if device.xid_ms > device.since_ms else 0 for device in devices),
        int(known.any(axis=1).sum()),
        bool(now.spins[own].all()),
    )


def _mean(values: Any) -> Any:
    """[slot] Over devices; nan where none is known."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0).sum(axis=0) / np.maximum(count, 1), np.nan)


# -- patterns ---------------------------------------------------------------------------------------------------------


def judged(seen: WorkUse, load: Load, now_ms: int) -> IdleWork | None:
    """The pattern of what it does with its GPUs; None where that is fine."""
    idle_ms = seen.idle_slots * SLOT_MS
    if seen.work.service and idle_ms < SERVICE_MS:
        return None
    if seen.idle_slots >= IDLE_SLOTS:
        return idle_work(seen, load, now_ms)
    if seen.spins:
        lost = seen.devices * IDLE_SLOTS * SLOT_MS / HOUR_MS
        return IdleWork(seen, "hang", seen.devices, lost, _hung(seen, IDLE_SLOTS))
    return some_idle(seen) or starved(seen, load, now_ms)


def idle_work(seen: WorkUse, load: Load, now_ms: int) -> IdleWork | None:
    """All of it is idle: since it began, since it fell at once, or again and again."""
    slots = seen.idle_slots
    busy = np.isfinite(seen.use) & ~seen.idle
    if not busy.any():
        if now_ms - seen.work.started_ms < STAGING_MS and stages(seen, load, now_ms):
            return None
        return IdleWork(seen, "unused", seen.devices, _lost(seen), (_used(seen, slots), *_rest(seen, slots)))
    before = busy[: len(busy) - slots][-BEFORE_SLOTS:]
    steady = before.mean() >= STEADY_BUSY and len(before) >= IDLE_SLOTS
    paused = pauses(seen.idle[: len(busy) - slots])
    if steady and not paused and at_rest(seen, slots):
        return IdleWork(seen, "hang", seen.devices, _lost(seen), _hung(seen, slots))
    pattern = "interactive" if paused or not steady else "stopped"
    falls = int((busy[:-1] & ~busy[1:] & np.isfinite(seen.use[1:])).sum())
    share = Evidence(
        metric="time idle since it has its GPUs",
        window=lasting(len(busy) * SLOT_MS),
        rows=seen.devices,
        value=f"{100 * seen.idle.sum() / max(np.isfinite(seen.use).sum(), 1):.0f} %",
        baseline=f"{counted(falls, 'burst')} of use",
    )
    return IdleWork(seen, pattern, seen.devices, _lost(seen), (_used(seen, slots), share, *_rest(seen, slots)))


def stages(seen: WorkUse, load: Load, now_ms: int) -> bool:
    """Return whether its nodes are as busy as where data are brought."""
    since_ms = now_ms - IDLE_SLOTS * SLOT_MS
    return any(
        (load(metric, node, since_ms, now_ms) or 0.0) >= least
        for node in seen.nodes[:MAX_NODES]
        for metric, least in (("node_cpu_util", STAGING_CPU), ("node_iowait", STAGING_IO))
    )


def pauses(idle: Any) -> int:
    """So often was it idle for half an hour."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], idle, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2] >= IDLE_SLOTS).sum())


def at_rest(seen: WorkUse, slots: int) -> bool:
    """Return whether it draws little power, where that is measured, and still has its memory: its processes are there
    and do nothing."""
    power, memory = (
        (float(np.nanmean(now)), float(np.nanmean(before))) if _any(now) and _any(before) else None
        for now, before in (
            (column[-slots:], column[:-slots][-BEFORE_SLOTS:]) for column in (seen.power_w, seen.memory_mib)
        )
    )
    if power is None and memory is None:
        return False
    return (power is None or power[0] <= AT_REST * power[1]) and (memory is None or memory[0] >= memory[1] / 2)


def some_idle(seen: WorkUse) -> IdleWork | None:
    """Some of its GPUs have been idle for an hour beside others that are not."""
    last = seen.idle_gpus[-SOME_IDLE_SLOTS:]
    if len(last) < SOME_IDLE_SLOTS or seen.devices < seen.work.gpus or not last.min():
        return None
    idle = int(last.min())
    fact = Evidence(
        metric="GPUs idle beside others of the same workload",
        window=f"last {lasting(SOME_IDLE_SLOTS * SLOT_MS)}",
        rows=seen.devices,
        value=f"{idle} of {seen.devices}",
        baseline=f"{seen.devices - idle} in use",
    )
    return IdleWork(seen, "shape", idle, _lost(seen), (fact, *_rest(seen, SOME_IDLE_SLOTS)[:1]))


def starved(seen: WorkUse, load: Load, now_ms: int) -> IdleWork | None:
    """Regular low use while its nodes are busy with CPU or disks: it waits for data."""
    last = seen.use[-SOME_IDLE_SLOTS:]
    if len(last) < SOME_IDLE_SLOTS or not np.isfinite(last).all():
        return None
    mean = float(last.mean())
    if not IDLE_GPU_PERCENT <= mean < LOW or last.std() > STEADY * mean:
        return None
    since_ms = now_ms - SOME_IDLE_SLOTS * SLOT_MS
    for metric, what, least in (("node_iowait", "waiting for disks", FED_IO), ("node_cpu_util", "in use", FED_CPU)):
        told = [value for node in seen.nodes[:MAX_NODES] if (value := load(metric, node, since_ms, now_ms)) is not None]
        if told and sum(told) / len(told) >= least:
            host = Evidence(
                metric=f"CPU time of its nodes {what}",
                window=f"last {lasting(SOME_IDLE_SLOTS * SLOT_MS)}",
                rows=len(told),
                value=f"{sum(told) / len(told):.0f} %",
                baseline=f"{least:.0f} % or more: GPUs may wait for data",
            )
            lost = (1 - mean / 100) * seen.work.gpus
            own = _used(seen, SOME_IDLE_SLOTS)
            return IdleWork(seen, "data stall", lost, lost * SOME_IDLE_SLOTS * SLOT_MS / HOUR_MS, (own, host))
    return None


# -- what was seen ----------------------------------------------------------------------------------------------------


def _any(values: Any) -> bool:
    return bool(np.isfinite(values).any())


def _lost(seen: WorkUse) -> float:
    """GPU-hours idle in the window."""
    return float(seen.idle_gpus.sum()) * SLOT_MS / HOUR_MS


def _used(seen: WorkUse, slots: int) -> Evidence:
    before = seen.use[:-slots][-BEFORE_SLOTS:]
    return Evidence(
        metric="multiprocessors active" if seen.by_sm else "GPU utilisation",
        window=f"last {lasting(slots * SLOT_MS)}",
        rows=seen.devices,
        value=f"{np.nanmean(seen.use[-slots:]):.1f} %" if _any(seen.use[-slots:]) else "not known",
        baseline=f"{np.nanmean(before):.0f} % over {lasting(len(before) * SLOT_MS)} before" if _any(before) else "",
    )


def _rest(seen: WorkUse, slots: int) -> tuple[Evidence, ...]:
    """Power and memory of its GPUs."""
    found = []
    for column, metric, unit in (
        (seen.power_w, "power of a GPU", "W"),
        (seen.memory_mib, "memory of a GPU in use", "MiB"),
    ):
        last, before = column[-slots:], column[:-slots][-BEFORE_SLOTS:]
        if _any(last):
            found.append(
                Evidence(
                    metric=metric,
                    window=f"last {lasting(slots * SLOT_MS)}",
                    rows=seen.devices,
                    value=f"{np.nanmean(last):,.0f} {unit}",
                    baseline=f"{np.nanmean(before):,.0f} {unit} before" if _any(before) else "",
                )
            )
    return tuple(found)


def _hung(seen: WorkUse, slots: int) -> tuple[Evidence, ...]:
    facts = (_used(seen, slots), *_rest(seen, slots))
    if not seen.xid:
        return facts
    return (
        *facts,
        Evidence(metric="last driver error (XID)", window="since it has its GPUs", rows=1, value=str(seen.xid)),
    )


# -- suggestions ------------------------------------------------------------------------------------------------------


class PatternWords(NamedTuple):
    kind: str
    found: str
    """What is said of so many GPUs."""
    unless: str
    alternatives: tuple[str, ...]


WORDS = {
    "hang": PatternWords(
        "hung_devices",
        "stopped working at once and have stayed so: it may hang",
        "Not suggested if they had worked in the last half hour, or had paused before",
        ("Ask the owner first: a debugger shows where it waits, and is lost with a new start",),
    ),
    "interactive": PatternWords(
        "idle_devices",
        "are used in bursts and idle between them, as in an interactive session",
        "Not suggested if they had worked in the last half hour",
        (
            "Suspend what nobody uses: muster workload suspend ID",
            "Offer a share of a GPU for interactive work: --gpus 0.25, or a MIG profile",
        ),
    ),
    "stopped": PatternWords(
        "idle_devices",
        "have stopped working and are still held",
        "Not suggested if they had worked in the last half hour",
        ("Cancel it if its work is done: muster cancel ID",),
    ),
    "unused": PatternWords(
        "idle_devices",
        "have done nothing since they were given out",
        "Not suggested if one had worked, or while its nodes look as if they bring its data",
        ("Cancel it, or ask for no GPU: muster cancel ID",),
    ),
    "shape": PatternWords(
        "underused_shape",
        "are idle beside others of the same workloads",
        "Not suggested if each had worked in the last hour",
        ("Ask for fewer GPUs next time: the rest of the shape is free for others then",),
    ),
    "data stall": PatternWords(
        "starved_devices",
        "work little and regularly while their nodes are busy: they may wait for data",
        f"Not suggested above {LOW:.0f} % of use, or if their nodes had CPU to spare",
        (
            "More CPUs for its loaders, or its data on local disks",
            "Fewer GPUs: it is not them that it waits for",
        ),
    ),
}
"""Pattern -> what is said of it."""


def suggestion(
    owner: str, pattern: str, them: Sequence[IdleWork], waiting_milli: int, idle_milli: int, followed_ms: int
) -> Suggestion:
    """One for each owner and pattern; the work that loses most first."""
    words = WORDS[pattern]
    them = sorted(them, key=lambda each: (-each.lost_gpu_h, each.seen.work.id))
    gpus, hours = sum(each.gpus for each in them), sum(each.lost_gpu_h for each in them)
    rate = sum(round(each.gpus * each.seen.work.price_microusd_gpu_hour) for each in them)
    spent = sum(round(each.lost_gpu_h * each.seen.work.price_microusd_gpu_hour) for each in them)
    least_ms = min(each.seen.idle_slots for each in them) * SLOT_MS
    hangs = pattern == "hang" and least_ms >= REQUEUE_MS
    # On one node, without an error, it might be a person who has gone for a walk.
    action: Action = (
        "requeue" if hangs and all(len(each.seen.nodes) > 1 or each.seen.xid for each in them) else "notify"
    )
    milli = round(gpus * 1000)
    name = f"tenant {owner}" if owner else "nobody's tenant"
    ids = tuple(each.seen.work.id for each in them[:MAX_TARGETS])
    about = f" of {ids[0]}" if len(them) == 1 else f" in {counted(len(them), 'workload')}"
    lost = Evidence(
        metric="GPU-hours without use",
        window="last day, while held",
        rows=len(them),
        value=f"{hours:,.1f}",
        baseline=f"{usd(spent)} at the price of their pools" if spent else "",
    )
    return Suggestion(
        kind=words.kind,
        about=f"{owner}:{pattern}",
        finding=f"{_gpus(gpus)} held by {name}{about} {words.found}",
        action=action,
        targets=ids,
        evidence=(*them[0].evidence, lost),
        counterfactual=words.unless,
        alternatives=(*words.alternatives, f"No action: {_gpus(gpus)} stay held{_costs(rate)}"),
        thin=_thin(them, followed_ms),
        severity=gpus,
        benefit=Benefit(
            waiting_gpu_milli_h=min(milli, waiting_milli) * ANEW_H,
            at_risk_gpu_milli_h=0 if rate else milli * DAY_H,
        ),
        cost_delta_microusd_hour=-rate if rate else None,
        expected=_promise(owner, idle_milli, milli),
    )


def _gpus(count: float) -> str:
    return counted(round(count), "GPU") if count >= 1 else f"{count:.1f} GPU"


def _costs(rate: int) -> str:
    return f", {usd(rate)} an hour" if rate else ""


def _promise(owner: str, idle_milli: int, milli: int) -> Expected | None:
    """That of what is idle of its owner so much goes. Nothing of GPUs that are only little used."""
    if not owner or idle_milli < milli:
        return None
    to = float(idle_milli - milli)
    return Expected(metric="idle_gpu", of="tenant", subject=owner, was=float(idle_milli), to=to, within_ms=6 * HOUR_MS)


def _thin(them: Sequence[IdleWork], followed_ms: int) -> tuple[str, ...]:
    found = []
    if followed_ms < SHORT_MS:
        found.append(f"only {lasting(followed_ms)} of GPU use is known")
    dark = sum(each.seen.work.gpus - each.seen.devices for each in them)
    if dark > 0:
        found.append(f"use of {counted(dark, 'GPU')} of theirs is not known")
    if not all(each.seen.by_sm for each in them) and any(each.pattern == "hang" for each in them):
        found.append("multiprocessor activity is not measured (DCGM_FI_PROF_SM_ACTIVE)")
    return tuple(found)
