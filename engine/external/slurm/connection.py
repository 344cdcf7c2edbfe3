"""A Slurm cluster as slurmrestd and Slurm's own commands give it: everything that is read of it and told to it.

`SlurmReader` reads, `SlurmWriter` writes, and `SlurmConnection` is both for one place. Answers come as
`engine.external.slurm.records`, errors as those of `engine.external.slurm.capabilities`. Success is what the answer
says, never the HTTP status alone (`engine.external.slurm.answers`). A write is made once, and its return means only
that Slurm took it: the caller reads back whether it came about. All methods may be called from several threads.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import msgspec

from engine.external.answer_cutter import Cutter
from engine.external.slurm import entries
from engine.external.slurm import names as hostlist
from engine.external.slurm.answers import SlurmAnswer, ignored_fields, job_id, number_in, read_all
from engine.external.slurm.capabilities import SlurmGone, SlurmLacks, SlurmRefused, SlurmUnavailable
from engine.external.slurm.names import check_name
from engine.external.slurm.records import (
    AcceptedJob,
    Association,
    Diag,
    Job,
    JobList,
    JobRequest,
    JobState,
    JobStep,
    Node,
    PastJob,
    Qos,
    ReservationWish,
    Share,
    SlurmNodes,
    SlurmPartition,
    SlurmReservation,
    TopologySwitch,
)
from engine.external.slurm.scontrol import Commands
from engine.external.slurm.session import JobUpdate, SlurmSession, whole_minutes
from engine.external.slurm.transport import IN_FLIGHT, LARGEST_ANSWER, SlurmTransport, TokenFile, where
from engine.model.errors import SpecError

T = TypeVar("T")

NOTHING_FOUND = 9003
LISTS_LONGER = 4
"""Times as long as for anything else a whole list is waited for: slurmrestd writes all of it before the first byte
comes, which took over 30 s for 10,000 jobs of 24.11 on a busy machine."""


class SlurmReader(SlurmSession):
    def jobs(self, since: int | None = None) -> JobList:
        """All jobs the controller holds. `since`: the `last_update` of an earlier answer; when nothing changed after
        it, the answer is `unchanged` and cheap, otherwise it is whole."""
        made: list[Cutter[Job]] = [Cutter("jobs", entries.job)]

        def cutter() -> Cutter[Job]:
            # Asked again, it begins again.
            made[0] = Cutter("jobs", entries.job)
            return made[0]

        answer, next_since = self._list("listing jobs", "jobs", since, cutter)
        if answer is None:
            return JobList(unchanged=True, last_update=next_since)
        cut, left = made[0], answer.entries("jobs")
        last, bad = read_all(left, entries.job, "job", after=cut.count)
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
        found, bad = read_all(answer.entries("jobs"), entries.job, "job")
        if not found:
            raise SlurmGone(2017, f"there is no job {id_}" + (f" that could be read: {bad[0]}" if bad else ""))
        return found

    def job_states(self) -> tuple[JobState, ...]:
        """States alone: a hundredth of the size of `jobs`."""
        self.can.job_states.need("listing states only")
        if self.can.job_states.by == "command" and self.commands:
            return self.commands.job_states()
        answer = self.asked("listing states of jobs", "jobs/state")
        return entries.short_states(answer.entries("jobs"), own_ids=self.dialect.name == "v0.0.42")[0]

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
        found, _ = read_all(answer.entries("nodes"), entries.node, "node")
        return SlurmNodes(list=found, last_update=next_since)

    def node(self, name: str) -> Node:
        """One node, without its partitions: asked alone, both releases give wrong ones."""
        answer = self.asked(f"asking for node {name}", f"node/{check_name('node', name)}")
        found = [entries.node(raw) for raw in answer.entries("nodes")]
        if not found:
            raise SlurmGone(2018, f"there is no node {name}")
        return msgspec.structs.replace(found[0], partitions=())

    def partitions(self) -> tuple[SlurmPartition, ...]:
        """All partitions. REST leaves out how they are preempted: that comes by `scontrol`."""
        found = self._all("listing partitions", "partitions", entries.partition)
        if self.commands is None or not self.can.topology:
            return found
        told = self.commands.partitions()
        return tuple(_completed(one, told.get(one.name, {})) for one in found)

    def reservations(self) -> tuple[SlurmReservation, ...]:
        return self._all("listing reservations", "reservations", entries.reservation)

    def qos(self) -> tuple[Qos, ...]:
        return self._from_database("listing QOS", "qos", entries.qos, "qos", "QOS")

    def associations(self) -> tuple[Association, ...]:
        return self._from_database("listing associations", "associations", entries.association, "associations")

    def shares(self) -> tuple[Share, ...]:
        self.can.shares.need("asking for fair shares")
        if self.can.shares.by == "command" and self.commands:
            return self.commands.shares()
        answer = self.asked("asking for fair shares", "shares")
        inner = msgspec.json.decode(answer.fields["shares"], type=dict[str, msgspec.Raw])
        return read_all(SlurmAnswer(answer.status, inner).entries("shares"), entries.share, "share")[0]

    def diag(self) -> Diag:
        answer = self.asked("asking for statistics", "diag")
        return entries.diag(answer.fields.get("statistics", msgspec.Raw(b"{}")))

    def history(self, since_s: int, until_s: int | None = None) -> tuple[PastJob, ...]:
        """Attempts of jobs that ran or ended from `since_s` on, as accounting has them, with their steps."""
        query = {"start_time": f"uts{since_s}"}
        if until_s is not None:
            query["end_time"] = f"uts{until_s}"
        return self._from_database("asking accounting for jobs", "jobs", entries.past_job, "jobs", query=query)

    def past(self, id_: int) -> tuple[PastJob, ...]:
        """Every attempt of one job, and of other jobs that had its id before: tell them apart by `submit_s`."""
        path = f"job/{check_id(id_)}"
        return self._from_database(f"asking accounting for job {id_}", path, entries.past_job, "jobs")

    def boot(self) -> str:
        """Return when slurmctld started, by its own word: another word, another slurmctld. Empty where Slurm's commands
        are not at hand: REST tells only since when it counts, which a reset of the statistics changes as well."""
        return self.commands.boot() if self.commands is not None and self.can.topology else ""

    def ended_kept_s(self) -> float:
        """Return how long an ended job stays in Slurm's list; 0 where that is not told."""
        if self.commands is None or not self.can.topology:
            return 0.0
        age_s = self.commands.min_job_age_s()
        return math.inf if age_s == 0 else float(age_s or 0)

    def spool(self) -> str:
        """Return the folder of slurmd's own files, with its patterns, by `scontrol`; empty: not told."""
        return self.commands.spool() if self.commands is not None and self.can.topology else ""

    def resume_timeout_s(self) -> int:
        """Return how long slurmctld waits for a node to boot, by `scontrol`; 0: not told."""
        return self.commands.resume_timeout_s() if self.commands is not None and self.can.topology else 0

    def steps(self, id_: int) -> tuple[JobStep, ...]:
        """Steps of a job that runs: REST lists none, so they come by `squeue`, or else as accounting has them."""
        check_id(id_)
        if self.commands is not None and self.can.topology:
            return self.commands.steps(id_)
        attempts = self.past(id_)
        return attempts[-1].steps if attempts else ()

    def topology(self) -> tuple[TopologySwitch, ...]:
        """The tree of switches, by `scontrol`; nothing where none is configured."""
        self.can.topology.need("asking for switches")
        return self.commands.topology() if self.commands else ()

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
    mode = told.get("PreemptMode", "").split(",")[0].upper() or one.preempt_mode
    exclusive = told.get("OverSubscribe", "").upper() == "EXCLUSIVE" or one.exclusive
    return msgspec.structs.replace(one, preempt_mode=mode, exclusive=exclusive)


def _says_unchanged(answer: SlurmAnswer) -> bool:
    """v0.0.42 says so of jobs with 200, an empty list and a warning."""
    return any(" changes since " in fault.text for fault in answer.warnings)


PARTITION_STATES = frozenset(["UP", "DOWN", "DRAIN", "INACTIVE"])
NODE_STATES = frozenset(["DRAIN", "RESUME", "UNDRAIN", "DOWN", "FAIL", "POWER_UP", "POWER_DOWN", "CANCEL_REBOOT"])


class SlurmWriter(SlurmReader):
    def submit(self, wish: JobRequest) -> AcceptedJob:
        """Gives the job to Slurm. SlurmUnavailable with `arrived`: it may be there; find it by its comment before
        asking again. An id is no promise: slurmctld may forget it in a crash within its next seconds."""
        _check_wish(wish)
        self.can.submit.need("submitting a job")
        body = self.dialect.submission(wish)
        answer = self.tell(f"submitting {wish.name}", "POST", "job/submit", body, submitted=True)
        id_ = job_id(answer)
        if not id_:
            raise _no_id(wish, answer)
        if ignored := ignored_fields(answer):
            self._take_back(id_, wish, ignored)
        soft = [str(fault) for fault in (*answer.faults, *answer.warnings)]
        return AcceptedJob(id=id_, soft=tuple(dict.fromkeys(soft)))

    def _take_back(self, id_: int, wish: JobRequest, ignored: str) -> None:
        """Half of a wish is another wish: the job that came of it is cancelled, and the wish refused."""
        with contextlib.suppress(SlurmGone):
            self.cancel(id_)
        raise SlurmRefused(0, f"submitting {wish.name}: Slurm did not know a field: {ignored}; job {id_} is cancelled")

    def update_job(self, id_: int, **change: Unpack[JobUpdate]) -> None:
        """Change the fields that are given: `update_job(7, qos="high")`."""
        self.can.update_job.need(f"changing job {id_}")
        self.tell(f"changing job {id_}", "POST", f"job/{check_id(id_)}", self.dialect.change(change))

    def hold(self, id_: int) -> None:
        self.update_job(id_, held=True)

    def release(self, id_: int) -> None:
        self.update_job(id_, held=False)

    def cancel(self, id_: int) -> None:
        """Cancel the job. Raises SlurmGone when it is unknown or over."""
        self.can.cancel.need(f"cancelling job {id_}")
        self.tell(f"cancelling job {id_}", "DELETE", f"job/{check_id(id_)}")

    def put_back(self, id_: int) -> None:
        """Ends it and puts it back to wait, under the same id. It waits two minutes at least (cred_expire)."""
        check_id(id_)
        self._by_command("put_back", Commands.putting_back(id_)).put_back(id_)

    def update_node(self, name: str, state: str = "", reason: str = "") -> None:
        """`state`: one of NODE_STATES. Draining and taking down want a reason."""
        check_name("node", name)
        if state not in NODE_STATES:
            raise SpecError("state", f"{state!r} is not one of {', '.join(sorted(NODE_STATES))}")
        if state in ("DRAIN", "DOWN", "FAIL") and not reason.strip():
            raise SpecError("reason", "is missing", "Slurm requires a reason to take a node out")
        what = f"setting node {name} to {state}"
        self.can.update_node.need(what)
        if self.can.update_node.by == "command":
            self._by_command("update_node", what).update_node(name, state, reason)
            return
        body: dict[str, Any] = {"state": [state]}
        if reason:
            body["reason"] = reason
        self.tell(what, "POST", f"node/{name}", body)

    def power(self, name: str, up: bool) -> None:
        """Boots or stops a cloud node."""
        self.update_node(name, "POWER_UP" if up else "POWER_DOWN")

    def update_partition(self, name: str, state: str) -> None:
        """`state`: one of PARTITION_STATES."""
        check_name("partition", name)
        if state not in PARTITION_STATES:
            raise SpecError("state", f"{state!r} is not one of {', '.join(sorted(PARTITION_STATES))}")
        self._by_command("update_partition", f"setting partition {name} {state}").update_partition(name, state)

    def create_reservation(self, wish: ReservationWish) -> None:
        commands = self._by_command("reservation_write", f"reserving {wish.name}")
        commands.create_reservation(_reservation_words(wish))

    def delete_reservation(self, name: str) -> None:
        check_name("reservation", name)
        self._by_command("reservation_write", f"deleting reservation {name}").delete_reservation(name)

    def _by_command(self, ability: str, what: str) -> Commands:
        getattr(self.can, ability).need(what)
        if self.commands is None:
            raise SlurmLacks(0, f"{what}: Slurm's commands are not installed here")
        return self.commands


def _no_id(wish: JobRequest, answer: SlurmAnswer) -> SlurmUnavailable:
    said = "; ".join(str(fault) for fault in answer.warnings) or "nothing else"
    return SlurmUnavailable(f"submitting {wish.name}: Slurm gave no job id and answered {said}", answered=True)


def _check_wish(wish: JobRequest) -> None:
    if not wish.script.startswith("#!"):
        raise SpecError("script", "does not begin with #!", "Begin it with an interpreter, such as #!/bin/sh")
    if not wish.environment:
        raise SpecError("environment", "is empty", "Slurm needs at least PATH")
    if any("=" in name or not name for name in wish.environment):
        raise SpecError("environment", "has a name that is empty or holds =")
    texts = [wish.script, wish.name, wish.comment, wish.workdir, *wish.environment, *wish.environment.values()]
    if any("\0" in text for text in texts):
        raise SpecError("job", "contains a NUL character")


def _reservation_words(wish: ReservationWish) -> Sequence[str]:
    check_name("reservation", wish.name)
    words = [
        f"ReservationName={wish.name}",
        f"StartTime=uts{wish.start_s}" if wish.start_s else "StartTime=now",
        f"Duration={whole_minutes(wish.duration_s)}",
        "Nodes=" + hostlist.compressed(check_name("node", name) for name in wish.nodes),
    ]
    for key, names in (("Users", wish.users), ("Flags", wish.flags)):
        if names:
            words.append(f"{key}=" + ",".join(check_name(key.lower(), name) for name in names))
    return words


_USER = re.compile(r"[!-~]{1,256}")


class SlurmConnection(SlurmWriter):
    """`place`: `unix:/run/slurmrestd.socket`, `http://host:6820`, ... (`engine.external.slurm.transport.where`).

    `user` and `token_file`: who asks, over TCP; over a Unix socket it may be left to the socket. `commands`: a folder
    with Slurm's own commands, for what REST lacks; without it those of the PATH, when the cluster is on this machine.
    They are used only if they prove to speak to the same controller. Nothing is asked before the first call.
    """

    def __init__(
        self,
        place: str,
        user: str | None = None,
        token_file: str | Path | None = None,
        *,
        commands: str | Path | None = None,
        timeout_s: float = 30.0,
        in_flight: int = IN_FLIGHT,
        largest: int = LARGEST_ANSWER,
    ) -> None:
        if user and not _USER.fullmatch(user):
            raise SpecError("slurm user", f"{user[:80]!r} is not a user name", "Give the name as the token has it")
        tokens = TokenFile(token_file) if token_file else None
        at = where(place)
        line = SlurmTransport(at, user or "", tokens, read_s=timeout_s, in_flight=in_flight, largest=largest)
        super().__init__(line, Commands(commands) if commands or at.local else None)

    @property
    def place(self) -> str:
        return str(self.line.place)

    @property
    def acts_as(self) -> str:
        """The user that the token is for, or that it is used for; empty without one, or where it cannot be read."""
        tokens = self.line.tokens
        if tokens is None:
            return ""
        try:
            return self.line.user or tokens.user()
        except SpecError:
            return ""

    @property
    def version(self) -> str:
        """Slurm's own version, e.g. `24.11.5`; asked for once."""
        if not self.slurm_version:
            self.asked("asking which release it is", "ping")
        return self.slurm_version
