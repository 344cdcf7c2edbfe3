"""The welcome card, and the strip of the tour, in the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from console.client.change_feed import in_thread
from console.tui.dialog_frames import Dialog
from console.tui.widgets.pane import SectionsView
from console.views.welcome import SEEN, Tour, is_due, suggested, welcome
from engine.model.errors import MusterError, SpecError

if TYPE_CHECKING:
    from console.client.protocol import Health
    from console.tui.app import MusterApp
    from engine.model.overviews import Overview


class WelcomeDialog(Dialog):
    """What this is, what the first line says, and what to try: each line goes there, and so does its digit."""

    DEFAULT_CSS = """
    WelcomeDialog > Vertical { max-width: 76; }
    """
    ACTS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(digit), f"go({digit})", show=False, priority=True) for digit in range(1, 5))
    ]

    def __init__(self, health: Health | None, overview: Overview | None) -> None:
        super().__init__()
        self._about = health, overview
        self._body = SectionsView()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._body

    def on_mount(self) -> None:
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 0)
        self._body.show(welcome(*self._about))

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        event.stop()
        self._leave_for(event.link)

    def action_go(self, digit: int) -> None:
        lines = [each.line for each in suggested(self._about[1])]
        self._leave_for(lines[digit - 1] if digit <= len(lines) else "tour")

    def _leave_for(self, line: str) -> None:
        app = cast("MusterApp", self.app)
        self.dismiss(True)
        if line == "tour":
            tour(app, "")
        else:
            app.call_after_refresh(app.steering.follow, line)


def show(app: MusterApp, _argument: str) -> None:
    """The card, with what the engine says now. It counts as seen."""
    app.run_worker(_shown(app), group="welcome", exclusive=True)


async def _shown(app: MusterApp) -> None:
    try:
        overview = await in_thread(lambda: app.client().overview())
    except MusterError:
        overview = None  # the card is of use without it
    app.push_screen(WelcomeDialog(app.link.health, overview))
    await in_thread(lambda: app.session.remember(SEEN, True))


def show_once(app: MusterApp) -> None:
    """The card for who opens the demo for the first time, or the tour for who asked for it."""
    if app.flags.get("tour"):
        tour(app, "")
    elif is_due(app.flags, app.session.recall(SEEN)):
        show(app, "")


def tour(app: MusterApp, _argument: str) -> None:
    """Begin the tour, or begin it anew. Raises SpecError elsewhere than on a demo."""
    if not app.flags.get("demo"):
        raise SpecError("", "the tour walks the incident of the demo; this may be another cell", "Use `muster tour`")
    app.tour = Tour()
    app.drawing.tour()
