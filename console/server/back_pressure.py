"""How much is let in at once. What is more is turned away at once and told when to come again, so that whoever is let
in is answered in time, whatever the load.

Each kind of request has a share of its own: a thousand that wait for a forecast leave the health of the engine to be
asked. No single caller has more than a part of a share, so that one script that runs wild does not keep out the others.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from console.server.responses import Crowded

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["read", "slow", "change", "follow", "agent"]
MOST: dict[Kind, int] = {"read": 512, "slow": 64, "change": 1024, "follow": 1024, "agent": 64}
"""Requests under way: more would wait for longer than they are worth. An agent's is a batch of many nodes."""
SHARE_OF_ONE = 0.75
"""Of each, for one caller."""
RETRY_S: dict[Kind, int] = {"read": 1, "slow": 5, "change": 1, "follow": 10, "agent": 2}


class BackPressure:
    """Counts who is inside. Used in one event loop."""

    def __init__(self, most: Mapping[Kind, int] = MOST) -> None:
        self.most = dict(most)
        self.inside: Counter[Kind] = Counter()
        self.turned_away: Counter[tuple[Kind, str]] = Counter()
        """(kind, "service" or "caller") -> how often."""
        self._of_one: Counter[tuple[Kind, str]] = Counter()

    @contextlib.contextmanager
    def let_in(self, kind: Kind, caller: str) -> Iterator[None]:
        """While one request is answered. Raises Crowded."""
        most, one = self.most[kind], (kind, caller)
        if self.inside[kind] >= most:
            self.turned_away[kind, "service"] += 1
            raise Crowded(
                f"{most} requests of this kind are under way", f"Come again in {RETRY_S[kind]} s", RETRY_S[kind]
            )
        if self._of_one[one] >= max(1, int(most * SHARE_OF_ONE)):
            self.turned_away[kind, "caller"] += 1
            raise Crowded(
                f"{self._of_one[one]} of your requests are under way", "Wait for answers before you ask for more",
                RETRY_S[kind], by_caller=True,
            )  # fmt: skip
        self.inside[kind] += 1
        self._of_one[one] += 1
        try:
            yield
        finally:
            self.inside[kind] -= 1
            self._of_one[one] -= 1
            if not self._of_one[one]:
                del self._of_one[one]
