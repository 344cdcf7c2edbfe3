"""What accounting knows of a job that the controller has forgotten: how the attempt ended that the cell saw last."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.slurm.accounting import PastJob
from engine.slurm.identity import SKEW_S
from engine.slurm.records import OVER_STATES, Job


def ended(name: str, last: Job | None, attempts: Iterable[PastJob]) -> Job | None:
    """The job as it would have been shown at its end; None where accounting does not say. `last`: as it was last shown;
    None after a restart of the mirror, when the newest attempt is taken."""
    task = name.partition("/")[2].partition(".")[0]
    mine = [
        each
        for each in attempts
        if each.state in OVER_STATES
        and (not task or str(each.array_task) == task)
        and (last is None or abs(each.submit_s - last.submit_s) <= SKEW_S)
    ]
    if not mine:
        return None
    past = max(mine, key=lambda each: (each.submit_s, each.end_s))
    return msgspec.structs.replace(
        last or _shown(past),
        state=past.state,
        flags=frozenset(),
        reason=past.reason,
        start_s=past.start_s,
        end_s=past.end_s,
        exit_status=past.exit_status,
        signal=past.signal,
    )


def _shown(past: PastJob) -> Job:
    """What both kinds of record have in common."""
    same = (
        "id", "array_id", "array_task", "name", "user", "account", "partition", "qos", "comment", "submit_s",
        "time_limit_s", "tres_wanted", "tres_held",
    )  # fmt: skip
    cpus = past.tres_wanted.get("cpu", past.tres_held.get("cpu", 1))
    return Job(cpus=cpus, restarts=past.restarts or 0, **{field: getattr(past, field) for field in same})
