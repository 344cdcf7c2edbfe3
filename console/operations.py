"""What can be asked over HTTP, one row each. The routes of the server and its OpenAPI description (`console.openapi`)
are made of the same rows, so neither can say what the other does not.

    Operation("GET", "/v1/queues/{name:path}", "A queue", lambda asked: asked.client.queue(asked.path["name"]),
              gives=QueueDetail)

`do` runs on a worker thread in the name of whoever asks; what needs no thread, or answers in a way of its own, brings a
`handler` instead.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from engine.errors import SpecError

if TYPE_CHECKING:
    from console.local_client import LocalClient

Method = Literal["GET", "POST", "DELETE"]
Handler = Callable[[Request], Awaitable[Response]]
LONGEST_WAIT_S = 60.0
"""For what a long poll waits for."""


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
class Word:
    """A text of the query string; `many`: several, with commas between."""

    name: str
    says: str
    default: str = ""
    many: bool = False

    def read(self, text: str | None) -> Any:
        found = self.default if text is None else text
        return tuple(part for part in found.split(",") if part) if self.many else found


Parameter = Number | Word


@dataclass(frozen=True)
class Asked:
    """One request, read and checked."""

    client: LocalClient
    """Of whoever asks."""
    body: Any
    """As the operation's `takes`."""
    path: Mapping[str, str]
    query: Mapping[str, Any]
    """The operation's parameters by name, each there."""


@dataclass(frozen=True)
class Operation:
    """One row."""

    method: Method
    path: str
    says: str
    """A line for the description: what it is, or what it does."""
    do: Callable[[Asked], object] | None = None
    gives: Any = None
    """The type of a 200."""
    takes: Any = None
    """The type of the body; None: there is none."""
    query: tuple[Parameter, ...] = ()
    changes: bool | Callable[[Any], bool] = False
    """Whether it changes something, or what tells that from the body: refused by an engine that is read-only, and may
    carry an Idempotency-Key."""
    large: bool = False
    """Its body may be megabytes: read beside the event loop."""
    slow: bool = False
    """It waits or computes for longer than a screen would: its own share of threads."""
    follows: bool = False
    """It goes on until the caller has enough, or waits for news without a thread."""
    open: bool = False
    """Nobody needs to say who they are: it tells nothing but whether the service is there."""
    reads: tuple[str, Callable[[Asked], tuple[object, ...]]] | None = None
    """Instead of `do`: the method of the engine that answers, and with what arguments. The answer of a large cell's
    copy goes out as it is."""
    handler: Handler | None = None
    """Instead of `do`: answers in a way of its own."""
    media: str = "application/json"
    """Of a 200."""

    def changes_with(self, body: Any) -> bool:
        """Whether a request with this body is to change something."""
        return self.changes(body) if callable(self.changes) else self.changes

    @property
    def name(self) -> str:
        """For the description and the metrics: `get_workloads_id_estimate`."""
        plain = self.path.removeprefix("/v1").replace("{", "").replace(":path", "").replace("}", "")
        words = [word for word in plain.replace("-", "_").split("/") if word]
        return "_".join((self.method.lower(), *words))


AFTER = Number("after", 0, 0, 2**62, "A state version, or the serial of a run")
WAIT = Number("wait_s", 0, 0, LONGEST_WAIT_S, "How long to wait for something new, seconds", whole=False)
