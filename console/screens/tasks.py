"""Long commands that were started from the console. They go on when the page is left, and end with the console."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from textual import on

from console.details import Section
from console.screens.detail_pane import DetailPane
from console.screens.pane import Connect
from console.screens.sections import SectionsView
from console.tasks_text import far, pages
from engine.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from console.app import MusterApp
    from console.tasks import Task

LOOK_S = 0.5
SURE_S = 4.0
"""A second Esc within that stops what has run for longer than YOUNG_S."""
YOUNG_S = 10.0


class Shown(NamedTuple):
    tasks: tuple[Task, ...]
    task: Task | None


class TasksPane(DetailPane[Shown]):
    NAME = "tasks"

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._id = argument.strip()
        self._warned_at = float("-inf")

    @property
    def crumb(self) -> str:
        return f"tasks {self._shown.id}" if self._id and self._shown else "tasks"

    @property
    def line(self) -> str:
        return f"tasks {self._id}".strip()

    @property
    def note(self) -> str:
        running = self._app.tasks.running
        if not running:
            return "nothing runs"
        return ", ".join(f"{task.id} {far(task)}" for task in running) + " · esc stops the one that is shown"

    @property
    def copyable(self) -> str:
        return self._shown.line if self._shown is not None else ""

    @property
    def _app(self) -> MusterApp:
        return cast("MusterApp", self.app)

    @property
    def _shown(self) -> Task | None:
        return self.detail.task if self.detail is not None else None

    def place(self) -> dict[str, Any]:
        return {"id": self._id}

    def put_back(self, place: dict[str, Any]) -> None:
        self._id = str(place.get("id", ""))
        self.reload()

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self._look)
        self.reload()

    def reload(self) -> None:
        """Not of the engine: of this console."""
        tasks = self._app.tasks
        shown: Task | None = next(iter(tasks.all), None)
        if self._id:
            try:
                shown = tasks.task(self._id)
            except NotFoundError:
                self._id = ""
        self.detail = Shown(tasks.all, shown)
        self._draw()

    def _look(self) -> None:
        if self.display:
            self.reload()

    def clear_one(self) -> bool:
        """The first Back stops what is shown; of what has run for a while only when it comes twice."""
        task = self._shown
        if task is None or task.state != "running":
            return False
        now = time.monotonic()
        if task.seconds > YOUNG_S and now - self._warned_at > SURE_S:
            self._warned_at = now
            self._app.say(f"esc again stops {task.id}; q leaves it running")
            return True
        self.stop()
        return True

    def stop(self) -> None:
        """Raises RefusedError when it is over."""
        if self._shown is None or not self._shown.stop():
            raise RefusedError("it is over", "")
        self._app.say(f"{self._shown.id} is being stopped")

    def columns(self, detail: Shown, width: int) -> tuple[list[Section], list[Section]]:
        return pages(detail.tasks, detail.task, width, two=bool(self._right.display))

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        event.prevent_default()
        event.stop()
        what, _, rest = event.link.partition(":")
        if what == "task":
            self._id = rest
            self.reload()
        else:
            self.post_message(self.Compose(rest))
