# mypy: disable-error-code="empty-body"
"""What a fleet shows of itself, and what it can be asked: its process, its client and every face use it.

Times are Unix milliseconds of the fleet's clock, delays and durations milliseconds, money micro-USD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from console.client.questions import Asking, asks
from engine.fleet.routing_policy import RoutingDecision, Wait
from engine.model.specs import WorkloadSpec

State = Literal["waiting", "sending", "routed", "ended", "withdrawn"]
"""`waiting` in the fleet, in no cell; `sending`: for one cell, which has not said yet that it has it; `routed`: a cell
has acknowledged it; `ended`: finished, failed or cancelled there; `withdrawn` before it went anywhere."""
OPEN: tuple[State, ...] = ("waiting", "sending", "routed")
STATES: tuple[State, ...] = (*OPEN, "ended", "withdrawn")
CellState = Literal["up", "down", "closed", "unknown"]
"""`closed` by a person: what is there goes on, nothing more is sent."""
MAX_AT_ONCE = 10_000
"""Workloads of one submission, and lines of one page."""
MAX_PAGE = 1_000


class FleetSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that was given to the fleet, and what has become of it."""

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
    """What a tenant holds in all cells together."""

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
    """Something that the fleet did or met."""

    seq: int = 0
    at_ms: int
    what: str
    """submitted, routed, acknowledged, ended, withdrawn, refused, unsettled, closed, opened, down, up"""
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
    """A window, newest first."""

    now_ms: int
    items: tuple[FleetSubmission, ...]
    next_before: int = 0
    """`before` of the next page; 0: there is none."""


class FleetQuestions(Asking):
    """What a fleet may be asked. Errors are `engine.model.errors.MusterError` and its kinds, nothing else."""

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
