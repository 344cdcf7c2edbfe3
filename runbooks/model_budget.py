"""What asking a model may cost: reserved before a call, settled after it, in the journal's database.

What a call may cost at most is taken out before anything is sent, and what is not spent is given back in the same
transaction as the record of the call. A call of which nobody knows how it ended, because the engine was killed in the
middle of it, is taken as spent in full. So what is left is never below zero, whatever is running beside.

All of it is called on the engine's thread. Amounts are micro-USD, times wall clock in Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection

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

from engine.database import create_tables
from engine.model import HOUR_MS
from runbooks.draft import DraftRejected

LEAST_TOKENS = 256
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


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-USD for a million tokens."""

    in_: int = 0
    out: int = 0

    def cost(self, tokens_in: int, tokens_out: int) -> int:
        """Rounded up."""
        return -(-(tokens_in * self.in_ + tokens_out * self.out) // 1_000_000)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that may be spent, in micro-USD."""

    call: int = 250_000
    hour: int = 1_000_000
    day: int = 5_000_000


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What is spent or reserved."""

    calls_hour: int = 0
    hour: int = 0
    day: int = 0


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """What a call was given."""

    id: int
    microusd: int
    tokens: int
    """The most that the answer may have."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
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


def used(connection: Connection, now_ms: int) -> Use:
    """In the hour and the day before now. What is from a time to come counts too: the clock was set back."""

    def within(ms: int) -> tuple[int, int]:
        query = select(func.count(), func.coalesce(_CHARGED, 0)).where(SPEND.c.at_ms > now_ms - ms)
        row = connection.execute(query).one()
        return int(row[0]), int(row[1])

    calls, hour = within(HOUR_MS)
    return Use(calls_hour=calls, hour=hour, day=within(DAY_MS)[1])


def reserve(
    connection: Connection,
    now_ms: int,
    *,
    limits: Limits,
    prices: Prices,
    tokens_in: int,
    tokens_out: int,
    draft: str,
    who: str,
    endpoint: str,
    model: str,
    prompt_sha256: str,
) -> Reserved:
    """Take out what the call may cost at most: all of `tokens_in`, and as many of `tokens_out` as there is room for.
    Raises DraftRejected (budget) naming the limit, where that is not even LEAST_TOKENS."""
    use = used(connection, now_ms)
    left = {"call": limits.call, "hour": limits.hour - use.hour, "day": limits.day - use.day}
    tightest = min(left, key=lambda name: left[name])
    room = left[tightest]
    least = prices.cost(tokens_in, min(LEAST_TOKENS, tokens_out))
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
    return Reserved(id=int(key[0]), microusd=microusd, tokens=tokens_out)


def settle(connection: Connection, reserved: Reserved, microusd: int | None) -> int:
    """Put what was spent in the place of what was reserved; None: all of it. Never more than that: the server was told
    how long an answer may be, and what it sends beyond is not ordered. Returns what is on the books."""
    spent = reserved.microusd if microusd is None else min(max(0, microusd), reserved.microusd)
    where = (SPEND.c.id == reserved.id) & (SPEND.c.spent == OPEN)
    connection.execute(updated(SPEND).where(where).values(spent=spent))
    return spent


def release(connection: Connection, reserved: Reserved) -> None:
    """Of a call that was never made."""
    connection.execute(delete(SPEND).where((SPEND.c.id == reserved.id) & (SPEND.c.spent == OPEN)))


def settle_lost(connection: Connection, but: Collection[int] = ()) -> tuple[Lost, ...]:
    """Settle as spent in full what is open, `but` for the calls that are under way."""
    where = (SPEND.c.spent == OPEN) & SPEND.c.id.not_in(but)
    rows = connection.execute(select(SPEND).where(where).order_by(SPEND.c.id)).all()
    connection.execute(updated(SPEND).where(where).values(spent=SPEND.c.reserved))
    return tuple(
        Lost(
            draft=row.draft, who=row.who, endpoint=row.endpoint, model=row.model, prompt_sha256=row.prompt_sha256,
            microusd=row.reserved, at_ms=row.at_ms,
        )
        for row in rows
    )  # fmt: skip


def _used_up(tightest: str, limits: Limits, room: int, least: int) -> DraftRejected:
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
