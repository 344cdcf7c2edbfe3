"""A Slurm cluster, as slurmrestd and Slurm's own commands give it: everything that can be asked of it or told to it.

What comes back is in `engine.external.slurm.records`; what can go wrong is in `engine.external.slurm.errors`. Success
is what the answer says, never the HTTP status alone (`engine.external.slurm.answers`). All methods may be called from
several threads.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.external.slurm.client.scontrol import Commands
from engine.external.slurm.client.tokens import TokenFile
from engine.external.slurm.client.transport import IN_FLIGHT, LARGEST_ANSWER, SlurmTransport, where
from engine.external.slurm.client.writing import SlurmWriter
from engine.model.errors import SpecError

_USER = re.compile(r"[!-~]{1,256}")


class SlurmConnection(SlurmWriter):
    """`place`: `unix:/run/slurmrestd.socket`, `http://host:6820`, ... (`engine.external.slurm.client.transport.where`).

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
            raise SpecError("slurm user", f"{user[:80]!r} is no name of a user", "Give the name as the token has it")
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
