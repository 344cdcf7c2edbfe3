"""What a perfect answer to a scripted incident would do."""

from __future__ import annotations

from console.evals.incident_replay import PlayedIncident
from runbooks.plans.typed_plan import Act
from runbooks.procedures.compiler import Maker


def perfect_acts(scene: PlayedIncident) -> tuple[Act, ...]:
    """Raises MusterError where the incident cannot be answered so."""
    maker = Maker(scene.engine)
    return tuple(maker.act(action, given) for action, given in scene.incident.perfect)
