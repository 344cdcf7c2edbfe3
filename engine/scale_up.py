"""Which nodes to order for what waits."""

from __future__ import annotations

from engine import events as ev
from engine.state import State


def plan(state: State, now_ms: int) -> list[ev.AnyEvent]:
    """Orders to make now, and what becomes of orders made before."""
    return []
