"""Suggestions: a finding with one action and its evidence; their ranking; and their promises held against what
happened.

Nothing here acts. An action is one that the gate knows, with its words in the shell, or `notify`, which asks for a
person's attention only. `Recommendations` are the ranked suggestions with their trials on the twin and the record of
their kinds. Loads nothing heavy: clients decode these types.

A promise is a metric that shall move from one value to another by a time. When that time has come, the metric is read
over the last quarter of it. Where the same metric of others, for whom nothing was done, moved as far, the action is not
credited with it. Suggestions that nobody acted on are read in the same way: they tell what happens by itself.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from engine.model.twin_queries import Figure, Interval
from recommender.findings.kinds import INCIDENTS, Incident, incident_of
from recommender.history.metrics import METRICS

MAX_TARGETS = 100
"""Targets in one suggestion: more than a person can look through helps nobody."""
CPUS_OF_A_GPU = 16
"""So many cores count as one GPU where the benefit of work without GPU is compared."""
GPU_HOUR_MICROUSD = 2_000_000
"""What a GPU-hour counts for beside money where the cell's own prices do not tell."""
THIN_PERMILLE = 500
"""What a benefit counts for whose evidence is thin."""

Action = Literal[
    "notify",
    "cancel", "hold", "release", "requeue", "suspend", "resume", "cordon", "uncordon", "drain", "hold_queue",
    "drain_queue", "open_queue", "set_quota", "reserve", "unreserve", "set_policy", "consolidate", "interrupt",
    "resize",
    "set_price", "set_budget", "remove_budget", "approve_spending",
    "set_scaling", "set_targets", "set_autoscaling",
]  # fmt: skip
"""`notify`, or an action of the gate's catalogue."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One measured fact."""

    metric: str
    window: str
    """Over which time it was measured."""
    rows: int
    """How many objects it was measured on."""
    value: str
    baseline: str = ""
    """What is usual, allowed or compared with, in the unit of the value; empty when the fact stands alone."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The promise of an action, such that it can be checked: a series of the telemetry, from what to what, by when.
    `recommender.history.metrics` has the names and units."""

    metric: str
    of: str
    subject: str
    was: float
    """Now."""
    to: float
    """At most when below `was`, at least when above it."""
    within_ms: int
    """So long after the action it shall be so, on average over the last quarter of that time."""


class Benefit(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of acting in the day ahead, in thousandths of GPU-hours; CPUS_OF_A_GPU core-hours count as one."""

    waiting_gpu_milli_h: int = 0
    """Less waiting: what those that wait ask for, times how much earlier they start."""
    at_risk_gpu_milli_h: int = 0
    """Work or capacity that stands to be lost or to be of no use if nothing is done."""
    lost_gpu_milli_h: int = 0
    """Work that the action itself costs."""


class ModelSkill(msgspec.Struct, frozen=True, kw_only=True):
    """The measured skill of the model behind a finding, on what happened after its statements."""

    model: str
    measure: str
    """Such as "runs within their p90"."""
    value: str
    scored: int
    """Of how many; 0 when it has not been measured here."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One finding and the smallest thing to do about it."""

    kind: str
    """A short token of what is found, such as `quota_beside_idle`: one for each function that finds."""
    finding: str
    action: Action
    targets: tuple[str, ...]
    """Ids that the action is for, in the order in which they stand in the shell; for `notify`, whom or what to see."""
    evidence: tuple[Evidence, ...]
    counterfactual: str
    """What would have to be different for there to be no suggestion."""
    alternatives: tuple[str, ...]
    """What else could be done; the last is doing nothing, and what that means."""
    thin: tuple[str, ...] = ()
    """Why the evidence is weaker than it looks; empty when it is sound."""
    about: str = ""
    """What it is about where that is not its targets, such as the queue whose waiting work changes all the time. A
    finding of the same kind about the same is the same finding, however its targets and values move."""
    parameters: tuple[str, ...] = ()
    """Words behind the targets in the shell, such as ("--nominal", "gpu=24"): with them the action can be proposed."""
    trial: tuple[str, ...] = ()
    """What to try on the twin, as `muster whatif --edit` takes it, where the action itself does not say. As near to the
    action as the twin can."""
    severity: float = 0.0
    """How bad it is, more is worse: in the unit of the first evidence. 0 where that has no meaning."""
    benefit: Benefit = Benefit()
    cost_delta_microusd_hour: int | None = None
    """What acting adds to the hourly bill, negative when it saves; None when it is not known."""
    expected: Expected | None = None
    """None when nothing is promised that could be measured."""
    skill: ModelSkill | None = None
    """Of the model that speaks in it; None when no model does."""
    id: str = ""
    """Digest of kind and what it is about: the same for the same finding. Given by itself."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "id", stable_id(self.kind, (self.about,) if self.about else self.targets))


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    """Newest state version that it was made from."""
    suggestions: tuple[Suggestion, ...]
    unknown: tuple[str, ...]
    """What could not be judged, and why."""


def stable_id(kind: str, about: Iterable[str]) -> str:
    """Return an id such as `R-k3vq7`: 25 bits of SHA-256 over the kind and the sorted names, in letters and digits that
    people can type. Among a hundred findings two share an id with a chance of 1 in 7,000; the list then keeps the
    first."""
    words = [word.encode(errors="backslashreplace").decode() for word in (kind, *sorted(about))]
    digest = hashlib.sha256(msgspec.json.encode(words)).digest()
    return f"R-{base64.b32encode(digest)[:5].decode().lower()}"


def same_id(typed: str) -> str:
    """Normalise an id that a person typed: capitals, or no `R-`, are fine."""
    text = typed.strip().lower()
    return f"R-{text.removeprefix('r-')}"


# -- which is first ---------------------------------------------------------------------------------------------------


class PromiseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one kind's suggestions that were acted on."""

    kept: int = 0
    """Checked, and what was promised happened."""
    broken: int = 0
    """Checked, and it did not, or only in part."""


def worth_gpu_milli_h(
    suggestion: Suggestion, record: PromiseRecord | None = None, gpu_hour_microusd: int = GPU_HOUR_MICROUSD
) -> int:
    """What acting on it is worth in the day ahead, in thousandths of a GPU-hour:

        certainty x (waiting saved + work at risk + money saved / price of a GPU-hour) - work lost by acting

    where certainty is 1, halved when the evidence is thin, times (kept + 2) / (checked + 2) of what came of its kind:
    1 without a record, the share that was kept with a long one. Money is what is saved in 24 h, and less than nothing
    when acting costs.
    """
    benefit, record = suggestion.benefit, record or PromiseRecord()
    saved = -(suggestion.cost_delta_microusd_hour or 0) * 24 * 1000 // max(gpu_hour_microusd, 1)
    gains = benefit.waiting_gpu_milli_h + benefit.at_risk_gpu_milli_h + max(saved, 0)
    certainty = THIN_PERMILLE if suggestion.thin else 1000
    gains = gains * certainty * (record.kept + 2) // (1000 * (record.kept + record.broken + 2))
    return gains - benefit.lost_gpu_milli_h + min(saved, 0)


def ranked(
    suggestions: Iterable[Suggestion],
    records: Mapping[str, PromiseRecord],
    gpu_hour_microusd: int = GPU_HOUR_MICROUSD,
    trials: Mapping[str, SuggestionTrial] | None = None,
    burning: Collection[str] = (),
    worth: Mapping[str, int] | None = None,
) -> list[tuple[int, Suggestion]]:
    """Each finding once, with its worth: what is late or burning first, savings last.

    In the order of their incidents; within one, what is about `burning` queues (their objective is missed); then what
    removes most of the waiting on the twin, what has not been tried, by its worth, and last what was tried and removes
    nothing. Equal ones by severity, then by id. `worth`: by id, where it is known already."""
    once: dict[str, Suggestion] = {}
    for suggestion in suggestions:
        once.setdefault(suggestion.id, suggestion)
    order = list(INCIDENTS)

    def key(rated: tuple[int, Suggestion]) -> tuple[int, bool, int, int, int, float, str, str]:
        gain, each = rated
        removed = None if trials is None or each.id not in trials else relief_permille(trials[each.id])
        effect = 1 if removed is None else 0 if removed > 0 else 2
        return (
            order.index(incident_of(each.kind)), each.about not in burning, effect, -(removed or 0), -gain,
            -each.severity, each.kind, each.id,
        )  # fmt: skip

    rated = [
        (worth[each.id] if worth else worth_gpu_milli_h(each, records.get(each.kind), gpu_hour_microusd), each)
        for each in once.values()
    ]
    return sorted(rated, key=key)


def relief_permille(trial: SuggestionTrial) -> int | None:
    """The part of the cell's waiting that it removes on the twin, by the mean wait or by what waits in the end; None
    while that is not known. At most 0: it does not help those who wait."""
    shares = [
        -each.change.p50 * 1000 / each.before.p50
        for each in trial.figures
        if each.of == "cell"
        and each.name in ("wait_mean", "waiting")
        and each.before.p50
        and each.change.p50 is not None
    ]
    return round(max(shares)) if trial.state == "done" and shares else None


class SuggestionTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Before and after, as the twin of the cell ran ahead."""

    state: Literal["none", "waiting", "running", "done", "failed"]
    """`none`: the twin cannot try it; `waiting`: it has not been tried yet."""
    why: str = ""
    """Why there is none, or why it failed; of what was tried, how it differs from the action where it does."""
    edits: tuple[str, ...] = ()
    """As `muster whatif --edit` takes them."""
    version: int = 0
    """State version it was tried on; `at_ms` is its cell time."""
    at_ms: int = 0
    horizon_ms: int = 0
    seeds: int = 0
    figures: tuple[Figure, ...] = ()
    """Of the cell, and of queues and tenants where something changes."""
    cost_microusd_hour: Interval | None = None
    """Change of the hourly bill over the horizon."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a promise."""

    outcome: Literal["held", "partly", "no", "unknown"]
    seen: float | None
    """The metric when it was due; None when it was not measured."""
    why: str
    others: float | None = None
    """How the same metric moved meanwhile, in its own unit, in the median of those without action."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A promise and what came of it."""

    id: str
    """Of the suggestion."""
    kind: str
    finding: str
    way: Literal["acted", "left"]
    """`left`: nothing was done; it shows what happens by itself."""
    at_ms: int
    """When it was acted on; of what was left, when it was first found."""
    due_ms: int
    who: str = ""
    expected: Expected
    verdict: Verdict | None = None
    """None until it is due."""
    alone: float | None = None
    """The metric when it is due if nothing is done, as the twin foretold it; None where it was not tried."""


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """The record of suggestions of one kind so far."""

    kind: str
    acted: int
    """Acted on and due."""
    held: int
    partly: int
    unknown: int
    """Due, but not to be judged: not measured, or it moved elsewhere too."""
    held_low_permille: int | None
    """Wilson's 95 % interval of the share of held among those judged; None when there is none."""
    held_high_permille: int | None
    left: int
    """Left alone, due and judged."""
    resolved: int
    """Of those, what came right by itself."""

    @property
    def judged(self) -> int:
        return self.acted - self.unknown

    @property
    def helps_rarely(self) -> bool:
        """True if it helped in under half of MIN_JUDGED cases or more."""
        return self.judged >= MIN_JUDGED and 2 * self.held < self.judged

    @property
    def hidden(self) -> bool:
        """True if it is as good as certain that it helps in under half: it is no longer shown."""
        return self.helps_rarely and (self.held_high_permille or 0) < 500


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A suggestion as it stands now."""

    rank: int
    """From 1; 0 for one that is not in the list."""
    state: Literal["open", "rejected", "acted"]
    suggestion: Suggestion
    worth_gpu_milli_h: int
    """What it is ranked by (`recommender.findings.suggestions.worth_gpu_milli_h`)."""
    first_ms: int
    """When it was first found; cell time."""
    note: str
    """Why it is here again, or is not in the list; empty when there is nothing to say."""
    command: tuple[str, ...]
    """Words behind `muster` that propose its action; empty when there is nothing to propose."""
    simulated: SuggestionTrial
    track: Track | None
    """Of its kind; None while nothing is known."""


class IncidentGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and the suggestions against it."""

    incident: Incident
    title: str
    symptom: str
    """As it is now, such as how many wait and which objectives are missed; empty where the findings say it all."""
    ids: tuple[str, ...]
    """Of the open suggestions, in their order."""


class Recommendations(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    """Newest state version that they were made from."""
    now_ms: int
    open: tuple[Recommendation, ...]
    """What is worth most first."""
    aside: tuple[Recommendation, ...]
    """Found, but rejected by somebody, or acted on and not due yet."""
    followed: tuple[Followed, ...]
    """The last that were followed up, newest first."""
    unknown: tuple[str, ...]
    """What could not be judged, and why."""
    incidents: tuple[IncidentGroup, ...] = ()
    """The open ones by incident, what burns first."""


def grouped(told: Sequence[Recommendation], symptoms: Mapping[str, str]) -> tuple[IncidentGroup, ...]:
    """Open suggestions by incident, in the order in which these are told. `symptoms`: what there is of each now."""
    groups = []
    for incident, title in INCIDENTS.items():
        ids = tuple(each.suggestion.id for each in told if incident_of(each.suggestion.kind) == incident)
        if ids:
            groups.append(IncidentGroup(incident=incident, title=title, symptom=symptoms.get(incident, ""), ids=ids))
    return tuple(groups)


FOUND = "found"
"""Metric of the promise of a suggestion that names none: that it is no longer found (0) after CHECK_MS."""
CHECK_MS = 2 * 3_600_000
MIN_JUDGED = 10
KEPT, PARTLY = 0.9, 0.5
"""Shares of the way promised that count as held, and as partly held."""
Z95 = 1.959964

_MILLI = 1000.0

Read = Callable[[str, str, str, int, int], float | None]
"""Mean of (metric, of, subject) from one time up to another, in milliseconds; None when it was not measured."""
Others = Callable[[str, str, str], Sequence[str]]
"""Subjects of (metric, of) other than the one given."""


def promised(suggestion: Suggestion) -> Expected:
    """Its promise; of one that names none, that it is no longer found."""
    if suggestion.expected is not None:
        return suggestion.expected
    return Expected(metric=FOUND, of="suggestion", subject=suggestion.id, was=1, to=0, within_ms=CHECK_MS)


def foretold(expected: Expected, trial: SuggestionTrial | None) -> float | None:
    """The metric when the promise is due if nothing is done: as far on the way to the end of the twin's do-nothing as
    its time is of the horizon. None where the twin has no such figure."""
    if trial is None or trial.state != "done" or not trial.horizon_ms:
        return None
    wanted = (expected.metric, expected.of, expected.subject)
    figure_ = next((each for each in trial.figures if (each.name, each.of, each.subject) == wanted), None)
    if figure_ is None or figure_.before.p50 is None:
        return None
    part = min(expected.within_ms / trial.horizon_ms, 1.0)
    return expected.was + (figure_.before.p50 - expected.was) * part


def looked_up(followed: Followed, read: Read, others: Others) -> Verdict:
    """The verdict on a promise that is due. What the twin foretold of doing nothing is held against it; where it
    foretold nothing, what the same metric of others did meanwhile."""
    expected = followed.expected
    quarter = expected.within_ms // 4
    seen = read(expected.metric, expected.of, expected.subject, followed.due_ms - quarter, followed.due_ms)
    if followed.alone is not None and followed.way == "acted":
        return judged(expected, seen, followed.alone - expected.was)
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
        return Verdict(outcome="unknown", seen=seen, why="no change was predicted", others=others)
    gone = (seen - expected.was) / way
    was, now, to = (figure(expected.metric, value) for value in (expected.was, seen, expected.to))
    told = f"{expected.metric} went from {was} to {now}; predicted {to}"
    if gone >= PARTLY and others is not None and (seen - others - expected.was) / way < PARTLY:
        why = f"{told}, but it moved by {figure(expected.metric, others)} without action"
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
    """Return the record of each kind, over all that were judged."""
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
    """Return the record as ranking counts it: what could not be judged counts neither way."""
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
