"""How a cluster that was asked for something may fail to do it.

SlurmRefused         it said no, and why: nothing was done
├── SlurmLacks       there is no way to ask it: this release's REST has none, and no command is at hand
├── SlurmGone        what it is about is not there, or has ended
└── SlurmDenied      the token is not good, or its user may not
SlurmUnavailable     it did not say: it may or may not have been done
└── SlurmUnreadable  what it said is nothing that a known release says

The texts in them are Slurm's own: untrusted.
"""

from __future__ import annotations

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
        """It is known, and has ended."""
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
