"""Eight people before one gate, each with a key, as a policy with two-person rules has them."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import func, select

from engine.control import Engine
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import TEAM, Policy
from runbooks.gate.approval_policy import Person as Named
from runbooks.gate.policy_versions import Policies
from runbooks.plans.identity import Actor, Role, Signed
from runbooks.plans.keys import DecisionKind, PublicKey, decision_bytes
from runbooks.plans.typed_plan import Outcome, Proposal
from tests.support.gates import Person

ROLES: dict[str, tuple[Role, ...]] = {
    "ann": ("operator",), "ben": ("operator", "approver"), "cat": ("approver",), "dan": ("approver",),
    "eve": (), "sue": ("admin",), "tom": ("admin",), "pat": ("operator",),
}  # fmt: skip
"""Who is what; pat is on call besides."""
NUMBERS = itertools.count()
"""For nonces: no two signatures have the same."""


def private_key(seed: str) -> Ed25519PrivateKey:
    """Always the same for the same words."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())


def public_key(seed: str) -> PublicKey:
    return PublicKey(private_key(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def account(name: str) -> str:
    return f"unix:{2001 + sorted(ROLES).index(name)}"


def named(name: str, **fields: Any) -> Named:
    """A member as the policy has them; ben has two keys."""
    keys = (public_key(name).line, *((public_key("ben-2").line,) if name == "ben" else ()))
    has = {"id": name, "accounts": (account(name),), "keys": keys, "roles": ROLES[name], "on_call": name == "pat"}
    return Named(**(has | fields))


def team(**fields: Any) -> Policy:
    """TEAM with these people. Limits are wide, so that what is tried is not stopped by them, unless they are given."""
    wide = msgspec.structs.replace(TEAM.limits, nodes_permille=1000, gpus_permille=10_000, gpus_least=1000)
    policy = msgspec.structs.replace(
        TEAM, name="lab", version=1, people=tuple(named(name) for name in ROLES), limits=wide
    )
    return msgspec.structs.replace(policy, **fields)


def changed(policy: Policy, name: str, **fields: Any) -> Policy:
    """The next version, in which one person is another way; None as `roles` takes them out."""
    people = tuple(
        msgspec.structs.replace(person, **fields) if person.id == name else person for person in policy.people
    )
    return msgspec.structs.replace(policy, version=policy.version + 1, people=people)


def team_gate(engine: Any, clock: Callable[[], int], policy: Policy | None = None) -> Gate:
    audit = Audit(engine, clock, log_id="lab")
    return Gate(engine, Policies(engine, audit, clock, default=policy or team()), audit, clock)


def put_in_force(gate: Gate, policy: Policy) -> None:
    """As if the engine had been started with this as the policy that is built in."""
    engine: Engine = gate._engine
    gate.policies._default = policy
    engine.record(gate.policies._start)


def count(gate: Gate, table: Any) -> int:
    return int(gate._engine.record(lambda c: c.execute(select(func.count()).select_from(table)).scalar_one()))


class Member(Person):
    """One of the team: asks from their own account, and signs with their own key."""

    def __init__(self, gate: Gate, name: str, *, at: str = "", subject: str = "", key: str = "") -> None:
        """`at`: the account they come from, their own if not given; `key`: the seed of the key they sign with."""
        actor = Actor(subject=subject or f"person:{name}", account=at or account(name))
        super().__init__(gate, actor)
        self.name = name
        self.key = key or name

    def sign(
        self,
        shown: Proposal,
        verdict: str = "approve",
        kind: DecisionKind = "vote",
        *,
        forged: Mapping[str, Any] | None = None,
    ) -> Signed:
        """Over a decision on a proposal as it is shown; what of `forged` is not so makes a forgery."""
        nonce = hashlib.sha256(str(next(NUMBERS)).encode()).hexdigest()
        cell = self.gate._engine.record(self.gate.policies.cell)
        said: dict[str, Any] = {
            "kind": kind, "subject": f"person:{self.name}", "nonce": nonce, "at_ms": self.gate._now(),
            "proposal": shown.id, "revision": shown.revision, "digest": shown.digest, "verdict": verdict,
            "screen": "", "cell": cell,
        }  # fmt: skip
        said |= forged or {}
        signature = private_key(self.key).sign(decision_bytes(**said))
        return Signed(
            subject=said["subject"], nonce=said["nonce"], at_ms=said["at_ms"],
            key=public_key(self.key).fingerprint, signature=base64.b64encode(signature).decode(), screen=said["screen"],
        )  # fmt: skip

    def yes(self, proposal: Proposal, comment: str = "seen and wanted") -> Outcome:
        """Approve it, signed; what that leads to is done at once if the plan says so."""
        return self.gate.approve(self.actor, proposal.id, proposal.digest, comment, self.sign(proposal))

    def vote(self, proposal: Proposal, verdict: Any = "approve", comment: str = "seen and wanted") -> Proposal:
        """Vote, signed; nothing is carried out."""
        signed = self.sign(proposal, verdict)
        return self.gate.vote(self.actor, proposal.id, proposal.digest, verdict, comment, signed)


def members(gate: Gate, names: Iterable[str] = ROLES) -> dict[str, Member]:
    return {name: Member(gate, name) for name in names}
