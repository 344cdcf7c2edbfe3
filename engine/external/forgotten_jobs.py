"""What accounting knows of jobs that the controller has forgotten: how the attempt ended that the cell saw last, and
how long work ran before the cell looked on.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from engine.external.slurm.capabilities import SlurmRefused, SlurmUnavailable
from engine.external.slurm.job_requests import SKEW_S
from engine.external.slurm.names import ident
from engine.external.slurm.records import OVER_STATES, Job, PastJob
from engine.model.commands import Observe
from engine.model.errors import UnreachableError
from engine.model.external_cells import MAX_RUNS, PastRun, PastSeen

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.external.slurm.connection import SlurmReader


Call = Callable[[Callable[["Engine"], Any]], Any]
FIRST_S, FARTHEST_S = 3600, 28 * 86_400
"""The first window that is asked for, each before it being twice as long; and how far back."""
LONGEST_S = 60.0
"""No further window is asked for after that."""
FRESH_S = 6 * 3600
"""What was told of a cell so lately is not asked for again: what ended since is in the cell itself."""
RETRY_S = 300.0
_RAN = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"}
"""Ends by which a run tells how long such work holds its nodes; what people cancelled does not."""


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


class PastRunsReader:
    """Asks accounting once how long work ran before the cell looked on, on a thread of its own, and tells the cell.
    `begin` is called by one thread; the rest may be called from any."""

    def __init__(self, connection: SlurmReader, call: Call, *, wall_s: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._call = call
        self._wall_s = wall_s
        self._learnt = False
        self._begun_at = -1e9
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.lacks: dict[str, str] = {}
        """Why nothing could be learnt."""

    def begin(self) -> None:
        """Ask, unless it was learnt, or is being, or was tried a moment ago."""
        asks = self._thread is not None and self._thread.is_alive()
        if not (self._learnt or asks or time.monotonic() - self._begun_at < RETRY_S):
            self._begun_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="mirror-past", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """What is still asked is not waited for."""
        self._stopping = True

    def _run(self) -> None:
        try:
            self.learn()
        except (SlurmRefused, SlurmUnavailable) as error:
            self.lacks = {"run times of before": str(error)}
        except UnreachableError:
            pass  # the engine is stopping
        except Exception as error:
            if self._stopping:
                return  # the connection was closed under it
            # A fault of ours costs the forecast what it could have learnt, no more.
            traceback.print_exc()
            self.lacks = {"run times of before": f"a defect of Muster's: {type(error).__name__}: {error}"}

    def learn(self) -> None:
        """Raises SlurmRefused where there is no accounting, SlurmUnavailable, UnreachableError."""
        until_ms = self._call(lambda engine: engine.state.past.until_ms)
        if self._wall_s() - until_ms / 1000 > FRESH_S:
            now_s = int(self._wall_s())
            known = self._call(_submitted)
            runs = runs_of(self._lately(now_s), known)
            self._call(partial(_tell, PastSeen(runs=runs, until_ms=now_s * 1000)))
        self._learnt, self.lacks = True, {}

    def _lately(self, now_s: int) -> list[PastJob]:
        """What ended of late: window by window, until there is enough."""
        found: dict[tuple[int, int, int], PastJob] = {}
        until_s, length_s, began = now_s, FIRST_S, time.monotonic()
        while now_s - until_s < FARTHEST_S and len(found) < MAX_RUNS and time.monotonic() - began < LONGEST_S:
            for job in self._connection.history(until_s - length_s, until_s):
                if job.state in _RAN and 0 < job.start_s < job.end_s <= now_s:
                    found[job.id, job.submit_s, job.start_s] = job
            until_s -= length_s
            length_s *= 2
        return sorted(found.values(), key=lambda job: (job.end_s, job.id))[-MAX_RUNS:]


def runs_of(jobs: Iterable[PastJob], known: dict[str, int] | None = None) -> tuple[PastRun, ...]:
    """Those the cell has as workloads of its own are left out. `known`: their ids -> when they were submitted, Unix
    seconds."""
    known = known or {}
    found = []
    for job in jobs:
        name = f"{job.array_id}/{job.array_task}" if job.array_task is not None else str(job.id)
        if abs(known.get(name, -SKEW_S - 1) - job.submit_s) <= SKEW_S:
            continue
        held = job.tres_held or job.tres_wanted
        gpus = held.get("gres/gpu") or sum(n for key, n in held.items() if key.startswith("gres/gpu:"))
        found.append(
            PastRun(
                queue=ident(job.partition.split(",")[0]),
                tenant=ident(job.account or job.user, ""),
                team=ident(job.user, ""),
                name=job.name[:256],
                tasks=max(len(job.nodes), 1),
                gpu_milli=gpus * 1000,
                limit_ms=max(job.time_limit_s or 0, 0) * 1000,
                run_ms=(job.end_s - job.start_s) * 1000,
                submitted_ms=job.submit_s * 1000,
                started_ms=job.start_s * 1000,
                ended_ms=job.end_s * 1000,
                finished=job.state == "COMPLETED",
            )
        )
    return tuple(found)


def _submitted(engine: Engine) -> dict[str, int]:
    w = engine.state.workloads
    return {name: w.submitted[row] // 1000 for row, name in enumerate(w.ids)}


def _tell(told: PastSeen, engine: Engine) -> None:
    engine.command(Observe(seen=(told,)))
