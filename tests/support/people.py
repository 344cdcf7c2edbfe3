"""People with keys, and policies that name them."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runbooks.gate.approval_policy import TEAM, Person, Policy
from runbooks.plans.identity import Actor, Role, Signed
from runbooks.plans.keys import DecisionKind, FileKey, signed_by

NOW_MS = 1_772_366_400_000
"""2026-03-01 12:00:00 UTC."""


def key_of(name: str, number: int = 0) -> FileKey:
    """A key of a person, the same each time."""
    seed = f"{name}/{number}".encode().ljust(32, b".")[:32]
    return FileKey(Ed25519PrivateKey.from_private_bytes(seed))


def person(name: str, *roles: Role, uid: int | None = None, keys: int = 1, **more: object) -> Person:
    """Somebody with an account and a key of their own."""
    return Person(
        id=name,
        roles=roles,
        accounts=(f"unix:{uid}",) if uid is not None else (),
        keys=tuple(key_of(name, number).public.line for number in range(keys)),
        **more,  # type: ignore[arg-type]
    )


ALICE = person("alice", "operator", "approver", uid=2001)
BOB = person("bob", "operator", "approver", uid=2002)
CAROL = person("carol", "approver", uid=2003)
DAVE = person("dave", "admin", uid=2004)
ERIN = person("erin", "admin", uid=2005)
OTTO = person("otto", "operator", uid=2006, on_call=True)
FAITH = person("faith", "auditor", uid=2007)
EVERYBODY = (ALICE, BOB, CAROL, DAVE, ERIN, OTTO, FAITH)


def team(*people: Person, **more: object) -> Policy:
    """The built-in policy with people."""
    import msgspec

    return msgspec.structs.replace(TEAM, name="team-a", version=1, people=people or EVERYBODY, **more)


def actor(who: Person, *, account: str = "", signed: bool = False) -> Actor:
    """A person as the engine knows them."""
    key = key_of(who.id).public.fingerprint if signed else ""
    return Actor(subject=who.subject, account=account or who.accounts[0], signed=signed, key=key)


def sign(
    who: Person | str,
    *,
    cell: str,
    kind: DecisionKind = "vote",
    proposal: str = "",
    revision: int = 0,
    digest: str = "",
    verdict: str = "approve",
    at_ms: int = NOW_MS,
    key: FileKey | None = None,
) -> Signed:
    """A decision as that person signs it."""
    name = who if isinstance(who, str) else who.id
    return signed_by(
        key or key_of(name), kind=kind, subject=f"person:{name}", at_ms=at_ms, proposal=proposal, revision=revision,
        digest=digest, verdict=verdict, cell=cell,
    )  # fmt: skip
