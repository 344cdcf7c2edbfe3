"""What is known of running services: how many replicas each should have, and what its load has taken of late."""

from __future__ import annotations

from engine.model.service_replicas import ServiceSpec
from engine.tables.columns import Table


class Replicas(Table):
    """What is known of services, by workload row."""

    columns = ("wanted", "seen", "held_ms")

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}
        """Replicas that it should have now."""
        self.seen: dict[int, list[list[int]]] = {}
        """[cell ms, replicas its load took from then on], oldest first, as far back as its stabilisation goes."""
        self.held_ms: dict[int, int] = {}
        """Elastic work of any kind that was shrunk for a node's sake -> cell time before which it does not grow."""
        self.running: set[int] = set()
        """Services that run. Not stored."""

    def enter(self, row: int, spec: ServiceSpec) -> None:
        self.wanted[row] = spec.first or spec.least

    def leave(self, row: int) -> None:
        self.wanted.pop(row, None)
        self.seen.pop(row, None)

    def note(self, row: int, replicas: int, load: int, now_ms: int, stabilise_ms: int) -> None:
        """From now on it should have so many, and its load takes `load`."""
        self.wanted[row] = replicas
        seen = self.seen.setdefault(row, [])
        if not seen or seen[-1][1] != load:
            seen.append([now_ms, load])
        while len(seen) > 1 and seen[1][0] <= now_ms - stabilise_ms:
            del seen[0]

    def most_seen(self, row: int, since_ms: int) -> int:
        """The most that its load has taken at any time after that; 0 when nothing was seen."""
        seen = self.seen.get(row, ())
        ends = [at for at, _ in seen[1:]] + [2**62] if seen else []
        return max((load for (_, load), end in zip(seen, ends, strict=True) if end > since_ms), default=0)
