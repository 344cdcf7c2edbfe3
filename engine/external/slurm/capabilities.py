"""Abilities of a cluster as it is reached here, and the errors of asking it.

SlurmRefused         it said no, and why: nothing was done
├── SlurmLacks       there is no way to ask it: this release's REST has none, and no command is at hand
├── SlurmGone        the thing is not there, or has ended
└── SlurmDenied      the token is not good, or its user may not
SlurmUnavailable     it did not say: it may or may not have been done
└── SlurmUnreadable  its answer is nothing that a known release says

The texts in the errors are Slurm's own and untrusted. `Capabilities` has one row for each ability: by REST, by a
command at hand, or missing, with the reason in words for a person.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from engine.model.errors import RefusedError, UnreachableError

OVER = 2021
"""ESLURM_ALREADY_DONE."""


class SlurmRefused(RefusedError):
    """Slurm said no. `number` is its error number (slurm_errno.h), 0 where it gave none."""

    def __init__(self, number: int, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.number = number


class SlurmLacks(SlurmRefused):
    """Nobody was asked: this release of Slurm, as it is reached from here, cannot be asked for that."""


class SlurmGone(SlurmRefused):
    """There is no such thing, or the job has ended."""

    @property
    def over(self) -> bool:
        """True where the thing is known and has ended."""
        return self.number == OVER


class SlurmDenied(SlurmRefused):
    """Slurm knows who asks, or cannot find out, and will not do it for them. `bad_token`: another may help."""

    def __init__(self, number: int, problem: str, remedy: str = "", *, bad_token: bool = False) -> None:
        super().__init__(number, problem, remedy)
        self.bad_token = bad_token


class SlurmUnavailable(UnreachableError):
    """No word of slurmctld. `answered`: slurmrestd itself gave an answer, so nothing of the request is under way in it
    any more. `arrived`: slurmctld may have got it; False only where it is known that it has not."""

    def __init__(self, problem: str, remedy: str = "", *, answered: bool = False, arrived: bool = True) -> None:
        super().__init__(problem, remedy)
        self.answered = answered
        self.arrived = arrived


class SlurmUnreadable(SlurmUnavailable):
    """An answer came whose shape is not known. Whether the request was done is not known either."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy, answered=True)


By = Literal["rest", "command", ""]


class Capability(msgspec.Struct, frozen=True):
    """`by` is empty where it is missing; `why` then says what would give it."""

    by: By
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.by)

    def need(self, what: str) -> None:
        """SlurmLacks, with the reason, where it is missing. `what` begins the sentence: "draining node cpu001"."""
        if not self.by:
            raise SlurmLacks(0, f"{what}: not possible here: {self.why}", _REMEDY)


_REMEDY = "Install Slurm's commands where Muster runs, or use a newer slurmrestd"
REST = Capability("rest")
COMMAND = Capability("command")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    submit: Capability
    update_job: Capability
    """Time limit, priority, QOS, partition, account, comment, name, nice, dependency, begin time; hold and release."""
    cancel: Capability
    put_back: Capability = msgspec.field(name="requeue")
    update_node: Capability
    """Drain, resume, down, with a reason; power up and down of cloud nodes."""
    update_partition: Capability
    reservation_write: Capability
    job_states: Capability
    """The short list: whether a job moved, without all of it."""
    shares: Capability
    history: Capability
    """slurmdb: jobs that ended long ago, QOS, associations."""
    topology: Capability

    def missing(self) -> dict[str, str]:
        """Names of what is missing, with the reason."""
        names = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        found = {shown: getattr(self, field) for shown, field in names}
        return {shown: ability.why for shown, ability in found.items() if not ability}


def capabilities(
    *, version: str, offers: Callable[[str, str], bool], commands: bool, no_commands: str, proven: bool
) -> Capabilities:
    """`offers(method, path)` asks the release's own description, `path` without its version. `commands`: scontrol and
    its like are at hand and speak to the same controller; `no_commands` says why not. `proven`: this client knows the
    version; one it does not know is only read.
    """

    def can(what: str, method: str = "", path: str = "", *, command: bool = False, acts: bool = True) -> Capability:
        if acts and not proven:
            return Capability("", f"REST version {version} is newer than Muster supports: read-only")
        if path and offers(method, path):
            return REST
        if command and commands:
            return COMMAND
        rest = f"REST {version} cannot {what}" if path else f"REST up to v0.0.42 cannot {what}"
        return Capability("", f"{rest}, and {no_commands}" if command else rest)

    return Capabilities(
        submit=can("submit jobs", "post", "/slurm/*/job/submit"),
        update_job=can("change jobs", "post", "/slurm/*/job/{job_id}"),
        cancel=can("cancel jobs", "delete", "/slurm/*/job/{job_id}"),
        put_back=can("requeue jobs", command=True),
        update_node=can("change nodes", "post", "/slurm/*/node/{node_name}", command=True),
        update_partition=can("change partitions", command=True),
        reservation_write=can("create or delete reservations", command=True),
        job_states=can("list states only", "get", "/slurm/*/jobs/state", command=True, acts=False),
        shares=can("report fair shares", "get", "/slurm/*/shares", command=True, acts=False),
        history=can("report accounting: slurmrestd runs without slurmdbd", "get", "/slurmdb/*/jobs", acts=False),
        topology=can("report switches", command=True, acts=False),
    )
