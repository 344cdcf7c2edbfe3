"""Everything that can be read of a cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from engine.external.slurm.accounting import Association, Diag, JobStep, PastJob, Qos, Share
from engine.external.slurm.answers import SlurmAnswer
from engine.external.slurm.client.list_streaming import Cutter
from engine.external.slurm.client.session import SlurmSession
from engine.external.slurm.dialects import accounts, history, jobs, nodes
from engine.external.slurm.dialects.entry_fields import number_in, read_all
from engine.external.slurm.errors import SlurmGone, SlurmRefused, SlurmUnavailable
from engine.external.slurm.names import check_name
from engine.external.slurm.records import (
    Job,
    JobList,
    JobState,
    Node,
    SlurmNodes,
    SlurmPartition,
    SlurmReservation,
    StartGuess,
    TopologySwitch,
)

T = TypeVar("T")

NOTHING_FOUND = 9003
ONE_BY_ONE = 20
"""Up to so many jobs are asked for one at a time; for more the whole list is cheaper."""
LISTS_LONGER = 4
"""Times as long as for anything else a whole list is waited for: slurmrestd writes all of it before the first byte
comes, which took over 30 s for 10,000 jobs of 24.11 on a busy machine."""


class SlurmReader(SlurmSession):
    def jobs(self, since: int | None = None) -> JobList:
        """All jobs the controller holds. `since`: the `last_update` of an earlier answer; when nothing changed after
        it, the answer is `unchanged` and cheap, otherwise it is whole."""
        made: list[Cutter[Job]] = [Cutter("jobs", jobs.job)]

        def cutter() -> Cutter[Job]:
            # Asked again, it begins again.
            made[0] = Cutter("jobs", jobs.job)
            return made[0]

        answer, next_since = self._list("listing jobs", "jobs", since, cutter)
        if answer is None:
            return JobList(unchanged=True, last_update=next_since)
        cut, left = made[0], answer.entries("jobs")
        last, bad = read_all(left, jobs.job, "job", after=cut.count)
        found = (*cut.found, *last)
        bad = (*(f"job {at} of {cut.count + len(left)}: {why}" for at, why in cut.bad), *bad)
        if not self.cluster and found:
            self.cluster = found[0].cluster
        return JobList(list=found, last_update=next_since, malformed=bad)

    def job(self, id_: int) -> Job:
        """One job, or the waiting record of an array. SlurmGone when the controller does not hold it (any more)."""
        found = self.jobs_of(id_)
        return next((job for job in found if job.id == id_), found[0])

    def jobs_of(self, id_: int) -> tuple[Job, ...]:
        """A job; of an array all its records: the waiting ones and each task that has started."""
        answer = self.asked(f"asking for job {id_}", f"job/{check_id(id_)}")
        found, bad = read_all(answer.entries("jobs"), jobs.job, "job")
        if not found:
            raise SlurmGone(2017, f"there is no job {id_}" + (f" that could be read: {bad[0]}" if bad else ""))
        return found

    def job_states(self) -> tuple[JobState, ...]:
        """States alone: a hundredth of the size of `jobs`."""
        self.can.job_states.need("listing states alone")
        if self.can.job_states.by == "command" and self.commands:
            return self.commands.job_states()
        answer = self.asked("listing states of jobs", "jobs/state")
        return jobs.short_states(answer.entries("jobs"), own_ids=self.dialect.name == "v0.0.42")[0]

    def nodes(self, since: int | None = None) -> SlurmNodes:
        """All nodes; `since` as with `jobs`. v0.0.38 leaves out powered-down cloud nodes unless PrivateData=cloud."""
        try:
            answer, next_since = self._list("listing nodes", "nodes", since)
        except SlurmUnavailable as error:
            if not since or not error.answered:
                raise
            # slurmrestd fails when nodes have changed and partitions have not: it is asked for both without a time.
            answer, next_since = self._list("listing nodes", "nodes", None)
        if answer is None:
            return SlurmNodes(unchanged=True, last_update=next_since)
        found, bad = read_all(answer.entries("nodes"), nodes.node, "node")
        return SlurmNodes(list=found, last_update=next_since, malformed=bad)

    def node(self, name: str) -> Node:
        """One node, without its partitions: asked alone, both releases give wrong ones."""
        answer = self.asked(f"asking for node {name}", f"node/{check_name('node', name)}")
        found = [nodes.node(raw) for raw in answer.entries("nodes")]
        if not found:
            raise SlurmGone(2018, f"there is no node {name}")
        return msgspec.structs.replace(found[0], partitions=())

    def partitions(self) -> tuple[SlurmPartition, ...]:
        """What REST leaves out of them (which is the default, how they are preempted) comes by `scontrol`."""
        found = self._all("listing partitions", "partitions", nodes.partition)
        if self.commands is None or not self.can.topology:
            return found
        told = self.commands.partitions()
        return tuple(_completed(one, told.get(one.name, {})) for one in found)

    def reservations(self) -> tuple[SlurmReservation, ...]:
        return self._all("listing reservations", "reservations", nodes.reservation)

    def qos(self) -> tuple[Qos, ...]:
        return self._from_database("listing QOS", "qos", accounts.qos, "qos", "QOS")

    def associations(self) -> tuple[Association, ...]:
        return self._from_database("listing associations", "associations", accounts.association, "associations")

    def shares(self) -> tuple[Share, ...]:
        self.can.shares.need("asking for fair shares")
        if self.can.shares.by == "command" and self.commands:
            return self.commands.shares()
        answer = self.asked("asking for fair shares", "shares")
        inner = msgspec.json.decode(answer.fields["shares"], type=dict[str, msgspec.Raw])
        return read_all(SlurmAnswer(answer.status, inner).entries("shares"), accounts.share, "share")[0]

    def diag(self) -> Diag:
        answer = self.asked("asking for statistics", "diag")
        return accounts.diag(answer.fields.get("statistics", msgspec.Raw(b"{}")))

    def history(self, since_s: int, until_s: int | None = None) -> tuple[PastJob, ...]:
        """Attempts of jobs that ran or ended from `since_s` on, as accounting has them, with their steps."""
        query = {"start_time": self.dialect.moment(since_s)}
        if until_s is not None:
            query["end_time"] = self.dialect.moment(until_s)
        return self._from_database("asking accounting for jobs", "jobs", history.past_job, "jobs", query=query)

    def past(self, id_: int) -> tuple[PastJob, ...]:
        """Every attempt of one job, and of other jobs that had its id before: tell them apart by `submit_s`."""
        path = f"job/{check_id(id_)}"
        return self._from_database(f"asking accounting for job {id_}", path, history.past_job, "jobs")

    def boot(self) -> str:
        """When slurmctld started, by its own word: another word, another slurmctld. Empty where Slurm's commands are
        not at hand: REST tells only since when it counts, which a reset of the statistics changes as well."""
        return self.commands.boot() if self.commands is not None and self.can.topology else ""

    def ended_kept_s(self) -> float:
        """How long an ended job stays in Slurm's list; 0 where that is not told."""
        if self.commands is None or not self.can.topology:
            return 0.0
        age_s = self.commands.min_job_age_s()
        return math.inf if age_s == 0 else float(age_s or 0)

    def resume_timeout_s(self) -> int:
        """How long slurmctld waits for a node to boot, by `scontrol`; 0: not told."""
        return self.commands.resume_timeout_s() if self.commands is not None and self.can.topology else 0

    def steps(self, id_: int) -> tuple[JobStep, ...]:
        """Steps of a job that runs: REST lists none, so they come by `squeue`, or else as accounting has them."""
        check_id(id_)
        if self.commands is not None and self.can.topology:
            return self.commands.steps(id_)
        attempts = self.past(id_)
        return attempts[-1].steps if attempts else ()

    def start_guesses(self, ids: Collection[int]) -> tuple[StartGuess, ...]:
        """When the backfill scheduler plans to start these waiting jobs: what `squeue --start` shows. Jobs that are
        gone or no longer waiting are left out."""
        return tuple(
            StartGuess(id=job.id, start_s=job.start_s, nodes=job.nodes_planned)
            for job in self._few(ids)
            if job.state == "PENDING"
        )

    def topology(self) -> tuple[TopologySwitch, ...]:
        """The tree of switches, by `scontrol`; nothing where none is configured."""
        self.can.topology.need("asking for switches")
        return self.commands.topology() if self.commands else ()

    def _few(self, ids: Collection[int]) -> list[Job]:
        if len(ids) > ONE_BY_ONE:
            wanted = frozenset(ids)
            return [job for job in self.jobs().list if job.id in wanted]
        found: list[Job] = []
        for id_ in ids:
            try:
                found.append(self.job(id_))
            except SlurmGone:
                continue
        return found

    def _list(
        self, what: str, path: str, since: int | None, cutter: Callable[[], Cutter[Job]] | None = None
    ) -> tuple[SlurmAnswer | None, int]:
        """The answer and the next `since`; None for unchanged. slurmctld itself takes a second off the time it is given
        (`last_update - 1 >= last_job_update`), so a change within the second of an answer is told with the next."""
        before = time.time()
        query = {"update_time": self.dialect.since(since)} if since else None
        answer = self.ask(what, path, query, read_s=LISTS_LONGER * self.line.read_s, cutter=cutter)
        if answer is None or (since and _says_unchanged(answer)):
            return None, since or 0
        return answer, number_in(answer.value("last_update")) or int(before + self.offset_s())

    def _all(self, what: str, path: str, read: Callable[[msgspec.Raw], T]) -> tuple[T, ...]:
        return read_all(self.asked(what, path).entries(path), read, path[:-1])[0]

    def _from_database(
        self,
        what: str,
        path: str,
        read: Callable[[msgspec.Raw], T],
        *keys: str,
        query: dict[str, str] | None = None,
    ) -> tuple[T, ...]:
        self.can.history.need(what)
        try:
            answer = self.asked(what, path, query, database=True)
        except SlurmRefused as error:
            if error.number == NOTHING_FOUND:
                return ()
            raise
        return read_all(answer.entries(*keys), read, keys[0])[0]


def check_id(id_: int) -> int:
    """A job's id, as it goes into a path."""
    if not 0 < id_ < 1 << 32:
        raise SlurmGone(2017, f"there is no job {id_}")
    return id_


def _completed(one: SlurmPartition, told: dict[str, str]) -> SlurmPartition:
    default = {"YES": True, "NO": False}.get(told.get("Default", ""), one.default)
    mode = told.get("PreemptMode", "").split(",")[0].upper() or one.preempt_mode
    exclusive = told.get("OverSubscribe", "").upper() == "EXCLUSIVE" or one.exclusive
    return msgspec.structs.replace(one, default=default, preempt_mode=mode, exclusive=exclusive)


def _says_unchanged(answer: SlurmAnswer) -> bool:
    """v0.0.42 says so of jobs with 200, an empty list and a warning."""
    return any(" changes since " in fault.text for fault in answer.warnings)
