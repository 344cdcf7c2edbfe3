"""Proposals in a chat over real connections: what is announced, whose press counts, and what a forger gets."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pytest

from console.client.sockets import bind_unix
from console.forms.settings import ConsoleSettings
from console.service.chat import Chat, chat_of
from console.service.gate_watch import Notifier
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import SpecError
from runbooks.gate.approval_gate import Gate
from runbooks.plans.typed_plan import Proposal
from tests.support.gates import asked, gate_of
from tests.support.people import ALICE, BOB, CAROL, actor, team
from tests.support.served import gpu_job, running_loop, served_on_unix, serving, socket_folder

SECRET = b"a secret that the chat and the engine share"
BOB_THERE, CAROL_THERE = "slack:T1/UBOB", "slack:T1/UCAROL"
HOSTILE = "<!channel> *bold* <https://evil.example|look>"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_772_366_400.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """An engine with a team, a chat's incoming webhook, and the engine's own HTTP service."""

    loop: EngineLoop
    gate: Gate
    http: httpx.Client
    clock: Clock
    chat: Chat
    taken: list[dict[str, Any]]

    def propose(self, action: str = "hold", target: str = "waits", reason: str = "") -> Proposal:
        request = asked(action, [target], reason)
        return self.loop.call(lambda _: self.gate.propose(actor(ALICE), request))

    def announced(self) -> list[dict[str, Any]]:
        """What the chat took in a turn of the notifier."""
        before = len(self.taken)
        Notifier(self.loop, self.gate, self.chat, dict).turn()
        return self.taken[before:]

    def press(self, value: str, *, user: str = "UBOB", verdict: str = "approve", **more: Any) -> httpx.Response:
        body = body_of(value, user, verdict)
        return self.http.post("/v1/chat/slack", content=body, headers=self.headers(body, **more))

    def headers(self, body: bytes, *, secret: bytes = SECRET, age_s: int = 0) -> dict[str, str]:
        at = str(int(self.clock()) - age_s)
        told = hmac.new(secret, b"v0:" + at.encode() + b":" + body, hashlib.sha256).hexdigest()
        return {
            "X-Slack-Request-Timestamp": at, "X-Slack-Signature": f"v0={told}",
            "Content-Type": "application/x-www-form-urlencoded",
        }  # fmt: skip

    def state(self, proposal: Proposal) -> str:
        return self.loop.call(lambda _: self.gate.proposal(proposal.id)).state


def body_of(value: str, user: str, verdict: str) -> bytes:
    payload = {
        "type": "block_actions", "user": {"id": user, "username": "bob"}, "team": {"id": "T1"},
        "actions": [{"action_id": f"muster.{verdict}", "value": value}],
    }  # fmt: skip
    return urlencode({"payload": json.dumps(payload)}).encode()


def buttons(message: dict[str, Any]) -> dict[str, str]:
    """Text of a button -> its value, or the address that it opens."""
    found = [each for block in message["blocks"] for each in block.get("elements", ())]
    return {each["text"]["text"]: each.get("value") or each["url"] for each in found}


@pytest.fixture
def world() -> Iterator[World]:
    taken: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    hook = HTTPServer(("127.0.0.1", 0), Hook)
    thread = Thread(target=hook.serve_forever, args=(0.01,))
    thread.start()
    people = (
        ALICE, msgspec.structs.replace(BOB, accounts=(*BOB.accounts, BOB_THERE)),
        msgspec.structs.replace(CAROL, accounts=(*CAROL.accounts, CAROL_THERE)),
    )  # fmt: skip
    policy = team(*people, channels=(("ops", f"slack:http://127.0.0.1:{hook.server_port}/hook"),))
    work = [gpu_job("runs", tasks=2), gpu_job("runs-too", tasks=2), gpu_job("waits")]
    clock = Clock()
    chat = Chat(SECRET, channel="ops", base_url="https://muster.example/", clock=clock)
    try:
        with running_loop() as loop, socket_folder() as folder:
            gate = loop.call(lambda engine: gate_of(engine, policy))
            loop.call(lambda engine: engine.command(Submit(workloads=tuple(work))))
            path = folder / "engine.sock"
            with (
                serving(loop, bind_unix(path), gate=gate, chat=chat),
                httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://muster") as http,
            ):
                yield World(loop, gate, http, clock, chat, taken)
    finally:
        hook.shutdown()
        thread.join()
        hook.server_close()


def test_a_proposal_is_announced_once_in_plain_text(world: World) -> None:
    proposal = world.propose(reason="late input")
    (message,) = world.announced()
    assert proposal.id in message["blocks"][0]["text"]["text"]
    assert message["blocks"][0]["text"]["type"] == "plain_text"
    assert buttons(message)["Approve"] == f"{proposal.id} {proposal.digest}"
    assert buttons(message)["Open"].startswith("https://muster.example/v1/approval?link=")
    assert world.announced() == []


def test_what_strangers_wrote_calls_nobody_in_the_chat(world: World) -> None:
    world.loop.call(lambda _: world.gate.tell("ops", {"k": ("", HOSTILE)}))
    (message,) = world.announced()
    assert "<" not in message["text"]
    (block,) = message["blocks"]
    assert block["text"]["type"] == "plain_text"
    assert "https://" not in block["text"]["text"]


def test_the_press_of_a_person_of_the_policy_is_their_vote(world: World) -> None:
    proposal = world.propose()
    (message,) = world.announced()
    assert world.press(buttons(message)["Approve"]).status_code == 200
    assert world.state(proposal) in ("verified", "verifying", "executing")
    vote = world.loop.call(lambda _: world.gate.proposal(proposal.id)).votes[0]
    assert vote.subject == "person:bob"
    assert "person:bob pressed approve" in world.announced()[0]["text"]


def test_a_reject_ends_it_and_a_press_on_an_old_digest_changes_nothing(world: World) -> None:
    first, second = world.propose(), world.propose("cancel")
    assert world.press(f"{first.id} {'0' * 64}").status_code == 200
    assert world.state(first) == "awaiting"
    assert world.press(f"{first.id} {first.digest}", verdict="reject").status_code == 200
    assert world.state(first) == "rejected"
    assert world.state(second) == "awaiting"


@pytest.mark.parametrize(
    "forged",
    [{"secret": b"another secret, of somebody else"}, {"age_s": 301}, {"age_s": -301}],
    ids=["forged", "old", "ahead"],
)
def test_a_press_that_is_not_the_chats_does_nothing(world: World, forged: dict[str, Any]) -> None:
    proposal = world.propose()
    assert world.press(f"{proposal.id} {proposal.digest}", **forged).status_code == 401
    assert world.state(proposal) == "awaiting"
    assert not world.loop.call(lambda _: world.gate.proposal(proposal.id)).votes


def test_a_press_counts_once_however_often_it_is_sent(world: World) -> None:
    proposal = world.propose()
    body = body_of(f"{proposal.id} {proposal.digest}", "UNOBODY", "approve")
    headers = world.headers(body)
    first = world.http.post("/v1/chat/slack", content=body, headers=headers)
    again = world.http.post("/v1/chat/slack", content=body, headers=headers)
    changed = world.http.post("/v1/chat/slack", content=body.replace(b"UNOBODY", b"UBOB"), headers=headers)
    assert (first.status_code, again.status_code, changed.status_code) == (200, 401, 401)
    assert world.state(proposal) == "awaiting"


def test_somebody_whom_the_policy_does_not_name_decides_nothing(world: World) -> None:
    proposal = world.propose("cancel", "runs")
    world.announced()
    world.press(f"{proposal.id} {proposal.digest}", user="UNOBODY")
    assert "changed nothing" in world.announced()[0]["text"]
    assert world.state(proposal) == "awaiting"


def test_what_needs_signed_votes_has_no_button_and_takes_no_press(world: World) -> None:
    proposal = world.propose("requeue", "runs")
    (message,) = world.announced()
    assert set(buttons(message)) == {"Open"}
    world.press(f"{proposal.id} {proposal.digest}", user="UCAROL")
    assert world.state(proposal) == "awaiting"
    assert "not signed" in world.announced()[0]["text"]


@pytest.mark.parametrize(
    "body",
    [b"", b"payload=", b"payload=%7B%7D", b"payload=[]", b"\xff\xfe", urlencode({"payload": "{" * 5_000}).encode()],
)
def test_a_signed_request_that_is_no_press_is_refused(world: World, body: bytes) -> None:
    answer = world.http.post("/v1/chat/slack", content=body, headers=world.headers(body))
    assert answer.status_code == 400
    assert world.http.post("/v1/chat/slack", content=b"x" * 40_000).status_code == 413


def test_a_link_shows_the_plan_as_text_and_decides_nothing(world: World) -> None:
    proposal = world.propose(reason="late input")
    link = world.chat.link(proposal.id, proposal.digest).removeprefix("https://muster.example")
    page = world.http.get(link, headers={"Sec-Fetch-Site": "cross-site"})
    assert page.status_code == 200
    assert proposal.digest[:12] in page.text
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert world.state(proposal) == "awaiting"
    assert world.http.get(link[:-3] + "AAA").status_code == 401
    assert world.http.get("/v1/approval").status_code == 401
    world.clock.now_s += 25 * 3600
    assert world.http.get(link).status_code == 401


def test_an_engine_without_a_chat_has_neither_buttons_nor_links() -> None:
    with (
        running_loop() as loop,
        served_on_unix(loop) as path,
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://muster") as http,
    ):
        assert http.post("/v1/chat/slack", content=b"").status_code == 404
        assert http.get("/v1/approval?link=x.y").status_code == 404


def test_the_settings_of_a_chat_name_what_is_wrong(tmp_path: Path) -> None:
    settings = ConsoleSettings()
    assert chat_of(settings) is None
    settings = replace(settings, chat_channel="ops")
    with pytest.raises(SpecError, match="chat_secret_file"):
        chat_of(settings)
    secret = tmp_path / "secret"
    secret.write_text("short")
    secret.chmod(0o600)
    with pytest.raises(SpecError, match="fewer than"):
        chat_of(replace(settings, chat_secret_file=str(secret)))
    secret.write_text("long enough to be a secret")
    assert chat_of(replace(settings, chat_secret_file=str(secret))) is not None
    secret.chmod(0o644)
    with pytest.raises(SpecError, match="read by others"):
        chat_of(replace(settings, chat_secret_file=str(secret)))
