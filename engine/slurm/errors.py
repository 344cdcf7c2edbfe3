"""How a cluster that was asked for something may fail to do it.

    SlurmRefused      it said no, and why: nothing was done
    ├── SlurmGone     what it is about is not there, or has ended
    └── SlurmDenied   the token is not good, or its user may not
    SlurmUnavailable  it did not say: it may or may not have been done
"""

from __future__ import annotations

from engine.errors import RefusedError, UnreachableError


class SlurmRefused(RefusedError):
    """Slurm said no. `number` is its error number, 0 where it gave none."""

    def __init__(self, number: int, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.number = number


class SlurmGone(SlurmRefused):
    """There is no such thing, or the job has ended."""


class SlurmDenied(SlurmRefused):
    """Slurm knows who asks, or cannot find out, and will not do it for them."""


class SlurmUnavailable(UnreachableError):
    """No word of slurmctld. `answered`: slurmrestd itself gave an answer, so nothing of the request is under way in it
    any more. `arrived`: slurmctld may have got it; False only where it is known that it has not."""

    def __init__(self, problem: str, remedy: str = "", *, answered: bool = False, arrived: bool = True) -> None:
        super().__init__(problem, remedy)
        self.answered = answered
        self.arrived = arrived
