"""Which slurmctld it is that answers: one that was killed and is back may have forgotten what it had accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.slurm.records import Diag

EVERY_S = 1.0
"""Between questions, while anything is under way."""
NEVER_S = -1e9
UNKNOWN = -1


class Asked(Protocol):
    def diag(self) -> Diag: ...


class Epochs:
    """Told apart by the time since when it counts its statistics: their reset looks like a restart, which does no harm
    but the work of looking."""

    def __init__(self, far: Asked, clock: Callable[[], float]) -> None:
        self._far = far
        self._clock = clock
        self.now = UNKNOWN
        self.at_s = NEVER_S
        """Our clock, before the question whose answer told it."""
        self.up_s = 0.0
        """How long it had lived by then."""

    def see(self, *, afresh: bool = False) -> bool:
        """Ask, if it is time or `afresh`. Returns whether it was asked. Raises SlurmUnavailable."""
        now_s = self._clock()
        if not afresh and now_s < self.at_s + EVERY_S:
            return False
        self.at_s = NEVER_S
        diag = self._far.diag()
        self.now, self.at_s = diag.since_s, now_s
        self.up_s = float(max(0, diag.asked_s - diag.since_s)) if diag.asked_s else 0.0
        return True

    def forget(self) -> None:
        """What comes next is to be asked for afresh."""
        self.at_s = NEVER_S
