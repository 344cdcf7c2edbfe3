"""The thread that keeps a mirror fresh: when to look at the whole list, when to glance at states alone, when to wait.

Up to `FEW` jobs the whole list is asked for at every beat: where nothing changed Slurm says so in some ms. Above that
it comes only as often as keeps Slurm at most `SHARE` busy with it, and between times the states alone. A cluster that
does not answer is asked more and more seldom, and what was last seen stays.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.errors import MusterError
from engine.slurm.accounting import Diag
from engine.slurm.errors import SlurmRefused
from engine.slurm.mirror import Looked, Mirror
from engine.slurm.report import MirrorReport
from engine.slurm.rules import Rules

if TYPE_CHECKING:
    from engine.slurm.connection import SlurmConnection

BEAT_S = 1.0
FEW = 2_000
SHARE = 4
"""A whole list is followed by a pause of so many times what it took, less itself."""
MOST_PAUSE_S = 30.0
MOST_RETRY_S = 5.0
DIAG_EVERY_S = 10.0
_READS = ("job_states", "shares", "history", "topology")
"""Abilities of a connection that a mirror which only looks could use."""
PATIENCE_S = 2.0
"""slurmrestd waits half a minute for a slurmctld that has died: of what takes longer than this a ping tells."""
TRACKED_S = 15.0
"""How long a job that somebody looked at is asked for by itself."""


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
        self._where = where
        self._user = user
        self._acts = acts
        self._wall_s = wall_s
        self._state: str = "starting"
        self._since_s = wall_s()
        self._error = ""
        self._looked: Looked | None = None
        self._whole: Looked | None = None
        """The last look at everything that was not unchanged."""
        self._looks = 0
        self._release = self._dialect = ""
        """As of the last look: the connection itself would ask again, and who reports must not wait for that."""
        self._pause_s = BEAT_S
        self._whole_at = -1e9
        self._diag: Diag | None = None
        self._diag_at = -1e9
        self._tracked: dict[int, float] = {}
        self._glances = True
        self._lacks: dict[str, str] = {}
        self._wake = threading.Event()
        self._beating_since: float | None = None
        """Monotonic seconds since which an answer is awaited."""
        self._pulse_ends = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._pulse = threading.Thread(target=self._feel_pulse, name="mirror-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._pulse.start()

    def stop(self) -> None:
        self._stopping = True
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

    def track(self, workload_id: str) -> None:
        """Somebody looks at it: ask for it by itself for a while."""
        job = self._mirror.job_of(workload_id)
        if job is not None:
            self._tracked[job.id] = time.monotonic() + TRACKED_S

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
            lacks=self._lacks | self._mirror.lacks() | dict(self.rules.lacks),
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
                retry_s = min(2 * retry_s, MOST_RETRY_S)
                continue
            except Exception as error:
                # A fault of ours must not end the mirror for good: it looks again from the beginning, and says so.
                traceback.print_exc()
                self._to("lost", f"a defect of Muster's: {type(error).__name__}: {error}")
                self._mirror.start_over()
                self._wake.wait(MOST_RETRY_S)
                continue
            finally:
                self._beating_since = None
            retry_s = BEAT_S
            self._to("following", "")
            self._wake.wait(BEAT_S)

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
        jobs = self._looked.jobs if self._looked else 0
        due = self._looked is None or jobs <= FEW or now - self._whole_at >= self._pause_s
        if due or (not self._glance() and poked):
            self._look()
        if now - self._diag_at >= DIAG_EVERY_S:
            self._diag_at = now
            self._diag = self._connection.diag()
            self.rules.ask()
            missing = self._connection.can.missing()
            self._lacks = {name: why for name, why in missing.items() if self._acts or name in _READS}

    def _look(self) -> None:
        looked = self._mirror.look()
        self._looked, self._looks = looked, self._looks + 1
        self._release, self._dialect = self._connection.slurm_version, self._connection.api
        if not looked.unchanged:
            self._whole = looked
            self._pause_s = min(max(BEAT_S, SHARE * looked.asked_s), MOST_PAUSE_S)
            self._whole_at = time.monotonic()

    def _glance(self) -> bool:
        """Whether that was possible."""
        if not self._glances:
            return False
        try:
            looked = self._mirror.glance(self._now_tracked())
        except SlurmRefused:
            # This release has no short list, and no command is at hand.
            self._glances = False
            return False
        if looked is None:
            self._look()
        else:
            self._looked, self._looks = looked, self._looks + 1
        return True

    def _now_tracked(self) -> Iterable[int]:
        now = time.monotonic()
        self._tracked = {job: until for job, until in self._tracked.items() if until > now}
        return tuple(self._tracked)
