"""A page about one thing: sections of lines, in one column, in two, or in three on a very wide screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from console.client.change_feed import in_thread
from console.tui.widgets.pane import AsOf, Connect, Pane
from console.tui.widgets.sections_view import MARGIN, SectionsView
from console.views.sections import Section, loading, text_line
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.protocol import Client

D = TypeVar("D")

WIDE, VERY_WIDE = 100, 200
"""From these widths on a page of details has two columns, and three where it says so."""
BETWEEN = 2
"""Cells between two of them."""


class DetailPane(Pane, Generic[D]):
    """Sections in as many columns as there is room for."""

    DEFAULT_CSS = """
    DetailPane Horizontal { height: 1fr; }
    DetailPane #right, DetailPane #third { margin-left: 2; }
    """
    ALWAYS_TWO: ClassVar[bool] = False
    TWO_FROM: ClassVar[int] = WIDE
    """Width from which on there are two columns."""
    THIRD: ClassVar[bool] = False
    """There are three from `VERY_WIDE` on."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.detail: D | None = None
        self._left = SectionsView(id="left")
        self._right = SectionsView(id="right")
        self._third = SectionsView(id="third")
        self._third.display = False
        self._side = self._left
        """Which of them is to have the keys."""
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

    def third(
        self, detail: D, left: list[Section], right: list[Section], width: int
    ) -> tuple[list[Section], list[Section], list[Section]]:
        """What is shown in three columns, of what is in two otherwise."""
        return spread([*left, *right])

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._left
            yield self._right
            if self.THIRD:
                yield self._third

    def on_mount(self) -> None:
        self._left.show(self.told_before())
        self.reload()

    def told_before(self) -> list[Section]:
        """What is shown until the details have come."""
        return [loading(self.crumb)]

    def place(self) -> dict[str, Any]:
        views = (self._left, self._right, self._third)
        places = {name: view.place() for name, view in zip(_SIDES, views, strict=True) if view is not self._third}
        if self._third.display:
            places["third"] = self._third.place()
        return places | {"side": next((at for at, view in enumerate(views) if view.has_focus), 0)}

    def put_back(self, place: dict[str, Any]) -> None:
        views = (self._left, self._right, self._third)
        for name, view in zip(_SIDES, views, strict=True):
            view.put_back(place.get(name))
        side = place.get("side")
        self._side = views[side] if isinstance(side, int) and 0 <= side < len(views) else self._left

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
        self._third.display = self.THIRD and self.size.width >= VERY_WIDE
        self._draw()

    @property
    def _views(self) -> list[SectionsView]:
        """The columns there are, from left to right."""
        return [self._left, *(view for view in (self._right, self._third) if view.display)]

    def _draw(self) -> None:
        """Lay out what is known. Widths follow from this page's own, which is right before the columns' are."""
        if self.detail is None or not self.size.width:
            return
        count = len(self._views)
        width = max(20, (self.size.width - BETWEEN * (count - 1)) // count - MARGIN - 1)
        left, right = self.columns(self.detail, width)
        third: list[Section] = []
        if self._third.display:
            left, right, third = self.third(self.detail, left, right, width)
        elif count == 1:
            left, right = left + right, []
        for view, sections in zip((self._left, self._right, self._third), (left, right, third), strict=True):
            view.show(sections, width)
        self.post_message(self.Changed())

    def text_lines(self) -> list[str]:
        """The page as lines of text, for an incident's notes."""
        lines = [*self._left.lines, *self._right.lines, *self._third.lines]
        return ["".join(text for text, _ in line.spans).rstrip() for line in lines]

    @on(SectionsView.LinkChosen)
    def _link(self, event: SectionsView.LinkChosen) -> None:
        self.post_message(self.Follow(event.link))

    @on(SectionsView.Neighbour)
    def _neighbour(self, event: SectionsView.Neighbour) -> None:
        views = self._views
        here = next((at for at, view in enumerate(views) if view.has_focus), 0)
        self._side = views[max(0, min(here + event.step, len(views) - 1))]
        self._side.focus()


_SIDES = ("left", "right", "third")


def spread(sections: Sequence[Section]) -> tuple[list[Section], list[Section], list[Section]]:
    """In their order over three columns, so that the highest is as low as can be."""
    heights = [len(section.lines) + 2 for section in sections]
    cuts = [(first, second) for first in range(len(heights) + 1) for second in range(first, len(heights) + 1)]
    first, second = min(
        cuts, key=lambda cut: max(sum(heights[: cut[0]]), sum(heights[cut[0] : cut[1]]), sum(heights[cut[1] :]))
    )
    return list(sections[:first]), list(sections[first:second]), list(sections[second:])
