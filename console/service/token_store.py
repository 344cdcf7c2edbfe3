"""Tokens that identify callers over the network: 256 random bits, stored as SHA-256 with scopes and expiry.

    muster_2f9c01ab77de_kq3…    id, by which it is found and named; and the secret

A token stands for the person, service or account it was made for, and gives at most what the present policy allows
them. The engine that holds the journal keeps all tokens in memory; a revoked token counts for nothing from the next
request on. Making and revoking a token is on record in the audit.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from console.client.credentials import (
    LONGEST_LIFE_MS,
    MAX_NAME,
    PREFIX,
    SHORTEST_LIFE_MS,
    NewToken,
    TokenAsk,
    TokenLine,
)
from console.forms.command_arguments import SCOPES
from engine.journal.database import create_tables
from engine.model.errors import JournalError, NotFoundError, RefusedError, SpecError
from runbooks.gate.approval_policy import Policy, may, may_log_in
from runbooks.plans.identity import TCP, TOKEN, Actor, Scope, Unauthenticated
from runbooks.untrusted.stranger_texts import why_confusing

if TYPE_CHECKING:
    from console.client.oidc import LoginProof
    from engine.control import Engine
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate


SECRET_BYTES = 32
ID_BYTES = 6
MAX_LIVE = 10_000
"""Tokens that are neither revoked nor expired, in a cell."""
MAX_OF_ONE = 100
"""The same, of one subject."""
USE_EVERY_MS = 60_000
"""How often it is written down that a token is in use."""
FRESH_MS = 10 * 60_000
"""For so long after logging in a person may make tokens with what the login gave them."""
LOGIN = "login"
"""In place of scopes: it is for all that its holder may do."""

METADATA = MetaData()
ACCESS = Table(
    "access_token", METADATA,
    Column("id", String, primary_key=True), Column("hash", LargeBinary, nullable=False),
    Column("subject", String, nullable=False, index=True), Column("name", String, nullable=False),
    Column("scopes", LargeBinary, nullable=False), Column("within", LargeBinary, nullable=False),
    Column("by", String, nullable=False), Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False), Column("revoked_ms", BigInteger, nullable=False, default=0),
    Column("revoked_by", String, nullable=False, default=""), Column("used_ms", BigInteger, nullable=False, default=0),
    Column("used_from", String, nullable=False, default=""),
)  # fmt: skip
"""Every token that was made."""
USED = Table(
    "login_used", METADATA,
    Column("digest", LargeBinary, primary_key=True), Column("expires_ms", BigInteger, nullable=False),
)  # fmt: skip
"""What a provider signed and was exchanged for a token, for as long as it would be taken."""
GROUPS = Table(
    "token_group", METADATA,
    Column("token", String, primary_key=True), Column("name", String, primary_key=True),
)  # fmt: skip
"""Groups of an OpenID provider that the login behind a token named."""


class PresentedToken(NamedTuple):
    """Identity and rights of a token that was shown."""

    id: str
    account: str
    """"token:person:alice"."""
    deeds: tuple[str, ...] | None
    within: Scope
    groups: tuple[str, ...] = ()


class _StoredToken(msgspec.Struct):
    line: TokenLine
    hash: bytes
    shown: PresentedToken
    written_ms: int


class Tokens:
    """Tokens of one cell. `check` may be called on any thread; the rest asks the engine's."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
        self._kept: dict[str, _StoredToken] | None = None
        self._lock = threading.Lock()

    @property
    def loaded(self) -> bool:
        """True when `check` answers at once."""
        return self._kept is not None

    def load(self) -> None:
        """Read all tokens. Raises JournalError when the journal cannot be written, because then a revocation could
        be missing too."""
        self._loop.call(self._load)

    def check(self, text: str, address: str = "") -> PresentedToken:
        """Identity of a token. Raises Unauthenticated; a guess is not told which check failed."""
        if self._kept is None:
            self.load()
        id_, secret = _parts(text)
        kept = (self._kept or {}).get(id_)
        right = hmac.compare_digest(_hash(secret), kept.hash if kept is not None else _NO_HASH)
        if kept is None or not right:
            raise Unauthenticated("unknown token", "Make one with `muster token create`")
        now_ms = self._gate.policies.clock()
        state = kept.line.state(now_ms)
        if state != "live":
            raise Unauthenticated(f"the token {id_} is {state}", "Make another with `muster token create`")
        self._used(kept, now_ms, address)
        return kept.shown

    def holds(self, token_id: str) -> bool:
        """True while a token that was shown is still live."""
        kept = (self._kept or {}).get(token_id)
        return kept is not None and kept.line.state(self._gate.policies.clock()) == "live"

    # -- making and revoking ------------------------------------------------------------------------------------------

    def create(self, actor: Actor, ask: TokenAsk) -> NewToken:
        """Make a token. Raises SpecError for a malformed request, RefusedError for a caller without the right."""
        scopes = _scopes(ask.scopes)
        _check_terms(ask)

        def make(engine: Engine) -> NewToken:
            policy = self._gate.policies.latest()
            subject = self._for_whom(policy, actor, ask)
            return self._make(engine, actor, subject, ask, scopes)

        return self._loop.call(make)

    def log_in(self, proof: LoginProof, life_ms: int) -> NewToken:
        """A token for the person whose account a login has proved, for all that they may do. Raises Unauthenticated
        for an account that is nobody's, and for a login that was used before."""

        def make(engine: Engine) -> NewToken:
            actor = self._gate.policies.identified(proof.account)
            policy = self._gate.policies.latest()
            if actor.subject == proof.account and not may_log_in(policy, proof.account, proof.groups):
                raise Unauthenticated(
                    f"the policy has no person with account {proof.account[:300]!a}",
                    "Have it added to your accounts: muster policy operator add",
                )
            ask = TokenAsk(name="muster token login", scopes=(), life_ms=life_ms)
            actor = msgspec.structs.replace(actor, groups=proof.groups)
            return self._make(engine, actor, actor.subject, ask, (LOGIN,), proof)

        return self._loop.call(make)

    def revoke(self, actor: Actor, token_id: str) -> TokenLine:
        """End a token from the next request on. Raises NotFoundError also for those of others, unless an admin asks."""

        def end(engine: Engine) -> TokenLine:
            kept = self._loaded(engine).get(token_id)
            if kept is None or not self._may_see(actor, kept.line):
                raise NotFoundError(f"there is no token {token_id[:40]!a}", "See `muster token list`")
            if kept.line.revoked_ms:
                return kept.line
            now_ms = self._gate.policies.clock()
            values = {"revoked_ms": now_ms, "revoked_by": actor.subject}

            def write(connection: Connection) -> None:
                connection.execute(update(ACCESS).where(ACCESS.c.id == token_id).values(**values))
                data = {"token": token_id, "subject": kept.line.subject}
                self._gate.audit.append(connection, "token.revoked", actor, data=data)

            engine.record(write)
            kept.line = msgspec.structs.replace(kept.line, **values)
            return kept.line

        return self._loop.call(end)

    def lines(self, actor: Actor) -> tuple[TokenLine, ...]:
        """The asker's own tokens and those they made; all of them for an admin. Newest first."""

        def read(engine: Engine) -> tuple[TokenLine, ...]:
            lines = [kept.line for kept in self._loaded(engine).values() if self._may_see(actor, kept.line)]
            return tuple(sorted(lines, key=lambda line: (-line.created_ms, line.id)))

        return self._loop.call(read)

    def _for_whom(self, policy: Policy, actor: Actor, ask: TokenAsk) -> str:
        """The subject of a token that an actor asks for. Raises RefusedError."""
        if actor.kind != "human" or actor.subject == TCP:
            raise RefusedError("the caller is not known", "Ask on the engine's machine, or with --as")
        self._refuse_by_token(actor)
        if not ask.service:
            return actor.subject
        owner = self._gate.policies.owner
        why_not = may(policy, actor, "key", owner=owner)
        if why_not:
            raise RefusedError(f"you may not make tokens for services: {why_not}", "Ask an admin")
        subject = f"service:{ask.service}"
        known = any(service.subject == subject for service in policy.services)
        if not known and not {"read", "agent", "alert"}.issuperset(ask.scopes):
            raise RefusedError(
                f"the policy has no service {ask.service!a}, which may only look, raise alerts or report as a node",
                "Add it under `services` of the policy",
            )
        return subject

    def _refuse_by_token(self, actor: Actor) -> None:
        """Keep a stolen token from making one that lasts longer."""
        if not actor.session or actor.signed:
            return
        kept = (self._kept or {}).get(actor.session.removeprefix(TOKEN))
        age_ms = self._gate.policies.clock() - kept.line.created_ms if kept is not None else FRESH_MS
        if actor.deeds is not None or age_ms >= FRESH_MS:
            raise RefusedError(
                "a token cannot make tokens",
                "Ask on the engine's machine, with --as, or anew after `muster token login`",
            )

    def _may_see(self, actor: Actor, line: TokenLine) -> bool:
        if actor.subject in (line.subject, line.by):
            return True
        return not may(self._gate.policies.latest(), actor, "key", owner=self._gate.policies.owner)

    def _make(
        self,
        engine: Engine,
        actor: Actor,
        subject: str,
        ask: TokenAsk,
        scopes: tuple[str, ...],
        proof: LoginProof | None = None,
    ) -> NewToken:
        now_ms, kept = self._gate.policies.clock(), self._loaded(engine)
        live = [each.line for each in kept.values() if each.line.state(now_ms) == "live"]
        theirs = sum(line.subject == subject for line in live)
        if len(live) >= MAX_LIVE or theirs >= MAX_OF_ONE:
            many = f"{theirs} of {subject}" if theirs >= MAX_OF_ONE else f"{len(live):,} in total"
            raise RefusedError(f"there are already {many} valid tokens", "Revoke some of them")
        id_ = secrets.token_hex(ID_BYTES)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        hashed = _hash(secret.encode())
        line = TokenLine(
            id=id_, name=ask.name, subject=subject, scopes=scopes, within=ask.within, by=actor.subject,
            created_ms=now_ms, expires_ms=now_ms + ask.life_ms, revoked_ms=0, revoked_by="", used_ms=0, used_from="",
        )  # fmt: skip
        values = {
            "id": id_, "hash": hashed, "subject": subject, "name": ask.name,
            "scopes": msgspec.json.encode(scopes), "within": msgspec.json.encode(ask.within), "by": line.by,
            "created_ms": now_ms, "expires_ms": line.expires_ms, "revoked_ms": 0, "revoked_by": "", "used_ms": 0,
            "used_from": "",
        }  # fmt: skip

        # A service is in no group, whoever made its token.
        groups = actor.groups if subject == actor.subject else ()

        def write(connection: Connection) -> None:
            if proof is not None:
                _use_up(connection, proof, now_ms)
            connection.execute(insert(ACCESS).values(**values))
            if groups:
                connection.execute(insert(GROUPS), [{"token": id_, "name": name} for name in groups])
            data = {
                "token": id_, "subject": subject, "name": ask.name, "scopes": list(scopes),
                "within": ask.within.words(), "expires_ms": line.expires_ms,
            }  # fmt: skip
            self._gate.audit.append(connection, "token.created", actor, data=data)

        engine.record(write)
        kept[id_] = _stored(line, hashed, groups)
        return NewToken(token=f"{PREFIX}_{id_}_{secret}", line=line)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _load(self, engine: Engine) -> None:
        self._loaded(engine)

    def _loaded(self, engine: Engine) -> dict[str, _StoredToken]:
        """On the engine's thread."""
        if self._kept is None:
            self._kept = engine.record(_read)
        return self._kept

    def _used(self, kept: _StoredToken, now_ms: int, address: str) -> None:
        """Note the use of a token, at most once a minute, by the engine at its leisure; nobody waits for that."""
        with self._lock:
            due = now_ms - kept.written_ms >= USE_EVERY_MS or now_ms < kept.written_ms
            if not due:
                return
            kept.written_ms = now_ms
            kept.line = msgspec.structs.replace(kept.line, used_ms=now_ms, used_from=address)

        def write(engine: Engine) -> None:
            try:
                engine.record(lambda connection: _note_use(connection, kept.line))
            except JournalError:
                return  # That a journal cannot be written is told elsewhere; a token holds all the same.

        self._loop.post(write)


def _use_up(connection: Connection, proof: LoginProof, now_ms: int) -> None:
    """Raises Unauthenticated for a login that was used before. An expired one is refused anyway and need not be
    kept."""
    connection.execute(delete(USED).where(USED.c.expires_ms < now_ms - 3_600_000))
    if connection.execute(select(USED.c.digest).where(USED.c.digest == proof.digest)).first() is not None:
        raise Unauthenticated("this login was used before", "Log in again")
    connection.execute(insert(USED).values(digest=proof.digest, expires_ms=proof.expires_ms))


def _read(connection: Connection) -> dict[str, _StoredToken]:
    create_tables(connection, METADATA)
    groups: dict[str, tuple[str, ...]] = {}
    for token, name in connection.execute(select(GROUPS.c.token, GROUPS.c.name).order_by(GROUPS.c.name)):
        groups[token] = (*groups.get(token, ()), name)
    found: dict[str, _StoredToken] = {}
    for row in connection.execute(select(ACCESS)).mappings():
        line = TokenLine(
            id=row["id"], name=row["name"], subject=row["subject"],
            scopes=msgspec.json.decode(row["scopes"], type=tuple[str, ...]),
            within=msgspec.json.decode(row["within"], type=Scope), by=row["by"], created_ms=row["created_ms"],
            expires_ms=row["expires_ms"], revoked_ms=row["revoked_ms"], revoked_by=row["revoked_by"],
            used_ms=row["used_ms"], used_from=row["used_from"],
        )  # fmt: skip
        found[line.id] = _stored(line, bytes(row["hash"]), groups.get(line.id, ()))
    return found


def _note_use(connection: Connection, line: TokenLine) -> None:
    connection.execute(_USED, {"of": line.id, "used_ms": line.used_ms, "used_from": line.used_from})


_USED = update(ACCESS).where(ACCESS.c.id == bindparam("of"))


def _stored(line: TokenLine, hashed: bytes, groups: tuple[str, ...]) -> _StoredToken:
    deeds = None
    if line.scopes != (LOGIN,):
        # A scope of a later version that is not known here gives nothing.
        deeds = tuple(sorted({deed for scope in line.scopes for deed in SCOPES.get(scope, ())}))
    shown = PresentedToken(line.id, f"{TOKEN}{line.subject}", deeds, line.within, groups)
    return _StoredToken(line, hashed, shown, line.used_ms)


def _parts(text: str) -> tuple[str, bytes]:
    """Id and secret; an unknown id for text that is no token."""
    prefix, _, rest = text.partition("_")
    id_, _, secret = rest.partition("_")
    if prefix != PREFIX or len(id_) != 2 * ID_BYTES or len(secret) != _TEXT_LENGTH or not text.isascii():
        return "", b""
    return id_, secret.encode()


def _hash(secret: bytes) -> bytes:
    """SHA-256 of a secret. The secret is random and long, so a fast hash is safe against guessing."""
    return hashlib.sha256(b"muster/token/v1\n" + secret).digest()


_TEXT_LENGTH = len(secrets.token_urlsafe(SECRET_BYTES))
_NO_HASH = secrets.token_bytes(32)


def _scopes(given: tuple[str, ...]) -> tuple[str, ...]:
    for scope in given:
        if scope not in SCOPES:
            raise SpecError("scopes", f"there is no scope {scope[:40]!a}", f"Scopes: {', '.join(SCOPES)}")
    if not given:
        raise SpecError("scopes", "are empty", f"Give some of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in given)


def _check_terms(ask: TokenAsk) -> None:
    confusing = why_confusing(ask.name)
    if not ask.name.strip() or len(ask.name) > MAX_NAME or confusing:
        raise SpecError("name", confusing or f"is not 1 to {MAX_NAME} characters", "Give it a name")
    if not SHORTEST_LIFE_MS <= ask.life_ms <= LONGEST_LIFE_MS:
        raise SpecError("life_ms", f"{ask.life_ms:,} ms is out of range", "Give 1m to 400d")
    parts = (("pools", ask.within.pools), ("queues", ask.within.queues), ("tenants", ask.within.tenants))
    for what, names in parts:
        if len(names) > 100 or any(not name or len(name) > 200 or not name.isprintable() for name in names):
            raise SpecError(f"within.{what}", "has an invalid name, or more than 100 names", "Name some of them")
    if "agent" in ask.scopes and (ask.within.queues or ask.within.tenants):
        raise SpecError("within", "names queues or tenants, which do not apply to nodes", "Limit agents to pools")
    if "alert" in ask.scopes and ask.within != Scope():
        raise SpecError("within", "limits a source of alerts, whose labels may name anything", "Leave the limit out")
