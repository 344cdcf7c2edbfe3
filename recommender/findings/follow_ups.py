"""What was promised against what happened: of suggestions that were acted on, and of those that were left alone.

A promise is a metric that shall move from one value to another by a time. When that time has come, the metric is read
over the last quarter of it. Where the same metric of others, for whom nothing was done, moved as far, the action is
not credited with it. Suggestions that nobody acted on are read in the same way: they tell what happens by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from recommender.findings.queries import Followed, Track, Verdict
from recommender.findings.suggestions import Expected, PromiseRecord
from recommender.history.metrics import METRICS

KEPT, PARTLY = 0.9, 0.5
"""Shares of the way promised that count as held, and as partly held."""
Z95 = 1.959964

_MILLI = 1000.0

Read = Callable[[str, str, str, int, int], float | None]
"""Mean of (metric, of, subject) from one time up to another, in milliseconds; None when it was not measured."""
Others = Callable[[str, str, str], Sequence[str]]
"""Subjects of (metric, of) other than the one given."""


def looked_up(followed: Followed, read: Read, others: Others) -> Verdict:
    """The verdict on a promise that is due."""
    expected = followed.expected
    quarter = expected.within_ms // 4
    seen = read(expected.metric, expected.of, expected.subject, followed.due_ms - quarter, followed.due_ms)
    moves = []
    for other in others(expected.metric, expected.of, expected.subject):
        before = read(expected.metric, expected.of, other, followed.at_ms - quarter, followed.at_ms)
        after = read(expected.metric, expected.of, other, followed.due_ms - quarter, followed.due_ms)
        if before is not None and after is not None:
            moves.append(after - before)
    return judged(expected, seen, _median(moves))


def judged(expected: Expected, seen: float | None, others: float | None = None) -> Verdict:
    """Held when nine tenths of the way were gone. When without what the others moved it would be less than half of it,
    nobody can tell: the difference in differences, with the median of the others as what would have been."""
    if seen is None or not math.isfinite(seen):
        why = f"{expected.metric} of {expected.of} {expected.subject} was not measured"
        return Verdict(outcome="unknown", seen=None, why=why, others=others)
    way = expected.to - expected.was
    if not way or not math.isfinite(way):
        return Verdict(outcome="unknown", seen=seen, why="nothing was promised to change", others=others)
    gone = (seen - expected.was) / way
    was, now, to = (figure(expected.metric, value) for value in (expected.was, seen, expected.to))
    told = f"{expected.metric} went from {was} to {now}; {to} was promised"
    if gone >= PARTLY and others is not None and (seen - others - expected.was) / way < PARTLY:
        why = f"{told}, but it moved by {figure(expected.metric, others)} where nothing was done"
        return Verdict(outcome="unknown", seen=seen, why=why, others=others)
    if gone >= KEPT:
        return Verdict(outcome="held", seen=seen, why=told, others=others)
    return Verdict(outcome="partly" if gone >= PARTLY else "no", seen=seen, why=told, others=others)


def figure(metric: str, value: float) -> str:
    """A value of a metric as people write it: thousandths of GPU and CPU as whole ones."""
    known = METRICS.get(metric)
    scale = _MILLI if known is not None and known.unit == "milli" else 1.0
    return f"{value / scale:,.2f}".rstrip("0").rstrip(".")


def tracks(followed: Iterable[Followed]) -> dict[str, Track]:
    """By kind, over all that were judged."""
    by_kind: dict[str, list[Followed]] = {}
    for each in followed:
        if each.verdict is not None:
            by_kind.setdefault(each.kind, []).append(each)
    return {kind: _track(kind, them) for kind, them in sorted(by_kind.items())}


def _track(kind: str, followed: list[Followed]) -> Track:
    acted = [each.verdict.outcome for each in followed if each.way == "acted" and each.verdict]
    left = [each.verdict for each in followed if each.way == "left" and each.verdict]
    judged_ones = len(acted) - acted.count("unknown")
    low, high = wilson(acted.count("held"), judged_ones)
    return Track(
        kind=kind,
        acted=len(acted),
        held=acted.count("held"),
        partly=acted.count("partly"),
        unknown=acted.count("unknown"),
        held_low_permille=round(low * 1000) if judged_ones else None,
        held_high_permille=round(high * 1000) if judged_ones else None,
        left=sum(verdict.seen is not None for verdict in left),
        resolved=sum(verdict.outcome == "held" for verdict in left),
    )


def record(track: Track) -> PromiseRecord:
    """As ranking counts it: what could not be judged counts neither way."""
    return PromiseRecord(kept=track.held, broken=track.acted - track.unknown - track.held)


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95 % interval of a share by Wilson's score (E. B. Wilson, 1927), which stays within 0 and 1 and is honest for few
    trials; (0, 1) of none."""
    if not of:
        return 0.0, 1.0
    share, square = hits / of, Z95 * Z95
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z95 / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _median(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
