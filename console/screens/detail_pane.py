"""A page about one thing: sections of lines, in one column or in two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from console.details import Section, text_line
from console.feed import in_thread
from console.screens.pane import AsOf, Connect, Pane
from console.screens.sections import MARGIN, SectionsView
from engine.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client import Client

D = TypeVar("D")

WIDE = 100
"""From this width on a page of details has two columns."""
BETWEEN = 2
"""Cells between the two."""


class DetailPane(Pane, Generic[D]):
    """Sections in one column, or in two on a wide screen."""

    DEFAULT_CSS = """
    DetailPane Horizontal { height: 1fr; }
    DetailPane #right { margin-left: 2; }
    """
    ALWAYS_TWO: ClassVar[bool] = False
    TWO_FROM: ClassVar[int] = WIDE
    """Width from which on there are two columns."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.detail: D | None = None
        self._left = SectionsView(id="left")
        self._right = SectionsView(id="right")
        self._side = self._left
        """Which of the two is to have the keys."""
        self._asking = False
        self._again = False
        self._still: AsOf | None = None
        """Of when the details are that stay."""

    @property
    def as_of(self) -> AsOf | None:
        version, at_ms = getattr(self.detail, "version", None), getattr(self.detail, "now_ms", None)
        return AsOf(version, at_ms) if isinstance(version, int) and isinstance(at_ms, int) else None

    def ask(self, client: Client) -> D:
        """Fetch what is shown. Called on a thread."""
        raise NotImplementedError

    def columns(self, detail: D, width: int) -> tuple[list[Section], list[Section]]:
        """What is shown, for columns of this width."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._left
            yield self._right

    def on_mount(self) -> None:
        self._left.show(self.told_before())
        self.reload()

    def told_before(self) -> list[Section]:
        """What is shown until the details have come."""
        return [Section(self.crumb, (text_line("loading …", "dim"),))]

    def place(self) -> dict[str, Any]:
        return {"left": self._left.place(), "right": self._right.place(), "side": int(self._right.has_focus)}

    def put_back(self, place: dict[str, Any]) -> None:
        self._left.put_back(place.get("left"))
        self._right.put_back(place.get("right"))
        self._side = self._right if place.get("side") else self._left

    def land(self) -> None:
        """Take the focus, on the side where it was."""
        self.screen.set_focus(self._side if self._side.display else self._left)

    @property
    def frozen(self) -> AsOf | None:
        return self._still

    def freeze(self) -> None:
        self._still = (self.as_of or AsOf(0, 0)) if self._still is None else None
        if self._still is None:
            self.reload()
        self.post_message(self.Changed())

    def reload(self) -> None:
        if self._still is None:
            self._ask_again()

    def look_again(self) -> None:
        self._ask_again()

    def _ask_again(self) -> None:
        self._again = True
        if not self._asking:
            self._asking = True
            self.run_worker(self._ask())

    async def _ask(self) -> None:
        """One question at a time; what changed meanwhile is asked for once more."""
        try:
            while self._again and self.is_attached:
                self._again = False
                try:
                    self.detail = await in_thread(lambda: self.ask(self.connect()))
                except MusterError as error:
                    self._refused(error)
                else:
                    self._draw()
        finally:
            self._asking = False

    def _refused(self, error: MusterError) -> None:
        """What was read before stays. While the engine is away the banner says so, not the page."""
        if self.detail is None and not isinstance(error, UnreachableError):
            self._left.show([Section(self.crumb, (text_line(str(error), "bad"),))])
        self.post_message(self.Failed(error))

    def on_resize(self) -> None:
        self._right.display = self.ALWAYS_TWO or self.size.width >= self.TWO_FROM
        self._draw()

    def _draw(self) -> None:
        """Lay out what is known. Widths follow from this page's own, which is right before the columns' are."""
        if self.detail is None or not self.size.width:
            return
        two = self._right.display
        width = max(20, (self.size.width - BETWEEN if two else self.size.width * 2) // 2 - MARGIN - 1)
        left, right = self.columns(self.detail, width)
        self._left.show(left if two else left + right, width)
        self._right.show(right if two else [], width)
        self.post_message(self.Changed())

    def text_lines(self) -> list[str]:
        """The page as lines of text, for an incident's notes."""
        lines = [*self._left.lines, *self._right.lines]
        return ["".join(text for text, _ in line.spans).rstrip() for line in lines]

    @on(SectionsView.LinkChosen)
    def _link(self, event: SectionsView.LinkChosen) -> None:
        self.post_message(self.Follow(event.link))

    @on(SectionsView.Neighbour)
    def _neighbour(self, event: SectionsView.Neighbour) -> None:
        self._side = self._right if event.step > 0 and self._right.display else self._left
        self._side.focus()
