"""How the gate stands, for whoever asks for the engine's health every other second: looked up on the engine's thread,
which is not waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate

EVERY_S = 1.0
Figures = tuple[str, int, int]
"""(mode of approval, proposals that wait for votes, plans that got stuck)"""


class GateFigures:
    """The last figures that were looked up."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
        self._figures: Figures | None = None
        self._asked_at = 0.0

    def look(self) -> Figures:
        """The present ones. On the engine's thread."""
        self._figures = (self._gate.mode(), *self._gate.pending())
        return self._figures

    def latest(self) -> Figures:
        """From a moment ago, and others are asked for where that is longer than a second. From any thread."""
        figures, now = self._figures, time.monotonic()
        if figures is None:
            return self._loop.call(lambda _: self.look())
        if now - self._asked_at > EVERY_S:
            self._asked_at = now
            self._loop.post(lambda _: self.look())
        return figures

    def forget(self) -> None:
        """Something was changed: who asks next waits for the present ones."""
        self._figures = None
