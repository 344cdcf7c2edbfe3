"""What every page is: a pane that asks the engine when it is in view, and says where it is and what is selected.

Panes stay mounted while something lies on top of them, so that Back finds the same row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual.containers import Vertical
from textual.message import Message

from console.actions.action_types import Action, ActionTarget, Context, ScreenName, TargetKind
from console.tui.widgets.line_widget import Covered
from engine.model.errors import MusterError, RefusedError

if TYPE_CHECKING:
    from console.client.protocol import Client

Connect = Callable[[], "Client"]
"""Gives the client of the moment, or raises UnreachableError while there is none."""


class AsOf(NamedTuple):
    """Of when data are."""

    version: int
    """Of the cell's state; 0 where they are of no version."""
    at_ms: int
    """Cell time, Unix milliseconds UTC."""


class PageStep(NamedTuple):
    """A page and where on it a person was: what is left of it once it is gone."""

    line: str
    """`Pane.line`: its first word is the page's name."""
    place: dict[str, Any]


class Pane(Covered, Vertical):
    """One page. The app shows one at a time and calls `reload` when something may have changed."""

    DEFAULT_CSS = """
    Pane { height: 1fr; width: 1fr; }
    """
    NAME: ClassVar[ScreenName]
    TARGETS: ClassVar[TargetKind] = ""
    EVERY_S: ClassVar[float] = 1.0
    """How often it is asked anew at most, while something happens: of an older page the title says how old it is."""
    TAILS: ClassVar[bool] = False
    """It tells what happens one by one."""
    argument: str = ""
    """What stood behind its name when it was opened."""
    awaited: PageStep | None = None
    """Where it is to go once it is put up."""

    class Changed(Message):
        """Title, count or selection differ: header and footer want a look."""

    class Follow(Message):
        """Go where this `:` line goes."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Compose(Message):
        """Open the `:` bar with this in it."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Failed(Message):
        """The engine refused what this page asked."""

        def __init__(self, error: MusterError) -> None:
            super().__init__()
            self.error = error

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.connect = connect

    @property
    def crumb(self) -> str:
        return self.NAME

    @property
    def note(self) -> str:
        """Counts, filter and order, for the title line."""
        return ""

    @property
    def line(self) -> str:
        """The `:` line that leads here, with filter and order: what history, bookmarks and a restored session keep. Its
        first word is the page's name."""
        return f"{self.NAME} {self.argument}".rstrip()

    @property
    def as_of(self) -> AsOf | None:
        """Of when what is shown is; None while nothing is, or where time does not matter."""
        return None

    def place(self) -> dict[str, Any]:
        """Where on the page the person is, as JSON can hold it: what `put_back` of a page of the same line takes."""
        return {}

    def put_back(self, place: dict[str, Any]) -> None:
        """Go to that place as soon as there are data. What no longer exists is left out."""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """What an action would act on."""
        return ()

    def acted_on(self, action: Action, context: Context) -> tuple[ActionTarget, ...]:
        """Which of the targets an action is for: all of them, where a person has chosen each."""
        return context.targets

    @property
    def copyable(self) -> str:
        """What `y` copies."""
        return " ".join(target.id for target in self.targets)

    def reload(self) -> None:
        """Ask again. Called only while the pane is in view."""

    def reload_if_seen(self) -> None:
        """For a timer: what is shown may differ without the state of the cell."""
        if self.display and self.is_attached:
            self.reload()

    def look_again(self) -> None:
        """Ask again because a person wants it."""
        self.reload()

    def land(self) -> None:
        """Take the focus."""
        first = next((widget for widget in self.query("*") if widget.can_focus), None)
        if first is not None:
            self.screen.set_focus(first)

    def clear_one(self) -> bool:
        """Undo the innermost selection or filter; false when there is none and Back may leave."""
        return False

    @property
    def frozen(self) -> AsOf | None:
        """Of when what is shown stays, because a person has stopped its updates; None while it follows the cell."""
        return None

    def freeze(self) -> None:
        """Stop the updates of what is shown, or have them go on. Raises RefusedError where nothing is updated."""
        raise RefusedError("nothing is updated here", "Freeze a list, the events or the page of one thing")
