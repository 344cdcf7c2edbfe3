"""What Kueue and the scheduler of pods say of a workload, each in its own words: never blended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.external.kubernetes.workload_mapping import PodRecord, phase_of
from engine.external.kubernetes_api.core_objects import Condition
from engine.external.kubernetes_api.kueue_objects import Workload
from engine.external.mirror_report import Mirrored, SchedulerVoice

KUEUE, SCHEDULER = "Kueue", "kube-scheduler"
_ORDER = ("Finished", "Evicted", "Preempted", "QuotaReserved", "Admitted", "PodsReady", "Requeued")
"""Conditions, those first that say most of why it stands where it does."""
MAX_SAID = 5
"""Different statements of the scheduler that are kept."""


def voices_of(name: str, workload: Workload, pods: Sequence[PodRecord], now_s: float, disagrees: str = "") -> Mirrored:
    """`name`: of the workload in the cell. `disagrees`: as in Mirrored."""
    spec = workload.spec
    return Mirrored(
        workload=name,
        job_id=0,
        state=phase_of(workload, pods, now_s),
        priority=spec.priority,
        voices=(*_of_kueue(workload), *_of_checks(workload), *_of_scheduler(pods)),
        disagrees=disagrees,
    )


def _of_kueue(workload: Workload) -> Iterable[SchedulerVoice]:
    known = {each.type: each for each in workload.status.conditions}
    if not known:
        text = "" if workload.spec.active else "it is deactivated: spec.active is false"
        yield SchedulerVoice(
            speaker=KUEUE, about="Workload", reason="", text=text or "nothing yet: it was not looked at"
        )
    for kind in (*(each for each in _ORDER if each in known), *sorted(known.keys() - set(_ORDER))):
        yield _voice(KUEUE, known[kind])


def _voice(speaker: str, condition: Condition) -> SchedulerVoice:
    at = condition.last_transition_time
    return SchedulerVoice(
        speaker=speaker,
        about=condition.type if condition.status == "True" else f"not {condition.type}",
        reason=condition.reason,
        text=condition.message,
        since_s=at.timestamp() if at is not None else 0.0,
    )


def _of_checks(workload: Workload) -> Iterable[SchedulerVoice]:
    for each in workload.status.admission_checks:
        yield SchedulerVoice(speaker=KUEUE, about=f"check {each.name}", reason=each.state, text=each.message)


def _of_scheduler(pods: Sequence[PodRecord]) -> Iterable[SchedulerVoice]:
    """Of pods that no gate holds: what keeps them off nodes, and of how many it is said."""
    said = Counter(pod.said for pod in pods if pod.said and not pod.gated)
    for text, count in said.most_common(MAX_SAID):
        reason, _, message = text.partition(" ")
        since = min(pod.at_s for pod in pods if pod.said == text)
        about = f"{count} of {len(pods)} pods"
        yield SchedulerVoice(speaker=SCHEDULER, about=about, reason=reason, text=message, since_s=since)
