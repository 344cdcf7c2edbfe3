"""Identity of callers: subjects, accounts, roles, and the scope of a role or rule."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from engine.model.errors import RefusedError

Kind = Literal["human", "service", "llm", "system"]
Role = Literal["viewer", "submitter", "operator", "approver", "admin", "auditor", "drafter"]

TCP = "tcp"
"""The account of whoever comes over TCP: the system does not say who it is."""
OWNER = f"unix:{os.getuid()}"
"""The OS account this process runs as."""
TOKEN = "token:"
"""Before the subject that a token stands for: the account of whoever comes with one, such as "token:person:alice"."""


class Scope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the cell: touched by a plan, or the limit of a role, a rule or a freeze. All empty: the whole cell."""

    pools: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    def covers(self, touched: Scope) -> bool:
        """True when a role limited to this scope reaches all that is touched. A scope of pools reaches whatever touches
        pools, and only those. What touches the whole cell is reached only by an empty scope."""
        limited = [(set(mine), theirs) for mine, theirs in zip(self._parts(), touched._parts(), strict=True) if mine]
        if not limited:
            return True
        return any(theirs for _, theirs in limited) and all(mine.issuperset(theirs) for mine, theirs in limited)

    def meets(self, touched: Scope) -> bool:
        """True when a rule or freeze limited to this scope concerns what is touched: any part is enough, and the whole
        cell is touched in every part."""
        mine, theirs = self._parts(), touched._parts()
        if not any(mine) or not any(theirs):
            return True
        return any(set(a).intersection(b) for a, b in zip(mine, theirs, strict=True))

    def words(self) -> str:
        """As in "pools h100; tenants prod"; "the cell" for all of it."""
        parts = zip(("pools", "queues", "tenants"), self._parts(), strict=True)
        return "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names) or "the cell"

    def _parts(self) -> tuple[tuple[str, ...], ...]:
        return (self.pools, self.queues, self.tenants)


WHOLE = Scope()
"""The cell as a whole."""


class Actor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The caller of a request, as far as their identity is proved."""

    subject: str
    """Stable id, never a display name: "unix:1000", "person:alice", "service:recommender", "system"."""
    kind: Kind = "human"
    account: str = ""
    """Where the request came from: "unix:1000", the OS account at the other end of the socket; "token:person:alice",
    "oidc:ISSUER#SUBJECT" or "cert:NAME" where something was shown that proves it; "tcp" where nobody can say. Two
    people who share one account are told apart only by their keys."""
    signed: bool = False
    """The subject proved itself with its own key in this very request."""
    session: str = ""
    key: str = ""
    """Fingerprint of that key."""
    deeds: tuple[str, ...] | None = None
    """What the token that was shown is for, of what its holder may do; None: all of it."""
    within: Scope = WHOLE
    """The part of the cell that the token is for."""
    groups: tuple[str, ...] = ()
    """Groups of the OpenID provider that its login named."""


def stands_for(account: str) -> str:
    """The subject that a token stands for; of any other account, the account itself."""
    return account.removeprefix(TOKEN)


THIS_ACCOUNT = Actor(subject=OWNER, account=OWNER)
"""Whoever runs this process."""
SYSTEM = Actor(subject="system", kind="system", account="system")
"""The engine's own process: expiry, recovery, verification."""


class AuthRefused(RefusedError):
    """A claim of identity, or a signature, that does not hold."""


class Unauthenticated(AuthRefused):
    """A request without a valid proof of identity."""


class Signed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signature over `runbooks.plans.keys.decision_bytes`, with what of them the other side cannot know."""

    subject: str
    """"person:alice"."""
    nonce: str
    """Hex, never used before."""
    at_ms: int
    """Wall clock of the signer, Unix ms."""
    key: str
    """Fingerprint of the key."""
    signature: str
    """Base64 of 64 bytes."""
    screen: str = ""
    """SHA-256, hex, of the text that the signer was shown."""
