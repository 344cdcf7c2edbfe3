"""The records of machines apart from their free capacity: orders to providers, and nodes that are watched or failed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum

from engine.model import events as ev
from engine.model.columns import Table
from engine.model.spec_parts import MAX_FLAPS
from engine.model.specs import NodeState


class OrderState(IntEnum):
    """The state of an order."""

    OPEN = 0
    """Not all of its machines have been granted or refused."""
    FILLED = 1
    """All were granted."""
    CANCELLED = 2
    """Not fulfilled in time, or not needed any more. What was granted of it stays."""
    REFUSED = 3
    """The provider has no such machines, or refused for another reason. What was granted of it stays."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Orders(Table):
    """All orders, by row, oldest first; and the pools that failed to deliver."""

    columns = (
        "pool", "zone", "wanted", "granted", "refused", "ordered_ms", "expires_ms", "ended_ms", "state", "workload",
        "backed_off_ms", "failures", "taken", "lived_ms", "storms", "watched_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pool = array("i")
        self.zone: list[str] = []
        self.wanted = array("i")
        """Machines asked for."""
        self.granted = array("i")
        self.refused = array("i")
        """Machines reported for it that were not what was ordered, and given back."""
        self.ordered_ms = array("q")
        self.expires_ms = array("q")
        self.ended_ms = array("q")
        """-1 while it is open."""
        self.state = array("b")
        self.workload = array("i")
        """The gang that it is for, as a whole or not at all; NONE when for whoever comes."""
        self.backed_off_ms: dict[int, int] = {}
        """Pool row -> cell time until which it is left alone."""
        self.failures: dict[int, int] = {}
        """Pool row -> how often in a row it failed to deliver."""
        self.taken: dict[int, int] = {}
        """Pool row -> machines that were given notice, where the pool does not say how often to expect that."""
        self.lived_ms: dict[int, int] = {}
        """Pool row -> how long all its machines had been there when the last of those was."""
        self.storms: dict[int, int] = {}
        """Pool row -> moments at which any of its machines were."""
        self.watched_ms: dict[int, int] = {}
        """Pool row -> time from its first machine to the last of those moments."""
        self.derive()

    def derive(self) -> None:
        self.open = [row for row, state in enumerate(self.state) if state == OrderState.OPEN]
        """Rows of open orders, ascending."""
        self.booting = array("i", bytes(4 * len(self.state)))
        """Machines that were granted and have not called; counted by `State` after a load."""

    def matters(self, row: int) -> bool:
        """True if anything is still to come of the order."""
        return self.state[row] == OrderState.OPEN or self.booting[row] > 0

    def add(self, event: ev.Ordered, now_ms: int) -> int:
        """The order's row."""
        row = len(self.pool)
        self.pool.append(event.pool)
        self.zone.append(event.zone)
        self.wanted.append(event.count)
        self.granted.append(0)
        self.refused.append(0)
        self.ordered_ms.append(now_ms)
        self.expires_ms.append(event.expires_ms)
        self.ended_ms.append(-1)
        self.state.append(OrderState.OPEN)
        self.workload.append(event.row)
        self.booting.append(0)
        self.open.append(row)
        return row

    def end(self, row: int, how: OrderState, now_ms: int) -> None:
        self.open.remove(row)
        self.state[row] = how
        self.ended_ms[row] = now_ms

    def back_off(self, pool: int, until_ms: int) -> None:
        """Leave the pool alone until then, and remember that it failed once more; or forget both when it is 0."""
        if until_ms:
            self.backed_off_ms[pool] = until_ms
            self.failures[pool] = self.failures.get(pool, 0) + 1
        else:
            self.backed_off_ms.pop(pool, None)
            self.failures.pop(pool, None)

    def due(self, pool: int) -> int:
        """Machines of the pool that are asked for and neither granted nor refused yet."""
        return sum(self.wanted[row] - self.granted[row] for row in self.open if self.pool[row] == pool)


NOTES = ("", "needs hands: its repairs failed", "flaps: lost again and again within a short time")
"""The reason why a node is kept out, by code."""
NEEDS_HANDS, FLAPS = 1, 2
MIN_MASS = 5
"""Suspects below which it is no mass suspicion, however small the cell."""


class Failures(Table):
    """By node row. Only nodes of which there is something to say have an entry."""

    columns = ("watched", "before", "losses", "repairs", "repair_until", "notes", "lost_at_ms")

    def __init__(self) -> None:
        self.watched = array("b")
        """True if an agent ever called from the node: then its silence means something. Nodes beyond the end: no."""
        self.before: dict[int, int] = {}
        """State of a node before it fell silent, for nodes that are suspect, or down because they stayed silent."""
        self.losses: dict[int, list[int]] = {}
        """Cell times at which the node went down, the last few."""
        self.repairs: dict[int, int] = {}
        """Repairs begun since the node went down."""
        self.repair_until: dict[int, int] = {}
        """Cell time at which the repair under way is over."""
        self.notes: dict[int, int] = {}
        """Index into NOTES."""
        self.lost_at_ms = -1
        """Time at which silent nodes were last declared lost."""
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
        """True if so large a part of the watched nodes is suspect that it may be the network."""
        return self.suspects >= MIN_MASS and self.suspects * 1000 > permille * self.watched_count

    def flaps(self, node: int, times: int, window_ms: int, now_ms: int) -> bool:
        """True if the node went down that often within the window."""
        recent = [at_ms for at_ms in self.losses.get(node, ()) if at_ms > now_ms - window_ms]
        return 0 < times <= len(recent)
