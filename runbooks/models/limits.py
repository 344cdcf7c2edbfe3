"""Limits before a call of a model: reply cache, circuit breaker, rate limit and budget.

The cache answers the same question about the same facts for a while. Its key is the SHA-256 of everything that matters
to the answer, and a cached answer is checked again, since the cell may have changed.

The circuit opens after several failures, or after one that a retry does not mend. Its clock and that of the rate are
monotonic, in seconds. Cache, circuit and rate may be used on any thread.

The most that a call may cost is reserved before anything is sent; the rest is given back in the transaction that
records the call. A call that the engine did not survive counts as spent in full, so the remaining budget is never below
zero. The budget is kept in the journal's database and used on the engine's thread. Amounts are micro-USD, its times
wall clock in Unix ms.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    case,
    cast,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy import update as updated

from engine.journal.database import create_tables
from engine.model.specs import HOUR_MS
from runbooks.drafts.typed_draft import DraftRejected
from runbooks.models.calls import ModelReply
from runbooks.models.endpoint import Endpoint

# -- answers that are kept ---------------------------------------------------------------------------------------------

TTL_MS = 600_000
"""Of the facts that an answer rests on, in wall time and in cell time."""
MAX_KEPT = 64


def cache_key(endpoint: Endpoint, max_tokens: int, prompt_sha256: str) -> str:
    """`prompt_sha256` is `runbooks.models.prompt.Prompt.sha256`: messages without the nonce, facts, schema, and the
    versions of the rules by which they were made."""
    basis = [
        endpoint.base_url, endpoint.model, endpoint.egress, max_tokens, endpoint.most_bytes, prompt_sha256,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(basis).encode()).hexdigest()


class CachedReply(NamedTuple):
    answer: ModelReply
    read_s: float
    """Monotonic, when the facts were read that it rests on."""
    now_ms: int
    """Cell time of that."""


class ReplyCache:
    """The answers of one engine, in its memory. `clock` is monotonic, in seconds. For any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, CachedReply] = OrderedDict()

    def get(self, key: str, now_ms: int) -> ModelReply | None:
        """A cached reply; None when there is none with fresh facts. `now_ms` is cell time."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            wall_ms = (self._clock() - found.read_s) * 1000
            if not (0 <= wall_ms < TTL_MS and 0 <= now_ms - found.now_ms < TTL_MS):
                del self._kept[key]
                return None
            return found.answer

    def put(self, key: str, answer: ModelReply, *, read_s: float, now_ms: int) -> None:
        """Keep what was found to be of use."""
        with self._lock:
            self._kept[key] = CachedReply(answer, read_s, now_ms)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)


# -- circuit and rate --------------------------------------------------------------------------------------------------

FAILURES = 5
WITHIN_S = 60.0
OPEN_S = 120.0
"""How long it stays open; then one call is let through, and how that ends decides."""
FAULTS = frozenset(
    ("connection", "deadline", "content_type", "response_too_large", "encoding", "redirect", "auth", "model_missing",
     "other_model", "envelope_shape", "choices_count", "message_shape", "content_shape", "worker")
)  # fmt: skip
"""What is the endpoint's fault, beside http_NNN. What a model says, and what we or a person end, is not."""
AT_ONCE = {
    "auth": ("the server did not take the key", "Set a valid MUSTER_MODEL_KEY or model_key_file"),
    "model_missing": ("the server has no such model", "Look at the settings model and model_url"),
    "other_model": ("the server answered with another model", "List its name in model_aliases if that is right"),
}
"""What a setting must mend, and asking again does not: what it is, and what to do. One of these opens the circuit."""

CircuitState = Literal["closed", "open", "half_open"]


def is_fault(reason: str) -> bool:
    return reason in FAULTS or reason.startswith("http_")


class Circuit:
    """The circuit breaker of one endpoint."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: deque[float] = deque(maxlen=FAILURES)
        self._until = 0.0
        """Open until then; 0: closed."""
        self._why = ""
        self._trying = False
        """The one call of a half-open circuit is under way."""

    @property
    def state(self) -> CircuitState:
        with self._lock:
            return self._state()

    def _state(self) -> CircuitState:
        if not self._until:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    def refuse(self) -> None:
        """Raises DraftRejected while nothing is asked. Else the caller asks, and says how it ended."""
        with self._lock:
            state = self._state()
            if state == "open" or (state == "half_open" and self._trying):
                left_s = max(1, round(self._until - self._clock()))
                when = f"in {left_s} s" if state == "open" else "when the call that tries it has ended"
                if self._why in AT_ONCE:
                    problem, remedy = AT_ONCE[self._why]
                    remedy += f" and restart the engine; as it is, the model may be asked again {when}"
                else:
                    problem, remedy = f"there were failures before ({self._why})", f"It is tried again {when}"
                raise DraftRejected(
                    "circuit_open", f"the model is not asked for now: {problem}", f"{remedy}; see `muster cell model`"
                )
            self._trying = state == "half_open"

    def ended(self, reason: str = "") -> None:
        """Notes the end of a call: a token of `runbooks.drafts.typed_draft.REASONS`, empty when it was answered."""
        with self._lock:
            half_open = self._state() == "half_open"
            self._trying = False
            if is_fault(reason):
                now = self._clock()
                self._failed.append(now)
                self._why = reason
                many = len(self._failed) == FAILURES and now - self._failed[0] <= WITHIN_S
                if many or half_open or reason in AT_ONCE:
                    self._until = now + OPEN_S
                    self._failed.clear()
            elif not reason:
                self._until = 0.0
                self._failed.clear()


class RateLimit:
    """A token bucket: so many calls a minute, as many at once."""

    def __init__(self, a_minute: int, clock: Callable[[], float]) -> None:
        self._a_minute = a_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(a_minute)
        self._at = clock()

    def take(self) -> None:
        """Raises DraftRejected where none is left."""
        with self._lock:
            now = self._clock()
            self._left = min(self._a_minute, self._left + max(0.0, now - self._at) * self._a_minute / 60)
            self._at = now
            if self._left < 1:
                raise DraftRejected(
                    "rate_limited",
                    f"the model is asked at most {self._a_minute} times a minute (setting model_calls_minute)",
                    "Wait a little, then ask again",
                )
            self._left -= 1

    def give_back(self) -> None:
        """Returns a call that was not made."""
        with self._lock:
            self._left = min(self._a_minute, self._left + 1)


# -- budget ------------------------------------------------------------------------------------------------------------

MIN_TOKENS = 256
"""Of an answer: what has room for fewer is not asked."""
DAY_MS = 24 * HOUR_MS
KEPT_MS = 32 * DAY_MS
OPEN = -1
"""In place of what was spent, while nobody knows."""

METADATA = MetaData()
SPEND = Table(
    "model_spend",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False, index=True),
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("draft", String, nullable=False),
    Column("who", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("model", String, nullable=False),
    Column("prompt_sha256", String, nullable=False),
)
_CHARGED = cast(func.sum(case((SPEND.c.spent == OPEN, SPEND.c.reserved), else_=SPEND.c.spent)), BigInteger)
"""PostgreSQL would sum to a decimal number."""


class TokenPrices(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-USD for a million tokens."""

    in_: int = 0
    out: int = 0

    def cost(self, tokens_in: int, tokens_out: int) -> int:
        """Rounded up."""
        return -(-(tokens_in * self.in_ + tokens_out * self.out) // 1_000_000)


class SpendingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that may be spent, in micro-USD."""

    call: int = 250_000
    hour: int = 1_000_000
    day: int = 5_000_000


class SpendingUse(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts spent or reserved."""

    calls_hour: int = 0
    hour: int = 0
    day: int = 0


class ReservedSpending(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of a call."""

    id: int
    microusd: int
    tokens: int
    """The most that the answer may have."""


class LostCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of which nobody knows how it ended, and that is settled as spent."""

    draft: str
    who: str
    endpoint: str
    model: str
    prompt_sha256: str
    microusd: int
    at_ms: int


def create(connection: Connection) -> None:
    create_tables(connection, METADATA)


def used(connection: Connection, now_ms: int) -> SpendingUse:
    """The amounts of the last hour and day. Entries with a later time count too: the clock was set back."""

    def within(ms: int) -> tuple[int, int]:
        query = select(func.count(), func.coalesce(_CHARGED, 0)).where(SPEND.c.at_ms > now_ms - ms)
        row = connection.execute(query).one()
        return int(row[0]), int(row[1])

    calls, hour = within(HOUR_MS)
    return SpendingUse(calls_hour=calls, hour=hour, day=within(DAY_MS)[1])


def reserve(
    connection: Connection,
    now_ms: int,
    *,
    limits: SpendingLimits,
    prices: TokenPrices,
    tokens_in: int,
    tokens_out: int,
    draft: str,
    who: str,
    endpoint: str,
    model: str,
    prompt_sha256: str,
) -> ReservedSpending:
    """Take out what the call may cost at most: all of `tokens_in`, and as many of `tokens_out` as there is room for.
    Raises DraftRejected (budget) naming the limit, where that is not even MIN_TOKENS."""
    use = used(connection, now_ms)
    left = {"call": limits.call, "hour": limits.hour - use.hour, "day": limits.day - use.day}
    tightest = min(left, key=lambda name: left[name])
    room = left[tightest]
    least = prices.cost(tokens_in, min(MIN_TOKENS, tokens_out))
    if least > room:
        raise _used_up(tightest, limits, room, least)
    if prices.out:
        tokens_out = min(tokens_out, (room * 1_000_000 - tokens_in * prices.in_) // prices.out)
    microusd = prices.cost(tokens_in, tokens_out)
    connection.execute(delete(SPEND).where((SPEND.c.at_ms < now_ms - KEPT_MS) & (SPEND.c.spent != OPEN)))
    made = connection.execute(
        insert(SPEND).values(
            at_ms=now_ms, reserved=microusd, spent=OPEN, draft=draft, who=who, endpoint=endpoint, model=model,
            prompt_sha256=prompt_sha256,
        )
    )  # fmt: skip
    key = made.inserted_primary_key
    assert key is not None, "the table has a key of its own"
    return ReservedSpending(id=int(key[0]), microusd=microusd, tokens=tokens_out)


def settle(connection: Connection, reserved: ReservedSpending, microusd: int | None) -> int:
    """Replaces a reservation by the actual charge; None: all of it. The charge never exceeds the reservation, since the
    server was told the longest answer. Returns the charge."""
    spent = reserved.microusd if microusd is None else min(max(0, microusd), reserved.microusd)
    where = (SPEND.c.id == reserved.id) & (SPEND.c.spent == OPEN)
    connection.execute(updated(SPEND).where(where).values(spent=spent))
    return spent


def release(connection: Connection, reserved: ReservedSpending) -> None:
    """Gives back the reservation of a call that was never made."""
    connection.execute(delete(SPEND).where((SPEND.c.id == reserved.id) & (SPEND.c.spent == OPEN)))


def settle_lost(connection: Connection, but: Collection[int] = ()) -> tuple[LostCall, ...]:
    """Settle as spent in full what is open, `but` for the calls that are under way."""
    where = (SPEND.c.spent == OPEN) & SPEND.c.id.not_in(but)
    rows = connection.execute(select(SPEND).where(where).order_by(SPEND.c.id)).all()
    connection.execute(updated(SPEND).where(where).values(spent=SPEND.c.reserved))
    return tuple(
        LostCall(
            draft=row.draft, who=row.who, endpoint=row.endpoint, model=row.model, prompt_sha256=row.prompt_sha256,
            microusd=row.reserved, at_ms=row.at_ms,
        )
        for row in rows
    )  # fmt: skip


def _used_up(tightest: str, limits: SpendingLimits, room: int, least: int) -> DraftRejected:
    limit = {"call": limits.call, "hour": limits.hour, "day": limits.day}[tightest]
    if tightest == "call":
        problem = f"the call may cost {dollars(least)}, and one may cost at most {dollars(limit)}"
    else:
        problem = (
            f"the call may cost {dollars(least)}, and {dollars(max(0, room))} are left of the {tightest}'s "
            f"{dollars(limit)}"
        )
    return DraftRejected("budget", problem, f"Wait, ask about less, or raise model_budget_{tightest}")


def dollars(microusd: int) -> str:
    """To the ten-thousandth: calls cost fractions of a cent."""
    return f"${microusd / 1_000_000:,.4f}"
