"""The gate's tables in the journal's database, and the outbox of messages.

Rows change only inside a transaction that `engine.record`, or a turn of the engine, opens. `move` alone changes the
state of a proposal: along an edge of `runbooks.plans.typed_plan`, if nobody moved it meanwhile, with one audit record.

A message is written in the transaction that decides on it and sent afterwards, at least once. A process that ends
between sending and noting it sends again with the same key, by which the receiver can tell. The approval policy says
where a channel leads; a plan never does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    CursorResult,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    func,
    insert,
    inspect,
    select,
    tuple_,
    update,
)

from engine.journal.database import create_tables
from engine.model.errors import NotFoundError, RefusedError
from runbooks.audit.log import NO_ROWS, Audit, Rows, kept, reread
from runbooks.plans import typed_plan
from runbooks.plans.identity import SYSTEM, Actor
from runbooks.plans.typed_plan import Difference, Plan, Sealed, StepStanding, plan_digest

if TYPE_CHECKING:
    from engine.control import Engine


METADATA = MetaData()
_ID = re.compile("P-([1-9][0-9]{0,10})")
"""One way to write each: what is read out on the phone is what is signed."""

PROPOSAL = Table(
    "proposal",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("revision", Integer, nullable=False),
    Column("serial", Integer, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("since_ms", BigInteger, nullable=False, index=True),
    Column("created_ms", BigInteger, nullable=False),
    Column("author", String, nullable=False, index=True),
    Column("origin", String, nullable=False),
    Column("tier", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("policy", String, nullable=False),
    Column("blast", LargeBinary, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("cursor", Integer, nullable=False, default=0),
    Column("verify_by_ms", BigInteger, nullable=False, default=0),
    Column("executed_ms", BigInteger, nullable=False, default=0),
    Column("breakglass", Boolean, nullable=False, default=False),
    Column("note", String, nullable=False, default=""),
    Column("stale", LargeBinary, nullable=False, default=b"[]"),
)
REVISION = Table(
    "proposal_revision",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("digest", String, nullable=False),
    Column("plan", LargeBinary, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("words", LargeBinary, nullable=False),
)
VOTE = Table(
    "vote",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("number", Integer, nullable=False, index=True),
    Column("revision", Integer, nullable=False),
    Column("digest", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("account", String, nullable=False),
    Column("key", String, nullable=False, default=""),
    Column("signed", LargeBinary, nullable=True),
    Column("verdict", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("comment", LargeBinary, nullable=True),
    UniqueConstraint("number", "revision", "subject"),
)
EFFECT = Table(
    "effect",
    METADATA,
    Column("key", String, primary_key=True),
    Column("number", Integer, nullable=False, index=True),
    Column("revision", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("back", Boolean, nullable=False),
    Column("action", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("changed", LargeBinary, nullable=False),
)
STEP = Table(
    "proposal_step",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("standing", LargeBinary, nullable=False),
)
CONFIRMATION = Table(
    "confirmation",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("subject", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
REVIEW = Table(
    "review",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("number", Integer, nullable=False),
    Column("about", String, nullable=False),
    Column("subject", String, nullable=False, index=True),
    Column("forced", Boolean, nullable=False),
    Column("text", String, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("closed_ms", BigInteger, nullable=False, default=0),
    Column("closed_by", String, nullable=False, default=""),
)
OUTBOX = Table(
    "outbox",
    METADATA,
    Column("key", String, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("channel", String, nullable=False),
    Column("text", String, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_ms", BigInteger, nullable=False),
    Column("error", String, nullable=False, default=""),
)


class ProposalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal as it is kept, at its present revision."""

    number: int
    revision: int
    serial: int
    """How often it was changed: what nobody may have moved meanwhile."""
    state: typed_plan.State
    since_ms: int
    created_ms: int
    author: str
    origin: str
    tier: str
    digest: str
    policy: str
    blast: bytes
    """Of the plan, as JSON: limits are counted over many proposals."""
    expires_ms: int
    cursor: int
    """Step that is next."""
    verify_by_ms: int
    executed_ms: int
    """When it was claimed; 0: never."""
    breakglass: bool
    note: str
    stale: bytes

    @property
    def id(self) -> str:
        return f"P-{self.number}"


class RevisionText(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a revision, rendered when it was simulated."""

    title: str
    steps: tuple[str, ...]
    inverse: str
    why_tier: tuple[str, ...] = ()


def create(connection: Connection) -> None:
    create_tables(connection, METADATA)


def exist(connection: Connection) -> bool:
    return inspect(connection).has_table(PROPOSAL.name)


def number_of(proposal_id: str) -> int:
    """Raises NotFoundError for what is not the id of a proposal."""
    found = _ID.fullmatch(proposal_id) if isinstance(proposal_id, str) else None
    if found is None:
        raise unknown(proposal_id)
    return int(found[1])


def unknown(proposal_id: str) -> NotFoundError:
    shown = str(proposal_id)[:40].encode("unicode_escape").decode()
    return NotFoundError(f"there is no proposal '{shown}'", "See `muster proposal list`")


def find(connection: Connection, number: int) -> ProposalRow | None:
    row = connection.execute(select(PROPOSAL).where(PROPOSAL.c.number == number)).mappings().first()
    return None if row is None else ProposalRow(**row)


def found(connection: Connection, proposal_id: str) -> ProposalRow:
    """Raises NotFoundError."""
    row = find(connection, number_of(proposal_id))
    if row is None:
        raise unknown(proposal_id)
    return row


def plan_of(connection: Connection, row: ProposalRow) -> tuple[Plan, RevisionText, bytes]:
    """The plan of the present revision, its words, and the request it was made of. Raises RefusedError when the stored
    plan is no longer the one whose digest was shown."""
    where = (REVISION.c.number == row.number) & (REVISION.c.revision == row.revision)
    found = connection.execute(select(REVISION).where(where)).mappings().one_or_none()
    unchanged = (
        found is not None
        and isinstance(found["plan"], bytes)
        and plan_digest(found["plan"]) == row.digest == found["digest"]
    )
    if found is None or not unchanged:
        raise RefusedError(
            f"the stored plan of {row.id} is not the one whose digest was shown",
            "The database was changed outside Muster: run muster audit verify, then propose it again",
        )
    return (
        msgspec.json.decode(found["plan"], type=Plan),
        msgspec.json.decode(found["words"], type=RevisionText),
        found["request"],
    )


def move(
    connection: Connection,
    audit: Audit,
    row: ProposalRow,
    event: typed_plan.Event,
    actor: Actor,
    now_ms: int,
    *,
    data: Mapping[str, Any] | None = None,
    private: tuple[Sealed, ...] = (),
    rows: Rows = NO_ROWS,
    **changes: Any,
) -> ProposalRow:
    """Take a proposal along one edge, with one record, which tells of `rows` besides. Raises RefusedError where there
    is no such edge, and where somebody else has moved it since `row` was read."""
    to = typed_plan.after(row.state, event, row.id)
    # A row that was changed outside Muster does not become right by being written again.
    [(name, digest)] = on_record(row).items()
    is_told = audit.is_told(connection, name, digest, row.id)
    new = msgspec.structs.replace(row, state=to, since_ms=now_ms, serial=row.serial + 1, **changes)
    values = {field: getattr(new, field) for field in new.__struct_fields__ if field != "number"}
    unmoved = (PROPOSAL.c.number == row.number) & (PROPOSAL.c.serial == row.serial) & (PROPOSAL.c.state == row.state)
    if connection.execute(update(PROPOSAL).where(unmoved).values(values)).rowcount != 1:
        raise RefusedError(f"{row.id} was just changed by somebody else", "Review it again")
    audit.append(
        connection,
        f"proposal.{event}",
        actor,
        proposal=new.id,
        revision=new.revision,
        plan_digest=new.digest,
        policy_digest=new.policy,
        data={"from": row.state, "to": to, **(data or {})},
        private=private,
        rows={**rows, **on_record(new)} if is_told else rows,
    )
    return new


def on_record(row: ProposalRow) -> Rows:
    return kept(PROPOSAL, msgspec.structs.asdict(row))


def add(connection: Connection, values: Mapping[str, Any]) -> ProposalRow:
    """A proposal that is drafted."""
    made = connection.execute(insert(PROPOSAL).values(**values))
    row = find(connection, new_id(made))
    assert row is not None, "it was inserted just now"
    return row


def new_id(made: CursorResult[Any]) -> int:
    """The number that an inserted row was given."""
    key = made.inserted_primary_key
    assert key is not None, "the table has a key of its own"
    return int(key[0])


def standing(connection: Connection, row: ProposalRow) -> dict[int, StepStanding]:
    where = (STEP.c.number == row.number) & (STEP.c.revision == row.revision)
    rows = connection.execute(select(STEP.c.step, STEP.c.standing).where(where))
    return {step: msgspec.json.decode(body, type=StepStanding) for step, body in rows}


def set_standing(connection: Connection, audit: Audit, row: ProposalRow, step: int, value: StepStanding) -> Rows:
    """Writes the progress of a step. Returns its row for the record."""
    where = (STEP.c.number == row.number) & (STEP.c.revision == row.revision) & (STEP.c.step == step)
    encoded = msgspec.json.encode(value)
    values = {"number": row.number, "revision": row.revision, "step": step, "standing": encoded}
    before = connection.execute(select(STEP.c.standing).where(where)).scalar()
    if before is None:
        connection.execute(insert(STEP).values(**values))
        return kept(STEP, values)
    connection.execute(update(STEP).where(where).values(standing=encoded))
    [(name, digest)] = kept(STEP, {**values, "standing": before}).items()
    return kept(STEP, values) if audit.is_told(connection, name, digest, row.id) else {}


def add_effect(connection: Connection, values: Mapping[str, Any]) -> Rows:
    """Writes an effect. Returns its row for the record."""
    connection.execute(insert(EFFECT).values(**values))
    return kept(EFFECT, values)


def add_review(connection: Connection, values: Mapping[str, Any]) -> tuple[int, Rows]:
    """Writes a review. Returns its number, and its row for the record."""
    made = connection.execute(insert(REVIEW).values(**values))
    return new_id(made), reread(connection, REVIEW, REVIEW.c.id == new_id(made))


def stale_of(row: ProposalRow) -> tuple[Difference, ...]:
    return msgspec.json.decode(row.stale, type=tuple[Difference, ...])


def in_states(connection: Connection, states: Sequence[str], limit: int = 1000) -> list[ProposalRow]:
    """Newest first."""
    query = select(PROPOSAL).where(PROPOSAL.c.state.in_(list(states))).order_by(PROPOSAL.c.number.desc()).limit(limit)
    return [ProposalRow(**row) for row in connection.execute(query).mappings()]


def carried_out_before(connection: Connection, row: ProposalRow, limit: int) -> list[ProposalRow]:
    """Proposals that were begun before this one was, and not taken back, the newest first; all where it has not
    begun."""
    older = (PROPOSAL.c.executed_ms > 0) & (PROPOSAL.c.number != row.number) & (PROPOSAL.c.state != "rolled_back")
    if row.executed_ms:
        older &= tuple_(PROPOSAL.c.executed_ms, PROPOSAL.c.number) < (row.executed_ms, row.number)
    query = select(PROPOSAL).where(older).order_by(PROPOSAL.c.executed_ms.desc(), PROPOSAL.c.number.desc()).limit(limit)
    return [ProposalRow(**each) for each in connection.execute(query).mappings()]


def count(connection: Connection, states: Sequence[str]) -> int:
    where = PROPOSAL.c.state.in_(list(states))
    return connection.execute(select(func.count()).select_from(PROPOSAL).where(where)).scalar_one()


def effect_key(row: ProposalRow, number: int) -> str:
    """The key under which a step's effect is kept."""
    return f"{row.digest}:{row.revision}:{number}"


def back_key(row: ProposalRow, number: int, part: int) -> str:
    """The key under which the effect of one act of a step's way back is kept."""
    return f"{effect_key(row, number)}:back:{part}"


def has_effect(connection: Connection, key: str) -> bool:
    return connection.execute(select(EFFECT.c.key).where(EFFECT.c.key == key)).first() is not None


def refuse_second(connection: Connection, key: str, row: ProposalRow) -> None:
    """Raises RefusedError when the effect was had already. The key is unique in the database too: this only says it in
    words."""
    if has_effect(connection, key):
        raise RefusedError(f"this step of {row.id} is already done", "Review the proposal again")


def add_record(
    connection: Connection,
    audit: Audit,
    row: ProposalRow,
    type_: str,
    actor: Actor,
    data: Mapping[str, Any],
    *,
    step: str = "",
    rows: Rows = NO_ROWS,
) -> None:
    """Appends a record about a proposal, besides those of its edges."""
    audit.append(
        connection, type_, actor, proposal=row.id, revision=row.revision, step=step, plan_digest=row.digest,
        policy_digest=row.policy, data=data, rows=rows,
    )  # fmt: skip


MAX_ATTEMPTS = 8
FIRST_PAUSE_MS = 2_000
MAX_AT_ONCE = 20
Send = Callable[[str, str, str], None]
"""(channel, key, text): raises OSError, or what else keeps it from being sent."""


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits to be sent."""

    key: str
    """By which whoever receives it can tell that it came before."""
    number: int
    """Of the proposal; 0: of none."""
    channel: str
    """Id of a channel of the policy."""
    text: str
    created_ms: int
    attempts: int


class OutboxStanding(NamedTuple):
    """How many messages there are, and since when the oldest waits."""

    waiting: int
    failed: int
    """Given up."""
    oldest_ms: int
    """Unix milliseconds; 0: none waits."""


def error_of(failed: Exception) -> str:
    """The error of a channel, shortened."""
    return f"{type(failed).__name__}: {failed}"[:300]


class Outbox:
    """The messages of one engine. Whoever can reach the channels takes what is `due` and settles it; or sets `send`."""

    def __init__(self, engine: Engine, audit: Audit, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._audit = audit
        self._clock = clock
        self.send: Send | None = None

    def put(self, connection: Connection, key: str, number: int, channel: str, text: str, now_ms: int) -> None:
        """Queues a message in the caller's transaction. The same key again is one message."""
        if connection.execute(select(OUTBOX.c.key).where(OUTBOX.c.key == key)).first() is None:
            connection.execute(
                insert(OUTBOX).values(
                    key=key, number=number, channel=channel, text=text, created_ms=now_ms, state="waiting",
                    next_ms=now_ms,
                )
            )  # fmt: skip
            rows = reread(connection, OUTBOX, OUTBOX.c.key == key)
            self._say(connection, "outbox.queued", number, {"key": key, "channel": channel}, rows)

    def has(self, connection: Connection, keys: Sequence[str]) -> bool:
        """True when a message with one of these keys was queued, whatever became of it."""
        return connection.execute(select(OUTBOX.c.key).where(OUTBOX.c.key.in_(keys))).first() is not None

    def deliver(self) -> None:
        """Send what is due by `send`, if that is set."""
        if self.send is None:
            return
        for message in self.due():
            try:
                self.send(message.channel, message.key, message.text)
            except Exception as failed:  # a channel is the world outside: whatever it does, the others go on
                self.settle(message, error_of(failed))
            else:
                self.settle(message)

    def due(self) -> tuple[OutboxMessage, ...]:
        """The messages that are due, the oldest first."""
        query = (
            select(*(OUTBOX.c[field] for field in OutboxMessage.__struct_fields__))
            .where((OUTBOX.c.state == "waiting") & (OUTBOX.c.next_ms <= self._clock()))
            .order_by(OUTBOX.c.created_ms)
            .limit(MAX_AT_ONCE)
        )
        return self._engine.recorded(
            lambda connection: tuple(OutboxMessage(**row) for row in connection.execute(query).mappings())
        )

    def standing(self) -> OutboxStanding:
        """Raises JournalError while nothing can be read."""

        def read(connection: Connection) -> OutboxStanding:
            if not inspect(connection).has_table(OUTBOX.name):
                return OutboxStanding(0, 0, 0)
            counted = select(func.count(), func.min(OUTBOX.c.created_ms))
            waiting, oldest_ms = connection.execute(counted.where(OUTBOX.c.state == "waiting")).one()
            failed, _ = connection.execute(counted.where(OUTBOX.c.state == "failed")).one()
            return OutboxStanding(waiting, failed, oldest_ms or 0)

        return self._engine.recorded(read)

    def settle(self, message: OutboxMessage, error: str = "") -> None:
        """Say what became of it: empty: it was sent. What failed is tried again after a pause that doubles, then given
        up; each try is on record."""
        now_ms = self._clock()
        self._engine.record(
            lambda connection: self._sent(connection, message.key, message.number, message.attempts + 1, error, now_ms)
        )

    def _sent(self, connection: Connection, key: str, number: int, attempts: int, error: str, now_ms: int) -> None:
        given_up = bool(error) and attempts >= MAX_ATTEMPTS
        state = "sent" if not error else "failed" if given_up else "waiting"
        settled = {
            "state": state, "attempts": attempts, "error": error, "next_ms": now_ms + (FIRST_PAUSE_MS << attempts),
        }  # fmt: skip
        rows = self._audit.rewrite(connection, OUTBOX, OUTBOX.c.key == key, settled, about(number))
        type_ = "outbox.tried" if state == "waiting" else f"outbox.{state}"
        self._say(connection, type_, number, {"key": key, "attempts": attempts, "error": error}, rows)

    def _say(self, connection: Connection, type_: str, number: int, data: dict[str, object], rows: Rows) -> None:
        self._audit.append(connection, type_, SYSTEM, proposal=about(number), data=data, rows=rows)


def about(number: int) -> str:
    """The proposal of a message; empty: it is of none."""
    return f"P-{number}" if number else ""
