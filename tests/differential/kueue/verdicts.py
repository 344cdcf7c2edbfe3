"""What a scheduler has decided about jobs, and where two of them differ."""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from tests.differential.kueue.lives import Step


class Verdict(msgspec.Struct, frozen=True):
    """Of one job once a step has settled. `flavor` is empty while it waits."""

    flavor: str = ""
    pods: int = 0
    preempted: bool = False
    """In this step, at least once."""
    endless: bool = False
    """It was preempted again and again in this step: the rules of the queues have two take each other's place for ever.
    The step has no end then, and nothing else is said of any job."""
    why: str = ""
    """What is said of a job that waits. It does not count when two are compared."""

    @property
    def counted(self) -> tuple[str, int, bool, bool]:
        return self.flavor, self.pods, self.preempted, self.endless

    def __str__(self) -> str:
        if self.endless:
            return "preempted for ever"
        state = f"{self.pods} pods on {self.flavor}" if self.flavor else "waits"
        return state + (", preempted" if self.preempted else "") + (f" ({self.why})" if self.why else "")


Verdicts = dict[str, Verdict]
"""By job."""


def without_end(jobs: Iterable[str], endless: Container[str]) -> Verdicts:
    """Of a step in which some are preempted for ever."""
    return {name: Verdict(preempted=name in endless, endless=name in endless) for name in jobs}


def is_endless(verdicts: Verdicts) -> bool:
    return any(verdict.endless for verdict in verdicts.values())


def decided(step: Step, before: Verdicts, after: Verdicts) -> set[str]:
    """The jobs about which something was decided: submitted now, started, stopped, or preempted."""
    changed = {
        name
        for name, verdict in after.items()
        if verdict.preempted or verdict.counted[:2] != before.get(name, Verdict()).counted[:2]
    }
    return changed | {job.name for job in step.submit}


def differing(one: Verdicts, other: Verdicts) -> list[str]:
    """The jobs about which they differ. Both know the same jobs."""
    return sorted(name for name in one if one[name].counted != other[name].counted)
