"""What Slurm decides by besides machines and jobs: limits of QOS and accounts, fair share.

Asked for more seldom than the rest: accounting answers slowly, and people change it by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from engine.external.slurm.accounting import Association, Share
from engine.external.slurm.errors import SlurmRefused, SlurmUnavailable
from engine.external.slurm.limits import ClusterLimits, Limit
from engine.external.slurm.mirror.mirror_passes import Mirror
from engine.external.slurm.records import Job

if TYPE_CHECKING:
    from engine.external.slurm.client.connection import SlurmConnection

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
