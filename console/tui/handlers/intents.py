"""What a person says of an intent in doubt, on the console: asked for with what is known of it, done, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from console.actions.registry import ACTIONS
from console.arguments.intents import intent_number
from console.cli.approvals.intents import again
from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.views.external.intent import answer_text, detail_columns
from console.views.sections import Section, text_line
from engine.model.errors import RefusedError, SpecError
from runbooks.plans.intent_queries import MIN_REASON, IntentAnswer, IntentDetail

if TYPE_CHECKING:
    from console.tui.app import MusterApp

Outcome = Literal["done", "undone", "retry"]
DEEDS: dict[Outcome, str] = {"done": "settle it as done", "undone": "settle it as undone", "retry": "carry it again"}


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
    """What was typed, or what is under the cursor. Raises SpecError, RefusedError."""
    import argparse

    name = argument.strip() or next((target.id for target in app.navigator.current.targets), "")
    if not name:
        raise RefusedError("no intent is under the cursor", "Go to one with j and k")
    try:
        return intent_number(name)
    except argparse.ArgumentTypeError as error:
        raise SpecError("", printable(str(error))) from None


async def _retry(app: MusterApp, number: int) -> str:
    from console.tui.handlers.decisions import finish

    detail = await in_thread(lambda: app.client().intent(number))
    if detail.act is None:
        return await _asked(app, detail, number, "retry")
    request = again(detail, f"i{number} is in doubt: once more")
    action = next(each for each in ACTIONS if each.id == "retry_intent")
    shell = f"muster intents retry i{number}"
    return await finish(app, action, lambda: app.client().propose(request), shell, follow=True)


async def _answer(app: MusterApp, number: int, outcome: Outcome) -> str:
    return await _asked(app, await in_thread(lambda: app.client().intent(number)), number, outcome)


async def _asked(app: MusterApp, detail: IntentDetail, number: int, outcome: Outcome) -> str:
    """With what was found as the reason."""
    from console.tui.dialogs.decision import DecideDialog

    def shown(width: int) -> list[Section]:
        left, right = detail_columns(detail, width)
        means = Section("What a yes means", (text_line(answer_text(detail, outcome), "warn"),))
        return [*left, right[0], means]

    dialog = DecideDialog(shown, DEEDS[outcome], "key", least_reason=MIN_REASON, clock=app.clock)
    if not await app.push_screen_wait(dialog):
        return f"i{number} stays in doubt"
    said = IntentAnswer(number=number, outcome=outcome, reason=dialog.reason)
    receipt = await in_thread(lambda: app.client().answer_intent(said))
    return {
        "done": f"i{number} is settled as done",
        "undone": f"i{number} is settled as undone",
        "retry": f"i{number} is carried again, as {printable(receipt.changed[-1])}",
    }[outcome]
