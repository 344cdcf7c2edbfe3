"""Pages about other schedulers and cells: the mirror, intents, and the fleet.

The mirror page shows freshness, cost and omissions. An intent is a change sent to the external scheduler; a person
says on its page what came of one in doubt. `:fleet` asks the fleet's own process, whatever cell the console is
attached to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.commands.external_scheduler import again
from console.fleet.queries import FleetSubmission, FleetView
from console.fleet.wording import nowhere, pages, submission_pages
from console.forms.gate_arguments import intent_number
from console.forms.settings import load
from console.text.terminal_text import printable, wrap
from console.tui.widgets.pane import AsOf, Connect, DetailPane
from console.views.external_scheduler import (
    answer_text,
    detail_columns,
    intent_columns,
    mirror_columns,
    standing,
    title_of,
)
from console.views.sections import Section, plural, text_line
from engine.external.mirror_report import MirrorReport
from engine.model.errors import MusterError, NotFoundError, NotSentError, RefusedError, SpecError
from engine.model.external_cells import IntentsReport
from runbooks.plans.queries import MIN_REASON, IntentAnswer, IntentDetail

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.fleet.queries import FleetClient
    from console.tui.app import MusterApp


class MirrorPane(DetailPane[MirrorReport]):
    NAME = "mirror"
    WALL_S = staticmethod(time.time)
    """Tells how old what is shown is."""

    @property
    def crumb(self) -> str:
        return "mirror"

    @property
    def note(self) -> str:
        """The place itself is on the page: what must not be cut is how it does."""
        report = self.detail
        if report is None or report.state == "none":
            return ""
        what = "workloads" if report.scheduler == "Kubernetes" else "jobs"
        return f"{report.state}  ·  {report.jobs:,} {what} on {report.nodes:,} {plural('node', report.nodes)}"

    def ask(self, client: Client) -> MirrorReport:
        return client.mirror()

    def columns(self, detail: MirrorReport, width: int) -> tuple[list[Section], list[Section]]:
        return mirror_columns(detail, width, self.WALL_S)


class IntentsPane(DetailPane[IntentsReport]):
    NAME = "intents"
    TARGETS = "intent"

    @property
    def crumb(self) -> str:
        return "intents"

    @property
    def note(self) -> str:
        return standing(self.detail) if self.detail else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """The one under the cursor."""
        if self.detail is None:
            return ()
        link = (self._right if self._right.has_focus else self._left).link
        return tuple(ActionTarget(each.id, each.phase) for each in self.detail.items if link == f"intent {each.id}")

    def ask(self, client: Client) -> IntentsReport:
        return client.intents()

    def columns(self, detail: IntentsReport, width: int) -> tuple[list[Section], list[Section]]:
        return intent_columns(detail, width)


ASK_S = 5.0
"""Interval of questions to the cluster itself, not to its mirror."""


class IntentPane(DetailPane[IntentDetail]):
    NAME = "intent"
    TARGETS = "intent"
    EVERY_S = ASK_S

    def __init__(self, connect: Connect, name: str) -> None:
        super().__init__(connect)
        self._name = name

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def crumb(self) -> str:
        return printable(self._name)[:24]

    @property
    def note(self) -> str:
        return "" if self.detail is None else title_of(self.detail.view)

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return () if self.detail is None else (ActionTarget(self.detail.view.id, self.detail.view.phase),)

    def ask(self, client: Client) -> IntentDetail:
        digits = self._name.removeprefix("i")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
            raise NotFoundError(f"{self._name[:40]!a} is not an intent number", "See :intents")
        return client.intent(int(digits))

    def columns(self, detail: IntentDetail, width: int) -> tuple[list[Section], list[Section]]:
        return detail_columns(detail, width)


Outcome = Literal["done", "undone", "retry"]
DEEDS: dict[Outcome, str] = {"done": "settle it as done", "undone": "settle it as undone", "retry": "send it again"}


def retry(app: MusterApp, argument: str) -> None:
    """An act is proposed anew, as any other; a submission is carried again."""
    number = _chosen(app, argument)
    app.steering.tell(lambda: _retry(app, number))


def settle_done(app: MusterApp, argument: str) -> None:
    number = _chosen(app, argument)
    app.steering.tell(lambda: _answer(app, number, "done"))


def settle_undone(app: MusterApp, argument: str) -> None:
    number = _chosen(app, argument)
    app.steering.tell(lambda: _answer(app, number, "undone"))


def _chosen(app: MusterApp, argument: str) -> int:
    """The intent that was typed, or the one under the cursor. Raises SpecError, RefusedError."""
    import argparse

    name = argument.strip() or next((target.id for target in app.navigator.current.targets), "")
    if not name:
        raise RefusedError("no intent is under the cursor", "Select one with j and k")
    try:
        return intent_number(name)
    except argparse.ArgumentTypeError as error:
        raise SpecError("", printable(str(error))) from None


async def _retry(app: MusterApp, number: int) -> str:
    from console.tui.proposal_steps import finish

    detail = await in_thread(lambda: app.client().intent(number))
    if detail.act is None:
        return await _asked(app, detail, number, "retry")
    request = again(detail, f"i{number} is in doubt: send again")
    action = app.actions["retry_intent"]
    shell = f"muster intent retry i{number}"
    return await finish(app, action, lambda: app.client().propose(request), shell, follow=True)


async def _answer(app: MusterApp, number: int, outcome: Outcome) -> str:
    return await _asked(app, await in_thread(lambda: app.client().intent(number)), number, outcome)


async def _asked(app: MusterApp, detail: IntentDetail, number: int, outcome: Outcome) -> str:
    """With what was found as the reason."""
    from console.tui.decision_dialogs import DecideDialog

    def shown(width: int) -> list[Section]:
        left, right = detail_columns(detail, width)
        means = Section("What yes does", (text_line(answer_text(detail, outcome), "warn"),))
        return [*left, right[0], means]

    dialog = DecideDialog(shown, DEEDS[outcome], "key", least_reason=MIN_REASON, clock=app.clock)
    if not await app.push_screen_wait(dialog):
        return f"i{number} is still in doubt"
    said = IntentAnswer(number=number, outcome=outcome, reason=dialog.reason)
    receipt = await in_thread(lambda: app.client().answer_intent(said))
    return {
        "done": f"i{number} is settled as done",
        "undone": f"i{number} is settled as undone",
        "retry": f"i{number} is sent again, as {printable(receipt.changed[-1])}",
    }[outcome]


FLEET_REFRESH_S = 2.0
PATIENCE_S = 5.0


class FleetPage(NamedTuple):
    """The fleet or one submission; or why there is none."""

    view: FleetView | None = None
    submission: FleetSubmission | None = None
    now_ms: int = 0
    error: MusterError | None = None


class FleetPane(DetailPane[FleetPage]):
    NAME = "fleet"
    EVERY_S = FLEET_REFRESH_S
    WALL_NS = staticmethod(time.time_ns)
    """Tells how long a submission waits."""

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._id = argument.strip()

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(FLEET_REFRESH_S, self.reload_if_seen)

    @property
    def crumb(self) -> str:
        return f"fleet {printable(self._id)}" if self._id else "fleet"

    @property
    def note(self) -> str:
        view = self.detail.view if self.detail is not None else None
        if view is None:
            return ""
        up, waiting = sum(cell.state == "up" for cell in view.cells), view.counts.get("waiting", 0)
        return f"{printable(view.name)}  ·  {up} of {len(view.cells)} up  ·  {waiting:,} wait"

    @property
    def as_of(self) -> AsOf | None:
        return AsOf(0, self.detail.now_ms) if self.detail is not None and self.detail.now_ms else None

    @property
    def copyable(self) -> str:
        return self._id or self._left.link.removeprefix("fleet ") or self._right.link.removeprefix("fleet ")

    async def _ask(self) -> None:
        """Also while the console's own engine does not answer."""
        try:
            while self._again and self.is_attached:
                self._again = False
                self.detail = await in_thread(lambda: self._shown(cast("MusterApp", self.app).flags))
                self._draw()
        finally:
            self._asking = False

    def ask(self, client: Client) -> FleetPage:
        """For who has settings and no flags."""
        return self._shown({})

    def _shown(self, flags: Mapping[str, Any]) -> FleetPage:
        now_ms = self.WALL_NS() // 1_000_000
        try:
            with closing(self._fleet(flags)) as client:
                if self._id:
                    return FleetPage(submission=client.submission(self._id), now_ms=now_ms)
                view = client.view()
                return FleetPage(view=view, now_ms=view.now_ms)
        except MusterError as error:
            return FleetPage(error=error)

    def _fleet(self, flags: Mapping[str, Any]) -> FleetClient:
        from console.fleet.queries import fleet_client

        return fleet_client(load(flags), read_only=True, patience_s=PATIENCE_S)

    def columns(self, detail: FleetPage, width: int) -> tuple[list[Section], list[Section]]:
        if detail.error is not None:
            if isinstance(detail.error, NotSentError):
                return nowhere(detail.error.problem, detail.error.remedy, width), []
            told = tuple(text_line(line, "bad") for line in wrap(printable(str(detail.error)), width))
            return [Section(self.crumb, told)], []
        if detail.submission is not None:
            return submission_pages(detail.submission, detail.now_ms, width)
        return pages(detail.view, width) if detail.view is not None else ([], [])
