"""The client of a fleet: HTTP over its Unix socket. Safe to use from several threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from console.client.decoders import decoder
from console.client.questions import Arguments, Question, refuse_read_only
from console.fleet.queries import FleetQuestions
from engine.model.errors import MusterError, NotSentError, UnreachableError, of_code

T = TypeVar("T")
PATIENCE_S = 90.0
"""Longest wait for an answer: cells may take a minute to be asked, at the most."""


class FleetClient(FleetQuestions):
    """Asks a fleet what `console.fleet.queries` declares."""

    def __init__(self, where: Path, *, read_only: bool = False, patience_s: float = PATIENCE_S) -> None:
        self.read_only = read_only
        self._where = where
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(where), verify=False),
            base_url="http://muster",
            timeout=httpx.Timeout(patience_s, connect=2.0),
            headers={"Content-Type": "application/json"},
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def _answer_to(self, question: Question, arguments: Arguments) -> Any:
        if self.read_only and question.changes_with(arguments):
            raise refuse_read_only()
        path, query, body = question.sent(arguments)
        content = None if body is None else msgspec.json.encode(body)
        return self._ask(question.method, path, question.gives, params=query, content=content)

    def _ask(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        try:
            if not self._where.exists():
                raise httpx.ConnectError("there is no such socket")
            answer = self._http.request(method, path, **request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NotSentError(
                f"no fleet answers at {self._where}", "Start one: muster fleet serve --file fleet.yaml"
            ) from None
        except (httpx.TransportError, RuntimeError):
            raise UnreachableError(
                f"the fleet at {self._where} did not answer",
                "See `muster fleet status`; the same submission again is safe",
            ) from None
        try:
            if answer.status_code == 200:
                found: T = decoder(kind).decode(answer.content)
                return found
            told = msgspec.json.decode(answer.content, type=dict[str, str])
            raise of_code(told["code"], told["problem"], told.get("remedy", ""))
        except (msgspec.MsgspecError, KeyError):
            raise MusterError(
                f"the answer of the fleet at {self._where} is not understood", "Use the same version of Muster"
            ) from None
