"""Proposals in a chat: messages with signed links, and votes by buttons as far as the presser's identity is proved.

A message names the proposal and the digest of the plan that is put to the vote. Its link shows that plan to whoever
has the link, until it expires; it lets nobody vote. A Slack-compatible chat signs each press of a button with the
secret that the engine shares with it (HMAC-SHA256 over time and body: Slack's "Verifying requests from Slack"), and
names the presser. The account `slack:TEAM/USER` is then a person of the approval policy like any other account, and
the vote goes to the gate like any other, bound to the digest, without the person's own key. Where a plan needs signed
votes, no button is offered, and a press changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qs

import msgspec

from console.forms.settings import ConsoleSettings
from console.text.terminal_text import printable
from engine.model.errors import SpecError
from runbooks.gate.store import OutboxMessage
from runbooks.plans.identity import Unauthenticated
from runbooks.plans.keys import read_secret

LINK_LIFE_S = 24 * 3600
"""A link opens for a day, as long as the plan of a reversible action waits for votes."""
MAX_SKEW_S = 300
"""Age of a press beyond which it is not believed, as Slack advises."""
MAX_PRESSES = 10_000
"""Signatures that are remembered within that time."""
MAX_TEXT = 2_900
"""Characters of a message: Slack takes 3,000."""
MIN_SECRET = 16
TIMESTAMP, SIGNATURE = "x-slack-request-timestamp", "x-slack-signature"
ButtonVerdict = Literal["approve", "reject"]
VERDICTS: tuple[ButtonVerdict, ...] = get_args(ButtonVerdict)


class PlanLink(NamedTuple):
    """The plan that a link shows."""

    proposal: str
    digest: str


class Press(NamedTuple):
    """A button that somebody pressed, as the chat vouches for it."""

    account: str
    """`slack:TEAM/USER`."""
    verdict: ButtonVerdict
    proposal: str
    digest: str


class Chat:
    """Signs links, and believes presses, with the secret that is shared with the chat."""

    def __init__(self, secret: bytes, *, channel: str, base_url: str = "", clock: Any = time.time) -> None:
        """`channel`: of the policy, where proposals are announced. `base_url`: where people reach this engine's HTTP
        service; empty: messages have no link. `clock`: Unix seconds."""
        self.channel = channel
        self._secret = secret
        self._base_url = base_url.rstrip("/")
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    # -- links ------------------------------------------------------------------------------------------------------

    def link(self, proposal: str, digest: str) -> str:
        """URL that shows the plan; empty where no base URL is set."""
        if not self._base_url:
            return ""
        told = f"{proposal} {digest} {int(self._clock()) + LINK_LIFE_S}".encode()
        return f"{self._base_url}/v1/approval?link={_text(told)}.{_text(self._mac(told))}"

    def opened(self, link: str) -> PlanLink:
        """The plan of a link. Raises Unauthenticated for one that this engine did not make, and for an expired one."""
        told, _, mac = link.partition(".")
        try:
            content, given = _bytes(told), _bytes(mac)
        except ValueError:
            content, given = b"", b""
        if not hmac.compare_digest(self._mac(content), given):
            raise Unauthenticated("this link was not made here", "Open the link of the message, whole")
        proposal, digest, until = content.decode().split(" ")
        if int(until) < self._clock():
            raise Unauthenticated("this link has expired", f"Run: muster proposal show {proposal}")
        return PlanLink(proposal, digest)

    def _mac(self, content: bytes) -> bytes:
        key = hmac.digest(self._secret, b"muster/link/v1", "sha256")
        return hmac.digest(key, content, "sha256")

    # -- presses ----------------------------------------------------------------------------------------------------

    def pressed(self, headers: Mapping[str, str], body: bytes) -> Press:
        """The press of a signed request. Raises Unauthenticated for a signature that does not hold, is old, or came
        before; SpecError for a signed request that is no press of our buttons."""
        self._believe(headers.get(TIMESTAMP, ""), headers.get(SIGNATURE, ""), body)
        try:
            payload = msgspec.json.decode(parse_qs(body.decode(), strict_parsing=True)["payload"][0], type=_Payload)
            (action,) = payload.actions
            verdict = _VERDICT_OF[action.action_id]
            proposal, digest = action.value.split(" ")
        except (KeyError, ValueError, msgspec.MsgspecError):
            raise SpecError("payload", "is not the press of a button of Muster", "") from None
        return Press(f"slack:{payload.team.id}/{payload.user.id}", verdict, proposal, digest)

    def _believe(self, at: str, signature: str, body: bytes) -> None:
        now = self._clock()
        if not at.isascii() or not at.isdigit() or abs(now - int(at[:12])) > MAX_SKEW_S:
            raise Unauthenticated("the press is too old, or says no time", "Press the button again")
        expected = "v0=" + hmac.new(self._secret, b"v0:" + at.encode() + b":" + body, "sha256").hexdigest()
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise Unauthenticated("the signature of the chat does not hold", "Check chat_secret_file")
        with self._lock:
            self._seen = {known: until for known, until in self._seen.items() if until > now}
            if signature in self._seen or len(self._seen) >= MAX_PRESSES:
                raise Unauthenticated("this press came before", "Press the button again")
            self._seen[signature] = now + 2 * MAX_SKEW_S


# -- messages ---------------------------------------------------------------------------------------------------------


def message_of(message: OutboxMessage, chat: Chat | None) -> dict[str, Any]:
    """The message as a Slack-compatible webhook takes it: plain text throughout, so nothing in it is markup or calls
    anybody. Without a `chat`, no press could be believed, so it has no buttons."""
    text = printable(message.text)[:MAX_TEXT]
    buttons: list[dict[str, Any]] = []
    digest, _, kind = message.key.partition(":")
    if chat is not None and kind.startswith("awaiting:"):
        buttons += [_button(verdict, f"P-{message.number} {digest}") for verdict in VERDICTS]
    url = link_of(message, chat)
    buttons += [{"type": "button", "text": _plain("Open"), "url": url}] if url else []
    blocks: list[dict[str, Any]] = [{"type": "section", "text": _plain(text)}]
    return {
        "text": _escaped(text),
        "blocks": [*blocks, *([{"type": "actions", "elements": buttons}] if buttons else [])],
    }


def link_of(message: OutboxMessage, chat: Chat | None) -> str:
    """Link to the plan that the message is about; empty without one."""
    digest = message.key.partition(":")[0]
    is_digest = len(digest) == 2 * hashlib.sha256().digest_size
    return chat.link(f"P-{message.number}", digest) if chat is not None and message.number and is_digest else ""


class _Id(msgspec.Struct, frozen=True):
    id: str


class _Action(msgspec.Struct, frozen=True):
    action_id: str
    value: str


class _Payload(msgspec.Struct, frozen=True):
    """What is read of a Slack interaction of the type `block_actions`."""

    type: Literal["block_actions"]
    user: _Id
    team: _Id
    actions: tuple[_Action, ...]


def chat_of(settings: ConsoleSettings) -> Chat | None:
    """The chat of the settings; None where no channel is set. Raises SpecError naming the setting."""
    if not settings.chat_channel:
        return None
    if not settings.chat_secret_file:
        raise SpecError("chat_secret_file", "is not set, and chat_channel is", "Name the file with the shared secret")
    secret = read_secret(Path(settings.chat_secret_file).expanduser(), "chat_secret_file").strip()
    if len(secret) < MIN_SECRET:
        raise SpecError("chat_secret_file", f"holds fewer than {MIN_SECRET} characters", "Put the signing secret there")
    return Chat(secret, channel=settings.chat_channel, base_url=settings.chat_url)


_VERDICT_OF: dict[str, ButtonVerdict] = {f"muster.{verdict}": verdict for verdict in VERDICTS}


def _button(verdict: ButtonVerdict, value: str) -> dict[str, Any]:
    style = "primary" if verdict == "approve" else "danger"
    text = _plain(verdict.capitalize())
    return {"type": "button", "text": text, "style": style, "action_id": f"muster.{verdict}", "value": value}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
