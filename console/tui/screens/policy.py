"""The approval policy: what waits for votes, when plans do not run, what is in force; and the reviews."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual import on

from console.actions.action_types import ActionTarget
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import AsOf
from console.tui.widgets.sections_view import SectionsView
from console.views.decisions.policy import CANDIDATE, FREEZE, REVIEW, policy_columns, review_sections
from console.views.sections import Section
from engine.model.errors import RefusedError
from runbooks.plans.typed_plan import Review
from runbooks.policy.queries import Candidate, PolicyView

if TYPE_CHECKING:
    from console.client.protocol import Client

ASK_S = 5.0
"""How often it is asked anew: votes and freezes change no state of the cell."""


class KeptPolicy(NamedTuple):
    view: PolicyView
    now_ms: int
    """The engine's wall clock."""


class PolicyPane(DetailPane[KeptPolicy]):
    NAME = "policy"
    TARGETS = "policy"
    EVERY_S = ASK_S

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        waiting = len(self.detail.view.candidates)
        hold = sum(freeze.holds for freeze in self.detail.view.freezes)
        told = [f"{waiting} wait{'s' if waiting == 1 else ''} for votes"] if waiting else []
        told += [f"{hold} freeze{'s' if hold != 1 else ''} hold{'s' if hold == 1 else ''} now"] if hold else []
        return "  ·  ".join(told)

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.now_ms) if self.detail is not None else None

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        link = self._left.link
        if link.startswith(CANDIDATE):
            return (ActionTarget(link.removeprefix(CANDIDATE), "awaiting"),)
        return (ActionTarget(link.removeprefix(FREEZE), "by hand"),) if link.startswith(FREEZE) else ()

    def candidate(self) -> Candidate:
        """The one under the cursor. Raises RefusedError."""
        chosen = next((target.id for target in self.targets if target.state == "awaiting"), "")
        found = [each for each in self.detail.view.candidates if each.id == chosen] if self.detail else []
        if not found:
            raise RefusedError("no policy that waits for votes is under the cursor", "Go to one with j and k")
        return found[0]

    def ask(self, client: Client) -> KeptPolicy:
        return KeptPolicy(client.policy(), client.whoami().now_ms)

    def columns(self, detail: KeptPolicy, width: int) -> tuple[list[Section], list[Section]]:
        return policy_columns(detail.view, detail.now_ms, width)

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """What is under the cursor is acted on by its keys; it leads nowhere."""
        event.prevent_default()
        event.stop()


class KeptReviews(NamedTuple):
    reviews: tuple[Review, ...]
    now_ms: int
    """The engine's wall clock."""


class ReviewsPane(DetailPane[KeptReviews]):
    NAME = "reviews"
    TARGETS = "review"
    EVERY_S = ASK_S

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        waiting = sum(not each.closed_ms for each in self.detail.reviews)
        return f"{waiting:,} open" if waiting else "none is open"

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.now_ms) if self.detail is not None else None

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        chosen = self.chosen()
        return (ActionTarget(str(chosen.id), "closed" if chosen.closed_ms else "open"),) if chosen is not None else ()

    def chosen(self) -> Review | None:
        """The one under the cursor."""
        if self.detail is None:
            return None
        link = self._left.link or self._right.link
        return next((each for each in self.detail.reviews if f"{REVIEW}{each.id}" == link), None)

    def ask(self, client: Client) -> KeptReviews:
        return KeptReviews(client.reviews(), client.whoami().now_ms)

    def columns(self, detail: KeptReviews, width: int) -> tuple[list[Section], list[Section]]:
        return review_sections(detail.reviews, width), []

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Enter goes to what it is about."""
        event.prevent_default()
        event.stop()
        chosen = self.chosen()
        if chosen is not None and chosen.about.startswith("P-"):
            self.post_message(self.Follow(f"proposal {chosen.about}"))
