"""The threads that keep a mirror fresh: passes over machines and jobs, limits and shares, and runs of the past.

`Watcher` decides when to look at the whole list, when to glance at states, and when to wait. Up to `FEW` jobs the whole
list is asked for at every beat: where nothing changed Slurm says so in milliseconds. Above that the whole list comes
only as often as keeps Slurm at most a part of the time busy with it (`SHARE`), on a thread of its own, with glances
meanwhile. A cluster that does not answer is asked more and more seldom, and what was last seen stays.

`Rules` reads limits of QOS and accounts, and fair share, more seldom: accounting answers slowly, and people change
these by hand. `PastRunsReader` asks accounting once how long work ran before the cell looked on.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from engine.external.mirror_pass import Call, MirrorPass, observe
from engine.external.mirror_report import MirrorReport
from engine.external.slurm.capabilities import SlurmRefused, SlurmUnavailable
from engine.external.slurm.job_requests import SKEW_S
from engine.external.slurm.limits import ClusterLimits, Limit
from engine.external.slurm.mirror_passes import ClusterAnswer, Mirror
from engine.external.slurm.names import ident
from engine.external.slurm.records import Association, Diag, Job, PastJob, Share
from engine.model.errors import MusterError, UnreachableError
from engine.model.external_cells import MAX_RUNS, PastRun, PastSeen

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.external.slurm.connection import SlurmConnection, SlurmReader


T = TypeVar("T")

EVERY_S = 60.0
MAX_SHOWN = 200
"""Limits, and shares, that are told: on a large site there is one for each user."""


class Rules:
    """`ask` is called by one thread; the rest may be called from any."""

    def __init__(self, connection: SlurmConnection, mirror: Mirror) -> None:
        self._connection = connection
        self._mirror = mirror
        self._associations: tuple[Association, ...] = ()
        self._asked_at = -1e9
        self._limits = ClusterLimits((), (), ())
        self.in_use: tuple[Limit, ...] = ()
        """Of the last `ask`."""
        self.shares: tuple[Share, ...] = ()
        self.lacks: dict[str, str] = {}
        """What could not be asked -> why."""

    def ask(self) -> None:
        """Ask anew where it is time to, and count what is in use. What does not answer stays as it was."""
        if time.monotonic() - self._asked_at >= EVERY_S:
            self._asked_at = time.monotonic()
            self._associations = self._optional("associations", self._connection.associations, self._associations)
            timeout = self._optional("ResumeTimeout", lambda: (self._connection.resume_timeout_s(),), ())
            self._mirror.boots.timeout_s = next(iter(timeout), 0) or self._mirror.boots.timeout_s
            self.shares = self._optional("fair share", self._connection.shares, self.shares)[:MAX_SHOWN]
        self._limits = ClusterLimits(
            self._mirror.qos, self._associations, self._mirror.partitions, self._connection.cluster
        )
        self._mirror.limit_by(self._limits)
        self.in_use = self._limits.all(self._mirror.jobs())[:MAX_SHOWN]

    def stopping(self, job: Job) -> tuple[Limit, ...]:
        """Limits that the job waits for, by Slurm's reason; those first that it would exceed now."""
        return self._limits.stopping(job, self._mirror.jobs())

    def _optional(self, what: str, ask: Callable[[], Iterable[T]], before: tuple[T, ...]) -> tuple[T, ...]:
        try:
            found = tuple(ask())
        except SlurmRefused as error:
            self.lacks[what] = str(error)
            return ()
        except SlurmUnavailable as error:
            # slurmdbd may be away for itself, and the mirror goes on.
            self.lacks[what] = str(error)
            return before
        self.lacks.pop(what, None)
        return found


FIRST_S, FARTHEST_S = 3600, 28 * 86_400
"""The first window that is asked for, each before it being twice as long; and how far back."""
LONGEST_S = 60.0
"""No further window is asked for after that."""
FRESH_S = 6 * 3600
"""What was told of a cell so lately is not asked for again: what ended since is in the cell itself."""
PAST_RETRY_S = 300.0
_RAN = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"}
"""Ends by which a run tells how long such work holds its nodes; what people cancelled does not."""


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
        if not (self._learnt or asks or time.monotonic() - self._begun_at < PAST_RETRY_S):
            self._begun_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="mirror-past", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for a question under way."""
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
            self.lacks = {"run times of before": f"internal error of Muster: {type(error).__name__}: {error}"}

    def learn(self) -> None:
        """Raises SlurmRefused where there is no accounting, SlurmUnavailable, UnreachableError."""
        until_ms = self._call(lambda engine: engine.state.past.until_ms)
        if self._wall_s() - until_ms / 1000 > FRESH_S:
            now_s = int(self._wall_s())
            known = self._call(_submitted)
            runs = runs_of(self._lately(now_s), known)
            self._call(partial(observe, (PastSeen(runs=runs, until_ms=now_s * 1000),)))
        self._learnt, self.lacks = True, {}

    def _lately(self, now_s: int) -> list[PastJob]:
        """Return jobs that ended of late: window by window, until there is enough."""
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
    """Make runs of past jobs. Those the cell has as workloads of its own are left out. `known`: their ids -> when they
    were submitted, Unix seconds."""
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


BEAT_S = 1.0
WATCHED_S = 0.5
"""From one glance to the next while somebody looks at jobs that may still change."""
FEW = 2_000
QUICK_S = 0.5
"""A whole list that took longer is not asked for at every beat, however few jobs there are."""
SHARE = 4
"""A whole list is followed by a pause of so many times what it took, less itself."""
MAX_PAUSE_S = 30.0
MAX_RETRY_S = 5.0
DIAG_EVERY_S = 10.0
_READS = ("job_states", "shares", "history", "topology")
"""Abilities of a connection that a mirror which only looks could use."""
PATIENCE_S = 2.0
"""slurmrestd waits half a minute for a slurmctld that has died: of what takes longer than this a ping tells."""
TRACKED_S = 15.0
"""How long a job that somebody looked at is asked for by itself."""
VISIBLE_S = 120.0
"""The same of jobs on a list: a screen does not ask for it again while the cell says nothing new."""
MAX_TRACKED = 256


class Watcher:
    """`report`, `track` and `poke` may be called from any thread."""

    def __init__(
        self,
        connection: SlurmConnection,
        mirror: Mirror,
        *,
        where: str,
        user: str = "",
        acts: bool = False,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._mirror = mirror
        self.rules = Rules(connection, mirror)
        self._past = PastRunsReader(connection, mirror.call)
        self._where = where
        self._user = user
        self._acts = acts
        self._wall_s = wall_s
        self._state: str = "starting"
        self._since_s = wall_s()
        self._error = ""
        self._looked: MirrorPass | None = None
        self._whole: MirrorPass | None = None
        """The last look at everything that was not unchanged."""
        self._looks = 0
        self._release = self._dialect = ""
        """As of the last look: the connection itself would ask again, and who reports must not wait for that."""
        self._pause_s = BEAT_S
        self._whole_at = -1e9
        self._diag: Diag | None = None
        self._diag_at = -1e9
        self._tracked: dict[int, float] = {}
        """Job id -> until when, those looked at last at the end."""
        self._glances = True
        self._lacks: dict[str, str] = {}
        self._wake = threading.Event()
        self._beating_since: float | None = None
        """Monotonic seconds since which an answer is awaited."""
        self._pulse_ends = threading.Event()
        self._stopping = False
        self._coming: Future[ClusterAnswer] | None = None
        """A whole list that is awaited while glances go on."""
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._pulse = threading.Thread(target=self._feel_pulse, name="mirror-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._pulse.start()

    def stop(self) -> None:
        self._stopping = True
        self._past.stop()
        self._wake.set()
        self._pulse_ends.set()
        for thread in (self._thread, self._pulse):
            if thread.is_alive():
                thread.join()

    def poke(self, *, machines: bool = False) -> None:
        """Look now: something was done there, `machines`: to more than jobs and nodes."""
        if machines:
            self._mirror.machines_changed()
        self._wake.set()

    def track(self, *workload_ids: str, for_s: float = TRACKED_S) -> None:
        """Somebody looks at them: ask for each by itself for a while. What has ended changes no more."""
        until = time.monotonic() + for_s
        for name in reversed(workload_ids):
            job = self._mirror.job_of(name)
            if job is not None and not job.over:
                self._tracked[job.id] = max(self._tracked.pop(job.id, 0.0), until)

    def report(self) -> MirrorReport:
        looked, whole, diag = self._looked, self._whole, self._diag
        rpcs = diag.rpcs_by_user if diag is not None else ()
        return MirrorReport(
            where=self._where,
            state=self._state,  # type: ignore[arg-type]
            release=self._release,
            dialect=self._dialect,
            user=self._user,
            error=self._error,
            since_s=self._since_s,
            looked_s=looked.at_s if looked else 0,
            every_s=self._pause_s,
            jobs=looked.jobs if looked else 0,
            nodes=looked.nodes if looked else 0,
            looks=self._looks,
            asked_s=whole.asked_s if whole else 0,
            told_s=whole.told_s if whole else 0,
            lacks=self._lacks | self._mirror.lacks() | dict(self.rules.lacks) | self._past.lacks,
            left_out=self._mirror.left_out(),
            cycle_mean_us=diag.cycle_mean_us if diag else 0,
            backfill_last_us=diag.backfill_last_us if diag else 0,
            rpcs=sum(each.count for each in rpcs),
            own_rpcs=sum(each.count for each in rpcs if each.name == (self._user or "root")),
            acts=self._acts,
            limits=self.rules.in_use,
            shares=self.rules.shares,
        )

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_s = BEAT_S
        while not self._stopping:
            poked = self._wake.is_set()
            self._wake.clear()
            self._beating_since = time.monotonic()
            try:
                self._beat(poked)
            except MusterError as error:
                self._to("lost", str(error))
                # It may come back as another release.
                self._connection.forget()
                self._wake.wait(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
                continue
            except Exception as error:
                # A fault of ours must not end the mirror for good: it looks again from the beginning, and says so.
                traceback.print_exc()
                self._to("lost", f"internal error of Muster: {type(error).__name__}: {error}")
                self._mirror.start_over()
                self._wake.wait(MAX_RETRY_S)
                continue
            finally:
                self._beating_since = None
            retry_s = BEAT_S
            self._to("following", "")
            self._wake.wait(WATCHED_S if self._tracked else BEAT_S)

    def _feel_pulse(self) -> None:
        """Say that the cluster is lost while its answer is still awaited: after two pings that got none."""
        while not self._pulse_ends.wait(PATIENCE_S / 2):
            since = self._beating_since
            if since is None or time.monotonic() - since < PATIENCE_S or self._state == "lost":
                continue
            silent = not self._connection.answers() and not self._connection.answers()
            if silent and self._beating_since == since:
                self._to("lost", "slurmctld does not answer a ping")

    def _to(self, state: str, error: str) -> None:
        if state != self._state:
            self._state, self._since_s = state, self._wall_s()
        self._error = error

    def _beat(self, poked: bool) -> None:
        now = time.monotonic()
        if self._mirror.is_new or (self._is_short() and self._coming is None):
            self._coming = None
            self._look()
        else:
            if self._coming is not None and self._coming.done():
                coming, self._coming = self._coming, None
                self._note(self._mirror.take(coming.result()))
            if self._glance():
                if self._coming is None and now - self._whole_at >= self._patience_s():
                    self._coming = _beside(self._mirror.ask)
            elif poked or now - self._whole_at >= self._pause_s:
                self._look()
        if now - self._diag_at >= DIAG_EVERY_S:
            self._diag_at = now
            self._diag = self._connection.diag()
            self.rules.ask()
            self._past.begin()
            missing = self._connection.can.missing()
            self._lacks = {name: why for name, why in missing.items() if self._acts or name in _READS}

    def _is_short(self) -> bool:
        """Return whether the whole list is asked for at every beat."""
        quick = self._whole is None or self._whole.asked_s <= QUICK_S
        return self._looked is not None and self._looked.jobs <= FEW and (quick or not self._glances)

    def _patience_s(self) -> float:
        """From a whole list to the next. With more on the move than glances keep up with it comes sooner."""
        behind = self._looked is not None and self._looked.behind > 0
        return self._whole.asked_s if behind and self._whole is not None else self._pause_s

    def _look(self) -> None:
        self._note(self._mirror.look())

    def _note(self, looked: MirrorPass) -> None:
        self._looked, self._looks = looked, self._looks + 1
        self._release, self._dialect = self._connection.slurm_version, self._connection.api
        if not looked.unchanged:
            self._whole = looked
            self._pause_s = min(max(BEAT_S, SHARE * looked.asked_s), MAX_PAUSE_S)
            self._whole_at = time.monotonic()

    def _glance(self) -> bool:
        """Return whether there is a short list; else only what is tracked was asked for."""
        try:
            self._looked = self._mirror.glance(self._now_tracked(), states=self._glances)
        except SlurmRefused:
            # This release has no short list, and no command is at hand.
            self._glances = False
        self._looks += 1
        return self._glances

    def _now_tracked(self) -> Iterable[int]:
        """Return the tracked jobs, those looked at last first."""
        now = time.monotonic()
        left = [(job, until) for job, until in list(self._tracked.items()) if until > now]
        self._tracked = dict(left[-MAX_TRACKED:])
        return [job for job, _ in reversed(left)]


def _beside(ask: Callable[[], ClusterAnswer]) -> Future[ClusterAnswer]:
    """Asked on a thread that ends with the process, however long an answer takes."""
    coming: Future[ClusterAnswer] = Future()

    def run() -> None:
        try:
            coming.set_result(ask())
        except BaseException as error:
            coming.set_exception(error)

    threading.Thread(target=run, name="mirror-list", daemon=True).start()
    return coming
