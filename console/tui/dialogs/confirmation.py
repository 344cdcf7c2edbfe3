"""What asks before anything is done: a plan, drawn from the typed proposal only, and a yes to it.

Its default is No: Enter and Esc both leave things as they are. A yes counts once the dialog was painted for a moment,
and once the end of the plan was on the screen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message

from console.text.terminal_text import printable, wrap
from console.tui.dialogs import base
from console.tui.dialogs.base import Dialog
from console.tui.widgets.one_line import OneLine, Part, part
from console.tui.widgets.sections_view import SectionsView
from console.views.decisions.proposal import carried_sections, hanging, plan_sections, word_sections
from console.views.decisions.proposal_needs import by_author_alone, one_key, others_needed
from console.views.sections import Line, Section, text_line
from runbooks.plans.typed_plan import DIGEST_TYPED, Proposal

NO = (part(" n ", "key"), part("no, leave it ", "strong"), part("  "))
READ_ON = part("read on to its end: pgdn, G", "warn")


class AskingDialog(Dialog):
    """One whose yes counts only after it could be read."""

    DECIDES = True
    """Others see that something is being decided here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._painted_at = math.inf

    def on_mount(self) -> None:
        self.read_anew()

    def read_anew(self) -> None:
        """What is asked differs: keys count again a moment after it is on the screen."""
        self._painted_at = math.inf
        self.call_after_refresh(self._painted)

    def _painted(self) -> None:
        self._painted_at = self._clock()

    @property
    def too_early(self) -> bool:
        """Keys typed before it could be read do not count as an answer."""
        return self._clock() - self._painted_at < base.GUARD_S or self._painted_at == math.inf


class DigestTyping:
    """The beginning of a digest, typed by a person who means just this plan."""

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._typed = ""

    @property
    def done(self) -> bool:
        return len(self._typed) == DIGEST_TYPED

    def take(self, event: events.Key) -> bool:
        """Whether the key is one of these. After a wrong one it begins anew."""
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character and event.character in "0123456789abcdef":
            self._typed += event.character
        else:
            return False
        event.stop()
        if not self._digest.startswith(self._typed):
            self._typed = ""
        return True

    def question(self, deed: str) -> list[Part]:
        typed = self._typed + "_" * (DIGEST_TYPED - len(self._typed))
        wanted = printable(self._digest)[:DIGEST_TYPED]
        return [part("type ", "off"), part(wanted, "key"), part(f" to {deed}: ", "off"), part(typed, "strong")]


class PlanView(SectionsView):
    """Says when it has room for other lines than before."""

    class LaidOut(Message):
        """Its height may differ."""

    def on_resize(self) -> None:
        self.post_message(self.LaidOut())


class ConfirmDialog(AskingDialog):
    """Shows a proposal and asks. True only after `y` (T0, T1) or the first characters of the digest (T2, T3). Where the
    policy wants others than who asks, `y` puts it to the vote and does nothing else."""

    DEFAULT_CSS = """
    ConfirmDialog > Vertical { border: round $warning; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,N,enter", "leave", show=False, priority=True)]

    def __init__(
        self,
        proposal: Proposal,
        shell: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        asks_only: bool = False,
        above: Callable[[int], Sequence[Line]] | None = None,
        found: Callable[[int], Sequence[Line]] | None = None,
    ) -> None:
        """`asks_only`: a yes puts it to the vote, whoever may approve it. `above`: lines before the plan; `found`: what
        led to it, beside the evidence that is attached."""
        super().__init__(clock)
        self._above = above
        self._found = found
        self._asks_only = asks_only
        self._proposal = proposal
        self._shell = shell
        self._digest = DigestTyping(proposal.digest)
        self._title = OneLine("key")
        self._body = PlanView()
        self._question = OneLine("top")
        self._plan_lines = 0
        self.seen = False
        """The last line of the plan was on the screen."""
        self.plan_width = 0
        """Of the plan as it was shown."""

    @property
    def _plain(self) -> bool:
        return not self.alone or one_key(self._proposal)

    @property
    def alone(self) -> bool:
        """Who asks may approve it alone."""
        return by_author_alone(self._proposal) and not self._asks_only

    @property
    def _deed(self) -> str:
        steps = self._proposal.plan.steps  # none where the stored plan cannot be read
        return steps[0].act.action.replace("_", " ") if steps else "approve"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._title
            yield self._body
            yield self._question

    def on_mount(self) -> None:
        shown = self._proposal
        self._title.show([part(f" {printable(shown.title)}")], [part(f"{shown.id} {shown.tier} ")])
        self.watch(self._body, "scroll_y", self._look_for_end, init=False)
        self._ask()
        self._body.focus()

    def on_resize(self) -> None:
        self.leave_room(self._body, 2)
        self.call_after_refresh(self._show_plan)

    def _show_plan(self) -> None:
        width = self._body.text_width
        above = [Section("The run", tuple(self._above(width)))] if self._above is not None else []
        plan = [*above, *plan_sections(self._proposal, width), *carried_sections(self._proposal, width)]
        if width != self.plan_width:
            self.plan_width, self.seen = width, False
        self._plan_lines = sum(1 + len(section.lines) for section in plan) + len(plan) - 1
        self._body.show([*plan, *self._behind(width)], width)
        self.call_after_refresh(self._look_for_end)

    def _behind(self, width: int) -> list[Section]:
        """What stands behind the plan: what led to it, who else must vote, what people wrote."""
        found = [Section("Found", tuple(self._found(width)), "by the recommender")] if self._found is not None else []
        if not by_author_alone(self._proposal):
            needs = hanging("vote  ", others_needed(self._proposal), width, "dim", "warn")
            found.append(Section("Who else must vote", tuple(needs)))
        found += word_sections(self._proposal, width) if self._found is None else []
        if self._shell:
            same = tuple(text_line(line, "dim") for line in wrap(self._shell, width)[:6])
            found.append(Section("The same from the shell", same))
        return found

    @on(PlanView.LaidOut)
    def _laid_out(self) -> None:
        self._look_for_end()

    def _look_for_end(self) -> None:
        """The last line of the plan, laid out as it is now, is or was on the screen."""
        height = self._body.size.height
        if not self.seen and height and self._body.scroll_offset.y + height >= self._plan_lines > 0:
            self.seen = True
            self.read_anew()
        self._ask()

    def on_key(self, event: events.Key) -> None:
        """The only way to yes."""
        if self.too_early or not self.seen:
            return
        if self._plain:
            if event.key in ("y", "Y"):
                event.stop()
                self.dismiss(True)
            return
        if self._digest.take(event):
            if self._digest.done:
                self.dismiss(True)
            self._ask()

    def _ask(self) -> None:
        if not self.seen:
            self._question.show([*NO, READ_ON])
        elif self._plain:
            yes = f"yes, {self._deed}" if self.alone else "put it to the vote, nothing else"
            self._question.show([*NO, part(" y ", "key"), part(yes, "off")])
        else:
            self._question.show([*NO, *self._digest.question(self._deed)])
