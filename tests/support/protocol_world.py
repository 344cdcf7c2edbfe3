"""A cell, a gate and eight people of whom some are hostile; and beside them a model of what may happen, which knows the
people, the rules and what was asked, and nothing of how the gate keeps its books.

Each operation is tried; what the gate lets through must be something the model allows. Every effect on the cell is
traced back by its key to the proposal, and must have its votes, in time, by the roles of that moment.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from on_postgres import is_server
from sqlalchemy import Connection, Table, func, literal_column, select, update

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import JournalError, MusterError
from engine.model.events import AuditEntry
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import Policy
from runbooks.gate.run_limits import FreezeSpec
from runbooks.gate.store import EFFECT, PROPOSAL, REVIEW, REVISION
from runbooks.plans.identity import Actor, Role, Signed
from runbooks.plans.typed_plan import Act, Proposal, Request, Source, SourceKind, StepRequest
from tests.support.gate_cells import HOUR, MINUTE, WORK, Clock, busy_engine, work
from tests.support.team import ROLES, Member, account, public_key, put_in_force, team, team_gate

NODES = ("n0", "n1", "n2")
EXPIRY_MS = {"T0": 24 * HOUR, "T1": 4 * HOUR, "T2": HOUR, "T3": HOUR // 2}
WINDOW_MS = 30 * MINUTE
GLASS_MS = 30 * MINUTE
PER_HOUR = {"T0": 600, "T1": 240, "T2": 20, "T3": 3}
SERVICES = (
    Actor(subject="service:recommender", kind="service", account="unix:9"),
    Actor(subject="service:llm-drafter", kind="llm", account="unix:9"),
    Actor(subject="service:rogue", kind="service", account="unix:9"),
)


class Failing:
    """An engine whose journal can be made to fail at the very end of a transaction, and whose effects are noted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.effects: list[AuditEntry] = []
        self.fails_in = -1
        """Transactions until one fails; negative: none does."""

    def _fail(self) -> None:
        self.fails_in -= 1
        if self.fails_in == -1:
            raise JournalError("the disk is full", "Make room")

    def record(self, change: Callable[[Any], Any]) -> Any:
        def then_fail(connection: Any) -> Any:
            answer = change(connection)
            self._fail()
            return answer

        return self.engine.record(then_fail)

    def command(self, command: Any, *, audit: AuditEntry | None = None, beside: Any = None) -> Any:
        def then_fail(connection: Any) -> None:
            if beside is not None:
                beside(connection)
            self._fail()

        receipt = self.engine.command(command, audit=audit, beside=then_fail)
        if audit is not None:
            self.effects.append(audit)
        return receipt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass
class Rules:
    """The policy as the model has it."""

    policy: Policy
    roles: dict[str, tuple[Role, ...]]
    more: int = 0
    """Votes that are needed besides those of the tier."""
    without_key: frozenset[str] = frozenset()

    def approvals(self, tier: str) -> int:
        return (2 if tier == "T3" else 1) + self.more


@dataclass
class Known:
    """A proposal as the model has it: what it is, and who said yes to exactly that."""

    shown: Proposal
    author: str
    """Name of a person, or subject of a machine."""
    requester: str
    rules: Rules
    expires_ms: int
    looked: tuple[Any, ...]
    """What the targets of the first step were."""
    yes: dict[str, str] = field(default_factory=dict)
    """Name -> fingerprint of the key that signed it, or none."""
    window_ms: int = 0
    """Until when what is approved must have begun."""
    dead: str = ""
    glass: bool = False
    begun: bool = False
    claimed: bool = False
    """It was begun in time, and waits before its first step."""
    tampered: bool = False

    @property
    def human(self) -> bool:
        return self.author in ROLES

    @property
    def self_ok(self) -> bool:
        return self.human and self.shown.tier < "T2" and self.shown.plan.origin == "person"


class World:
    """One run. `tried` and `done` count the operations by name, and those the gate let through."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.engine = Failing(busy_engine())
        self.base = Rules(team(), dict(ROLES))
        self.rules = self.base
        self.edited: set[int] = set()
        """Numbers of proposals whose rows somebody edited."""
        self.gate: Gate = team_gate(self.engine, self.clock, self.base.policy)
        self.known: dict[str, Known] = {}
        self.by_digest: dict[str, Known] = {}
        self.signatures: list[tuple[str, Signed]] = []
        self.freezes: dict[str, tuple[str, int, int]] = {}
        """Name -> lowest tier, from when, until when."""
        self.begun: list[tuple[int, str, bool]] = []
        """(wall ms, tier, with broken glass) of every first effect."""
        self.latest_ms = self.clock.now_ms
        self.seen = 0
        self.tried: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.versions = 1

    # -- one operation ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        name = self.rng.choices(list(OPERATIONS), weights=[weight for weight, _ in OPERATIONS.values()])[0]
        self.tried[name] += 1
        if name not in QUIET and self.rng.random() < 0.03:
            self.engine.fails_in = self.rng.randrange(4)
        try:
            if OPERATIONS[name][1](self):
                self.done[name] += 1
        except JournalError:
            assert name not in QUIET
        finally:
            self.engine.fails_in = -1
        self.check_effects(name)
        self.note_claim()

    def note_claim(self) -> None:
        """Who is claimed without an effect waits for a word, or was interrupted: its window is kept by then."""
        known = self.current
        if known is None or known.begun or known.claimed:
            return
        number = int(known.shown.id.removeprefix("P-"))
        of = select(PROPOSAL.c.executed_ms).where(PROPOSAL.c.number == number)
        if self.engine.engine.record(lambda connection: connection.execute(of).scalar_one()):
            assert not known.dead, known
            assert self.latest_ms < known.window_ms, known
            known.claimed = True

    current: Known | None = None
    """The proposal of the operation."""

    def attempt(self, call: Callable[[], Any]) -> Any:
        """What it gives; None when it is refused."""
        try:
            return call()
        except JournalError:
            raise
        except MusterError:
            return None

    # -- who, what ----------------------------------------------------------------------------------------------------

    def some(self) -> Known | None:
        """A proposal, most often one of the last."""
        every = list(self.known.values())
        if not every:
            return None
        alive = [known for known in every if not (known.dead or known.tampered)]
        self.current = self.rng.choice(alive[-4:] if alive and self.rng.random() < 0.8 else every)
        return self.current

    def who(self) -> Member:
        """A person, who may come from another's account, or without being known there."""
        name = self.rng.choice(list(ROLES))
        at = self.rng.choices((account(name), account(self.rng.choice(list(ROLES))), "tcp"), weights=(8, 1, 1))[0]
        subject = self.rng.choices((f"person:{name}", at), weights=(5, 1))[0]
        key = self.rng.choices((name, "ben-2", "mallory", self.rng.choice(list(ROLES))), weights=(9, 1, 1, 1))[0]
        return Member(self.gate, name, at=at, subject=subject, key=key)

    def unsigned_name(self, actor: Actor) -> str:
        """Who somebody is without a signature: the person whose account it is."""
        at = next((name for name in ROLES if account(name) == actor.account), "")
        return at if actor.subject in (f"person:{at}", actor.account) and actor.kind == "human" else ""

    def signed_name(self, member: Member, forged: bool) -> str:
        """Whom a signature proves: whoever has the key, under the name that is signed."""
        mine = {"ben": ("ben", "ben-2")}.get(member.name, (member.name,))
        enrolled = member.key in mine and member.name not in self.rules.without_key
        return member.name if enrolled and not forged and member.actor.kind == "human" else ""

    def has(self, name: str, *roles: Role) -> bool:
        return bool(set(roles) & set(self.rules.roles.get(name, ())))

    def look(self, act: Act) -> tuple[Any, ...]:
        found: list[Any] = []
        for id_ in act.targets:
            if id_ in NODES:
                found.append(self.engine.node(id_).state)
            elif act.action not in ("hold_queue", "open_queue"):
                detail = self.engine.workload(id_)
                found.append((detail.state, detail.attempts))
            else:
                found.append(self.engine.queue(id_).mode)
        return tuple(found)

    def frozen(self, tier: str) -> bool:
        return any(tier >= least and since <= self.latest_ms < until for least, since, until in self.freezes.values())

    def counts(self, known: Known) -> int:
        """People whose yes counts by the rules of now."""
        need_approver = known.shown.tier >= "T2"
        found = 0
        for name, key in known.yes.items():
            if not self.has(name, "approver" if need_approver else "operator"):
                continue
            if need_approver and (not key or name in self.rules.without_key):
                continue
            if key and name in self.rules.without_key:
                continue
            both_self_ok = known.self_ok
            if not both_self_ok and name in (known.author, known.requester):
                continue
            found += 1
        return found

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check_effects(self, operation: str) -> None:
        for entry in self.engine.effects[self.seen :]:
            self.check_effect(entry, operation)
        self.seen = len(self.engine.effects)

    def check_effect(self, entry: AuditEntry, operation: str) -> None:
        digest, revision, number, *back = entry.key.split(":")
        known = self.by_digest[digest]
        told = (operation, entry.key, entry.actor, known.shown.tier, known.yes, known.dead)
        assert entry.digest == digest == known.shown.digest, told
        assert int(revision) == known.shown.revision, told
        assert not known.tampered, told
        step = known.shown.plan.steps[int(number)]
        act = msgspec.json.decode(entry.plan, type=Act)
        if back:
            assert known.begun, told
            assert operation == "rollback" or any(s.on_fail == "rollback" for s in known.shown.plan.steps), told
            assert act.action in {one.action for one in step.rollback}, told
            return
        assert act == step.act, told
        assert not known.dead, told
        through = known.glass
        if not through:
            needed = max(self.rules.approvals(known.shown.tier), known.rules.approvals(known.shown.tier))
            assert self.counts(known) >= needed, told
            assert not self.frozen(known.shown.tier), told
        if number == "0":
            assert not known.begun, told
            assert known.claimed or self.latest_ms < known.window_ms, told
            before = self.before_start.get(digest) if operation == "restart" else self.before
            assert before == known.looked, (*told, before, known.looked)
            known.begun = True
            self.begun.append((self.latest_ms, known.shown.tier, known.glass))
            last_hour = [
                glass for at, tier, glass in self.begun if at > self.latest_ms - HOUR and tier == known.shown.tier
            ]
            assert len(last_hour) <= PER_HOUR[known.shown.tier] * (2 if any(last_hour) else 1), told
        else:
            assert known.begun, told

    before: tuple[Any, ...] = ()
    """What the first targets of the proposal that is acted on were, before the operation."""
    before_start: Mapping[str, tuple[Any, ...]] = {}
    """The same of each that might go on, by digest, before a restart."""

    def about(self, known: Known) -> None:
        self.before = self.look(known.shown.plan.steps[0].act)

    def check_books(self) -> None:
        """Every edge has one record, and every effect its own, and its event in the cell."""

        def read(connection: Any) -> tuple[int, int, int, int, set[str]]:
            edges = connection.execute(select(func.coalesce(func.sum(PROPOSAL.c.serial), 0))).scalar_one()
            drafts = connection.execute(select(func.count()).select_from(PROPOSAL)).scalar_one()
            of = select(func.count()).select_from(record_table)
            told = connection.execute(of.where(record_table.c.type.like("proposal.%"))).scalar_one()
            acts = connection.execute(of.where(record_table.c.type.in_(("exec.effect", "exec.needless")))).scalar_one()
            keys = set(connection.execute(select(EFFECT.c.key)).scalars())
            return edges, drafts, told, acts, keys

        edges, drafts, told, acts, keys = self.engine.engine.record(read)
        assert told == edges + drafts
        assert acts == len(keys)
        assert {entry.key for entry in self.engine.effects} <= keys
        assert len({entry.key for entry in self.engine.effects}) == len(self.engine.effects), "each once"

    # -- operations ---------------------------------------------------------------------------------------------------

    def request(self) -> Request:
        rng = self.rng
        steps = []
        used: set[str] = set()
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            kind = rng.random()
            if kind < 0.6:
                target = rng.choice(tuple(self.engine.state.workloads.ids)[-12:])
                fitting = FITTING.get(self.engine.workload(target).state, ())
                action = rng.choice(fitting or ("hold", "release", "suspend", "resume", "requeue", "cancel"))
            elif kind < 0.85:
                target = rng.choice(NODES)
                action = rng.choice(FITTING.get(self.engine.node(target).state, ("cordon", "uncordon", "drain")))
            else:
                target = "q"
                action = rng.choice(FITTING.get(self.engine.queue(target).mode, ("open_queue",)))
            if target in used:
                continue
            used.add(target)
            act = Act(action=action, targets=(target,))
            confirm = rng.choices(("none", "operator", "approver"), weights=(10, 1, 1))[0]
            on_fail = rng.choice(("rollback", "pause", "abort"))
            steps.append(StepRequest(act=act, confirm=confirm, on_fail=on_fail))
        requester = rng.choices(("", f"person:{rng.choice(list(ROLES))}", "mallory"), weights=(7, 3, 1))[0]
        kind: SourceKind = rng.choices(("operator", "runbook", "model"), weights=(8, 1, 1))[0]
        start = rng.choice(("approved", "asked"))
        return Request(steps=tuple(steps), requester=requester, source=Source(kind=kind), start=start)

    def propose(self) -> bool:
        honest = Member(self.gate, self.rng.choice(("ann", "ann", "ben", "pat")))
        actor = self.rng.choices((honest.actor, self.who().actor, self.rng.choice(SERVICES)), weights=(7, 2, 1))[0]
        request = self.request()
        before = self.engine.state.digest()
        shown = self.attempt(lambda: self.gate.propose(actor, request))
        assert self.engine.state.digest() == before
        if shown is None:
            return False
        name = self.unsigned_name(actor) or (actor.subject if actor.kind != "human" else "")
        assert name, actor
        assert actor.kind != "human" or self.has(name, "operator"), actor
        assert actor.subject != "service:rogue"
        self.keep(shown, name, request)
        return True

    def keep(self, shown: Proposal, author: str, request: Request) -> None:
        known = Known(
            shown=shown, author=author, requester=request.requester.removeprefix("person:"), rules=self.rules,
            expires_ms=self.latest_ms + EXPIRY_MS[shown.tier], looked=self.look(shown.plan.steps[0].act),
        )  # fmt: skip
        assert shown.expires_ms <= known.expires_ms
        if actor_is_machine(author):
            assert shown.plan.origin in ("model", "recommender")
        self.known[shown.id] = known
        self.by_digest[shown.digest] = known

    def revise(self) -> bool:
        known = self.some()
        if known is None:
            return False
        member, request = self.who(), self.request()
        actor = member.actor
        if self.rng.random() < 0.6 and known.human:
            actor = Member(self.gate, known.author).actor
        shown = self.attempt(lambda: self.gate.revise(actor, known.shown.id, request))
        if shown is None:
            return False
        assert self.unsigned_name(actor) == known.author
        assert not known.begun
        assert shown.revision == known.shown.revision + 1
        assert shown.votes == ()
        known.dead = "revised"
        self.keep(shown, known.author, request)
        if shown.state == "denied":
            self.known[shown.id].dead = "denied"
        return True

    def vote(self, verdict: str = "", *, and_do: bool = False) -> bool:
        known = self.some()
        if known is None:
            return False
        rng, shown = self.rng, known.shown
        member = self.who()
        if rng.random() < 0.5:
            member = Member(self.gate, rng.choice(("ben", "cat", "dan", "ann")))
        verdict = verdict or rng.choices(("approve", "reject", "abstain"), weights=(8, 1, 1))[0]
        digest = shown.digest
        if rng.random() < 0.1:
            digest = rng.choice(list(self.by_digest))
        how = rng.choices(("signed", "unsigned", "forged", "replayed"), weights=(12, 4, 2, 1))[0]
        signed: Signed | None = None
        forged = False
        if how == "signed":
            signed = member.sign(shown, verdict)
        elif how == "forged":
            forged = True
            other = rng.choice(list(self.by_digest))
            fields: dict[str, Any] = rng.choice((
                {"digest": other if other != shown.digest else "0" * 64}, {"revision": shown.revision + 1},
                {"proposal": "P-999"}, {"verdict": "reject" if verdict != "reject" else "approve"},
                {"kind": "breakglass"}, {"cell": "elsewhere"}, {"at_ms": self.latest_ms - HOUR},
            ))  # fmt: skip
            signed = member.sign(shown, verdict, forged=fields)
        elif how == "replayed" and self.signatures:
            forged = True
            name, signed = rng.choice(self.signatures)
            member = Member(self.gate, name)
        actor = member.actor
        if rng.random() < 0.05:
            actor = rng.choice(SERVICES)
        comment = rng.choice(("seen and wanted", "seen and wanted", ""))
        self.about(known)
        kept = self.votes_kept()

        def give() -> Any:
            if and_do:
                return self.gate.approve(actor, shown.id, digest, comment, signed)
            return self.gate.vote(actor, shown.id, digest, verdict, comment, signed)  # type: ignore[arg-type]

        answer = None
        failed: JournalError | None = None
        try:
            answer = self.attempt(give)
        except JournalError as error:
            failed = error  # It may have failed after the vote was kept.
        if self.votes_kept() == kept:
            if failed is not None:
                raise failed
            return answer is not None
        # A vote was taken down: it must be one that the model allows.
        told = (actor, how, verdict, shown.id, shown.tier, known.author, known.requester)
        assert actor.kind == "human", told
        name = self.signed_name(member, forged) if signed is not None else self.unsigned_name(actor)
        assert name, told
        assert digest == shown.digest, told
        assert (known.dead, known.tampered) == ("", False), told
        assert self.latest_ms < known.expires_ms or known.window_ms, told
        if signed is not None:
            self.signatures.append((member.name, signed))
        if verdict == "approve":
            assert not known.begun or name in known.yes, told
            role: Role = "approver" if shown.tier >= "T2" else "operator"
            assert self.has(name, role), told
            assert signed is not None or shown.tier < "T2", told
            assert known.self_ok or name not in (known.author, known.requester), told
            if not known.self_ok and known.human:
                assert actor.account not in (account(known.author), "tcp"), told
            assert comment or shown.tier < "T3", told
            known.yes[name] = public_key(member.key).fingerprint if signed is not None else ""
            known.window_ms = max(known.window_ms, self.latest_ms + WINDOW_MS)
        elif verdict == "reject":
            assert self.has(name, "operator", "approver"), told
            known.dead = "rejected"
        else:
            known.yes.pop(name, None)
        # The effect, if any, was had by what this vote completes: it is looked at with the vote counted.
        if failed is not None:
            raise failed
        return True

    def votes_kept(self) -> int:
        of = record_table.c.type.in_(("vote.approve", "vote.reject", "vote.abstain"))
        query = select(func.count()).select_from(record_table).where(of)
        return int(self.engine.engine.record(lambda connection: connection.execute(query).scalar_one()))

    def approve(self) -> bool:
        return self.vote("approve", and_do=True)

    def honest(self) -> bool:
        """Everybody who should say yes does, so that there is something to attack."""
        known = self.some()
        if known is None or known.tampered:
            return False
        for name in ("ben", "cat", "dan"):
            member = Member(self.gate, name)
            kept = self.votes_kept()
            self.about(known)
            signed = member.sign(known.shown)
            call = lambda m=member, s=signed: self.gate.approve(  # noqa: E731
                m.actor, known.shown.id, known.shown.digest, "seen and wanted", s
            )
            before = len(self.engine.effects)
            with contextlib.suppress(JournalError):
                self.attempt(call)
            if self.votes_kept() > kept:
                known.yes[name] = public_key(name).fingerprint
                known.window_ms = max(known.window_ms, self.latest_ms + WINDOW_MS)
                assert known.self_ok or name not in (known.author, known.requester)
            if len(self.engine.effects) > before:
                self.check_effects("honest")
        return True

    def execute(self) -> bool:
        return self.deed(lambda a, k: self.gate.execute(a, k.shown.id), ("operator", "approver"))

    def pause(self) -> bool:
        return self.deed(lambda a, k: self.gate.pause(a, k.shown.id), ("operator", "approver", "admin"))

    def resume(self) -> bool:
        return self.deed(lambda a, k: self.gate.resume(a, k.shown.id), ("operator", "approver"))

    def accept(self) -> bool:
        return self.deed(lambda a, k: self.gate.resume(a, k.shown.id, accept=True), ("operator", "approver"))

    def rollback(self) -> bool:
        return self.deed(lambda a, k: self.gate.rollback(a, k.shown.id), ("operator", "approver"))

    def confirm(self) -> bool:
        def call(actor: Actor, known: Known) -> Any:
            step = self.rng.choice(known.shown.plan.steps)
            answer = self.gate.confirm(actor, known.shown.id, step.id)
            if step.confirm == "approver":
                name = self.unsigned_name(actor)
                assert name not in (known.author, known.requester)
                assert self.has(name, "approver")
            return answer

        return self.deed(call, ("operator", "approver"))

    def deed(self, call: Callable[[Actor, Known], Any], roles: tuple[Role, ...]) -> bool:
        """Done by somebody to some proposal: who is let must have one of the roles."""
        known = self.some()
        if known is None:
            return False
        actor = self.who().actor if self.rng.random() < 0.9 else self.rng.choice(SERVICES)
        self.about(known)
        answer = self.attempt(lambda: call(actor, known))
        if answer is None:
            return False
        name = self.unsigned_name(actor)
        assert name, actor
        assert self.has(name, *roles), (actor, known.shown.id)
        return True

    def cancel(self) -> bool:
        known = self.some()
        if known is None:
            return False
        actor = self.who().actor if self.rng.random() < 0.9 else self.rng.choice(SERVICES)
        if self.attempt(lambda: self.gate.cancel(actor, known.shown.id)) is None:
            return False
        name = self.unsigned_name(actor)
        assert actor.subject == known.shown.plan.author.subject or self.has(name, "operator", "approver", "admin")
        assert not known.begun
        known.dead = "withdrawn"
        return True

    def break_glass(self) -> bool:
        known = self.some()
        if known is None:
            return False
        rng, shown = self.rng, known.shown
        member = self.who() if rng.random() < 0.5 else Member(self.gate, rng.choice(("sue", "pat", "tom")))
        kind = rng.choices(("breakglass", "vote", "none"), weights=(6, 1, 2))[0]
        signed = None if kind == "none" else member.sign(shown, "approve", kind)  # type: ignore[arg-type]
        reason = rng.choice(("the house is on fire", "the house is on fire", "a   b   c", ""))
        digest = shown.digest if rng.random() < 0.9 else rng.choice(list(self.by_digest))
        self.about(known)
        used, reviewers = self.glasses()
        with contextlib.suppress(JournalError):  # It may fail after the glass was broken.
            self.attempt(lambda: self.gate.break_glass(member.actor, shown.id, digest, reason, signed))
        if self.glasses()[0] == used:
            return False
        told = (member.actor, kind, reason, shown.id)
        name = self.signed_name(member, False) if signed is not None else self.unsigned_name(member.actor)
        assert name, told
        assert kind != "vote", told
        assert signed is not None or shown.tier < "T2", told
        assert self.has(name, "admin") or (name == "pat" and self.has(name, "operator")), told
        assert (known.dead, known.tampered, known.begun) == ("", False, False), told
        assert self.latest_ms < known.expires_ms, told
        assert digest == shown.digest, told
        assert reason == "the house is on fire", told
        assert name not in reviewers, told
        assert not (shown.tier == "T3" and not known.human), told
        known.glass = True
        known.window_ms = self.latest_ms + GLASS_MS
        return True

    def glasses(self) -> tuple[int, set[str]]:
        """How often the glass was broken, and by whom without review."""

        def read(connection: Any) -> tuple[int, set[str]]:
            forced = connection.execute(select(REVIEW.c.subject, REVIEW.c.closed_ms).where(REVIEW.c.forced)).all()
            return len(forced), {subject.removeprefix("person:") for subject, closed in forced if not closed}

        used, subjects = self.engine.engine.record(read)
        return used, {next((n for n in ROLES if account(n) == subject), subject) for subject in subjects}

    def close_review(self) -> bool:
        used, _ = self.glasses()
        if not used:
            return False
        number = self.rng.randrange(1, used + 1)
        member = self.who()
        before = self.glasses()[1]
        self.attempt(lambda: self.gate.close_review(member.actor, number, "looked at it: it was right"))
        closed = before - self.glasses()[1]
        if not closed:
            return False
        name = self.unsigned_name(member.actor)
        assert name not in closed, (member.actor, closed)
        assert self.has(name, "approver", "admin")
        return True

    def freeze(self) -> bool:
        name, tier = f"f{len(self.freezes)}-{self.rng.randrange(10**6)}", self.rng.choice(("T1", "T2", "T3"))
        until = self.latest_ms + self.rng.choice((10 * MINUTE, HOUR))
        spec = FreezeSpec(name=name, tier=tier, from_ms=self.latest_ms - 1, until_ms=until)  # type: ignore[arg-type]
        actor = self.who().actor
        try:
            self.gate.policies.freeze(actor, spec)
        except JournalError:
            raise
        except MusterError:
            return False
        assert self.has(self.unsigned_name(actor), "operator", "approver", "admin")
        self.freezes[name] = (tier, self.latest_ms - 1, until)
        return True

    def thaw(self) -> bool:
        if not self.freezes:
            return False
        name = self.rng.choice(list(self.freezes))
        try:
            self.gate.policies.thaw(Member(self.gate, self.rng.choice(list(ROLES))).actor, name)
        except JournalError:
            raise
        except MusterError:
            return False
        del self.freezes[name]
        return True

    def other_policy(self) -> bool:
        """Roles are given and taken, keys revoked, rules made stricter and looser."""
        self.versions += 1
        roles: dict[str, tuple[Role, ...]] = dict(ROLES)
        lost = self.rng.choice(("", "ann", "ben", "cat", "dan", "pat", "sue"))
        if lost:
            roles[lost] = () if self.rng.random() < 0.5 else ("operator",)
        gained = self.rng.choice(("", "", "pat", "ann"))
        if gained:
            roles[gained] = ("operator", "approver")
        without = frozenset(self.rng.choice(((), (), ("cat",), ("dan",))))
        more = self.rng.choice((0, 0, 0, 1))
        people = tuple(
            msgspec.structs.replace(person, roles=roles[person.id], keys=() if person.id in without else person.keys)
            for person in self.base.policy.people
        )
        rules = tuple(msgspec.structs.replace(rule, approvals=rule.approvals + more) for rule in self.base.policy.rules)
        policy = msgspec.structs.replace(self.base.policy, version=self.versions, people=people, rules=rules)
        self.rules = Rules(policy, roles, more, without)
        put_in_force(self.gate, policy)
        return True

    def time_passes(self) -> bool:
        by = self.rng.choices(TIMES, weights=(8, 8, 16, 4, 2, 2, 8, 1))[0]
        self.clock.now_ms += by
        if self.clock.now_ms < self.latest_ms - 1_000:
            self.latest_ms = self.clock.now_ms
            for known in self.known.values():
                if not (known.begun or known.claimed):
                    known.dead = known.dead or "the clock was set back"
        self.latest_ms = max(self.latest_ms, self.clock.now_ms)
        self.gate.tick()
        return True

    def tick(self) -> bool:
        self.gate.tick()
        return True

    def restart(self) -> bool:
        # What was approved and not begun may go on now, each on targets of its own.
        waiting = {digest: known for digest, known in self.by_digest.items() if not known.dead and not known.begun}
        self.before_start = {digest: self.look(known.shown.plan.steps[0].act) for digest, known in waiting.items()}
        self.gate = team_gate(self.engine, self.clock, self.rules.policy)
        return True

    def cell_changes(self) -> bool:
        rng = self.rng
        ids = self.engine.state.workloads.ids
        kind = rng.randrange(4)
        if kind == 0:
            self.engine.engine.advance(self.engine.now_ms + rng.choice((1, MINUTE, HOUR)))
            return True
        command: cmd.AnyCommand
        if kind == 1:
            command = cmd.Submit(workloads=(work(f"x{len(ids)}", gpus=rng.choice((1, 4, 8))),))
        elif kind == 2:
            make = rng.choice((cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue, cmd.Suspend, cmd.Resume))
            command = make(ids=(rng.choice((*WORK, *ids[-3:])),))
        else:
            command = rng.choice((cmd.Cordon, cmd.Uncordon))(ids=(rng.choice(NODES),))
        return self.attempt(lambda: self.engine.engine.command(command)) is not None

    def tamper(self) -> bool:
        """Somebody with the database edits the plan that is stored."""
        known = self.some()
        if known is None or known.dead or known.begun:
            return False
        number = int(known.shown.id.removeprefix("P-"))
        edit = self.rng.choice(EDITS)
        revision = known.shown.revision
        self.engine.engine.record(lambda connection: edit(connection, number, revision))
        known.tampered = True
        self.edited.add(number)
        return True


def actor_is_machine(author: str) -> bool:
    return author not in ROLES


def _edited(table: Table, column: str, change: Callable[[Any], Any]) -> Callable[[Connection, int, int], object]:
    """Somebody changes a column of a revision, or of the proposal, of that number."""

    def edit(connection: Connection, number: int, revision: int) -> None:
        here = (table.c.number == number) & (table.c.revision == revision)
        was = connection.execute(select(table.c[column]).where(here)).scalar_one()
        connection.execute(update(table).where(here).values({column: change(was)}))

    return edit


EDITS = (
    _edited(REVISION, "plan", lambda plan: plan.replace(b"w0", b"r0") + b" "),
    _edited(REVISION, "plan", lambda plan: plan.replace(b'"T3"', b'"T0"') + b" "),
    _edited(REVISION, "digest", lambda _: "0"),
    _edited(PROPOSAL, "digest", lambda _: "0"),
    _edited(REVISION, "plan", lambda _: b"text" if is_server() else literal_column("'text'")),
)
TIMES = (1, 1000, MINUTE, 10 * MINUTE, 40 * MINUTE, 2 * HOUR, -500, -HOUR)
FITTING = {
    "queued": ("hold", "cancel", "suspend"), "held": ("release", "cancel"), "running": ("suspend", "requeue", "cancel"),
    "suspended": ("resume",), "ready": ("cordon", "drain"), "cordoned": ("uncordon", "drain"),
    "draining": ("uncordon",), "open": ("hold_queue",), "held_queue": ("open_queue",),
}  # fmt: skip
"""State -> the actions that apply to it."""
QUIET = frozenset(("other_policy", "cell_changes", "tamper", "restart", "time_passes"))
"""During which the journal does not fail: they are no calls of the gate, or are retried at once."""
OPERATIONS: dict[str, tuple[int, Callable[[World], bool]]] = {
    "propose": (12, World.propose), "revise": (3, World.revise), "vote": (14, World.vote),
    "approve": (14, World.approve), "honest": (7, World.honest), "execute": (8, World.execute),
    "pause": (2, World.pause), "resume": (5, World.resume), "accept": (2, World.accept),
    "confirm": (4, World.confirm), "rollback": (5, World.rollback), "cancel": (2, World.cancel),
    "break_glass": (4, World.break_glass), "close_review": (2, World.close_review), "freeze": (1, World.freeze),
    "thaw": (2, World.thaw), "other_policy": (1, World.other_policy), "time_passes": (4, World.time_passes),
    "tick": (4, World.tick), "restart": (1, World.restart), "cell_changes": (4, World.cell_changes),
    "tamper": (1, World.tamper),
}  # fmt: skip
"""Name -> (how often, what)."""
