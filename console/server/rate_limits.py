"""How often one caller may ask: a bucket for each, filled at a steady rate. How much may be under way at once is for
`console.server.back_pressure` to say."""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable

from console.server.responses import Crowded

MAX_CALLERS = 20_000
"""Whose buckets are kept; the one that asked least recently is forgotten, and begins anew with a full one."""


class TokenBuckets:
    """One for each caller. `clock` gives monotonic seconds. Used on one thread."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, cost: float = 1.0) -> float:
        """Takes `cost` and returns 0; or takes nothing, and returns in how many seconds there will be enough."""
        now = self._clock()
        held, since = self._held.pop(caller, (self._burst, now))
        held = min(self._burst, held + max(0.0, now - since) * self._per_s)
        # What costs more than a bucket holds takes all of a full one: it must be possible now and then.
        cost = min(cost, self._burst)
        lacking = cost - held
        self._held[caller] = (held if lacking > 0 else held - cost, now)
        if len(self._held) > MAX_CALLERS:
            self._held.popitem(last=False)
        return max(0.0, lacking / self._per_s)

    def left(self, caller: str) -> float:
        """Seconds until the next single question may be asked; 0: now. Takes nothing."""
        now = self._clock()
        held, since = self._held.get(caller, (self._burst, now))
        return max(0.0, (1.0 - min(self._burst, held + max(0.0, now - since) * self._per_s)) / self._per_s)


def too_many(seconds: float, problem: str = "you ask too often") -> Crowded:
    """What tells a caller to wait that long."""
    retry_s = max(1, math.ceil(seconds))
    return Crowded(problem, f"Ask again in {retry_s} s", retry_s, by_caller=True)


def network_of(address: str) -> str:
    """What one address stands for: itself; of IPv6 the /64, of which one machine has every address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
