"""The client of a cell as it was at an earlier time.

Questions about the cell go to a replica that was rebuilt from the journal. Measured history is cut at that time.
Proposals, the audit, suggestions and forecasts are not kept as of then and are refused by name; so is every change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from console.client.protocol import Client, Health, RuntimeEstimate
from console.client.questions import Arguments, ServiceQuestion, refuse_past
from engine.model.errors import NotFoundError, RefusedError
from engine.model.quantities import utc
from engine.past.process import PastRequest
from engine.read_replica import decoded

if TYPE_CHECKING:
    from console.service.local_client import LocalClient
    from engine.external.mirror_report import Mirrored
    from engine.model.external_cells import IntentsReport
    from engine.model.list_queries import Named
    from engine.model.overviews import Changes
    from engine.model.past_queries import CellDifference, DifferenceRequest
    from engine.model.twin_queries import StartForecast
    from engine.past.replicas import PastReplicas
    from recommender.history.metrics import History, HistoryRequest

PATIENCE_S = 5.0
"""How long a question waits for its replica; `past` tells how far one is that takes longer."""
MAX_CHANGES = 10_000
NOT_KEPT = frozenset(("scaling",))
"""What the autoscaler foresaw is worked out anew as time passes, and kept nowhere."""
SEARCHES = frozenset(("unblocking", "consolidation"))
"""Questions that a replica answers on forks of itself."""
TIMELESS = frozenset(("past", "leave_past", "difference", "whoami", "present"))
"""Questions that are not about the cell at any time."""


def difference(replicas: PastReplicas, request: DifferenceRequest, now_ms: int) -> CellDifference:
    """Raises SpecError for times that cannot be shown, and BusyError while it is worked out."""
    replicas.check(request.until_ms, now_ms)
    replicas.check(request.since_ms, request.until_ms)
    wanted = PastRequest(request.until_ms, request.since_ms)
    found: CellDifference = decoded("difference", replicas.ask(wanted, "difference", (request,), PATIENCE_S))
    return found


class PastClient(Client):
    """Answers as of one time, in the name of whoever `live` acts for."""

    def __init__(self, live: LocalClient, replicas: PastReplicas, at_ms: int) -> None:
        self.read_only = True
        self.at_ms = at_ms
        self._live = live
        self._replicas = replicas
        self._request = PastRequest(at_ms)

    @property
    def version(self) -> int:
        """State version at that time; 0 before the first answer."""
        return self._replicas.version(self._request)

    def as_of(self, at_ms: int) -> PastClient:
        return self._live.as_of(at_ms)

    def health(self) -> Health:
        seen = self.changes(0, 0.0, 1)
        return msgspec.structs.replace(
            self._live.health(), version=seen.version, now_ms=self.at_ms, paused=True, awaiting=0, stuck=0, incidents=0
        )

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        found: Changes = self._asked("changes", after, max(1, min(limit, MAX_CHANGES)))
        return found if limit else msgspec.structs.replace(found, items=(), missed=0)

    def follow(self, after: int = -1) -> Iterator[Changes]:
        raise RefusedError(f"nothing more happens as of {utc(self.at_ms)}", "Follow the cell as it is")

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:
        found: tuple[Named, ...] = self._asked("find", name, kinds, limit)
        return found

    def history(self, request: HistoryRequest) -> History:
        until_ms = min(request.until_ms or self.at_ms, self.at_ms)
        found = self._live.history(msgspec.structs.replace(request, until_ms=until_ms))
        return msgspec.structs.replace(found, now_ms=self.at_ms)

    def intents(self, limit: int = 200) -> IntentsReport:
        found: IntentsReport = self._asked("intents", limit)
        return found

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """None: what was known of its like by then is not kept."""
        return None

    def start_forecast(self, workload_id: str) -> StartForecast | None:
        """None: what was foreseen by then is not kept."""
        return None

    def mirrored(self, workload_id: str) -> Mirrored:
        raise NotFoundError(f"what another scheduler said of '{workload_id}' by then is not kept", "")

    def _answer_to(self, question: ServiceQuestion, arguments: Arguments) -> Any:
        if question.changes_with(arguments):
            raise refuse_past(self.at_ms)
        if question.name in TIMELESS:
            return question.answered_by(self._live, arguments)
        if (question.copied and question.name not in NOT_KEPT) or question.name in SEARCHES:
            return self._asked(question.name, *arguments.values())
        what = question.says[0].lower() + question.says[1:]
        remedy = "Ask it of the cell as it is; proposals and audit records carry times of their own"
        raise RefusedError(f"this is not kept as of {utc(self.at_ms)}: {what}", remedy)

    def _asked(self, what: str, *arguments: object) -> Any:
        self._replicas.check(self.at_ms, self._live.now_ms)
        return decoded(what, self._replicas.ask(self._request, what, arguments, PATIENCE_S))
