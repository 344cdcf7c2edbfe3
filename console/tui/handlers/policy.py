"""What a person does with the policy, with freezes, reviews and versions of runbooks: asked for, signed where that is
needed, done, and told."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from console.client.change_feed import in_thread
from console.text.terminal_text import cut, printable
from console.views.decisions.policy import candidate_sections
from console.views.decisions.proposal import hanging, name_of, screen_digest
from console.views.sections import Section, text_line
from engine.model.errors import RefusedError, SpecError
from runbooks.policy.queries import PolicyVote
from runbooks.procedures.queries import RunbookLine, RunbookVote

if TYPE_CHECKING:
    from console.tui.app import MusterApp
    from console.tui.dialogs.decision import Ending
    from console.tui.screens.policy import PolicyPane, ReviewsPane
    from console.tui.screens.runbooks import RunbookPane
    from runbooks.people.identity import Signed
    from runbooks.policy.approval_policy import Verdict
    from runbooks.policy.queries import Candidate

MIN_FOUND = 10
"""Letters of what a review found: `runbooks.gate.break_glass.MIN_COMMENT`."""
MIN_REASON = 3
WIDTH = 80
"""At which what a vote on a policy or a runbook was shown as is hashed for its signature."""


async def _asked(
    app: MusterApp, sections: Callable[[int], list[Section]], deed: str, ending: Ending, *, digest: str = "",
    least: int | None = None,
) -> str | None:  # fmt: skip
    """What was written; None: no."""
    from console.tui.dialogs.decision import DecideDialog

    dialog = DecideDialog(sections, deed, ending, digest=digest, least_reason=least, clock=app.clock)
    return dialog.reason if await app.push_screen_wait(dialog) else None


# -- the policy -------------------------------------------------------------------------------------------------------


def approve_policy(app: MusterApp, argument: str) -> None:
    """Vote for the policy under the cursor; the last vote that is needed puts it in force."""
    app.steering.tell(lambda: _vote(app, "approve"))


def reject_policy(app: MusterApp, argument: str) -> None:
    """One no ends it."""
    app.steering.tell(lambda: _vote(app, "reject"))


async def _vote(app: MusterApp, verdict: Verdict) -> str:
    pane = cast("PolicyPane", app.navigator.current)
    candidate = pane.candidate()
    now_ms = pane.detail.now_ms if pane.detail is not None else 0

    def shown(width: int) -> list[Section]:
        return candidate_sections(candidate, now_ms, width)

    deed, ending = ("put it in force", "digest") if verdict == "approve" else ("reject", "key")
    if await _asked(app, shown, deed, cast("Ending", ending), digest=candidate.digest) is None:
        return f"{printable(candidate.id)}: you have not voted"
    signed = await _policy_signature(app, candidate, verdict, shown) if candidate.signed else None
    vote = PolicyVote(candidate=candidate.id, digest=candidate.digest, verdict=verdict, signed=signed)
    done = await in_thread(lambda: app.client().vote_policy(vote))
    needs = f", needs {done.needs} more of {printable(done.need)}" if done.needs else ""
    return f"{printable(done.id)} is {done.state.replace('_', ' ')}{needs}"


async def _policy_signature(
    app: MusterApp, candidate: Candidate, verdict: Verdict, shown: Callable[[int], list[Section]]
) -> Signed:
    def sign() -> Signed:
        return app.identity.sign(
            app.client().whoami(), kind="policy", proposal=candidate.id, revision=candidate.revision,
            digest=candidate.digest, verdict=verdict, screen=screen_digest(shown(WIDTH)),
        )  # fmt: skip

    return await in_thread(sign)


# -- freezes ----------------------------------------------------------------------------------------------------------


def freeze(app: MusterApp, argument: str) -> None:
    """As `muster freeze` takes it. By key: begin the line. Raises SpecError."""
    if not argument:
        app.bars.open_command("freeze NAME --for 2h --tier T1 --reason ''")
        return
    arguments = _freeze_line(argument)

    async def set_it() -> str:
        from console.cli.approvals.policy import freeze_spec

        def put() -> str:
            client = app.client()
            spec = freeze_spec(arguments, client.whoami().now_ms)
            client.freeze(spec)
            return spec.name

        return f"freeze {printable(await in_thread(put))} is set: :policy shows it, :thaw ends it"

    app.steering.tell(set_it)


def _freeze_line(line: str) -> argparse.Namespace:
    from console.actions.request_builder import LineParser
    from console.arguments.gate import freeze_arguments

    parser = LineParser(prog=":freeze", add_help=False, allow_abbrev=False)
    freeze_arguments(parser)
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise SpecError("", str(error)) from None


def thaw(app: MusterApp, argument: str) -> None:
    """End the freeze of that name, or the one under the cursor."""
    name = argument or next((target.id for target in app.context().targets), "")

    async def end_it() -> str:
        def shown(width: int) -> list[Section]:
            return [Section(f"End freeze {printable(name)}", tuple(hanging("", THAWED, width)))]

        if await _asked(app, shown, "end the freeze", "key") is None:
            return f"freeze {printable(name)} stays"
        await in_thread(lambda: app.client().thaw(name))
        return f"freeze {printable(name)} has ended"

    app.steering.tell(end_it)


THAWED = "Plans that it stopped may begin or go on from then on."

# -- reviews ----------------------------------------------------------------------------------------------------------


def close_review(app: MusterApp, argument: str) -> None:
    """Say what was found: `N WORDS`, or asked for by key. Raises SpecError."""
    number, _, words = argument.partition(" ")
    if argument and not (number.isascii() and number.isdecimal()):
        raise SpecError(
            "", f"'{printable(number)[:20]}' is no number of a review", "Write :close-review 3 what was found"
        )
    chosen = None if argument else cast("ReviewsPane", app.navigator.current).chosen()
    review = int(number) if argument else chosen.id if chosen is not None else 0

    async def close() -> str:
        found: str | None = words
        if chosen is not None:
            about = f"{chosen.about}, {name_of(chosen.subject)}: {chosen.text}"

            def shown(width: int) -> list[Section]:
                return [
                    Section(f"Close review {review}: say what was found", tuple(hanging("", printable(about), width)))
                ]

            found = await _asked(app, shown, "close the review", "reason", least=MIN_FOUND)
        if found is None:
            return f"review {review} stays open"
        await in_thread(lambda: app.client().close_review(review, found))
        return f"review {review} is closed"

    app.steering.tell(close)


# -- versions of runbooks ---------------------------------------------------------------------------------------------


def approve_runbook(app: MusterApp, argument: str) -> None:
    """Yes to exactly the bytes that were shown, once their end was on the screen."""
    app.steering.tell(lambda: _approve_runbook(app))


async def _approve_runbook(app: MusterApp) -> str:
    pane = cast("RunbookPane", app.navigator.current)
    pane.refuse_unread()
    view = pane.detail
    assert view is not None, "it was read"
    line = view.line

    def shown(width: int) -> list[Section]:
        what = "From then on it may be run in this cell, as it is, byte for byte; another file of its name may not."
        return [_runbook_section("Approve", line, what, width)]

    said = await _asked(app, shown, "approve", "digest", digest=line.sha256, least=0)
    if said is None:
        return f"{printable(line.id)}: you have not voted"

    def sign() -> Signed:
        return app.identity.sign(
            app.client().whoami(), kind="vote", proposal=f"runbook:{line.id}", revision=line.version,
            digest=line.sha256, verdict="approve", screen=pane.read_digest,
        )  # fmt: skip

    signed = await in_thread(sign) if line.signed else None
    vote = RunbookVote(id=line.id, sha256=line.sha256, comment=said, signed=signed)
    return _standing(await in_thread(lambda: app.client().approve_runbook(vote)))


def retire_runbook(app: MusterApp, argument: str) -> None:
    """End the use of the version that is shown, for good."""

    async def retire() -> str:
        pane = cast("RunbookPane", app.navigator.current)
        if pane.detail is None:
            raise RefusedError("the runbook is not read yet", "Wait a moment")
        line = pane.detail.line

        def shown(width: int) -> list[Section]:
            what = "Nobody can run this version any more, and it cannot be approved again."
            return [_runbook_section("Retire", line, what, width)]

        said = await _asked(app, shown, "retire it for good", "key", least=MIN_REASON)
        if said is None:
            return f"{printable(line.id)}: it stays as it is"
        vote = RunbookVote(id=line.id, sha256=line.sha256, comment=said)
        return _standing(await in_thread(lambda: app.client().retire_runbook(vote)))

    app.steering.tell(retire)


def _runbook_section(verb: str, line: RunbookLine, what: str, width: int) -> Section:
    lines = [*hanging("", what, width), *hanging("sha256  ", line.sha256, width)]
    signing = [text_line("your vote is signed with your own key", "warn")] if line.signed else []
    title = cut(printable(f"{verb} {line.id}: {line.title}"), width - 14)
    return Section(title, (*lines, *signing), f"version {line.version}")


def _standing(line: RunbookLine) -> str:
    return f"{printable(line.id)} version {line.version} is {line.status}: {printable(line.note)}"
