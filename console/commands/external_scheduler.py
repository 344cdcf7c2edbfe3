"""Commands of a cell for which Slurm or Kubernetes decides: `muster cell mirror` and `muster intent`."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from console.client.attach import connect
from console.commands.show import tell_lines, write_json, write_lines
from console.views.external_scheduler import mirror_lines
from engine.model.errors import SpecError

if TYPE_CHECKING:
    from runbooks.plans.queries import IntentDetail
    from runbooks.plans.typed_plan import Request


def mirror(arguments: argparse.Namespace) -> int:
    """1 where it does not follow at present."""
    with closing(connect(arguments)) as client:
        report = client.mirror()
    if arguments.json:
        write_json(report)
    else:
        write_lines(mirror_lines(report, time.time()))
    return 0 if report.state in ("following", "none") else 1


def intents(arguments: argparse.Namespace) -> int:
    """1 where a person has to look at one."""
    from console.views.external_scheduler import intent_lines

    with closing(connect(arguments)) as client:
        report = client.intents(arguments.limit)
    if arguments.json:
        write_json(report)
    else:
        write_lines(intent_lines(report))
    return 1 if report.in_doubt else 0


def intent(arguments: argparse.Namespace) -> int:
    """1 where it waits for a person."""
    from console.views.external_scheduler import detail_lines

    with closing(connect(arguments)) as client:
        detail = client.intent(arguments.number)
    if arguments.json:
        write_json(detail)
    else:
        write_lines(detail_lines(detail))
    return 1 if detail.view.phase == "in doubt" else 0


def settle(arguments: argparse.Namespace) -> int:
    return _answer(arguments, arguments.outcome)


def retry(arguments: argparse.Namespace) -> int:
    """An act goes the way of every other: shown with its effect, asked for, approved by whoever must agree, done. A
    submission needs no vote: it is carried again under its token."""
    from console.commands.acting import propose_and_do

    with closing(connect(arguments)) as client:
        detail = client.intent(arguments.number)
        if detail.act is not None:
            return propose_and_do(arguments, client, again(detail, arguments.reason))
    if arguments.dry_run:
        raise SpecError("--dry-run", "needs an action, which has a plan", "See what is known with muster intent show N")
    return _answer(arguments, "retry")


def again(detail: IntentDetail, reason: str) -> Request:
    """Try an intent once more. Raises RefusedError for one that does not wait for a person."""
    from engine.model.errors import RefusedError
    from runbooks.plans.typed_plan import Request, StepRequest

    if detail.view.phase != "in doubt":
        raise RefusedError(
            f"{detail.view.id} is {detail.view.phase}, not in doubt", "To do more of it, propose the action again"
        )
    assert detail.act is not None
    return Request(steps=(StepRequest(act=detail.act),), reason=reason)


def _answer(arguments: argparse.Namespace, outcome: Any) -> int:
    """Show what is known, ask, and say it."""
    from console.commands.acting import approved_or_refused
    from console.views.external_scheduler import answer_text, detail_lines
    from runbooks.plans.queries import IntentAnswer

    with closing(connect(arguments)) as client:
        detail = client.intent(arguments.number)
        tell_lines([*detail_lines(detail), answer_text(detail, outcome)])
        approved_or_refused(arguments)
        said = IntentAnswer(number=arguments.number, outcome=outcome, reason=arguments.reason)
        receipt = client.answer_intent(said)
    if arguments.json:
        write_json(receipt)
    else:
        write_lines(receipt.changed)
    return 0
