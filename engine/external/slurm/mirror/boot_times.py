"""How long a powered-down node takes to be of use: as boots were seen to take, else as long as Slurm waits for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median

from engine.external.slurm.records import Node

RESUME_TIMEOUT_S = 60
"""Slurm's own default."""
LAST = 50
"""So many boots are gone by."""


class BootTimes:
    def __init__(self) -> None:
        self._off: set[str] = set()
        self._since: dict[str, float] = {}
        self._took_s: deque[float] = deque(maxlen=LAST)
        self.timeout_s = RESUME_TIMEOUT_S
        """ResumeTimeout, where the cluster says it."""

    def note(self, nodes: Collection[Node], now_s: float) -> None:
        """Look whose boot began or ended. What was powering up when it was first seen is not measured."""
        for node in nodes:
            if "POWERING_UP" in node.flags:
                self._since.setdefault(node.name, now_s if node.name in self._off else 0.0)
            elif (since := self._since.pop(node.name, 0.0)) and node.state in ("IDLE", "MIXED", "ALLOCATED"):
                self._took_s.append(now_s - since)
        self._off = {node.name for node in nodes if "POWERED_DOWN" in node.flags}

    @property
    def seen(self) -> int:
        return len(self._took_s)

    def ms(self, node: Node) -> int:
        """How long what starts there waits for its boot; 0 where it is on. Whole seconds, at least one."""
        if node.flags.isdisjoint(("POWERED_DOWN", "POWERING_UP")):
            return 0
        return max(round(median(self._took_s)) if self._took_s else self.timeout_s, 1) * 1000
