"""One queue: its quota and who borrows from whom, its objective, what waits in it and why, what runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from console.actions.action_types import ActionTarget
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, printable
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import Connect
from console.views.sections import Section
from console.views.work.queue import QueuePageData, queue_columns
from engine.model.errors import MusterError, UnreachableError
from engine.model.queries import Page, Query, QueueDetail, Term

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.queries import FairnessReport

FAIRNESS_S = 5.0
"""Wall seconds between questions for what all queues hold and deserve: that looks at everything that waits."""
SHOWN = 8
"""Workloads of each list."""
MAX_LEAVES = 200
_ROW = (
    "name", "state", "queued", "held", "waiting", "running", "share", "past_share", "gpu_used", "gpu_nominal",
    "cpu_used", "cpu_nominal", "memory_used", "memory_nominal", "burst",
)  # fmt: skip


class QueuePane(DetailPane[QueuePageData]):
    NAME = "queue"
    THIRD = True
    TARGETS = "queue"

    def __init__(self, connect: Connect, name: str) -> None:
        super().__init__(connect)
        self._queue = name
        self._fairness: FairnessReport | None = None
        self._fairness_at = float("-inf")
        self._asking_fairness = False

    @property
    def crumb(self) -> str:
        return cut(printable(self._queue), 32)

    @property
    def line(self) -> str:
        return f"queue {self._queue}"

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._queue, self.detail.detail.mode),) if self.detail else ()

    def ask(self, client: Client) -> QueuePageData:
        detail = client.queue(self._queue)
        page = client.query(Query(kind="queues", columns=_ROW, where=(Term("name", "=", self._queue),), limit=1))
        row: dict[str, Any] = dict(zip(page.columns, page.rows[0], strict=True)) if page.rows else {}
        return QueuePageData(detail, row, _waiting(client, detail), _running(client, detail))

    def columns(self, detail: QueuePageData, width: int) -> tuple[list[Section], list[Section]]:
        return queue_columns(detail._replace(fairness=self._fairness), width)

    def reload(self) -> None:
        super().reload()
        if self.frozen is None and not self._asking_fairness and time.monotonic() - self._fairness_at >= FAIRNESS_S:
            self._asking_fairness = True
            self.run_worker(self._ask_fairness())

    def look_again(self) -> None:
        self._fairness_at = float("-inf")
        super().look_again()
        self.reload()

    async def _ask_fairness(self) -> None:
        try:
            self._fairness = await in_thread(lambda: self.connect().fairness())
        except UnreachableError:
            return  # asked again with the next reload
        except MusterError as error:
            self.post_message(self.Failed(error))
        finally:
            self._asking_fairness = False
        self._fairness_at = time.monotonic()
        self._draw()


def _of(detail: QueueDetail) -> tuple[Term, ...]:
    return tuple(Term("queue", "=", name) for name in detail.leaves[:MAX_LEAVES])


def _waiting(client: Client, detail: QueueDetail) -> Page:
    columns = ("id", "wait", "reason", "gpu", "cpu")
    where = (Term("state", "=", "queued"), *_of(detail))
    return client.query(Query(kind="workloads", columns=columns, where=where, sort=("-wait",), limit=SHOWN))


def _running(client: Client, detail: QueueDetail) -> Page:
    where = (Term("state", "=", "running"), Term("state", "=", "placed"), *_of(detail))
    columns = ("id", "run", "gpu", "cpu")
    return client.query(Query(kind="workloads", columns=columns, where=where, sort=("-gpu", "-cpu"), limit=SHOWN))
