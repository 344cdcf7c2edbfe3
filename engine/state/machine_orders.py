"""Orders of machines: what was asked of providers, and what has come of it."""

from __future__ import annotations

from array import array
from enum import IntEnum

from engine.model import events as ev
from engine.tables.columns import Table


class OrderState(IntEnum):
    """What has become of an order."""

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
        """Whether anything is still to come of the order."""
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
