"""What stands out and what might be done: the list, and one of them with all it rests on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from textual import on

from console.actions.action_types import ActionTarget
from console.client.change_feed import in_thread
from console.text.terminal_text import printable, wrap
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import AsOf, Connect
from console.tui.widgets.sections_view import SectionsView
from console.views.advice.suggestion_sections import found_lines, suggestion_sections
from console.views.advice.suggestions import followed_text, list_line
from console.views.sections import Line, Section, text_line
from engine.model.errors import RefusedError
from engine.model.queries import Query, Term
from recommender.findings.queries import Recommendation, Recommendations
from recommender.findings.suggestions import MAX_TARGETS, Suggestion

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp

LINK = "rec:"
OVER = ("finished", "failed", "cancelled")


class RecommendationsPane(DetailPane[Recommendations]):
    NAME = "recommendations"
    EVERY_S = 20.0  # the engine looks for them beside its work

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._shown = ""
        """Id of the one that was asked for; empty: the first."""
        self._explains = ""
        """Id of the one that is explained: the one under the cursor, which is what A acts on."""

    @property
    def crumb(self) -> str:
        return "suggestions"

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        if self._alone:
            return f"{self._shown}   esc: all {len(self.detail.open):,}"
        aside = f", {len(self.detail.aside):,} set aside" if self.detail.aside else ""
        if not self.detail.open:
            return f"nothing stands out{aside}; it is looked at again all the time"
        return f"{len(self.detail.open):,} found{aside}"

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

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """What it could be proposed as; a suggestion is no object of the cell."""
        chosen = self.chosen()
        if chosen is None:
            return ()
        return (
            ActionTarget(
                chosen.suggestion.id, "acted" if chosen.state == "acted" else "to do" if chosen.command else "told"
            ),
        )

    @property
    def line(self) -> str:
        return self.NAME

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(self.detail.version, self.detail.now_ms) if self.detail is not None else None

    def place(self) -> dict[str, Any]:
        return {"shown": self._shown}

    def put_back(self, place: dict[str, Any]) -> None:
        shown = place.get("shown")
        self._shown = shown if isinstance(shown, str) else ""
        if self._shown:
            self._left.put_back({"top": 0, "link": f"{LINK}{self._shown}"})

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
        shown = self.chosen()
        if shown is None:
            return []
        self._explains = shown.suggestion.id
        link = f"{LINK}{shown.suggestion.id}" if self._alone else ""
        first, *rest = suggestion_sections(shown, width)
        # The first line is a link where the list is away: so the cursor finds its place in the list again.
        return [first._replace(lines=(first.lines[0]._replace(link=link), *first.lines[1:])), *rest]

    def _draw(self) -> None:
        super()._draw()
        chosen = self.chosen()
        if chosen is not None and chosen.suggestion.id != self._explains:
            super()._draw()  # the list differs, and with it what is under the cursor

    def point_at(self, rec_id: str) -> None:
        """Put the cursor on it, and explain it."""
        self._shown = rec_id
        self._left.put_back({"top": 0, "link": f"{LINK}{rec_id}"})
        self.reload()

    async def act(self, app: MusterApp) -> str:
        """Have the action of the chosen one planned, confirmed and done. Gives what to tell. Raises MusterError."""
        from console.actions.request_builder import parse, propose
        from console.arguments.actions import declared, metavar_of
        from console.tui.handlers.decisions import finish

        chosen = self.chosen()
        if chosen is None:
            raise RefusedError("nothing is found now", "It is looked for all the time")
        if not chosen.command:
            raise RefusedError("there is nothing to propose", "It asks for a person's attention only")
        name, *words = chosen.command
        words = words[: words.index("--suggestion")]
        row = declared(name)
        # Work ends by itself, and is then no target any more.
        on_work = row.kind == "workload" and bool(metavar_of(row))
        over = await in_thread(lambda: ended(app.client(), chosen.suggestion)) if on_work else ()
        if over and len(over) == len(chosen.suggestion.targets):
            raise RefusedError(
                "all of what it is about has ended since it was found", "It is looked for anew: r shows what there is"
            )
        words = [word for word in words if word not in over]
        arguments = parse(name, shlex.join(words))
        action = next(action for action in app.actions.values() if name in action.commands)
        shell = shlex.join(["muster", name, *map(printable, words), "--suggestion", chosen.suggestion.id])
        return await finish(
            app, action, lambda: propose(app.client(), name, arguments, suggestion=chosen.suggestion.id), shell,
            found=lambda width: found_lines(chosen, width, over), follow=True,
        )  # fmt: skip

    @on(SectionsView.Moved)
    def _moved(self) -> None:
        """What is explained follows the cursor."""
        if self._left.has_focus and not self._alone and self._right.display:
            self._shown = self._left.link.removeprefix(LINK)
            self._draw()
            self.reload()

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


def ended(client: Client, suggestion: Suggestion) -> tuple[str, ...]:
    """Targets that have ended since it was found. Blocks."""
    where = tuple(Term("id", "=", target) for target in suggestion.targets)
    page = client.query(Query(kind="workloads", columns=("id", "state"), where=where, limit=MAX_TARGETS))
    live = {row[0] for row in page.rows if row[1] not in OVER}
    return tuple(target for target in suggestion.targets if target not in live)
