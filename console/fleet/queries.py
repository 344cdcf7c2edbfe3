"""Questions that a fleet answers, the paths of its files, and the client that asks it.

Times are Unix milliseconds of the fleet's clock, delays and durations milliseconds, money micro-USD. The client
speaks HTTP over the fleet's Unix socket, and is safe to use from several threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import httpx
import msgspec
from msgspec import Meta

from console.client.credentials import token_for
from console.client.questions import Arguments, Asking, ServiceQuestion, asks, decoder, refuse_read_only
from console.client.remote import http_client
from console.forms.settings import ConsoleSettings, cells_folder, paths_in
from engine.admission.fleet_routing import RoutingDecision, Wait
from engine.model.errors import MusterError, NotSentError, UnreachableError, of_code
from engine.model.specs import WorkloadSpec

State = Literal["waiting", "sending", "routed", "moving", "ended", "withdrawn"]
"""`waiting` in the fleet, in no cell; `sending`: for one cell, which has not said yet that it has it; `routed`: a cell
has acknowledged it; `moving`: that cell is asked to give it back, for another; `ended`: finished, failed or cancelled
there; `withdrawn` before it went anywhere."""
OPEN: tuple[State, ...] = ("waiting", "sending", "routed", "moving")
STATES: tuple[State, ...] = (*OPEN, "ended", "withdrawn")
CellState = Literal["up", "down", "closed", "unknown"]
"""`closed` by a person: what is there goes on, nothing more is sent."""
MAX_AT_ONCE = 10_000
"""Workloads of one submission, and lines of one page."""
MAX_PAGE = 1_000


class FleetSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that was given to the fleet, and its state."""

    seq: int
    id: str
    state: State
    spec: WorkloadSpec
    asked: dict[str, int]
    cells: tuple[str, ...] = ()
    """Only these; empty: any."""
    by: str = ""
    """Account that submitted it."""
    submitted_ms: int
    changed_ms: int
    cell: str = ""
    """Where it was sent."""
    to: str = ""
    """While it moves: the cell where it goes."""
    left: tuple[str, ...] = ()
    """Cells that gave it back, oldest first: it was queued there, and never begun."""
    sent_ms: int = 0
    sent_pid: int = 0
    """Process of the cell's engine when it was sent: another one cannot have it under way."""
    cell_state: str = ""
    """As the cell last said: queued, running, finished …; of an array how many of it are over."""
    members: int = 1
    """Of an array; else one."""
    running: int = 0
    """Of the members, how many are placed or run."""
    over: int = 0
    why: str = ""
    """Of the decision, or why it still waits."""
    waits: Wait = ""
    decision: RoutingDecision | None = None
    """The last, with a row for every cell."""

    @property
    def tenant(self) -> str:
        return self.spec.tenant


class CellView(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the fleet as it was last seen."""

    name: str
    state: CellState
    why: str = ""
    """Why it is down or closed."""
    connect: str
    region: str = ""
    residency: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    seen_ms: int = 0
    """When it last answered; 0: never."""
    version: int = 0
    decided_by: str = ""
    """`slurm` where another scheduler decides; empty or `muster`: the cell itself."""
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    nodes: int = 0
    ready: int = 0
    running: int = 0
    queued: int = 0
    wait_p95_ms: int = 0
    cost_microusd_hour: int = 0
    fleet_open: int = 0
    """Submissions of the fleet that are there and not over."""
    unsettled: int = 0
    """Of those sent there, how many it has not acknowledged."""


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's resources in all cells together."""

    name: str
    weight: int
    quota: dict[str, int]
    held: dict[str, int]
    """By its work in all cells and by what of it is on its way there: what its quota counts."""
    share_ppm: int
    """Part of the fleet that it holds of its dominant resource, by its weight."""
    waiting: int
    """Submissions that wait in the fleet."""
    by_cell: dict[str, dict[str, int]] = {}


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the fleet."""

    seq: int = 0
    at_ms: int
    what: str
    """submitted, routed, acknowledged, moving, moved, stays, ended, withdrawn, refused, unsettled, closed, opened,
    down, up"""
    subject: str
    detail: str = ""


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at a glance."""

    name: str
    now_ms: int
    pid: int
    software: str
    error: str = ""
    """Why nothing can be kept at present; empty while all is well."""
    kept_in: str = ""
    """Where its journal is, without anything secret."""
    cells: tuple[CellView, ...]
    tenants: tuple[TenantView, ...]
    counts: dict[str, int]
    """State -> submissions."""
    waiting: tuple[FleetSubmission, ...]
    """The first in the order in which they are tried."""
    recent: tuple[FleetEvent, ...]
    """Newest first."""


class SubmissionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of submissions, newest first."""

    now_ms: int
    items: tuple[FleetSubmission, ...]
    next_before: int = 0
    """`before` of the next page; 0: there is none."""


class FleetQuestions(Asking):
    """Questions to a fleet. Errors are `engine.model.errors.MusterError` and its kinds, nothing else."""

    @asks("GET", "/v1/fleet")
    def view(self) -> FleetView:
        """The fleet at a glance."""

    @asks("GET", "/v1/fleet/submissions")
    def page(
        self,
        states: Annotated[tuple[State, ...], Meta(description="In these states; none: all")] = (),
        before: Annotated[int, Meta(ge=0, le=2**62, description="`next_before` of the page before")] = 0,
        limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="At most so many")] = 100,
    ) -> SubmissionsPage:
        """Submissions, newest first."""

    @asks("GET", "/v1/fleet/submissions/{id:path}")
    def submission(self, submission_id: str) -> FleetSubmission:
        """A submission, and what has become of it."""

    @asks("POST", "/v1/fleet/submit", changes=True, body="SubmitAsk")
    def submit(self, workloads: Sequence[WorkloadSpec], cells: tuple[str, ...] = ()) -> tuple[FleetSubmission, ...]:
        """Submit work to the fleet: all is taken, or none.

        Kept when this returns, and sent where that could be decided in a moment. The same again changes nothing.
        `cells`: only to these; empty: to any.
        """

    @asks("POST", "/v1/fleet/preview", body="SubmitAsk")
    def preview(self, workloads: Sequence[WorkloadSpec], cells: tuple[str, ...] = ()) -> tuple[RoutingDecision, ...]:
        """Where each would go now. Nothing is kept."""

    @asks("POST", "/v1/fleet/withdraw", changes=True, body="WithdrawAsk")
    def withdraw(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Take back submissions."""

    @asks("POST", "/v1/fleet/cell", changes=True, body="CellAsk")
    def set_closed(self, cell: str, *, closed: bool, reason: str = "") -> FleetView:
        """Send nothing more to a cell, or send again."""


FOLDER = "fleet"
"""Default folder of a fleet, among those of the cells."""


class FleetPaths(NamedTuple):
    folder: Path
    journal: Path
    socket: Path
    pid: Path


def fleet_paths(settings: ConsoleSettings) -> FleetPaths:
    """Paths of a fleet's files; nothing is created."""
    at = Path(settings.fleet).expanduser().absolute() if settings.fleet else cells_folder(settings) / FOLDER
    socket = paths_in(at).socket
    # The short stand-in for a path that is too long for a socket is told apart from that of a cell.
    in_folder = socket.parent == Path(os.path.realpath(at))
    socket = socket.with_name("fleet.sock") if in_folder else socket.with_suffix(".fleet")
    return FleetPaths(at, at / "fleet.db", socket, at / "fleet.pid")


T = TypeVar("T")
PATIENCE_S = 90.0
"""Longest wait for an answer: cells may take a minute to be asked, at the most."""


def fleet_client(settings: ConsoleSettings, *, read_only: bool, patience_s: float = PATIENCE_S) -> FleetClient:
    """A client of the fleet that the settings name by its folder, or by its URL."""
    if "://" not in settings.fleet:
        return FleetClient(fleet_paths(settings).socket, read_only=read_only, patience_s=patience_s)
    token = token_for(settings.fleet, settings)
    return FleetClient(settings.fleet, read_only=read_only, patience_s=patience_s, token=token)


class FleetClient(FleetQuestions):
    """Asks the questions of `FleetQuestions` over the fleet's socket, or over TLS."""

    def __init__(
        self, where: Path | str, *, read_only: bool = False, patience_s: float = PATIENCE_S, token: str = ""
    ) -> None:
        """`where`: the fleet's socket, or the URL of a fleet, with a `token`."""
        self.read_only = read_only
        self._where = where
        self._http = http_client(str(where), patience_s)
        if token:
            self._http.headers["authorization"] = f"Bearer {token}"

    def close(self) -> None:
        self._http.close()

    def _answer_to(self, question: ServiceQuestion, arguments: Arguments) -> Any:
        if self.read_only and question.changes_with(arguments):
            raise refuse_read_only()
        path, query, body = question.sent(arguments)
        content = None if body is None else msgspec.json.encode(body)
        return self._ask(question.method, path, question.gives, params=query, content=content)

    def _ask(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        try:
            if isinstance(self._where, Path) and not self._where.exists():
                raise httpx.ConnectError("no such socket")
            answer = self._http.request(method, path, **request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise NotSentError(
                f"no fleet answers at {self._where}", "Start one: muster fleet serve --file fleet.yaml"
            ) from None
        except (httpx.TransportError, RuntimeError):
            raise UnreachableError(
                f"the fleet at {self._where} did not answer",
                "See `muster fleet status`; repeating the same submission is safe",
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
