"""One proposal: the page on which it is approved. The plan first, from the typed plan alone; then who has voted, how
far it is, what has changed since; and what people wrote, framed.

A vote for it is taken once the end of the plan has been on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from console.actions.action_types import ActionTarget
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, printable
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import AsOf, Connect
from console.views.advice.suggestion_sections import found_sections
from console.views.decisions.proposal import (
    Fresh,
    carried_sections,
    head_section,
    plan_sections,
    stale_section,
    step_section,
    vote_section,
    word_sections,
)
from console.views.decisions.proposal_needs import keys_note, press_next, request_of, unverified, waiting_step
from console.views.sections import Section
from engine.model.errors import MusterError, RefusedError
from runbooks.plans import proposal_states
from runbooks.plans.typed_plan import Proposal

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp
    from recommender.findings.queries import Recommendation
    from runbooks.policy.queries import Caller

ASK_S = 1.0
"""How often it is asked anew what nothing else tells, as long as something can become of it: votes change no state of
the cell."""
SELDOM_S = 5.0
"""The same for what is over."""
DRAW_S = 1.0
IS_SUGGESTION = re.compile("R-[a-z2-7]{5}")


class ProposalPage(NamedTuple):
    proposal: Proposal
    caller: Caller
    at: float
    """Monotonic clock when that was answered."""
    fresh: Fresh | None
    """What a stale one would do now."""


class ProposalPane(DetailPane[ProposalPage]):
    NAME = "proposal"
    TARGETS = "proposal"
    EVERY_S = 5.0

    def __init__(self, connect: Connect, proposal_id: str) -> None:
        super().__init__(connect)
        self._proposal_id = proposal_id
        self._clock: Callable[[], float] = lambda: 0.0
        self._plan_lines = 0
        self._plan_width = 0
        self._top = 0
        """Line to scroll to once there is something to show."""
        self._seen = ("", 0)
        """Digest, and width as it was laid out, of the plan whose end was on the screen."""
        self._found: Recommendation | None = None
        """The suggestion that it follows from."""
        self._asked_found = False
        self._records = -1
        """`Client.records` from before it was asked for."""

    def on_mount(self) -> None:
        super().on_mount()
        self._clock = cast("MusterApp", self.app).clock
        self.set_interval(DRAW_S, self._tick)
        self.watch(self._left, "scroll_y", self._look_for_end, init=False)

    @property
    def crumb(self) -> str:
        return cut(printable(self._proposal_id), 32)

    @property
    def line(self) -> str:
        return f"proposal {self._proposal_id}"

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.caller.now_ms) if self.detail is not None else None

    @property
    def note(self) -> str:
        """What to press next, or for what it waits."""
        if self.detail is None:
            return ""
        shown = self.detail.proposal
        return press_next(
            shown, self.detail.caller.me, self._now_ms(self.detail), read=self.seen_to_the_end,
            waits_for_word=waiting_step(shown) is not None, unverified=unverified(shown),
        )  # fmt: skip

    def place(self) -> dict[str, Any]:
        return {"top": self._left.scroll_offset.y}

    def put_back(self, place: dict[str, Any]) -> None:
        top = place.get("top")
        self._top = top if isinstance(top, int) else 0

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        if self.detail is None:
            return ()
        shown = self.detail.proposal
        return (ActionTarget(shown.id, shown.state, unverified(shown), waiting_step(shown) is not None),)

    def chosen(self) -> Proposal | None:
        return self.detail.proposal if self.detail is not None else None

    # --- whether it was read

    @property
    def seen_to_the_end(self) -> bool:
        """The last line of exactly this plan, laid out as it is now, was on the screen."""
        return self.detail is not None and self._seen == (self.detail.proposal.digest, self._plan_width)

    @property
    def plan_width(self) -> int:
        """Of the plan as it was read."""
        return self._plan_width

    def refuse_unread(self) -> None:
        """Raises RefusedError while the end of the plan was not on the screen, and when what is shown is not what the
        digest is of: a vote would be on something else."""
        shown = self.detail.proposal if self.detail is not None else None
        if shown is not None and shown.plan.digest() != shown.digest:
            raise RefusedError(
                "the plan that is shown does not have the digest that is shown", "Run muster audit verify"
            )
        if not self.seen_to_the_end:
            raise RefusedError("the end of the plan was not on the screen yet", "Read on to it (pgdn, G), then vote")

    def _look_for_end(self) -> None:
        if self.detail is None or self.seen_to_the_end or not self._plan_lines or not self._left.size.height:
            return
        if self.display and self._left.scroll_offset.y + self._left.size.height >= self._plan_lines:
            self._seen = (self.detail.proposal.digest, self._plan_width)
            self.post_message(self.Changed())

    # --- what is shown

    def ask(self, client: Client) -> ProposalPage:
        self._records = client.records()
        shown, caller = client.proposal(self._proposal_id), client.whoami()
        fresh = None
        if shown.stale:
            before = self.detail
            fresh = before.fresh if before is not None and before.proposal.stale == shown.stale else None
            fresh = fresh or self._proposed_now(client, shown)
        return ProposalPage(shown, caller, self._clock(), fresh)

    async def _ask_found(self, rec_id: str) -> None:
        """What it follows from, where that still stands: asked for once, beside the page, which does not wait."""
        self._asked_found = True
        try:
            self._found = await in_thread(lambda: self.connect().recommendation(rec_id))
        except MusterError:
            return
        self._draw()

    def _proposed_now(self, client: Client, shown: Proposal) -> Fresh:
        """What proposing it again would show: looked at, never done in its place."""
        try:
            return Fresh(client.preview(request_of(shown)))
        except RefusedError as error:
            return Fresh(None, error.problem)
        except MusterError as error:
            return Fresh(None, f"{error.problem} (that is all that is known)")

    def columns(self, detail: ProposalPage, width: int) -> tuple[list[Section], list[Section]]:
        shown, me = detail.proposal, detail.caller.me
        now_ms = self._now_ms(detail)
        plan = [head_section(shown, now_ms, width), *plan_sections(shown, width), *carried_sections(shown, width)]
        self._plan_lines = sum(1 + len(section.lines) for section in plan) + len(plan) - 1
        self._plan_width = width
        stands = [
            vote_section(shown, width, me, keys_note(detail.caller), nobody_named=not detail.caller.keys),
            *step_section(shown, width),
            *stale_section(shown, width, detail.fresh),
            *found_sections(self._found, width),
            *word_sections(shown, width),
        ]
        return plan, stands

    def _now_ms(self, detail: ProposalPage) -> int:
        """The engine's wall clock."""
        return detail.caller.now_ms + round((self._clock() - detail.at) * 1000)

    def _draw(self) -> None:
        super()._draw()
        reason = self.detail.proposal.reason if self.detail is not None else ""
        if not self._asked_found and IS_SUGGESTION.fullmatch(reason):
            self.run_worker(self._ask_found(reason))
        if self._top and self.detail is not None:
            self._left.scroll_to(y=self._top, animate=False)
            self._top = 0
        self.call_after_refresh(self._look_for_end)

    def _is_same(self) -> bool:
        """Nobody voted or decided since it was asked for."""
        try:
            return self._records >= 0 and self.connect().records() == self._records
        except MusterError:
            return False

    def _tick(self) -> None:
        if not self.display or not self.is_attached:
            return
        over = self.detail is not None and self.detail.proposal.state in proposal_states.ENDED
        if self.detail is None or self._clock() - self.detail.at >= (SELDOM_S if over or self._is_same() else ASK_S):
            self.reload()
        else:
            self._draw()
