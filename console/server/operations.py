"""What is served over HTTP, one row each. The routes of the server and its OpenAPI description
(`console.server.openapi`) are made of the same rows, so neither can say what the other does not.

Most rows are questions of `console.client.protocol` (`asked_by`): they are answered on a worker thread in the name of
whoever asks. What needs no thread, or answers in a way of its own, brings a `handler` instead.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from console.client.questions import Method, Part, Question
from engine.model.errors import SpecError

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Number:
    """A number of the query string, within bounds. `whole`: an integer."""

    name: str
    default: float
    least: float
    most: float
    says: str
    whole: bool = True

    def read(self, text: str | None) -> float:
        """Raises SpecError naming it."""
        if text is None:
            return self.default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most or (self.whole and not value.is_integer()):
            kind = "a whole number" if self.whole else "a number"
            raise SpecError(self.name, f"{text[:40]!a} is not {kind} from {self.least:g} to {self.most:g}", "")
        return int(text) if self.whole and text.strip().isdigit() else int(value) if self.whole else value


@dataclass(frozen=True)
class TextParameter:
    """A text of the query string; `many`: several, with commas between."""

    name: str
    says: str
    default: str = ""
    many: bool = False

    def read(self, text: str | None) -> Any:
        found = self.default if text is None else text
        return tuple(part for part in found.split(",") if part) if self.many else found


Parameter = Number | TextParameter


@dataclass(frozen=True)
class Operation:
    """One row."""

    method: Method
    path: str
    says: str
    """A line for the description: what it is, or what it does."""
    handler: Handler | None = None
    """Answers in a way of its own."""
    gives: Any = None
    """The type of a 200."""
    takes: Any = None
    """The type of the body; None: there is none."""
    query: tuple[Parameter, ...] = ()
    changes: bool | Callable[..., bool] = False
    """Whether it changes something: refused by an engine that is read-only, and may carry an Idempotency-Key."""
    slow: bool = False
    """It waits or computes for longer than a screen would: its own share of threads."""
    follows: bool = False
    """It goes on until the caller has enough, or waits for news without a thread."""
    open: bool = False
    """Nobody needs to say who they are: it tells nothing but whether the service is there."""
    media: str = "application/json"
    """Of a 200."""
    question: Question | None = None
    """What it asks of the client, where it is a question."""

    @property
    def name(self) -> str:
        """For the description and the metrics: `get_workloads_id_estimate`."""
        plain = self.path.removeprefix("/v1").replace("{", "").replace(":path", "").replace("}", "")
        words = [word for word in plain.replace("-", "_").split("/") if word]
        return "_".join((self.method.lower(), *words))


def asked_by(question: Question, handler: Handler | None = None) -> Operation:
    """The row of a question."""
    return Operation(
        question.method,
        question.path,
        question.says,
        handler=handler,
        gives=question.gives,
        takes=question.takes,
        query=tuple(_parameter(part) for part in question.others) if question.method != "POST" else (),
        changes=question.keyed and question.changes,
        slow=question.slow,
        follows=question.follows,
        question=question,
    )


def _parameter(part: Part) -> Parameter:
    kind, meta = get_args(part.kind)
    assert isinstance(meta, msgspec.Meta)
    says = meta.description or ""
    if kind is str or get_origin(kind) is tuple:
        return TextParameter(part.name, says, many=kind is not str)
    default = 0 if part.default is inspect.Parameter.empty else part.default
    assert meta.ge is not None
    assert meta.le is not None
    return Number(part.name, default, meta.ge, meta.le, says, whole=kind is int)
