"""What stands out and what might be done: the list, and one of them with all it rests on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from textual import on

from console.advice_text import explanation_lines, followed_text, found_lines, list_line
from console.details import Line, Section, text_line
from console.screens.pane import Connect, DetailPane
from console.screens.sections import SectionsView
from console.text import printable, wrap
from engine.errors import RefusedError
from recommender.recommendations import Recommendation, Recommendations

if TYPE_CHECKING:
    from console.app import MusterApp
    from console.client import Client

LINK = "rec:"


class RecommendationsPane(DetailPane[Recommendations]):
    NAME = "recommendations"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._shown = ""
        """Id of the one that is explained; empty: the first."""

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        if self._alone:
            return f"{self._shown}   esc: all {len(self.detail.open):,}"
        aside = f", {len(self.detail.aside):,} set aside" if self.detail.aside else ""
        return f"{len(self.detail.open):,} found{aside}, at v{self.detail.version:,}"

    @property
    def _alone(self) -> bool:
        """Where there is one column, the explanation takes the place of the list."""
        return bool(self._shown) and not self._right.display

    def clear_one(self) -> bool:
        if not self._alone:
            return False
        self._shown = ""
        self._draw()
        self._left.show_cursor()
        return True

    @property
    def copyable(self) -> str:
        chosen = self.chosen()
        return chosen.suggestion.id if chosen else ""

    def ask(self, client: Client) -> Recommendations:
        view = client.recommendations()
        if self._shown and any(each.suggestion.id == self._shown for each in (*view.open, *view.aside)):
            client.recommendation(self._shown)
        return view

    def chosen(self) -> Recommendation | None:
        """The one under the cursor, or the one that is explained."""
        if self.detail is None:
            return None
        every = {each.suggestion.id: each for each in (*self.detail.open, *self.detail.aside)}
        under = self._left.link.removeprefix(LINK)
        first = next(iter(every), "")
        return every.get(under) or every.get(self._shown) or every.get(first)

    def columns(self, detail: Recommendations, width: int) -> tuple[list[Section], list[Section]]:
        explained = self._explained(detail, width)
        if not self._right.display:
            if self._shown and explained:
                return explained, []
            explained = []
        left = [Section("Found", self._lines(detail.open, width) or (text_line("nothing", "dim"),), "GPU-hours a day")]
        if detail.aside:
            left.append(Section("Set aside", self._lines(detail.aside, width), "rejected, or acted on"))
        if detail.followed:
            told = [line for each in detail.followed for line in wrap(followed_text(each), width)]
            left.append(Section("Followed up", tuple(text_line(line, "dim") for line in told)))
        if detail.unknown:
            told = [line for text in detail.unknown for line in wrap(printable(text), width)]
            left.append(Section("Cannot tell", tuple(text_line(line, "dim") for line in told)))
        return left, explained

    def _lines(self, found: tuple[Recommendation, ...], width: int) -> tuple[Line, ...]:
        return tuple(
            Line(((list_line(each, width), "dim" if each.state != "open" else ""),), f"{LINK}{each.suggestion.id}")
            for each in found
        )

    def _explained(self, detail: Recommendations, width: int) -> list[Section]:
        every = {each.suggestion.id: each for each in (*detail.open, *detail.aside)}
        shown = every.get(self._shown) or next(iter(every.values()), None)
        if shown is None:
            return []
        link = f"{LINK}{shown.suggestion.id}" if self._alone else ""
        lines = explanation_lines(shown, detail.now_ms, (), width)
        fitting = [part for line in lines for part in (wrap(line, width) if len(line) > width else [line])]
        # The first line is a link where the list is away: so the cursor finds its place in the list again.
        told = (Line(((fitting[0], ""),), link), *map(text_line, fitting[1:]))
        return [Section(shown.suggestion.id, told, shown.suggestion.kind)]

    async def act(self, app: MusterApp) -> str:
        """Have the action of the chosen one planned, confirmed and done. Gives what to tell. Raises MusterError."""
        from console.wishes import finish, parse, propose

        chosen = self.chosen()
        if chosen is None or not chosen.command:
            raise RefusedError("there is nothing to propose", "It asks for a person's attention only")
        name, *words = chosen.command
        words = words[: words.index("--reason")] if "--reason" in words else words
        arguments = parse(name, shlex.join(words))
        action = next(action for action in app.actions.values() if name in action.commands)
        shell = shlex.join(["muster", *map(printable, chosen.command)])
        reason = chosen.suggestion.id
        return await finish(
            app, action, lambda: propose(app.client(), name, arguments, reason), shell,
            found=lambda width: found_lines(chosen, width), follow=True,
        )  # fmt: skip

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Enter on one of them explains it."""
        if not event.link.startswith(LINK):
            return
        event.prevent_default()
        event.stop()
        self._shown = event.link.removeprefix(LINK)
        self._draw()
        if self._alone:
            self._left.scroll_to(y=0, animate=False)
        self.reload()
