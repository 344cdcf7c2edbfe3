"""Routes of a chat: a button that somebody pressed, and the page that a message's link opens.

Neither is reached by who shows a token or a key. A press is believed by the signature of the chat, and then counts as
what its presser may do; a link shows one plan, and decides nothing.
"""

from __future__ import annotations

import hashlib
import html
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from console.client.credentials import IdentityClaim
from console.server.authentication import APPROVAL_PATH, CHAT_PATH, MAX_LOGIN
from console.server.operations import Operation, body, forbid_if_read_only, refusal
from console.service.chat import Chat, Press
from console.views.proposal import plan_sections, state_word
from console.views.sections import section_lines
from engine.model.errors import MusterError, NotFoundError

if TYPE_CHECKING:
    from console.service.local_client import LocalClient
    from runbooks.plans.typed_plan import Proposal


WIDTH = 78
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>body{{font:15px/1.4 monospace;margin:1em}}pre{{white-space:pre-wrap}}</style>
<h1>{title}</h1><pre>{text}</pre></html>
"""
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class ChatRoutes:
    """Handlers of one chat; None: every request is answered with 404."""

    def __init__(self, client: LocalClient, chat: Chat | None) -> None:
        self._of_nobody = client
        self._chat = chat

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "POST", CHAT_PATH, "A button that somebody pressed in the chat: a vote", handler=self.press, gives=str,
                media="text/plain", open=True,
            ),
            Operation(
                "GET", APPROVAL_PATH, "The plan that a message's link shows", handler=self.page, gives=str,
                media="text/html", open=True,
            ),
        )  # fmt: skip

    async def press(self, request: Request) -> Response:
        chat = self._set()
        forbid_if_read_only(self._of_nobody.read_only)
        content = await body(request, MAX_LOGIN)
        press = chat.pressed(request.headers, content)
        key = f"{hashlib.sha256(content).hexdigest()}:pressed:{chat.channel}"
        await run_in_threadpool(self._vote, chat, press, key)
        return Response("", media_type="text/plain")

    def _vote(self, chat: Chat, press: Press, key: str) -> None:
        """Cast the vote as the presser, and tell the channel what came of it."""
        try:
            actor = self._of_nobody.identified(IdentityClaim(press.account))
            voter = self._of_nobody.acting_as(actor)
            if press.verdict == "approve":
                state = voter.approve(press.proposal, press.digest).state
            else:
                state = voter.vote(press.proposal, press.digest, "reject").state
            text = f"{actor.subject} pressed {press.verdict}: {press.proposal} is {state.replace('_', ' ')}"
        except MusterError as error:
            text = f"{press.account} pressed {press.verdict}, which changed nothing: {error.problem}. {error.remedy}"
        self._of_nobody.tell(chat.channel, {key: ("", text)})

    async def page(self, request: Request) -> Response:
        link = self._set().opened(request.query_params.get("link", ""))
        try:
            shown = await run_in_threadpool(self._of_nobody.proposal, link.proposal)
        except MusterError as error:
            return refusal(error)
        title = f"{shown.id}: {state_word(shown.state)}" if shown.digest == link.digest else f"{shown.id} was revised"
        text = "\n".join(_page_lines(shown, link.digest))
        return HTMLResponse(PAGE.format(title=html.escape(title), text=html.escape(text)), headers=HEADERS)

    def _set(self) -> Chat:
        if self._chat is None:
            raise NotFoundError("no chat is set for this engine", "Set chat_channel and chat_secret_file")
        return self._chat


def _page_lines(shown: Proposal, digest: str) -> list[str]:
    """The plan as on its page in the console, and how to vote on it."""
    if shown.digest != digest:
        return [f"The message was about digest {digest[:12]}; now it is {shown.digest[:12]}.", _HOW.format(shown.id)]
    needs = f"It needs {shown.needs} more of {shown.need}." if shown.needs else ""
    head = [f"digest {shown.digest[:12]}, tier {shown.tier}", needs, ""]
    return [*head, *section_lines(plan_sections(shown, WIDTH)), "", _HOW.format(shown.id)]


_HOW = "This page decides nothing. Vote in your console, or run: muster proposal approve {}"
