"""The watch over a cell's history: findings about what is out of the ordinary. It reads telemetry and keeps one small
detector for each series, fed with each step once, when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from engine.model.quantities import lasting, whole
from recommender.findings.anomalies import (
    CHANCE,
    DAY_MS,
    HOUR_MS,
    WEEK_MS,
    Alarm,
    Counts,
    Detector,
    DetectorSettings,
    RareEvent,
    chance_of_share,
)
from recommender.findings.suggestions import Evidence, ModelSkill, Suggestion

STEP_MS = 15 * 60_000
LOOKBACK_MS = 14 * DAY_MS
"""How far back a detector begins that is new; telemetry tells quarters of an hour for so long."""
SHOWN_MS = 6 * HOUR_MS
"""A finding stands for so long after it was last seen."""
AT_ONCE = 4_000
"""Steps read in one look, a few tenths of a second; the rest is read in the next."""
MAX_LEVELS, MAX_COUNTS, MAX_LOOKED = 300, 1_000, 300
"""Levels and counts that are watched, and queues or nodes whose last hours are read at each look; the cell's own and
those of queues come first."""
SHORT_MS = 7 * DAY_MS
"""Less history than this makes a finding thin: the week's rhythm is not known."""
THROTTLED, FREE = 0.5, 0.1
"""Share of GPUs held down over the last hour that is a finding, where the day before had less than FREE."""

LEVELS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "wait_p95_s": (("queue",), True),
    "cost_rate": (("cell", "tenant", "queue"), True),
    "used_gpu": (("cell",), False),
}
"""Metric -> of what it is watched, and whether above the usual is a finding, or below it."""
RARE = ("ecc_errors", "xid_errors")
"""Counts of nodes."""
OFS = ("cell", "queue", "tenant", "node")
SETTINGS = DetectorSettings(memory_ms=LOOKBACK_MS)

Key = tuple[str, str, str]
"""Metric, of, subject."""


class TelemetryReader(Protocol):
    """The part of `recommender.history.telemetry.Telemetry` that is read."""

    def series(self, metric: str, of: str, subject: str, since_ms: int, until_ms: int, step_ms: int) -> Any: ...
    def keys(self, metric: str = "", of: str = "") -> list[Any]: ...


class UnusualLevel(NamedTuple):
    """A level that is out of the ordinary at present."""

    key: Key
    alarm: Alarm
    past_ms: int
    alarms: int
    """On this series so far, this one included."""


class WatchedSeries(msgspec.Struct):
    """A series, and up to when it has been read."""

    detector: Detector | Counts
    first_ms: int
    read_ms: int
    found: RareEvent | None = None
    """What a count last showed."""


class HistoryWatch:
    """May be used by one thread at a time."""

    def __init__(self) -> None:
        self._watched: dict[Key, WatchedSeries] = {}

    def look(self, history: TelemetryReader, now_ms: int) -> tuple[list[Suggestion], list[str]]:
        """Return findings on what is out of the ordinary now, and what could not be judged. Reads what is new since the
        last look."""
        until_ms = now_ms // STEP_MS * STEP_MS
        keys, left_out = watched_keys(history)
        for gone in set(self._watched).difference(keys):
            del self._watched[gone]
        behind = self._read(history, keys, until_ms)
        unusual: list[UnusualLevel] = []
        errors: list[tuple[Key, RareEvent]] = []
        for key, watched in sorted(self._watched.items()):
            detector = watched.detector
            if isinstance(detector, Counts):
                if watched.found is not None and now_ms - watched.found.at_ms <= SHOWN_MS:
                    errors.append((key, watched.found))
            elif detector.open is not None and now_ms - (detector.off_ms or 0) <= SHOWN_MS:
                above = LEVELS[key[0]][1]
                if detector.open.above == above:
                    unusual.append(
                        UnusualLevel(key, detector.open, watched.read_ms - watched.first_ms, detector.alarms)
                    )
        found = [
            *(unusual_level(each) for each in unusual),
            *failing_queues(history, until_ms),
            *(node_errors(*each) for each in errors),
            *throttled_nodes(history, until_ms),
        ]
        unknown = [f"the history of {behind:,} series is still being read"] if behind else []
        return found, unknown + ([f"{left_out:,} series are not watched: too many"] if left_out else [])

    def _read(self, history: TelemetryReader, keys: Sequence[Key], until_ms: int) -> int:
        """Feed the detectors. Returns how many series are not up to date yet."""
        left, behind = AT_ONCE, 0
        for key in keys:
            watched = self._watched.get(key)
            since_ms = watched.read_ms if watched else until_ms - LOOKBACK_MS
            if since_ms >= until_ms:
                continue
            if left <= 0:
                behind += 1
                continue
            points = history.series(*key, since_ms, until_ms, STEP_MS)
            rare = key[0] in RARE
            known = points.count > 0
            at, values = points.at_ms[known].tolist(), (points.total if rare else points.mean)[known].tolist()
            if watched is None:
                if not at:
                    continue
                watched = WatchedSeries(Counts() if rare else Detector(STEP_MS, SETTINGS), at[0], at[0])
                self._watched[key] = watched
            for at_ms, value in zip(at, values, strict=True):
                if isinstance(watched.detector, Counts):
                    watched.found = watched.detector.push(at_ms, value) or watched.found
                else:
                    watched.detector.push(at_ms, value)
            watched.read_ms = until_ms
            left -= len(at)
        return behind


def watched_keys(history: TelemetryReader) -> tuple[list[Key], int]:
    """Return the series to watch, and the number of further ones that are left out. Series whose source is silent are
    left out."""
    levels, counts = (
        [
            (key.metric, key.of, key.subject)
            for of in OFS
            for metric in metrics
            if of in ofs_of(metric)
            for key in history.keys(metric, of)
            if not key.stale
        ]
        for metrics in (tuple(LEVELS), RARE)
    )
    left_out = max(len(levels) - MAX_LEVELS, 0) + max(len(counts) - MAX_COUNTS, 0)
    return [*levels[:MAX_LEVELS], *counts[:MAX_COUNTS]], left_out


def ofs_of(metric: str) -> tuple[str, ...]:
    return LEVELS[metric][0] if metric in LEVELS else ("node",)


# -- levels -----------------------------------------------------------------------------------------------------------


def unusual_level(unusual: UnusualLevel) -> Suggestion:
    """A wait, a bill or a use that is far from what it usually is."""
    (metric, of, subject), alarm = unusual.key, unusual.alarm
    whose = "the cell" if of == "cell" else f"{of} {subject}"
    what, look, nothing = WORDS[metric]
    value, usual = shown(metric, alarm.value), shown(metric, max(alarm.expected, 0.0))
    bar = alarm.expected + (alarm.bar if alarm.above else -alarm.bar)
    limit = shown(metric, max(bar, 0.0))
    which = "at most" if alarm.above else "at least"
    weeks = unusual.past_ms / WEEK_MS
    return Suggestion(
        kind=f"unusual_{metric}",
        about=f"{of}:{subject}",
        finding=f"{what} of {whose} is unusual: {value}, usually {usual}",
        action="notify",
        targets=(subject,) if subject else (),
        evidence=(
            Evidence(
                metric=f"{metric} of {whose}",
                window=f"{lasting(alarm.points * STEP_MS)} at first sight",
                rows=alarm.rows,
                value=value,
                baseline=f"{usual} is usual at this time, {limit} {which}",
            ),
        ),
        counterfactual=f"Not suggested if it had been {limit} {which}",
        alternatives=(look.format(subject=subject), nothing),
        thin=short(unusual.past_ms),
        severity=alarm.severity,
        skill=ModelSkill(
            model="alarms on unusual values",
            measure="alarms on this series so far",
            value=f"{unusual.alarms} in {weeks:.1f} weeks",
            scored=alarm.rows,
        ),
    )


WORDS = {
    "wait_p95_s": (
        "the wait (p95)",
        "See why it waits: muster get workloads -f 'state:queued queue:{subject}'",
        "No action: if it stays, it becomes the new normal within days",
    ),
    "cost_rate": (
        "the bill",
        "See who is charged: muster budget showback --by team",
        "No action: charges continue at this rate",
    ),
    "used_gpu": (
        "the GPU in use",
        "See what has ended and what waits: muster overview",
        "No action: idle capacity still costs money",
    ),
}
"""Metric -> what it is, where to look, and what doing nothing means."""


def shown(metric: str, value: float) -> str:
    if metric == "wait_p95_s":
        return lasting(round(value * 1000))
    if metric == "cost_rate":
        return f"{value / 1e6:,.2f} USD/h"
    return f"{whole(round(value))} GPU"


def short(past_ms: int) -> tuple[str, ...]:
    if past_ms >= SHORT_MS:
        return ()
    return (f"only {lasting(past_ms)} of history: weekly pattern not known",)


# -- failures ---------------------------------------------------------------------------------------------------------


def failing_queues(history: TelemetryReader, until_ms: int) -> list[Suggestion]:
    """Queues in which a larger share of the ended work failed over the last day than before."""
    found = []
    for key in history.keys("failed", "queue")[:MAX_LOOKED]:
        failed, finished = (
            history.series(metric, "queue", key.subject, until_ms - LOOKBACK_MS, until_ms, HOUR_MS)
            for metric in ("failed", "finished")
        )
        recent = failed.at_ms >= until_ms - DAY_MS
        bad, bad_before = total(failed, recent), total(failed, ~recent)
        ended, ended_before = bad + total(finished, recent), bad_before + total(finished, ~recent)
        known = failed.at_ms[failed.count > 0]
        if len(known):
            past_ms = until_ms - int(known[0])
            found += failing_queue(key.subject, (bad, ended), (bad_before, ended_before), past_ms)
    return found


def total(points: Any, which: Any) -> int:
    return round(float(points.total[which & (points.count > 0)].sum()))


def failing_queue(queue: str, recent: tuple[int, int], before: tuple[int, int], past_ms: int) -> list[Suggestion]:
    """`recent` and `before`: how many failed, of how many that ended. Nothing while it could well be chance, or where
    the share has not doubled."""
    chance = chance_of_share(*recent, *before)
    if chance >= CHANCE or recent[0] * before[1] < 2 * before[0] * recent[1]:
        return []
    now, usual = (f"{100 * failed / ended:.1f} %" for failed, ended in (recent, before))
    return [
        Suggestion(
            kind="failing_queue",
            about=queue,
            finding=f"{now} of the work ended in queue {queue} in the last day failed, {usual} before",
            action="notify",
            targets=(queue,),
            evidence=(
                Evidence(
                    metric=f"share failed in queue {queue}",
                    window="last 24 h",
                    rows=recent[1],
                    value=now,
                    baseline=f"{usual} of {before[1]:,} before; chance 1 in {1 / max(chance, 1e-12):,.0f}",
                ),
            ),
            counterfactual="Not suggested if fewer than twice the usual share had failed, or if it could be chance",
            alternatives=(
                f"See what they have in common: muster get workloads -f 'state:failed queue:{queue}'",
                "No action: they are retried as often as their owners allowed",
            ),
            thin=short(past_ms),
            severity=100 * recent[0] / recent[1],
        )
    ]


# -- devices ----------------------------------------------------------------------------------------------------------


def node_errors(key: Key, errors: RareEvent) -> Suggestion:
    """A node whose devices report more errors than they usually do."""
    metric, _, node = key
    what = {"ecc_errors": "uncorrectable memory errors", "xid_errors": "driver errors (XID)"}[metric]
    few = (f"{errors.count:g} in a day is a small sample",) if errors.count < 3 else ()
    return Suggestion(
        kind=f"unusual_{metric}",
        about=node,
        finding=f"drain node {node}: {errors.count:g} {what} within a day, usually {errors.usual:.2g}",
        action="drain",
        targets=(node,),
        evidence=(
            Evidence(
                metric=f"{metric} of node {node}",
                window="last 24 h",
                rows=round(errors.past_ms / STEP_MS),
                value=f"{errors.count:g}",
                baseline=f"{errors.usual:.2g} a day; chance 1 in {1 / max(errors.chance, 1e-12):,.0f}",
            ),
        ),
        counterfactual="Not suggested for a count that the usual rate explains",
        alternatives=(
            "Cordon it: running work continues, at risk",
            "No action: its work may fail and lose its progress since the last checkpoint",
        ),
        thin=(*short(errors.past_ms), *few),
        severity=errors.count,
    )


def throttled_nodes(history: TelemetryReader, until_ms: int) -> list[Suggestion]:
    """Nodes whose GPUs have been held down for the last hour, and were not the day before."""
    found = []
    for key in [key for key in history.keys("throttle", "node") if not key.stale][:MAX_LOOKED]:
        points = history.series("throttle", "node", key.subject, until_ms - DAY_MS - HOUR_MS, until_ms, STEP_MS)
        known = points.count > 0
        recent = known & (points.at_ms >= until_ms - HOUR_MS)
        before = known & ~recent
        if recent.sum() < 3 or before.sum() < 3:
            continue
        now, usual = float(points.mean[recent].mean()), float(points.mean[before].mean())
        if now >= THROTTLED and usual < FREE:
            found.append(throttled(key.subject, now, usual, int(before.sum())))
    return found


def throttled(node: str, now: float, usual: float, rows: int) -> Suggestion:
    return Suggestion(
        kind="throttled_node",
        about=node,
        finding=f"drain node {node}: {100 * now:.0f} % of its GPUs are throttled by heat or power",
        action="drain",
        targets=(node,),
        evidence=(
            Evidence(
                metric=f"throttle of node {node}",
                window="last hour",
                rows=rows,
                value=f"{100 * now:.0f} %",
                baseline=f"{100 * usual:.0f} % over the day before",
            ),
        ),
        counterfactual=f"Not suggested below {100 * THROTTLED:.0f} %, or if it was the same the day before",
        alternatives=(
            "First check cooling and power: neighbours in the rack may be affected",
            "No action: its work runs slowly, and a gang at the speed of its slowest member",
        ),
        thin=("one hour only: it may be temporary",),
        severity=100 * now,
    )
