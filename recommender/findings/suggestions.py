"""What a suggestion is: a finding, one action of a closed list, the evidence, and what is promised; and which is first.

Nothing here acts. An action is one that the gate knows, with the words that stand behind its name in the shell, or
`notify`, which asks for a person's attention only. This module loads nothing heavy: faces decode what is in it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

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
    """What is promised if the action is taken, such that it can be checked: a series of the telemetry, from what to
    what, by when. `recommender.history.metrics` has the names and units."""

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
    """What acting is worth in the day ahead, in thousandths of GPU-hours; CPUS_OF_A_GPU core-hours count as one."""

    waiting_gpu_milli_h: int = 0
    """Less waiting: what those that wait ask for, times how much earlier they start."""
    at_risk_gpu_milli_h: int = 0
    """Work or capacity that stands to be lost or to be of no use if nothing is done."""
    lost_gpu_milli_h: int = 0
    """Work that the action itself costs."""


class ModelSkill(msgspec.Struct, frozen=True, kw_only=True):
    """How well the model that speaks in a finding has done so far, on what happened after it had spoken."""

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
    """As in `R-k3vq7`: 25 bits of SHA-256 over the kind and the sorted names, in letters and digits that people can
    type. Among a hundred findings two share an id with a chance of 1 in 7,000; the list then keeps the first."""
    digest = hashlib.sha256(msgspec.json.encode([kind, *sorted(about)])).digest()
    return f"R-{base64.b32encode(digest)[:5].decode().lower()}"


def same_id(typed: str) -> str:
    """What a person typed for an id: capitals, or no `R-`, are fine."""
    text = typed.strip().lower()
    return f"R-{text.removeprefix('r-')}"


# -- which is first ---------------------------------------------------------------------------------------------------


class PromiseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What came of suggestions of one kind that were acted on."""

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
    suggestions: Iterable[Suggestion], records: Mapping[str, PromiseRecord], gpu_hour_microusd: int = GPU_HOUR_MICROUSD
) -> list[tuple[int, Suggestion]]:
    """Each finding once, with its worth, what is worth most first; equal worth by severity, then by id."""
    once: dict[str, Suggestion] = {}
    for suggestion in suggestions:
        once.setdefault(suggestion.id, suggestion)
    rated = [(worth_gpu_milli_h(each, records.get(each.kind), gpu_hour_microusd), each) for each in once.values()]
    return sorted(rated, key=lambda item: (-item[0], -item[1].severity, item[1].kind, item[1].id))


# -- words that findings share ----------------------------------------------------------------------------------------


def whole(milli: int) -> str:
    """Thousandths as people write them: "64", "0.25", "130,000"."""
    return f"{milli / 1000:,.12g}"


def span(ms: int) -> str:
    """As in "3.2 h"; minutes below one hour, seconds below one minute."""
    if ms >= 3_600_000:
        return f"{ms / 3_600_000:,.1f} h"
    return f"{ms // 60_000} min" if ms >= 60_000 else f"{ms // 1000} s"
