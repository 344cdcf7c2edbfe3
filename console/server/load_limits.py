"""Limits on connections, on requests under way, and on the rate of one caller.

Each caller has a token bucket that fills at a steady rate. `BackPressure` gives each kind of request a share of its
own, so that a thousand waiting forecasts leave health checks answerable, and one caller at most a part of a share.
Requests beyond it are refused at once with a time to come again, so that admitted ones are answered in time.

Connections are watched too: those whose peer is slow on purpose, sends endless headers or opens too many are
dropped. uvicorn waits for ever for the rest of a request, and its faster parser sets no bound to the size of a
header.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import math
import re
import resource
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

import uvicorn

from console.client.credentials import peer_text
from console.client.sockets import account_at
from console.server.operations import Crowded
from runbooks.plans.identity import TCP

MAX_CALLERS = 20_000
"""Whose buckets are kept; the one that asked least recently is forgotten, and begins anew with a full one."""


class TokenBuckets:
    """Token buckets by caller. `clock` gives monotonic seconds. Used on one thread."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, cost: float = 1.0) -> float:
        """Take `cost` and return 0; or take nothing, and return the seconds until there is enough."""
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


def too_many(seconds: float, problem: str = "too many requests") -> Crowded:
    """Error that tells a caller to wait that long."""
    retry_s = max(1, math.ceil(seconds))
    return Crowded(problem, f"Try again in {retry_s} s", retry_s, by_caller=True)


def network_of(address: str) -> str:
    """Network that an address counts for: itself; of IPv6 the /64, because one machine has all of its addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


HEAD_S = 15.0
"""From the first byte of a request (or from connecting) until its head must be there."""
BODY_S = 20.0
"""How often it is looked whether a body still comes."""
MIN_BODY_BYTES = 20 * 1024
"""That must have come of a body in that time, unless we are the ones who do not read."""
WRITE_S = 60.0
"""How long the other end may take nothing of an answer."""
MAX_HEAD_BYTES = 64 * 1024
MAX_FROM_ONE = 512
"""Connections from one address, or on the Unix socket from one account."""
MAX_IN_ALL = 4_096
"""By TCP."""
MAX_AT_ONCE = 100
"""Connections that are accepted before others have their turn."""
RETRY_S = 1.0
"""When there was no file left for another connection."""


class OpenConnections:
    """Open connections by address or account. Connections from other machines never keep out those on this one: a
    Unix socket counts for its account alone."""

    def __init__(self) -> None:
        self._of_addresses: dict[str, list[socket.socket]] = {}
        self._of_accounts: dict[str, list[socket.socket]] = {}

    def take(self, connected: socket.socket, address: Any) -> bool:
        """Admit a new connection if it is within bounds. Closed ones are dropped first when there seem to be too
        many."""
        if connected.family == socket.AF_UNIX:
            held = self._of_accounts.setdefault(account_at(connected), [])
        else:
            if self._is_full():
                self._of_addresses = {each: kept for each, held in self._of_addresses.items() if (kept := _open(held))}
                if self._is_full():
                    return False
            held = self._of_addresses.setdefault(network_of(str(address[0])), [])
        if len(held) >= MAX_FROM_ONE:
            held[:] = _open(held)
        if len(held) >= MAX_FROM_ONE:
            return False
        held.append(connected)
        return True

    def _is_full(self) -> bool:
        """True when TCP has its share of files: half of those that may be open are for something else."""
        most = min(MAX_IN_ALL, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        return sum(map(len, self._of_addresses.values())) >= most


def _open(held: list[socket.socket]) -> list[socket.socket]:
    return [each for each in held if each.fileno() >= 0]


class Doorway:
    """Accepts the connections of a listening socket, and closes those beyond bounds at once: before TLS, whose
    handshakes could be begun on many connections, and while files are left for our own use.

    It accepts by itself because event loops do so in different ways, some (uvloop's) without any Python code.
    """

    def __init__(
        self,
        bound: socket.socket,
        connections: OpenConnections,
        protocol: Callable[[], asyncio.Protocol],
        config: uvicorn.Config,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._connections = connections
        self._protocol = protocol
        self._tls = config.ssl
        self._opening: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(config.backlog)
        self._watch()

    def _watch(self) -> None:
        self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                connected, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of files or memory: what waits stays in the backlog
                self._loop.remove_reader(self._bound)
                self._again = self._loop.call_later(RETRY_S, self._watch)
                return
            if not self._connections.take(connected, address):
                connected.close()
                continue
            task = self._loop.create_task(self._serve(connected))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _serve(self, connected: socket.socket) -> None:
        patience_s = HEAD_S if self._tls is not None else None
        with contextlib.suppress(OSError):  # it is gone again, or speaks no TLS
            await self._loop.connect_accepted_socket(
                self._protocol, connected, ssl=self._tls, ssl_handshake_timeout=patience_s
            )

    def close(self) -> None:
        """Stop accepting; open connections go on."""
        self._loop.remove_reader(self._bound)
        if self._again is not None:
            self._again.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)


class DoorwayServer(uvicorn.Server):
    """Server whose connections come through doorways. Signals are left to its owner: uvicorn would raise them again
    when done, before an engine has written its snapshot."""

    def __init__(self, config: uvicorn.Config, connections: OpenConnections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        made: Any = self.config.http_protocol_class
        protocol = functools.partial(made, self.config, self.server_state, self.lifespan.state)
        doorways: Any = [Doorway(each, self._connections, protocol, self.config) for each in sockets or ()]
        self.servers = doorways

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?")


class _Cycle(Protocol):
    more_body: bool
    response_complete: bool


class WatchedConnection:
    """Time limits of one connection. Mixed into one of uvicorn's HTTP protocols, before it in the order of bases."""

    loop: asyncio.AbstractEventLoop
    cycle: _Cycle | None
    flow: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._came = 0
        """Bytes of the head, or of the body since it was last looked."""
        self._in_body = False
        connected = transport.get_extra_info("socket")
        if connected is None:
            return
        account, address = account_at(connected), ""
        if account == TCP:
            address = str((transport.get_extra_info("peername") or ("",))[0])
            account = _certified(transport.get_extra_info("peercert")) or TCP
        self.client = (peer_text(account, address), 0)
        self._timer = self.loop.call_later(HEAD_S, self._drop)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop("_timer")
        self._stop("_writing")
        super().connection_lost(error)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)  # type: ignore[misc]
        cycle = self.cycle
        if cycle is not None and cycle is not before:
            self._begin_body(cycle)
        elif cycle is not None and self._in_body:
            self._came += len(data)
            if not cycle.more_body:
                self._begin_body(cycle)
        else:
            self._came += len(data)
            if self._came > MAX_HEAD_BYTES:
                self._drop()
            elif self._timer is None:
                self._timer = self.loop.call_later(HEAD_S, self._drop)

    def _begin_body(self, cycle: _Cycle) -> None:
        """The header is complete; time the rest of the body, if there is more."""
        self._stop("_timer")
        self._came = 0
        self._in_body = cycle.more_body
        if self._in_body:
            self._timer = self.loop.call_later(BODY_S, self._look_at_body)

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._stop("_writing")
        self._writing = self.loop.call_later(WRITE_S, self._drop)

    def resume_writing(self) -> None:
        self._stop("_writing")
        super().resume_writing()  # type: ignore[misc]

    def _look_at_body(self) -> None:
        self._timer = None
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return
        if self._came < MIN_BODY_BYTES and not self.flow.read_paused:
            self._drop()
            return
        self._came = 0
        self._timer = self.loop.call_later(BODY_S, self._look_at_body)

    def _drop(self) -> None:
        self._transport.abort()

    def _stop(self, which: str) -> None:
        timer = getattr(self, which)
        if timer is not None:
            timer.cancel()
            setattr(self, which, None)


def _certified(certificate: Any) -> str:
    """Account of a verified client certificate, by its common name; empty without one, with several, or with one
    that is not a plain name."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for name, value in part if name == "commonName"]
    return f"cert:{names[0]}" if len(names) == 1 and _NAME.fullmatch(names[0]) else ""


Kind = Literal["read", "slow", "change", "follow", "agent"]
MOST: dict[Kind, int] = {"read": 512, "slow": 64, "change": 1024, "follow": 1024, "agent": 64}
"""Requests under way: more would wait for longer than they are worth. An agent's is a batch of many nodes."""
SHARE_OF_ONE = 0.75
"""Of each, for one caller."""
OVERLOAD_RETRY_S: dict[Kind, int] = {"read": 1, "slow": 5, "change": 1, "follow": 10, "agent": 2}


class BackPressure:
    """Counters of requests under way. Used in one event loop."""

    def __init__(self, most: Mapping[Kind, int] = MOST) -> None:
        self.most = dict(most)
        self.inside: Counter[Kind] = Counter()
        self.turned_away: Counter[tuple[Kind, str]] = Counter()
        """(kind, "service" or "caller") -> how often."""
        self._of_one: Counter[tuple[Kind, str]] = Counter()

    @contextlib.contextmanager
    def let_in(self, kind: Kind, caller: str) -> Iterator[None]:
        """Context of one request under way. Raises Crowded."""
        most, one = self.most[kind], (kind, caller)
        if self.inside[kind] >= most:
            self.turned_away[kind, "service"] += 1
            raise Crowded(
                f"{most} requests of this kind are in progress",
                f"Try again in {OVERLOAD_RETRY_S[kind]} s",
                OVERLOAD_RETRY_S[kind],
            )
        if self._of_one[one] >= max(1, int(most * SHARE_OF_ONE)):
            self.turned_away[kind, "caller"] += 1
            raise Crowded(
                f"{self._of_one[one]} of your requests are in progress", "Wait for the answers before sending more",
                OVERLOAD_RETRY_S[kind], by_caller=True,
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
