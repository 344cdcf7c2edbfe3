"""What the engine and a provider of machines say to each other, and the simulated provider."""

from __future__ import annotations

from collections.abc import Callable

from engine import events as ev
from engine.state import State


class SimulatedProvider:
    """Answers orders within the stock of each pool."""

    def __init__(self, state: State, seed: int, emit: Callable[[ev.AnyEvent], None]) -> None:
        self._state = state
        self._seed = seed
        self._emit = emit

    def next_ms(self, now_ms: int) -> int | None:
        return None

    def act(self, now_ms: int) -> None:
        """Nothing is ever due yet."""
