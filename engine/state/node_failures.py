"""What is remembered of nodes that are watched and of those that failed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from engine.model.health_settings import MAX_FLAPS
from engine.model.specs import NodeState
from engine.tables.columns import Table

NOTES = ("", "needs hands: its repairs failed", "flaps: lost again and again within a short time")
"""Why a node is kept out, by code."""
NEEDS_HANDS, FLAPS = 1, 2
MIN_MASS = 5
"""Suspects below which it is no mass suspicion, however small the cell."""


class Failures(Table):
    """By node row. Only nodes of which there is something to say have an entry."""

    columns = ("watched", "before", "losses", "repairs", "repair_until", "notes", "lost_at_ms")

    def __init__(self) -> None:
        self.watched = array("b")
        """Whether an agent ever called from the node: then its silence means something. Nodes beyond the end: no."""
        self.before: dict[int, int] = {}
        """What a node was before it fell silent; of nodes that are suspect, or down because they stayed silent."""
        self.losses: dict[int, list[int]] = {}
        """Cell times at which the node went down, the last few."""
        self.repairs: dict[int, int] = {}
        """Repairs begun since the node went down."""
        self.repair_until: dict[int, int] = {}
        """Cell time at which the repair under way is over."""
        self.notes: dict[int, int] = {}
        """Index into NOTES."""
        self.lost_at_ms = -1
        """When silent nodes were last declared lost."""
        self.derive()

    def derive(self) -> None:
        self.watched_count = sum(self.watched)
        self.suspects = 0
        """Nodes that are suspect now; counted by `State` after a load."""
        self.touched: list[int] = []
        """Nodes that changed since the watch last looked."""

    def watch(self, nodes: Iterable[int], watching: bool = True) -> None:
        """Watch these nodes from now on, or no longer."""
        for node in nodes:
            if node >= len(self.watched):
                self.watched.extend([0] * (node + 1 - len(self.watched)))
            self.watched_count += watching - self.watched[node]
            self.watched[node] = watching
            self.touched.append(node)

    def is_watched(self, node: int) -> bool:
        return node < len(self.watched) and self.watched[node] == 1

    def changed(self, node: int, was: int, to: int, now_ms: int) -> None:
        """The node goes from one state to another."""
        self.touched.append(node)
        self.suspects += (to == NodeState.SUSPECT) - (was == NodeState.SUSPECT)
        if to == NodeState.SUSPECT:
            self.before[node] = was
            return
        if to == NodeState.DOWN:
            if was == NodeState.SUSPECT:
                self.lost_at_ms = now_ms
            else:
                self.before.pop(node, None)
            self.losses[node] = [*self.losses.get(node, ()), now_ms][-MAX_FLAPS:]
            return
        for known in (self.before, self.repairs, self.repair_until):
            known.pop(node, None)
        if to != NodeState.CORDONED:
            self.notes.pop(node, None)
        if to == NodeState.REMOVED:
            self.losses.pop(node, None)
            if self.is_watched(node):
                self.watch((node,), False)

    def repairing(self, nodes: Iterable[int], until_ms: int) -> None:
        for node in nodes:
            self.touched.append(node)
            self.repairs[node] = self.repairs.get(node, 0) + 1
            self.repair_until[node] = until_ms

    def note(self, nodes: Iterable[int], note: int) -> None:
        for node in nodes:
            self.touched.append(node)
            self.notes[node] = note
            self.repair_until.pop(node, None)

    def is_mass(self, permille: int) -> bool:
        """Whether so large a part of the watched nodes is suspect that it may be the network."""
        return self.suspects >= MIN_MASS and self.suspects * 1000 > permille * self.watched_count

    def flaps(self, node: int, times: int, window_ms: int, now_ms: int) -> bool:
        """Whether the node went down so often within the window."""
        recent = [at_ms for at_ms in self.losses.get(node, ()) if at_ms > now_ms - window_ms]
        return 0 < times <= len(recent)
