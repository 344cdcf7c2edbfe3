"""The page of one curve: what was measured over a window, with a mark that reads off the value of a step.

`+` and `-` choose the window, left and right move the mark, Esc takes it away.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on

from console.actions.key_map import key_of
from console.tui.widgets.pane import MAX_ROWS, MIN_ROWS, AsOf, ChartPane, Connect, SectionsView
from console.views.curves import (
    WINDOWS,
    Curve,
    curve_changes,
    curve_chart,
    curve_choices,
    curve_numbers,
    curve_steps,
    read_curve,
    read_request,
    subject_words,
)
from console.views.sections import Section
from engine.model.errors import RefusedError

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp


AGAIN_S = 5.0
"""Minutes pass slowly: what happens in the cell has this page ask no more often."""
MAX_STEPS = 120
BELOW = 12
"""Lines of the page besides the rows of the chart: its title, axis, legend and reading, and the numbers."""
NAMES = tuple(name for name, _, _ in WINDOWS)


class CurvePane(ChartPane[Curve]):
    NAME = "curve"
    SIDES_MOVE: ClassVar[int] = 100
    """Steps of the widest mark's way: it goes by more than one where a chart has more steps than that."""

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._asked = read_request(argument)
        self._asked_at = 0.0
        self._mark_ms: int | None = None
        """Begin of the step that is read off; None: the newest."""
        self._right.can_focus = False

    @property
    def crumb(self) -> str:
        return f"curve of {subject_words(self._asked.subject)}"

    @property
    def line(self) -> str:
        return f"curve {self._asked.words}"

    @property
    def note(self) -> str:
        return f"last {self._asked.window}; {key_of('shorter')} {key_of('longer')} window, ← → values"

    @property
    def as_of(self) -> AsOf | None:
        return None if self.detail is None else AsOf(0, self.detail.now_ms)

    @property
    def copyable(self) -> str:
        return f"muster history show {self.detail.name} {self._asked.subject}" if self.detail else ""

    def place(self) -> dict[str, Any]:
        return super().place() | {"mark": self._mark_ms}

    def put_back(self, place: dict[str, Any]) -> None:
        mark = place.get("mark")
        self._mark_ms = mark if isinstance(mark, int) else None
        super().put_back(place)

    # --- asking

    def ask(self, client: Client) -> Curve:
        return read_curve(client, self._asked)

    def reload(self) -> None:
        if self.detail is None or time.monotonic() - self._asked_at >= AGAIN_S:
            self._ask_now()

    def look_again(self) -> None:
        self._ask_now()

    def _ask_now(self) -> None:
        self._asked_at = time.monotonic()
        super().look_again()

    def choose_window(self, step: int) -> None:
        """The next longer (1) or shorter (-1) window. Raises RefusedError at the last."""
        at = NAMES.index(self._asked.window) + step
        if not 0 <= at < len(NAMES):
            raise RefusedError(f"{self._asked.window} is the {'longest' if step > 0 else 'shortest'} window", "")
        self._asked = self._asked._replace(window=NAMES[at])
        self._ask_now()

    # --- the mark

    @property
    def _marked(self) -> int | None:
        """The step of the mark."""
        if self.detail is None or self._mark_ms is None:
            return None
        points = self.detail.series[0].points
        return next((i for i, point in enumerate(points) if point.at_ms + self.detail.step_ms > self._mark_ms), None)

    @on(SectionsView.Neighbour)
    def _moved(self, event: SectionsView.Neighbour) -> None:
        """Left and right move the mark over the chart, not to another column."""
        event.prevent_default()
        event.stop()
        if self.detail is None or not (points := self.detail.series[0].points):
            return
        by = -(-len(points) // self.SIDES_MOVE)
        at = (len(points) - 1 if event.step < 0 else 0) if self._marked is None else self._marked + by * event.step
        self._mark_ms = points[max(0, min(at, len(points) - 1))].at_ms
        self._draw()

    def clear_one(self) -> bool:
        """The first Back takes the mark away."""
        if self._mark_ms is None:
            return False
        self._mark_ms = None
        self._draw()
        return True

    # --- what is shown

    def chart(self, detail: Curve, width: int, rows: int) -> list[Section]:
        return [curve_chart(detail, width, rows, self._marked)]

    def _rows(self) -> int:
        """More than elsewhere: what is below says the same in numbers."""
        rows = min(MAX_ROWS, max(MIN_ROWS, self.size.height - BELOW))
        return rows - 1 + rows % 2

    def columns(self, detail: Curve, width: int) -> tuple[list[Section], list[Section]]:
        changes, choices = curve_changes(detail, width), curve_choices(self._asked, detail.name, width)
        left = [curve_numbers(detail, width), *([changes] if changes else []), choices]
        return left, [curve_steps(detail, MAX_STEPS)]

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Another curve of the subject is shown on this page."""
        event.prevent_default()
        event.stop()
        self._asked = read_request(event.link.removeprefix("curve "))
        self._ask_now()


def show(app: MusterApp, argument: str) -> None:
    """The curve of the number under the cursor, or the one that a `:` line names. Raises SpecError, RefusedError."""
    pane = app.navigator.current
    wanted = argument or ("" if pane is None else pane.curve)
    if not wanted:
        raise RefusedError("nothing here is measured over time", "Type :curve queue:NAME, or :curve cell cost")
    app.navigator.drill("curve", read_request(wanted).words)


def longer(app: MusterApp, _argument: str) -> None:
    _choose(app, 1)


def shorter(app: MusterApp, _argument: str) -> None:
    _choose(app, -1)


def _choose(app: MusterApp, step: int) -> None:
    pane = app.navigator.current
    if isinstance(pane, CurvePane):
        pane.choose_window(step)
