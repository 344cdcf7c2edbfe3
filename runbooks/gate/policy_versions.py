"""Versions of the approval policy: the one in force, how the next one comes into force, and who a person is.

A change of the policy is voted on like a plan, by the rules of the policy in force, so that it cannot bring about its
own approval. A key or account that was once one person's is never another's: nobody becomes two people by being named
anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

import msgspec
from sqlalchemy import Connection, insert, select

from engine.journal.database import create_tables
from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError
from runbooks.audit.log import all_rows, kept, record_table, reread
from runbooks.audit.verify import POLICY, PolicyInForce, canonical, parse
from runbooks.gate.approval_policy import (
    BUILT_IN,
    TEAM,
    Candidate,
    Deed,
    Policy,
    PolicyChange,
    PolicyVote,
    Vote,
    VoteTally,
    holders,
    may,
    tally,
    vote_of,
    why_not_token,
)
from runbooks.gate.authority import Authority, start
from runbooks.gate.policy_changes import (
    BOUND,
    CANDIDATE,
    CELL,
    CHANGE_EXPIRY_MS,
    CHANGE_VOTE,
    FREEZE,
    METADATA,
    NONCE,
    VERSION,
    bindings,
    change_need,
    changes,
    check_successor,
)
from runbooks.gate.policy_files import check_policy, read_policy, text_of
from runbooks.gate.run_limits import FreezeSpec, check_freeze
from runbooks.plans.identity import OWNER, SYSTEM, WHOLE, Actor, AuthRefused, Scope, Signed, stands_for
from runbooks.plans.keys import DecisionFields, DecisionKind, decision_bytes, public_key, verify
from runbooks.plans.typed_plan import Party, Tier

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.audit.log import Audit

T = TypeVar("T")
MAX_OPEN = 16
"""New policies that wait for votes at a time."""
MAX_FREEZES = 100
FREEZES = "freeze"
"""The field `proposal` of records of freezes, by which they are found."""
CLOCK_TOLERANCE_MS = 60_000
"""A candidate from further in the future than this is expired: the clock was set back."""


class DecisionSubject(Protocol):
    """The subject of a decision: a proposal as the gate keeps it."""

    @property
    def id(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def digest(self) -> str: ...


class Policies:
    """The policies of one engine. `clock` gives wall time in Unix milliseconds; `default` is in force until another one
    is; `owner` is the account that owns the engine's process."""

    def __init__(
        self,
        engine: Engine,
        audit: Audit,
        clock: Callable[[], int],
        default: Policy = TEAM,
        *,
        owner: str = OWNER,
        chosen: bool = False,
    ) -> None:
        """`chosen`: whoever started the engine said that it shall be `default`, as with any other than TEAM."""
        self._engine = engine
        self._audit = audit
        self.clock = clock
        self._default = default
        self._chosen = chosen or default is not TEAM
        self.owner = owner
        self._known = {policy.digest(): policy for policy in (default, *BUILT_IN.values())}
        self.authority = Authority()
        self._latest: Policy | None = None
        """As it was when somebody last asked; None after what may have changed it."""
        self._ready = False
        self._open()

    def _open(self) -> None:
        try:
            self._engine.record(self._prepare)
        except JournalError:
            return  # Nothing can be done then, but all can be looked at; each use tries again.
        self._ready = True

    def _prepare(self, connection: Connection) -> None:
        create_tables(connection, METADATA)
        self._audit.prepare(connection)
        if connection.execute(select(CELL.c.id)).scalar() is None:
            connection.execute(insert(CELL).values(one=1, id=secrets.token_hex(16)))
        self._start(connection)

    def _start(self, connection: Connection) -> None:
        """Records the policy from which all that follows continues: first with every existing row, and again when
        another policy is built in or another account owns the engine."""
        chain = self.authority.chain(connection)
        if not chain.since:
            voted = self._voted_before(connection)
            in_force = self._now(voted or self._default, voted=voted is not None)
            start(connection, self._audit, self._cell(connection), in_force)
            for proposal, rows in all_rows(connection):
                self._audit.append(connection, "gate.rows", SYSTEM, proposal=proposal, rows=rows)
            return
        now = chain.policies[-1]
        built_in = not now.voted and now.digest != self._default.digest()
        if built_in or now.owner != self.owner:
            in_force = self._now(self.current(connection) if now.voted else self._default, voted=now.voted)
            start(connection, self._audit, chain.cell, in_force)

    def _now(self, policy: Policy, *, voted: bool) -> PolicyInForce:
        return PolicyInForce(0, policy.digest(), msgspec.to_builtins(policy), self.owner, voted)

    def _voted_before(self, connection: Connection) -> Policy | None:
        """The policy that was voted into force before authorisation was on record."""
        newest = (
            select(record_table.c.body)
            .where(record_table.c.type == "policy.changed")
            .order_by(record_table.c.seq.desc())
            .limit(1)
        )
        body = connection.execute(newest).scalar()
        return None if body is None else self._kept(connection, parse(body)["policy"])

    def _prepared(self, connection: Connection) -> Connection:
        if not self._ready:
            self._prepare(connection)
        return connection

    # -- what is in force ---------------------------------------------------------------------------------------------

    def current(self, connection: Connection) -> Policy:
        """The policy in force: by the records of how it came to be, and not by what is in the table of versions."""
        chain = self.authority.chain(self._prepared(connection))
        return self.get(connection, chain.policies[-1].digest) if chain.policies else self._default

    def is_chosen(self, connection: Connection) -> bool:
        """False while nobody has said which policy the cell shall have. Choosing one has no power of its own: it is a
        change like any later one, by the votes that the policy in force asks for."""
        chain = self.authority.chain(self._prepared(connection))
        return self._chosen or any(each.voted for each in chain.policies[-1:])

    def why_not(
        self, connection: Connection, actor: Actor, deed: Deed, tier: Tier = "T0", scope: Scope | None = WHOLE
    ) -> str:
        """Empty when an actor may do it by the policy in force; else why not. As `approval_policy.may`."""
        return may(self.current(connection), actor, deed, tier, scope, owner=self.owner)

    def get(self, connection: Connection, digest: str) -> Policy:
        """A policy that is or was in force. Raises NotFoundError, and MusterError when it is not what its digest names:
        somebody changed it outside of Muster."""
        known = self._known.get(digest)
        if known is not None:
            return known
        found = self._kept(self._prepared(connection), digest)
        self._known[digest] = found
        return found

    def _kept(self, connection: Connection, digest: str) -> Policy:
        """A policy from the records, or from the table of versions where it precedes those."""
        body = None if (told := self.authority.chain(connection).bodies.get(digest)) is None else canonical(told)
        if body is None:
            query = select(VERSION.c.body).where(VERSION.c.digest == digest).limit(1)
            body = connection.execute(query).scalar()
        if body is None:
            raise NotFoundError(f"no policy {digest[:12]!a} was ever in force", "See `muster policy show`")
        found = decoded(body)
        if found is None or found.digest() != digest:
            raise MusterError(f"policy {digest[:12]} was changed in the database", "Restore the journal from a backup")
        return found

    def cell(self, connection: Connection) -> str:
        """Identity of the cell, made at random once: signatures name it."""
        return self._cell(self._prepared(connection))

    def _cell(self, connection: Connection) -> str:
        return str(connection.execute(select(CELL.c.id)).scalar_one())

    def latest(self) -> Policy:
        """The policy in force, without a transaction: for what is not written with it."""
        if self._latest is None:
            self._latest = self.looked(self.current)
        return self._latest

    @property
    def known(self) -> Policy | None:
        """The policy in force, if that is known without the database; else None. May be read on any thread."""
        return self._latest

    def looked(self, read: Callable[[Connection], T]) -> T:
        """`read` over what is kept; it changes nothing."""
        return self._engine.recorded(read) if self._ready else self._engine.record(read)

    # -- who it is ----------------------------------------------------------------------------------------------------

    def account(self, policy: Policy, actor: Actor) -> Actor:
        """The actor as a policy would know the account."""
        return _of_account(policy, actor.account)

    def glanced(self, account: str) -> Actor | None:
        """The actor of an account, if that is known without the database; else None. May be called on any thread."""
        return None if self._latest is None else _of_account(self._latest, account)

    def identified(self, account: str, person: str = "", signed: Signed | None = None, digest: str = "") -> Actor:
        """The actor of a request that comes from an account, in the name of `person` ("person:alice") if that is given.
        `signed` is over the request, whose digest is `digest`. Raises AuthRefused, on record, for a name that is
        neither the account's own nor signed for."""
        actor = _of_account(self.latest(), account)
        try:
            if signed is not None:
                return self._engine.record(lambda connection: self._author(connection, actor, signed, digest))
            if person and person != actor.subject:
                raise AuthRefused(
                    f"a request from {account} says that it is {person.removeprefix('person:')[:60]!a}'s and is not "
                    "signed", "Sign it with their key: muster --as",
                )  # fmt: skip
        except AuthRefused as error:
            self.refused(actor, error)
            raise
        return actor

    def _author(self, connection: Connection, actor: Actor, signed: Signed, digest: str) -> Actor:
        who = self.authenticated(connection, actor, signed, self.clock(), kind="author", digest=digest)
        data = {"request": digest}
        self._audit.append(connection, "auth.signed", who, data=data, rows=used_nonce(connection, signed))
        return who

    def proved(
        self,
        connection: Connection,
        actor: Actor,
        signed: Signed | None,
        kind: DecisionKind,
        about: DecisionSubject,
        verdict: str,
        now_ms: int,
    ) -> Actor:
        """The actor as the signature over a decision proves it; as it is without one. Uses the nonce up. Raises
        AuthRefused for a signature that does not hold."""
        if signed is None:
            return actor
        return self.authenticated(connection, actor, signed, now_ms, kind=kind, **_fields_of(about, verdict))

    def still_holds(
        self, connection: Connection, signed: Signed, key: str, about: DecisionSubject, verdict: str
    ) -> bool:
        """True when a stored signature is over this decision, by that key. Whoever can write the database cannot sign,
        so a vote inserted by hand does not hold. True for a key that is nobody's now, which
        `approval_policy.why_not_counted` decides on."""
        lines = (line for person in self.current(connection).people for line in person.keys)
        enrolled = [found for line in lines if (found := public_key(line)).fingerprint == key]
        message = self._signed_bytes(connection, signed, "vote", _fields_of(about, verdict))
        try:
            return not enrolled or bool(verify(enrolled, signed, message, signed.at_ms))
        except AuthRefused:
            return False

    def authenticated(
        self,
        connection: Connection,
        actor: Actor,
        signed: Signed,
        now_ms: int,
        *,
        kind: DecisionKind,
        **about: Unpack[DecisionFields],
    ) -> Actor:
        """The person whose signature it is, at the account that the actor came from. Raises AuthRefused."""
        if actor.kind != "human":
            raise AuthRefused(f"not human: a {actor.kind} cannot submit a person's signature", "")
        person = next((p for p in self.current(connection).people if p.subject == signed.subject), None)
        if person is None or not person.keys:
            raise AuthRefused(
                f"no key is enrolled for {signed.subject[:80]!a}",
                "Enrol it: see `muster policy operator new-key`",
            )
        message = self._signed_bytes(connection, signed, kind, about)
        key = verify(map(public_key, person.keys), signed, message, now_ms)
        if connection.execute(select(NONCE.c.nonce).where(NONCE.c.nonce == signed.nonce)).first() is not None:
            raise AuthRefused("this signature was used before", "Sign again")
        connection.execute(insert(NONCE).values(nonce=signed.nonce, at_ms=now_ms))
        return msgspec.structs.replace(actor, subject=person.subject, signed=True, key=key.fingerprint)

    def _signed_bytes(self, connection: Connection, signed: Signed, kind: DecisionKind, about: DecisionFields) -> bytes:
        """The bytes that a signature over a decision in this cell must be over."""
        fields: DecisionFields = {**about, "screen": signed.screen, "cell": self.cell(connection)}
        return decision_bytes(kind=kind, subject=signed.subject, nonce=signed.nonce, at_ms=signed.at_ms, **fields)

    # -- the next one -------------------------------------------------------------------------------------------------

    def propose(self, actor: Actor, change: PolicyChange) -> Candidate:
        """Put another policy to the vote. Raises SpecError for one that may not be, and RefusedError."""
        new = self.read(change.text, change.built_in)
        return self._propose(actor, new, _bytes(change.text or text_of(new)), change.signed)

    def read(self, text: str, built_in: str = "") -> Policy:
        """The policy of a file; or the rules and limits of a built-in one, for the people, services, freezes and
        channels that are there. Raises SpecError for one that may not be, NotFoundError."""
        if bool(text) == bool(built_in):
            raise SpecError("policy", "is neither a file nor built in", "Give one of them")
        if text:
            return read_policy(_bytes(text), "policy")
        found = BUILT_IN.get(built_in)
        if found is None:
            raise NotFoundError(f"there is no policy {built_in[:40]!a}", f"Built in are {' and '.join(BUILT_IN)}")
        now = self.latest()
        return check_policy(
            msgspec.structs.replace(
                found, version=now.version + 1, people=now.people, services=now.services, freezes=now.freezes,
                channels=now.channels, break_glass=now.break_glass,
            )
        )  # fmt: skip

    def check_successor(self, connection: Connection, now: Policy, new: Policy) -> None:
        """Raises SpecError for a policy that may not follow the one in force."""
        bound = {row.key: row.subject for row in connection.execute(select(BOUND))}
        check_successor(now, new, bound | bindings(now))

    def _propose(self, actor: Actor, new: Policy, text: bytes, signed: Signed | None) -> Candidate:
        def write(connection: Connection) -> int:
            now_ms, now = self.clock(), self.current(connection)
            who = self._who(connection, actor, signed, "", new, "propose", now_ms)
            why_not = self.why_not(connection, who, "policy")
            if why_not:
                raise RefusedError(f"you may not change the policy: {why_not}", "Ask an admin")
            self.check_successor(connection, now, new)
            digest = new.digest()
            self._close_expired(connection, now_ms)
            is_open = connection.execute(
                select(CANDIDATE.c.number, CANDIDATE.c.digest).where(CANDIDATE.c.state == "awaiting")
            ).all()
            same = next((f"policy-{row.number}" for row in is_open if row.digest == digest), "")
            if same:
                raise RefusedError(
                    f"this policy already waits for votes, as {same}",
                    f"muster policy approve {same}, or muster policy reject {same}",
                )
            if len(is_open) >= MAX_OPEN:
                raise RefusedError(f"{MAX_OPEN} new policies already wait for votes", "Reject some of them")
            author = Party(subject=who.subject, kind=who.kind, account=who.account, signed=who.signed)
            made = insert(CANDIDATE).values(
                digest=digest, version=new.version, based_on=now.digest(), body=new.canonical(), text=text,
                state="awaiting", author=msgspec.json.encode(author), at_ms=now_ms,
            )  # fmt: skip
            number = int(connection.execute(made.returning(CANDIDATE.c.number)).scalar_one())
            self._audit.append(
                connection, "policy.proposed", who, proposal=POLICY, policy_digest=digest,
                data={
                    "candidate": f"policy-{number}", "version": new.version, "based_on": now.digest(),
                    "changes": [change.text for change in changes(now, new)], "body": msgspec.to_builtins(new),
                    **kept_signature(signed),
                },
                rows=reread(connection, CANDIDATE, CANDIDATE.c.number == number) | used_nonce(connection, signed),
            )  # fmt: skip
            return number

        return self.candidate(self._on_record(actor, write))

    def vote(self, actor: Actor, given: PolicyVote) -> Candidate:
        """Vote on another policy; the last yes that is needed puts it in force. Raises NotFoundError, and RefusedError
        for another digest, one that is not open any more, and a vote that does not count."""
        candidate, digest, verdict, signed = given.candidate, given.digest, given.verdict, given.signed

        def write(connection: Connection) -> int:
            now_ms, now = self.clock(), self.current(connection)
            self._close_expired(connection, now_ms)
            row = self._row(connection, candidate)
            new = self._new(row)
            if digest != row.digest:
                raise RefusedError(
                    f"the digest given does not match {candidate}", "Review it again: muster policy show"
                )
            if row.state != "awaiting":
                raise RefusedError(f"{candidate} is {row.state.replace('_', ' ')}", "Propose it again")
            if row.based_on != now.digest():
                raise RefusedError(f"{candidate} was based on a policy that is no longer in force", "Propose it again")
            who = self._who(connection, actor, signed, candidate, new, verdict, now_ms)
            not_for = why_not_token(who, "policy")
            if not_for:
                raise RefusedError(f"you may not vote on {candidate}: {not_for}", "Use another token")
            vote = vote_of(who if signed else msgspec.structs.replace(who, key=""), verdict, now_ms)
            before = self._votes(connection, row.number)
            if any(other.subject == who.subject for other in before):
                raise RefusedError(f"{who.subject} has already voted on {candidate}", "")
            counted = self._tally(now, row, (*before, vote))
            if counted.why_not[-1]:
                raise RefusedError(f"your vote on {candidate} does not count: it {counted.why_not[-1]}", counted.wanted)
            connection.execute(
                insert(CHANGE_VOTE).values(number=row.number, subject=who.subject, vote=msgspec.json.encode(vote))
            )
            mine = (CHANGE_VOTE.c.number == row.number) & (CHANGE_VOTE.c.subject == who.subject)
            rows = reread(connection, CHANGE_VOTE, mine) | used_nonce(connection, signed)
            if verdict == "reject":
                rows |= self._close(connection, row.number, "rejected")
            self._audit.append(
                connection, "policy.vote", who, proposal=POLICY, policy_digest=digest,
                data={"candidate": candidate, "verdict": verdict, **kept_signature(signed)}, rows=rows,
            )  # fmt: skip
            if verdict != "reject" and not counted.missing:
                self._put_in_force(connection, row, now, new, who, now_ms)
            return int(row.number)

        return self.candidate(self._on_record(actor, write))

    def candidate(self, number: int) -> Candidate:
        """A candidate as it stands."""
        return self.looked(lambda connection: self._shown(connection, self._row(connection, f"policy-{number}")))

    def candidates(self, connection: Connection) -> tuple[Candidate, ...]:
        """Candidates that wait for votes, newest first."""
        query = select(CANDIDATE).where(CANDIDATE.c.state == "awaiting").order_by(CANDIDATE.c.number.desc())
        rows = self._prepared(connection).execute(query).all()
        now_ms = self.clock()
        return tuple(self._shown(connection, row) for row in rows if not _expired(row.at_ms, now_ms))

    def text(self, connection: Connection) -> str:
        """The file of the policy in force as it was handed in; of one that is built in, a file that says the same."""
        in_force = self.current(connection).digest()
        of_it = select(VERSION.c.text).where(VERSION.c.digest == in_force).order_by(VERSION.c.seq).limit(1)
        handed_in = connection.execute(of_it).scalar()
        if handed_in is not None:
            return bytes(handed_in).decode("utf-8", "replace")
        return text_of(msgspec.structs.replace(self._default, version=max(1, self._default.version)))

    def _put_in_force(
        self, connection: Connection, row: Any, old: Policy, new: Policy, who: Actor, now_ms: int
    ) -> None:
        connection.execute(
            insert(VERSION).values(
                digest=row.digest, version=new.version, body=row.body, text=row.text, at_ms=now_ms, by=who.subject
            )
        )
        rows = reread(connection, VERSION, VERSION.c.digest == row.digest)
        known = set(connection.execute(select(BOUND.c.key)).scalars())
        for key, subject in sorted((bindings(old) | bindings(new)).items()):
            if key not in known:
                bound = {"key": key, "subject": subject}
                connection.execute(insert(BOUND).values(**bound))
                rows |= kept(BOUND, bound)
        rows |= self._close(connection, row.number, "in_force")
        waiting = select(CANDIDATE.c.number).where(CANDIDATE.c.state == "awaiting")
        for number in connection.execute(waiting).scalars().all():
            rows |= self._close(connection, number, "superseded")
        need = change_need(old)
        self._audit.append(
            connection, "policy.changed", who, proposal=POLICY, policy_digest=row.digest, rows=rows,
            data={
                "candidate": f"policy-{row.number}", "before": old.digest(), "version": new.version, "mode": new.mode,
                "alone": need.self_ok, "changes": [change.text for change in changes(old, new)],
                "loosens": [change.text for change in changes(old, new) if change.loosens],
            },
        )  # fmt: skip
        had, has = bindings(old), bindings(new)
        for key in sorted(had.keys() ^ has.keys()):
            type_ = "key.enrolled" if key in has else "key.revoked"
            data = {"key": key, "of": has.get(key) or had[key]}
            self._audit.append(connection, type_, who, policy_digest=row.digest, data=data)

    def _row(self, connection: Connection, candidate: str) -> Any:
        number = candidate.removeprefix("policy-")
        row = None
        if candidate.startswith("policy-") and number.isascii() and number.isdigit() and len(number) < 16:
            query = select(CANDIDATE).where(CANDIDATE.c.number == int(number))
            row = self._prepared(connection).execute(query).first()
        if row is None:
            raise NotFoundError(f"there is no new policy {candidate[:40]!a}", "See `muster policy show`")
        return row

    def _new(self, row: Any) -> Policy:
        found = decoded(row.body)
        if found is None or found.digest() != row.digest:
            raise MusterError(f"policy-{row.number} was changed in the database", "Propose it again")
        return found

    def _votes(self, connection: Connection, number: int) -> tuple[Vote, ...]:
        query = select(CHANGE_VOTE.c.vote).where(CHANGE_VOTE.c.number == number).order_by(CHANGE_VOTE.c.id)
        return tuple(msgspec.json.decode(vote, type=Vote) for vote in connection.execute(query).scalars())

    def _tally(self, now: Policy, row: Any, votes: tuple[Vote, ...]) -> VoteTally:
        author = msgspec.json.decode(row.author, type=Party)
        return tally(now, votes, author, "", change_need(now), owner=self.owner)

    def _shown(self, connection: Connection, row: Any) -> Candidate:
        new = self._new(row)
        based_on = self.get(connection, row.based_on)
        waits = row.state == "awaiting"
        now = self.current(connection) if waits else based_on
        need = change_need(now)
        votes = self._votes(connection, row.number)
        counted = self._tally(now, row, votes)
        return Candidate(
            id=f"policy-{row.number}",
            revision=new.version,
            digest=row.digest,
            state=row.state,
            author=msgspec.json.decode(row.author, type=Party).subject,
            at_ms=row.at_ms,
            expires_ms=row.at_ms + CHANGE_EXPIRY_MS,
            changes=changes(based_on, new),
            needs=counted.missing if waits else 0,
            need=counted.wanted if waits else "",
            signed=need.signed,
            alone=need.self_ok,
            votes=tuple(
                f"{vote.subject} {vote.verdict}{': does not count, it ' + why if why else ''}"
                for vote, why in zip(votes, counted.why_not, strict=True)
            ),
        )

    def _close_expired(self, connection: Connection, now_ms: int) -> None:
        waiting = select(CANDIDATE.c.number, CANDIDATE.c.digest, CANDIDATE.c.at_ms).where(
            CANDIDATE.c.state == "awaiting"
        )
        for row in connection.execute(waiting).all():
            if _expired(row.at_ms, now_ms):
                rows = self._close(connection, row.number, "expired")
                data = {"candidate": f"policy-{row.number}"}
                self._audit.append(
                    connection,
                    "policy.expired",
                    SYSTEM,
                    proposal=POLICY,
                    policy_digest=row.digest,
                    data=data,
                    rows=rows,
                )

    def _close(self, connection: Connection, number: int, state: str) -> dict[str, str]:
        """The row, for the record of it."""
        return self._audit.rewrite(connection, CANDIDATE, CANDIDATE.c.number == number, {"state": state}, POLICY)

    # -- freezes by hand ----------------------------------------------------------------------------------------------

    def freezes(self, connection: Connection) -> tuple[FreezeSpec, ...]:
        """Freezes set by hand that are neither ended nor over."""
        return tuple(spec for spec, _ in self.freezes_by(connection))

    def freezes_by(self, connection: Connection) -> tuple[tuple[FreezeSpec, str], ...]:
        """Freezes set by hand, each with the subject that set it."""
        query = select(FREEZE.c.body, FREEZE.c.by).where(FREEZE.c.ended_ms == 0).order_by(FREEZE.c.id)
        now_ms = self.clock()
        rows = [
            (msgspec.json.decode(row.body, type=FreezeSpec), row.by)
            for row in self._prepared(connection).execute(query)
        ]
        return tuple((spec, by) for spec, by in rows if spec.until_ms is None or now_ms < spec.until_ms)

    def freeze(self, actor: Actor, spec: FreezeSpec) -> None:
        """Stop plans from now on. Raises SpecError, and RefusedError for a name that is taken."""
        check_freeze(spec)

        def write(connection: Connection) -> None:
            now_ms, now = self.clock(), self.current(connection)
            why_not = self.why_not(connection, actor, "freeze", scope=spec.scope)
            if why_not:
                raise RefusedError(f"you may not freeze: {why_not}", "Ask somebody with that role")
            if spec.until_ms is not None and spec.until_ms <= now_ms:
                raise SpecError("until", "is past", "Give a later end")
            there = self.freezes(connection)
            if any(other.name == spec.name for other in (*now.freezes, *there)):
                raise RefusedError(f"freeze {spec.name} already exists", "Give another name, or thaw it first")
            if len(there) >= MAX_FREEZES:
                raise RefusedError(f"{MAX_FREEZES} freezes are already set", "Thaw the expired ones")
            body = msgspec.json.encode(spec)
            made = insert(FREEZE).values(name=spec.name, body=body, by=actor.subject, at_ms=now_ms)
            number = connection.execute(made.returning(FREEZE.c.id)).scalar_one()
            rows = reread(connection, FREEZE, FREEZE.c.id == number)
            data = msgspec.to_builtins(spec)
            self._audit.append(connection, "freeze.set", actor, proposal=FREEZES, data=data, rows=rows)

        self._engine.record(write)
        self._audit.after()

    def thaw(self, actor: Actor, name: str) -> None:
        """End a freeze that was set by hand: its setter may, and an admin. Raises NotFoundError, RefusedError."""

        def write(connection: Connection) -> None:
            now = self.current(connection)
            by = next((by for spec, by in self.freezes_by(connection) if spec.name == name), None)
            if by is None and any(spec.name == name for spec in now.freezes):
                raise RefusedError(f"freeze {name} is the policy's", "Propose a policy without it")
            if by is None:
                raise NotFoundError(f"there is no freeze {name[:40]!a}", "See `muster policy freezes`")
            why_not = self.why_not(connection, actor, "thaw")
            if why_not and (by != actor.subject or why_not_token(actor, "thaw", None)):
                raise RefusedError(f"you may not thaw {name}, which {by} set: {why_not}", "Ask an admin")
            where = (FREEZE.c.name == name) & (FREEZE.c.ended_ms == 0)
            ended = {"ended_ms": self.clock(), "ended_by": actor.subject}
            numbers = connection.execute(select(FREEZE.c.id).where(where)).scalars().all()
            rows = self._audit.rewrite(connection, FREEZE, FREEZE.c.id.in_(numbers), ended, FREEZES)
            self._audit.append(connection, "freeze.ended", actor, proposal=FREEZES, data={"name": name}, rows=rows)

        self._engine.record(write)
        self._audit.after()

    # -- ground -------------------------------------------------------------------------------------------------------

    def _who(
        self, connection: Connection, actor: Actor, signed: Signed | None, candidate: str, new: Policy, verdict: str,
        now_ms: int,
    ) -> Actor:  # fmt: skip
        if signed is None:
            return actor
        return self.authenticated(
            connection, actor, signed, now_ms, kind="policy", proposal=candidate, revision=new.version,
            digest=new.digest(), verdict=verdict,
        )  # fmt: skip

    def _on_record(self, actor: Actor, write: Callable[[Connection], int]) -> int:
        """`write` in a transaction; a refusal is recorded in one of its own."""
        try:
            number = self._engine.record(write)
        except AuthRefused as error:
            self.refused(actor, error)
            raise
        except RefusedError as error:
            data = {"deed": "policy", "why": error.problem[:500]}
            self._engine.record(lambda connection: self._audit.append(connection, "command.refused", actor, data=data))
            raise
        finally:
            self._latest = None
        self._audit.after(at_once=True)
        return number

    def refused(self, actor: Actor, error: AuthRefused, proposal: str = "") -> None:
        """Record a claim that does not hold, after the transaction it was refused in."""
        self._engine.record(
            lambda connection: self._audit.append(
                connection, "auth.refused", actor, proposal=proposal, data={"why": error.problem[:500]}
            )
        )


def _fields_of(about: DecisionSubject, verdict: str) -> DecisionFields:
    return {"proposal": about.id, "revision": about.revision, "digest": about.digest, "verdict": verdict}


def _of_account(policy: Policy, account: str) -> Actor:
    """The service or the person whose account it is; the account itself where it is nobody's, or several people's."""
    behind = stands_for(account)
    named = behind if behind != account else ""
    service = next((each for each in policy.services if named == each.subject or behind in each.accounts), None)
    if service is not None:
        return Actor(subject=service.subject, kind=service.kind, account=account)
    if named.startswith("service:"):
        return Actor(subject=behind, kind="service", account=account)
    mine = holders(policy, account)
    nobody = account if behind.startswith("person:") else behind  # whom the policy has ceased to name
    return Actor(subject=mine[0].subject if len(mine) == 1 else nobody, account=account)


def _bytes(text: str) -> bytes:
    """The bytes of a file's text. Lone surrogates stay, to be refused by name."""
    return text.encode("utf-8", "surrogatepass")


def _expired(at_ms: int, now_ms: int) -> bool:
    return not at_ms - CLOCK_TOLERANCE_MS <= now_ms < at_ms + CHANGE_EXPIRY_MS


def used_nonce(connection: Connection, signed: Signed | None) -> dict[str, str]:
    """The row of a signature that was accepted, for the record of what it was given for."""
    return {} if signed is None else reread(connection, NONCE, NONCE.c.nonce == signed.nonce)


def kept_signature(signed: Signed | None) -> dict[str, object]:
    """A signature as the audit keeps it, so that anybody can check it again."""
    return {} if signed is None else {"signed": msgspec.to_builtins(signed)}


def decoded(body: bytes) -> Policy | None:
    """A policy as it was kept; None when it is none."""
    try:
        return msgspec.json.decode(body, type=Policy)
    except msgspec.MsgspecError:
        return None
