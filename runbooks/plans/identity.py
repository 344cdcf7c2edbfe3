"""Who asks: subjects, the kinds of them, and what roles allow."""

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
    """What is touched, or what a role, a rule or a freeze is limited to. All empty: the cell as a whole."""

    pools: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    def covers(self, touched: Scope) -> bool:
        """Whether a role that is limited to this reaches all that is touched. What is limited to pools reaches whatever
        touches pools, and those alone; what touches the cell as a whole is reached by what has no limit."""
        limited = [(set(mine), theirs) for mine, theirs in zip(self._parts(), touched._parts(), strict=True) if mine]
        if not limited:
            return True
        return any(theirs for _, theirs in limited) and all(mine.issuperset(theirs) for mine, theirs in limited)

    def meets(self, touched: Scope) -> bool:
        """Whether a rule or a freeze that is limited to this concerns what is touched: any part of it will do, and the
        cell as a whole is touched in every part."""
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
    """Somebody who asks for something, as far as it is proved."""

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
    """Nothing, or nothing that holds, says who asks."""


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
