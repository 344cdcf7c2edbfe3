"""Tokens as their holder has them: what they are made of, what is shown, and where one is kept.

What tokens are made of and what is shown of them. Loads neither a database nor a server.

The token that is shown to an engine that is reached by URL: from MUSTER_TOKEN, a file, or what `muster login` got.

It goes to nobody but the engine it is for, and over the network only by TLS.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from console.forms.settings import TOKEN, ConsoleSettings, config_file
from engine.model.errors import RefusedError, SpecError
from runbooks.plans.identity import WHOLE, Scope

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
"""What a token may be for -> deeds of `runbooks.gate.approval_policy`, and "agent": to report as a node. A token
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


FILE_NAME = "credentials.json"


def token_for(where: str, settings: ConsoleSettings, environment: Mapping[str, str] | None = None) -> str:
    """The token to show there; empty where there is none, and on a Unix socket, where the account says who asks. Raises
    RefusedError for one that would go over the network in the clear, SpecError for a file that cannot be used."""
    if "://" not in where:
        return ""
    env = os.environ if environment is None else environment
    token = env.get(TOKEN, "").strip() or _from_file(settings) or kept(env).get(origin(where), "")
    if (token and not token.isascii()) or any(char.isspace() for char in token):
        raise SpecError("token", "is no token", "Give it as `muster token create` printed it")
    if token and not _is_safe(where):
        raise RefusedError(
            f"{origin(where)} is not TLS, so the token would go over the network in the clear", "Use https://"
        )
    return token


def origin(where: str) -> str:
    """Scheme, host and port of a URL: for what a token is kept."""
    try:
        url = urlsplit(where)
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        return where
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}:{port}"


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Origin -> token, of what `muster login` got."""
    path = config_file(environment).parent / FILE_NAME
    try:
        content = _private(path)
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except msgspec.MsgspecError:
        raise SpecError(str(path), "is not what `muster login` writes", "Remove it and log in again") from None


def keep(where: str, token: str, environment: Mapping[str, str]) -> Path:
    """Remembers the token of a login, or forgets it where it is empty; others see the file as it was, or as it is."""
    found = kept(environment)
    found.pop(origin(where), None)
    if token:
        found[origin(where)] = token
    path = config_file(environment).parent / FILE_NAME
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".credentials-", dir=path.parent)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(found, order="sorted"))
        os.replace(name, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise SpecError(str(path), f"cannot be written ({error.strerror})", "Make room, or another folder") from None
    return path


def _from_file(settings: ConsoleSettings) -> str:
    if not settings.token_file:
        return ""
    path = Path(settings.token_file).expanduser()
    try:
        return _private(path).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        raise SpecError("token_file", f"there is no {path}", "Write the token there, with mode 0600") from None


def _private(path: Path) -> bytes:
    """The content of a file that nobody else can read. Raises FileNotFoundError, and SpecError for any other."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno())
            if mode.st_mode & 0o077 or not stat.S_ISREG(mode.st_mode):
                raise SpecError(str(path), "can be read by others", f"Make it yours alone: chmod 600 {path}")
            return file.read(1 << 20)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SpecError(str(path), f"cannot be read ({error.strerror})", "Mend or remove it") from None


def _is_safe(where: str) -> bool:
    url = urlsplit(where)
    if url.scheme == "https":
        return True
    if url.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(url.hostname or "").is_loopback
    except ValueError:
        return False
