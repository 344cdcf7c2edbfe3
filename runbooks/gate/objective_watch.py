"""Incidents that Muster opens by itself: of a queue whose starts are later than its objective allows.

A breach opens one incident, through the door by which alerts come (`Incidents.report`), with `MUSTER` as its source.
Once its last hour is within the objective again the incident is resolved; people close it. One that was closed while
the breach went on stays closed until the next.

Call it on the engine's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.model.errors import JournalError, MusterError
from engine.state.pending_work import burns
from runbooks.gate.approval_policy import OWN_SERVICE
from runbooks.plans.identity import Actor
from runbooks.plans.incidents import AlertReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from engine.control import Engine
    from engine.model.details import Burn
    from runbooks.gate.incidents import Incidents

MUSTER = Actor(subject=f"service:{OWN_SERVICE}", kind="service", account="system", deeds=("alert",))
"""Source of what Muster reports by itself."""
EVERY_MS = 30_000
"""Wall time between two looks."""


class ObjectiveWatch:
    """Looks at the objectives of one engine's queues. `clock` gives wall time in Unix milliseconds."""

    def __init__(self, engine: Engine, incidents: Incidents, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._incidents = incidents
        self._clock = clock
        self._next_ms = 0
        self._missed: dict[str, bool] = {}
        """Queue -> whether its objective was missed when that was last reported."""

    def look(self) -> None:
        """Report what has changed, when it is time to. Raises JournalError."""
        now_ms = self._clock()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + EVERY_MS
        for burn in burns(self._engine.state, self._engine.now_ms):
            was = self._missed.get(burn.queue)
            missed = burn.is_missed or bool(was and burn.is_missed_lately)
            if missed != was and self._report(burn, "firing" if missed else "resolved"):
                self._missed[burn.queue] = missed

    def _report(self, burn: Burn, status: Literal["firing", "resolved"]) -> bool:
        """False where it was not taken, to be tried again at the next look."""
        title = f"{burn.queue}: work starts later than its objective allows"
        report = AlertReport(
            title=title, status=status, severity="page", key=f"objective:{burn.queue}", labels={"queue": burn.queue}
        )
        try:
            self._incidents.report(MUSTER, report)
        except JournalError:
            raise
        except MusterError:
            return False  # Too many fire already: whoever is on call has more to look at than this.
        return True
