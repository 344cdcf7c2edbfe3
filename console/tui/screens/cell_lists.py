"""Pages that list objects of the cell, and the page of one queue.

Lists: workloads, queues, nodes, pools, orders, reservations, events. Enter opens the object under the cursor. The list
of queues is a tree; a filter or a sort order makes it flat, and `x` folds a cohort. Events follow the newest while the
first line is in view, and otherwise stay in place and count new ones.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import on

from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.forms.filters import parse_filter, quoted
from console.text.terminal_text import cut, printable
from console.tui.widgets.list_pane import ListPane, WordsPane
from console.tui.widgets.pane import Connect, DetailPane
from console.tui.widgets.window_table import WindowTable
from console.views.lists import EVENT_HEADINGS, EventLog, none_found
from console.views.queues import QueuePageData, fetch, queue_columns, queue_page
from console.views.sections import Section
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.widgets.window_table import Fetch
    from console.views.lists import ListView
    from engine.model.reports import FairnessReport


class WorkloadsPane(ListPane):
    NAME = "workloads"
    KIND = "workloads"
    TARGETS = "workload"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"workload {event.row.id}"))


MAX_KEPT = 500
"""Folded cohorts that are kept with the place."""


class QueuesPane(ListPane):
    NAME = "queues"
    KIND = "queues"
    TARGETS = "queue"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._folded: frozenset[str] = frozenset()
        self._cohorts: dict[str, str] = {}
        """Queue -> the cohort it is in, as last fetched."""

    @property
    def note(self) -> str:
        if not self._folded or self.view.where or self.view.sort:
            return super().note
        return f"{super().note}  ·  {len(self._folded)} folded"

    def fetcher(self, view: ListView) -> Fetch:
        return partial(fetch, self.connect, view, self._folded, self._cohorts)

    def fold(self) -> None:
        """Fold the cohort under the cursor away or back; on a queue within one, that one."""
        row = self.table.cursor_row
        if row is None or self.view.where or self.view.sort:
            self.app.notify("a filtered or sorted list has no tree to fold", markup=False, timeout=3)
            return
        name = row.id if row.id in self._cohorts.values() else self._cohorts.get(row.id, "")
        if name:
            self._folded ^= {name}
            place = self.table.place
            self._ask_anew(place if name == row.id else place._replace(id=name))

    def place(self) -> dict[str, Any]:
        return super().place() | {"folded": sorted(self._folded)[:MAX_KEPT]}

    def put_back(self, place: dict[str, Any]) -> None:
        folded = place.get("folded")
        if isinstance(folded, list):
            self._folded = frozenset(name for name in folded[:MAX_KEPT] if isinstance(name, str))
            self._ask_anew()
        super().put_back(place)

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"queue {printable(event.row.id)}"))


class NodesPane(ListPane):
    NAME = "nodes"
    KIND = "nodes"
    TARGETS = "node"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"node {event.row.id}"))


class PoolsPane(ListPane):
    NAME = "pools"
    KIND = "pools"

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"nodes pool:{quoted(event.row.id)}"))


class OrdersPane(ListPane):
    NAME = "orders"
    KIND = "orders"


class ReservationsPane(ListPane):
    NAME = "reservations"
    KIND = "reservations"


class EventsPane(WordsPane):
    NAME = "events"
    TAILS = True

    def __init__(self, connect: Connect, log: EventLog, words: str = "") -> None:
        """Raises FilterError."""
        super().__init__(connect, words)
        self._log = log
        self._terms = parse_filter("events", words)
        self._seen = log.serial
        """Serial of the newest event when the first line was last in view."""

    def on_mount(self) -> None:
        self.filter(self._filter)

    @property
    def note(self) -> str:
        if not self.counts:
            return ""
        missed = [f"{self._log.missed:,} older not loaded"] if self._log.missed else []
        return "  ·  ".join([*self.counts, *missed, self._tail])

    @property
    def _tail(self) -> str:
        """Words for the title: following, or how many events are new."""
        if self.frozen is None and self.table.at_top:
            return "newest first, live"
        new = self._log.newer_than(self._seen, self._terms)
        if self.frozen is not None:
            return f"{new:,} new"
        return f"paused, {new:,} new, home resumes" if new else "paused, home resumes"

    @property
    def copyable(self) -> str:
        row = self.table.cursor_row
        return row.state if row else ""

    def filter(self, text: str) -> None:
        """Show other events. Raises FilterError and stays as it is when the filter cannot be read."""
        self._terms = parse_filter("events", text)
        self._filter = " ".join(text.split())
        self.table.empty = none_found("events", self._filter)
        fetch = partial(self._log.window, self._terms)
        self.table.show(EVENT_HEADINGS, fetch, grows_at_top=True)

    @on(WindowTable.Loaded)
    @on(WindowTable.Touched)
    def _follow_tail(self) -> None:
        if self.table.at_top and self.frozen is None:
            self._seen = self._log.serial

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        if event.row.state:
            self.post_message(self.Follow(f"open {event.row.state}"))


FAIRNESS_S = 5.0
"""Wall seconds between questions for what all queues hold and deserve: that looks at everything that waits."""


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
    def measured(self) -> str:
        return f"queue:{self._queue}"

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._queue, self.detail.detail.mode),) if self.detail else ()

    def ask(self, client: Client) -> QueuePageData:
        return queue_page(client, self._queue)

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
            self.post_message(self.AskFailed(error))
        finally:
            self._asking_fairness = False
        self._fairness_at = time.monotonic()
        self._draw()
