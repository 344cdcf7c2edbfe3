"""What a dialect is: how one family of REST versions wants to be asked."""

from __future__ import annotations

from typing import Any, Protocol

from engine.external.slurm.records import JobRequest


class JobUpdate(dict[str, Any]):
    """What to change of a job, by the names of `JobRequest`, plus `priority` and `held`. Only what is in it is
    changed."""


class Dialect(Protocol):
    """Bodies and forms of one family. `wish` and `change` raise SpecError for what it cannot say."""

    name: str

    def since(self, at_s: int) -> str:
        """A time as `update_time` takes it."""

    def moment(self, at_s: int) -> str:
        """A time as slurmdb's `start_time` takes it."""

    def submission(self, wish: JobRequest) -> dict[str, Any]: ...

    def change(self, change: JobUpdate) -> dict[str, Any]: ...


def whole_minutes(seconds: int) -> int:
    """Slurm's time limits are minutes: rounded up, so that nothing gets less than was asked for."""
    return -(-seconds // 60)


def gres_text(gres: dict[str, int], prefix: str = "") -> str:
    return ",".join(f"{prefix}{name}:{count}" for name, count in gres.items())
