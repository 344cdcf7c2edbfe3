"""Everything that can be told to a cluster. Nothing is done twice of itself, and what is returned is only that Slurm
took it: whether it came about is read back by whoever told it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from engine.external.slurm import hostlist
from engine.external.slurm.answers import SlurmAnswer, ignored_fields, job_id
from engine.external.slurm.client.reading import SlurmReader, check_id
from engine.external.slurm.client.scontrol import Commands
from engine.external.slurm.dialects.dialect import JobUpdate, whole_minutes
from engine.external.slurm.errors import SlurmGone, SlurmLacks, SlurmRefused, SlurmUnavailable
from engine.external.slurm.names import check_name
from engine.external.slurm.records import AcceptedJob, JobRequest, ReservationWish
from engine.model.errors import SpecError

SIGNALS = frozenset(
    [
        "HUP",
        "INT",
        "QUIT",
        "ABRT",
        "KILL",
        "ALRM",
        "TERM",
        "USR1",
        "USR2",
        "URG",
        "CONT",
        "STOP",
        "TSTP",
        "TTIN",
        "TTOU",
    ]
)
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

    def update_job(self, id_: int, **change: Any) -> None:
        """Changes what is named, by the names of `JobRequest`, plus `held` and `priority`: `update_job(7, nice=5)`."""
        self.can.update_job.need(f"changing job {id_}")
        body = self.dialect.change(JobUpdate(change))
        if not body:
            raise SpecError("change", "is empty", "Say what to change")
        self.tell(f"changing job {id_}", "POST", f"job/{check_id(id_)}", body)

    def hold(self, id_: int) -> None:
        self.update_job(id_, held=True)

    def release(self, id_: int) -> None:
        self.update_job(id_, held=False)

    def cancel(self, id_: int, signal: str | None = None) -> None:
        """Cancels, or sends a signal (`USR1`) and leaves it be. SlurmGone when it is unknown or over."""
        self.can.cancel.need(f"cancelling job {id_}")
        query = {"signal": _signal(signal)} if signal else None
        what = f"sending {signal} to job {id_}" if signal else f"cancelling job {id_}"
        self.tell(what, "DELETE", f"job/{check_id(id_)}", query=query)

    def requeue(self, id_: int) -> None:
        """Ends it and puts it back to wait, under the same id. It waits two minutes at least (cred_expire)."""
        check_id(id_)
        self._by_command("requeue", f"requeueing job {id_}").requeue(id_)

    def update_node(self, name: str, state: str = "", reason: str = "") -> None:
        """`state`: one of NODE_STATES. Draining and taking down want a reason."""
        check_name("node", name)
        if state not in NODE_STATES:
            raise SpecError("state", f"{state!r} is none of {', '.join(sorted(NODE_STATES))}")
        if state in ("DRAIN", "DOWN", "FAIL") and not reason.strip():
            raise SpecError("reason", "is missing", "Slurm wants one for a node that is taken out")
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
            raise SpecError("state", f"{state!r} is none of {', '.join(sorted(PARTITION_STATES))}")
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
            raise SlurmLacks(0, f"{what}: Slurm's commands are not at hand")
        return self.commands


def _no_id(wish: JobRequest, answer: SlurmAnswer) -> SlurmUnavailable:
    said = "; ".join(str(fault) for fault in answer.warnings) or "nothing else"
    return SlurmUnavailable(f"submitting {wish.name}: Slurm gave no job id, and said {said}", answered=True)


def _check_wish(wish: JobRequest) -> None:
    if not wish.script.startswith("#!"):
        raise SpecError("script", "does not begin with #!", "Begin it with the interpreter, as #!/bin/sh")
    if not wish.environment:
        raise SpecError("environment", "is empty", "Slurm wants at least PATH")
    if any("=" in name or not name for name in wish.environment):
        raise SpecError("environment", "has a name that is empty or holds =")
    texts = [wish.script, wish.name, wish.comment, wish.workdir, *wish.environment, *wish.environment.values()]
    if any("\0" in text for text in texts):
        raise SpecError("job", "holds a NUL character, which no program can be given")


def _signal(name: str) -> str:
    word = name.upper().removeprefix("SIG")
    if word not in SIGNALS:
        raise SpecError("signal", f"{name[:20]!r} is none of {', '.join(sorted(SIGNALS))}")
    return word


def _reservation_words(wish: ReservationWish) -> Sequence[str]:
    check_name("reservation", wish.name)
    words = [
        f"ReservationName={wish.name}",
        f"StartTime=uts{wish.start_s}" if wish.start_s else "StartTime=now",
        f"Duration={whole_minutes(wish.duration_s)}",
    ]
    if wish.nodes:
        words.append("Nodes=" + hostlist.compressed(check_name("node", name) for name in wish.nodes))
    elif wish.node_count:
        words.append(f"NodeCnt={wish.node_count}")
    if wish.partition:
        words.append("PartitionName=" + check_name("partition", wish.partition))
    for key, names in (("Users", wish.users), ("Accounts", wish.accounts), ("Flags", wish.flags)):
        if names:
            words.append(f"{key}=" + ",".join(check_name(key.lower(), name) for name in names))
    if wish.features:
        words.append(f"Features={wish.features}")
    return words
