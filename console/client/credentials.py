"""A caller's credentials: the account behind a connection, signatures of requests, and tokens.

A Unix socket tells the account of its peer; TCP tells nothing. A request may also name a person, which counts only with
that person's signature over method, path and body (`Identity`). An engine reached by URL takes a token: from
MUSTER_TOKEN, a file, or `muster token login`. A token goes only to the engine it is for,
and over the network only by TLS.

Loads no cryptography before there is something to sign, and neither a database nor a server.
`console.service.token_store` makes tokens, `console.server.authentication` checks them.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import ipaddress
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from console.forms.settings import TOKEN, ConsoleSettings, config_file
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.spec_parts import DAY_MS
from runbooks.plans.identity import TCP, WHOLE, Actor, AuthRefused, Scope, Signed

if TYPE_CHECKING:
    from runbooks.gate.approval_policy import Caller
    from runbooks.plans.keys import DecisionKind, SigningKey


AS, SIGNED = "muster-as", "muster-signed"
"""Headers: in whose name, and the signature."""
MAX_HEADER = 4_096
KEY_FILE = "key.pem"
AGENT = "agent"

CALLER: ContextVar[Actor] = ContextVar("caller")
"""Who asks, while a request is answered: set for every request before any handler sees it."""

# -- on the server's side ---------------------------------------------------------------------------------------------


def peer_text(account: str, address: str) -> str:
    """The peer of a connection and its address, as the server notes it (`console.server.load_limits`)."""
    return f"{account} {address}" if address else account


def peer_of(client: tuple[str, int] | None) -> tuple[str, str]:
    """Account and address of a connection, from the server's note; the address is empty on this machine's own
    socket."""
    account, _, address = (client[0] if client is not None else TCP).partition(" ")
    return account, address


def account_of(client: tuple[str, int] | None) -> str:
    """The account of a connection."""
    return peer_of(client)[0]


def request_digest(method: str, path: str, body: bytes) -> str:
    """SHA-256 that a signature over a request covers. `path` is as it was sent, without a query."""
    text = f"muster/request/v1\n{method}\n{path}\n{hashlib.sha256(body).hexdigest()}"
    return hashlib.sha256(text.encode()).hexdigest()


class IdentityClaim(msgspec.Struct, frozen=True):
    """The identity that a request claims."""

    account: str
    person: str = ""
    """"person:alice"; empty: nobody in particular."""
    signed: Signed | None = None
    digest: str = ""
    """Of the request that `signed` is over."""


def claim_of(account: str, headers: Mapping[str, str], method: str, path: str, body: bytes) -> IdentityClaim:
    """Read the headers of a request. Raises AuthRefused for a signature that cannot be read, or that another person
    made than the one claimed."""
    person, text = headers.get(AS, ""), headers.get(SIGNED, "")
    if person:
        person = f"person:{person.removeprefix('person:')}"
    if not text:
        return IdentityClaim(account, person)
    try:
        if len(text) > MAX_HEADER:
            raise ValueError
        signed = msgspec.json.decode(base64.b64decode(text, validate=True), type=Signed)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise AuthRefused(f"the header {SIGNED} cannot be read", "Send it as `muster` does") from None
    if person and signed.subject != person:
        raise AuthRefused(f"the request is not signed by {person[:80]!a}", "Sign as the person given by --as")
    return IdentityClaim(account, signed.subject, signed, request_digest(method, path, body))


# -- on the caller's side ---------------------------------------------------------------------------------------------


class Identity:
    """The person in whose name requests are made, and the place of their key. A passphrase is asked for only when
    something is signed."""

    def __init__(self, settings: ConsoleSettings, ask: Callable[[str], str] | None = None) -> None:
        """`ask` asks a person for a passphrase, without echo; None: on the terminal."""
        self.person = f"person:{settings.operator.removeprefix('person:')}" if settings.operator else ""
        files = [str(Path(name).expanduser()) for name in (settings.client_cert, settings.client_key) if name]
        self.certificate = (files[0], files[-1]) if settings.client_cert else None
        """Files of the certificate to show to an engine that is reached by TLS, and of its key."""
        self._settings = settings
        self._ask = ask or _ask_on_terminal
        self._key: SigningKey | None = None

    def unlock(self) -> None:
        """Open the key file now, for a person who acts under a name, so that nothing has to be asked for later."""
        by_agent = self._settings.key == AGENT or (not self._settings.key and os.environ.get("SSH_AUTH_SOCK"))
        if self.person and not by_agent and key_path(self._settings).exists():
            from runbooks.plans.keys import open_key

            path = key_path(self._settings)
            self._key = open_key(path, lambda: self._passphrase(path))
        self._ask = _cannot_ask

    def token(self, where: str) -> str:
        """Token for the engine at that address; empty when there is none."""

        return token_for(where, self._settings)

    def ask_by(self, ask: Callable[[str], str]) -> None:
        """Set how a passphrase is asked for from now on: the console has the terminal to itself, and uses a dialog."""
        self._ask = ask

    def headers(self, caller: Caller, method: str, path: str, body: bytes) -> dict[str, str]:
        """Headers for a request in the name of `person`; none where no name was given. Where the account already
        implies the person and the key is not here, the request goes unsigned. Then no other vote from that account
        counts on its result."""
        if not self.person:
            return {}
        try:
            signed = self.sign(caller, kind="author", digest=request_digest(method, path, body))
        except MusterError:
            if self.person == caller.subject:
                return {}
            raise
        return {AS: self.person, SIGNED: base64.b64encode(msgspec.json.encode(signed)).decode()}

    def sign(
        self,
        caller: Caller,
        *,
        kind: DecisionKind,
        proposal: str = "",
        revision: int = 0,
        digest: str = "",
        verdict: str = "",
        screen: str = "",
    ) -> Signed:
        """Sign a decision. Raises RefusedError when the policy knows no key of this person, or none of them is here."""
        from runbooks.plans.keys import signed_by

        person = self.person or caller.subject
        if not person.startswith("person:"):
            raise RefusedError(
                f"{person} is not in the policy, so there is no key to sign with",
                "Use --as NAME, or ask to be added: muster policy operator add",
            )
        key = self._open(caller, person)
        at_ms = caller.now_ms + max(0, time.monotonic_ns() - caller.asked_ns) // 1_000_000
        return signed_by(
            key, kind=kind, subject=person, at_ms=at_ms, proposal=proposal, revision=revision, digest=digest,
            verdict=verdict, screen=screen, cell=caller.cell_id,
        )  # fmt: skip

    def _open(self, caller: Caller, person: str) -> SigningKey:
        """The first of the person's enrolled keys that is here: in the agent, or in the key file."""
        enrolled = caller.keys.get(person, ())
        if self._key is not None and self._key.public.fingerprint in enrolled:
            return self._key
        if not enrolled:
            raise RefusedError(
                f"the policy has no key of {person.removeprefix('person:')}",
                "Make and enrol one: muster policy operator new-key",
            )
        self._key = self._from_agent(enrolled) or self._from_file(enrolled)
        return self._key

    def _from_agent(self, enrolled: tuple[str, ...]) -> SigningKey | None:
        from runbooks.plans.keys import agent_keys, agent_path

        wanted, path = self._settings.key, agent_path()
        if wanted not in ("", AGENT):
            return None
        if not path and wanted == AGENT:
            raise RefusedError("there is no ssh-agent (SSH_AUTH_SOCK is not set)", "Start one, or set `key` to a file")
        try:
            found = (
                next((key for key in agent_keys(path) if key.public.fingerprint in enrolled), None) if path else None
            )
        except RefusedError:
            if wanted == AGENT:
                raise
            return None
        if found is None and wanted == AGENT:
            raise RefusedError("the ssh-agent holds none of your enrolled keys", "Add it with ssh-add")
        return found

    def _from_file(self, enrolled: tuple[str, ...]) -> SigningKey:
        from runbooks.plans.keys import open_key

        path = key_path(self._settings)
        key = open_key(path, lambda: self._passphrase(path))
        if key.public.fingerprint not in enrolled:
            raise RefusedError(f"the key in {path} is not enrolled", f"Enrolled: {', '.join(enrolled)}")
        return key

    def _passphrase(self, path: Path) -> bytes:
        return passphrase(self._settings, f"Passphrase of {path}: ", self._ask)


def key_path(settings: ConsoleSettings) -> Path:
    """Path of the person's private key: as set, or beside the settings file."""
    if settings.key and settings.key != AGENT:
        return Path(settings.key).expanduser()
    return config_file(os.environ).parent / KEY_FILE


def passphrase(settings: ConsoleSettings, prompt: str, ask: Callable[[str], str]) -> bytes:
    """Passphrase from the file that the settings name, or from the person. A trailing line end is removed."""
    if settings.key_passphrase_file:
        from runbooks.plans.keys import read_secret

        return read_secret(Path(settings.key_passphrase_file).expanduser(), "key_passphrase_file").rstrip(b"\r\n")
    return ask(prompt).encode()


def _cannot_ask(prompt: str) -> str:
    raise RefusedError(
        "the key needs its passphrase, and there is no terminal to ask on",
        "Start with --as, set key_passphrase_file, or add the key to ssh-agent",
    )


def _ask_on_terminal(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise SpecError(
            "passphrase", "cannot be asked for without a terminal", "Set key_passphrase_file, or use ssh-agent"
        )
    from getpass import getpass

    return getpass(prompt)


PREFIX = "muster"
"""Start of every token, so that people and scanners for leaked secrets recognise one."""
USUAL_LIFE_MS = 90 * DAY_MS
LONGEST_LIFE_MS = 400 * DAY_MS
SHORTEST_LIFE_MS = 60_000
MAX_NAME = 80


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
    """None where it was got by `muster token login`: it is for all that its holder may do."""
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
    """Token for the engine at that address; empty where there is none, and on a Unix socket, where the account
    identifies the caller. Raises RefusedError for one that would cross the network in the clear, SpecError for a file
    that cannot be used."""
    if "://" not in where:
        return ""
    env = os.environ if environment is None else environment
    token = env.get(TOKEN, "").strip() or _from_file(settings) or kept(env).get(origin(where), "")
    if (token and not token.isascii()) or any(char.isspace() for char in token):
        raise SpecError("token", "is not a token", "Give it as `muster token create` printed it")
    if token and not _is_safe(where):
        raise RefusedError(
            f"{origin(where)} is not TLS, so the token would go over the network in the clear", "Use https://"
        )
    return token


def origin(where: str) -> str:
    """Scheme, host and port of a URL, under which a token is kept."""
    try:
        url = urlsplit(where)
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        return where
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}:{port}"


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Tokens that `muster token login` got, by origin."""
    path = config_file(environment).parent / FILE_NAME
    try:
        content = _private(path)
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except msgspec.MsgspecError:
        raise SpecError(str(path), "is not what `muster token login` writes", "Remove it and log in again") from None


def keep(where: str, token: str, environment: Mapping[str, str]) -> Path:
    """Remember the token of a login, or forget it when it is empty. The file is replaced as a whole."""
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
        raise SpecError(
            str(path), f"cannot be written ({error.strerror})", "Free disk space, or use another folder"
        ) from None
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
    """Content of a file that nobody else can read. Raises FileNotFoundError, and SpecError for any other problem."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno())
            if mode.st_mode & 0o077 or not stat.S_ISREG(mode.st_mode):
                raise SpecError(str(path), "can be read by others", f"Make it private: chmod 600 {path}")
            return file.read(1 << 20)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SpecError(str(path), f"cannot be read ({error.strerror})", "Fix or remove it") from None


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
