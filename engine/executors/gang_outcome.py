"""What the ends of a gang's tasks mean for the gang."""

from __future__ import annotations

from collections.abc import Sequence

from engine.executors.protocol import ReportKind
from engine.executors.supervised_task import TaskStage
from engine.executors.task_files import Status, exit_status
from engine.model.run_spec import EXIT_CAUSES

NOT_STARTED = (len(EXIT_CAUSES) - 1) * 256 + 126


def verdict(
    members: Sequence[tuple[int, TaskStage, Status]], *, service: bool, running: bool
) -> tuple[ReportKind, int, int] | None:
    """(what to report, rank of the task that decides it, its exit status) of tasks by (rank, stage, status), or None as
    long as nothing is decided. One that fails fails all; a service has no good end."""
    for rank, stage, _ in members:
        if stage == TaskStage.LOST:
            return ReportKind.LOST, rank, 0
        if stage == TaskStage.REFUSED:
            return (ReportKind.FAILED, rank, NOT_STARTED) if running else (ReportKind.REFUSED, rank, 0)
    ended = sorted((s.ended_ms, rank, at) for at, (rank, stage, s) in enumerate(members) if stage == TaskStage.ENDED)
    for _, rank, at in ended:
        status = members[at][2]
        if service or not status.succeeded:
            return ReportKind.FAILED, rank, exit_status(status)
    return (ReportKind.FINISHED, ended[-1][1], 0) if ended and len(ended) == len(members) else None
