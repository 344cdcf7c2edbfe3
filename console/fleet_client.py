"""The client of a fleet: HTTP over its Unix socket. Safe to use from several threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from console.decoders import decoder
from console.fleet_shown import CellAsk, FleetView, State, Submission, SubmissionsPage, SubmitAsk, WithdrawAsk
from console.questions import refuse_read_only
from engine.cells import Decision
from engine.errors import MusterError, NotSentError, UnreachableError, of_code
from engine.model import WorkloadSpec

T = TypeVar("T")
PATIENCE_S = 90.0
"""Longest wait for an answer: cells may take a minute to be asked, at the most."""


class FleetClient:
    """Raises MusterError and its kinds, nothing else."""

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

    def view(self) -> FleetView:
        return self._ask("GET", "/v1/fleet", FleetView)

    def page(self, states: Sequence[State] = (), before: int = 0, limit: int = 100) -> SubmissionsPage:
        params = {"states": ",".join(states), "before": before, "limit": limit}
        return self._ask("GET", "/v1/fleet/submissions", SubmissionsPage, params=params)

    def submission(self, submission_id: str) -> Submission:
        return self._ask("GET", f"/v1/fleet/submissions/{quote(submission_id, safe='')}", Submission)

    def submit(self, workloads: Sequence[WorkloadSpec], cells: Sequence[str] = ()) -> tuple[Submission, ...]:
        """Kept when this returns, and sent where that could be decided in a moment. The same again changes nothing."""
        kind: Any = tuple[Submission, ...]
        ask = SubmitAsk(workloads=tuple(workloads), cells=tuple(cells))
        found: tuple[Submission, ...] = self._change("/v1/fleet/submit", kind, ask)
        return found

    def preview(self, workloads: Sequence[WorkloadSpec], cells: Sequence[str] = ()) -> tuple[Decision, ...]:
        """Where each would go now. Nothing is kept."""
        kind: Any = tuple[Decision, ...]
        ask = SubmitAsk(workloads=tuple(workloads), cells=tuple(cells))
        found: tuple[Decision, ...] = self._ask("POST", "/v1/fleet/preview", kind, content=msgspec.json.encode(ask))
        return found

    def withdraw(self, ids: Sequence[str]) -> tuple[str, ...]:
        kind: Any = tuple[str, ...]
        found: tuple[str, ...] = self._change("/v1/fleet/withdraw", kind, WithdrawAsk(ids=tuple(ids)))
        return found

    def set_closed(self, cell: str, *, closed: bool, reason: str = "") -> FleetView:
        """Send nothing more to a cell, or send again."""
        return self._change("/v1/fleet/cell", FleetView, CellAsk(cell=cell, closed=closed, reason=reason))

    def close(self) -> None:
        self._http.close()

    def _change(self, path: str, kind: type[T], ask: object) -> T:
        if self.read_only:
            raise refuse_read_only()
        return self._ask("POST", path, kind, content=msgspec.json.encode(ask))

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
