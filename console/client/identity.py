"""Who is at the other end of a connection, and how the caller's side proves it.

A Unix socket tells the account of whoever connected; TCP tells nothing. Beyond that a request may say in whose name it
is made, which counts only with that person's signature over method, path and body. Loads no cryptography before there
is something to sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from console.forms.settings import ConsoleSettings, config_file
from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.plans.identity import TCP, Actor, AuthRefused, Signed

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
    """Who is at the other end of a connection, and where, as the server notes it (`console.server.load_limits`)."""
    return f"{account} {address}" if address else account


def peer_of(client: tuple[str, int] | None) -> tuple[str, str]:
    """The account and the address of a connection, from what was noted; the address is empty on this machine's own
    socket."""
    account, _, address = (client[0] if client is not None else TCP).partition(" ")
    return account, address


def account_of(client: tuple[str, int] | None) -> str:
    """The account of a connection."""
    return peer_of(client)[0]


def request_digest(method: str, path: str, body: bytes) -> str:
    """What a signature over a request is about. `path` as it was sent, without a query."""
    text = f"muster/request/v1\n{method}\n{path}\n{hashlib.sha256(body).hexdigest()}"
    return hashlib.sha256(text.encode()).hexdigest()


class IdentityClaim(msgspec.Struct, frozen=True):
    """What a request says of who makes it."""

    account: str
    person: str = ""
    """"person:alice"; empty: nobody in particular."""
    signed: Signed | None = None
    digest: str = ""
    """Of the request that `signed` is over."""


def claim_of(account: str, headers: Mapping[str, str], method: str, path: str, body: bytes) -> IdentityClaim:
    """Reads the headers. Raises AuthRefused for a signature that cannot be read or is another's than is claimed."""
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
        raise AuthRefused(f"the header {SIGNED} cannot be read", "Send what `muster` sends") from None
    if person and signed.subject != person:
        raise AuthRefused(f"the request is signed by another than {person[:80]!a}", "Sign as whom you say you are")
    return IdentityClaim(account, signed.subject, signed, request_digest(method, path, body))


# -- on the caller's side ---------------------------------------------------------------------------------------------


class Identity:
    """In whose name requests are made, and where their key is. Asks for a passphrase only when something is signed."""

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
        """Opens the key file of somebody who acts in a name, so that nothing has to be asked for later."""
        by_agent = self._settings.key == AGENT or (not self._settings.key and os.environ.get("SSH_AUTH_SOCK"))
        if self.person and not by_agent and key_path(self._settings).exists():
            from runbooks.plans.keys import open_key

            path = key_path(self._settings)
            self._key = open_key(path, lambda: self._passphrase(path))
        self._ask = _cannot_ask

    def token(self, where: str) -> str:
        """What to show to the engine there; empty for nothing."""
        from console.client.tokens import token_for

        return token_for(where, self._settings)

    def ask_by(self, ask: Callable[[str], str]) -> None:
        """How a passphrase is asked for from now on: the console has the terminal to itself, and a dialog."""
        self._ask = ask

    def headers(self, caller: Caller, method: str, path: str, body: bytes) -> dict[str, str]:
        """For a request in the name of `person`; none where no name was given. Where the account says it already and
        the key is not here it goes unsigned: then nobody else's vote from that account will count on what it asks for.
        """
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
        """Raises RefusedError when the policy knows no key of this person, or none of them is here."""
        from runbooks.plans.keys import signed_by

        person = self.person or caller.subject
        if not person.startswith("person:"):
            raise RefusedError(
                f"{person} is nobody that the policy names, so there is no key to sign with",
                "Say who you are with --as, or have yourself added: muster operator add",
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
                "Have one enrolled: muster operator key new",
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
            raise RefusedError("the ssh-agent has none of your enrolled keys", "Add it with ssh-add")
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
    """The file of one's private key: as set, or beside the settings file."""
    if settings.key and settings.key != AGENT:
        return Path(settings.key).expanduser()
    return config_file(os.environ).parent / KEY_FILE


def passphrase(settings: ConsoleSettings, prompt: str, ask: Callable[[str], str]) -> bytes:
    """From the file that the settings name, or asked for. A line's end is no part of it."""
    if settings.key_passphrase_file:
        from runbooks.plans.keys import read_secret

        return read_secret(Path(settings.key_passphrase_file).expanduser(), "key_passphrase_file").rstrip(b"\r\n")
    return ask(prompt).encode()


def _cannot_ask(prompt: str) -> str:
    raise RefusedError(
        "the key needs its passphrase, which cannot be asked for here",
        "Start with --as, set key_passphrase_file, or add the key to ssh-agent",
    )


def _ask_on_terminal(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise SpecError(
            "passphrase", "cannot be asked for without a terminal", "Set key_passphrase_file, or use ssh-agent"
        )
    from getpass import getpass

    return getpass(prompt)
