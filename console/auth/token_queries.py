"""What tokens are made of and what is shown of them. Loads neither a database nor a server."""

from __future__ import annotations

import msgspec

from runbooks.people.identity import WHOLE, Scope

PREFIX = "muster"
"""Of every token, so that scanners for leaked secrets and people know one when they see it."""
DAY_MS = 86_400_000
USUAL_LIFE_MS = 90 * DAY_MS
LONGEST_LIFE_MS = 400 * DAY_MS
SHORTEST_LIFE_MS = 60_000
MAX_NAME = 80

SCOPES: dict[str, tuple[str, ...]] = {
    "read": ("read",),
    "submit": ("read", "submit"),
    "configure": ("read", "configure"),
    "propose": ("read", "propose", "cancel"),
    "vote": ("read", "vote", "review", "runbook"),
    "execute": ("read", "execute", "pause", "rollback", "cancel"),
    "freeze": ("read", "freeze", "thaw", "pause"),
    "policy": ("read", "policy"),
    "break-glass": ("read", "break_glass"),
    "audit": ("read", "export"),
    "agent": ("agent",),
}
"""What a token may be for -> deeds of `runbooks.policy.approval_policy`, and "agent": to report as a node. A token
never gives more than whom it stands for may do. None is for changing keys or erasing from the audit."""


class TokenAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token that is wanted."""

    name: str
    """What it is for, in its holder's words."""
    scopes: tuple[str, ...] = ("read",)
    within: Scope = WHOLE
    """The part of the cell that it is for."""
    service: str = ""
    """The service that it stands for; empty: whoever asks."""
    life_ms: int = USUAL_LIFE_MS


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is listed. The secret is nowhere."""

    id: str
    name: str
    subject: str
    """Whom it stands for."""
    scopes: tuple[str, ...]
    """None where it was got by `muster login`: it is for all that its holder may do."""
    within: Scope
    by: str
    """Who made it."""
    created_ms: int
    expires_ms: int
    revoked_ms: int
    """0: it was not."""
    revoked_by: str
    used_ms: int
    """When it was last shown, to the minute; 0: never."""
    used_from: str
    """The address it came from then."""

    def state(self, now_ms: int) -> str:
        """ "live", "expired" or "revoked"."""
        return "revoked" if self.revoked_ms else "expired" if now_ms >= self.expires_ms else "live"


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    """The secret, told this once."""
    line: TokenLine


class LoginView(msgspec.Struct, frozen=True, kw_only=True):
    """With which OpenID provider people log in; all empty: with none."""

    issuer: str = ""
    client_id: str = ""
