"""Steps of a person with a proposal: request, confirm, sign, execute.

Each step names the digest of the plan that was on the screen. The gate refuses any other digest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from console.client.change_feed import in_thread
from console.text.terminal_text import printable, wall_time
from console.views.decision_needs import (
    new_votes,
    one_key,
    others_needed,
    request_of,
    waiting_step,
    what_moved,
)
from console.views.proposal import effect_lines, hanging, plan_sections, screen_digest, state_word, touched
from console.views.sections import Line, Section, text_line
from engine.model.errors import MusterError, RefusedError, UnreachableError
from runbooks.plans import typed_plan
from runbooks.plans.typed_plan import Outcome, Proposal, Request, asks

if TYPE_CHECKING:
    from console.actions.registry import ConsoleAction
    from console.tui.app import MusterApp
    from console.tui.decision_dialogs import Ending
    from runbooks.plans.identity import Signed
    from runbooks.plans.keys import DecisionKind
    from runbooks.plans.typed_plan import ActionName


LAST_WORD_S = 1.0
"""Longest wait for a withdrawal to arrive while the console ends."""
MAX_STEPS = 40
"""Lines of a rollback that are shown before it is done."""
MIN_REASON = 3
"""Letters of a reason to reject or to take back."""
T = TypeVar("T")
_UNSENT: dict[tuple[str, str], str] = {}
"""(proposal, deed) -> what was written for it when the engine went away."""
_GOOD_IN: dict[str, tuple[str, ...]] = {
    "approve": ("awaiting",),
    "BREAK THE GLASS": ("awaiting",),
    "reject": tuple(typed_plan.OPEN),
    "execute": ("approved",),
    "pause": ("executing", "verifying"),
    "withdraw": (*typed_plan.OPEN, "stale"),
    "roll it back": ("verified", "failed", "paused", "rollback_failed"),
}
"""Step -> states in which a yes to it still counts; for other steps it is the state in which it was asked."""
MIN_GLASS = 10
"""Characters of a reason to break the glass; the policy may want more."""
WARNING = (
    "BREAK-GLASS: this carries the plan out NOW, without the votes that the policy requires.",
    "Everybody who could have voted is notified. A review stays open until another person closes it, and "
    "until then you cannot break the glass again. The audit records your name and your reason.",
)


async def finish(
    app: MusterApp,
    action: ConsoleAction,
    ask: Callable[[], Proposal],
    shell: str,
    *,
    found: Callable[[int], Sequence[Line]] | None = None,
    follow: bool = False,
) -> str:
    """Have the engine's plan confirmed and done; or put to the vote, where the policy wants others than who asks. What
    was not wanted is withdrawn. `found`: what led to it. `follow`: go to its page, which shows how far it is and how to
    take it back. Gives what to tell the person in the end. Raises MusterError."""
    from console.tui.decision_dialogs import ConfirmDialog

    def withdraw() -> None:
        # Whether or not the engine can be told: what nobody votes on expires.
        with suppress(MusterError):
            app.client().cancel(proposal.id)

    proposal = await in_thread(ask)
    dialog = ConfirmDialog(proposal, shell, app.clock, found=found)
    try:
        wanted = await app.push_screen_wait(dialog)
        yes = await own_yes(app, proposal, dialog.plan_width) if wanted and dialog.alone else None
    except asyncio.CancelledError:
        # The console ends while it asks: nothing can be awaited any more.
        telling = threading.Thread(target=withdraw, daemon=True, name="muster-withdraw")
        telling.start()
        telling.join(LAST_WORD_S)
        raise
    except MusterError:
        await in_thread(withdraw)
        raise
    if not wanted or (dialog.alone and yes is None):
        await in_thread(withdraw)
        return f"{action.title}: cancelled, nothing changed"
    if follow:
        app.navigator.drill("proposal", proposal.id)
    return put_to_vote(proposal) if yes is None else await approve_own(app, proposal, *yes)


async def approve(app: MusterApp, proposal: Proposal, width: int) -> str:
    """Vote yes; what was the last vote needed carries it out. `width` is that of the plan as it was read. Gives what to
    tell. Raises MusterError."""
    ending: Ending = "key" if one_key(proposal, app.environment) else "digest"
    least = MIN_REASON if proposal.wants_reason else 0
    signing = "your vote is signed with your key" if proposal.signed else ""
    said = await _asked(app, proposal, "approve", ending, least, signing)
    if said is None:
        return f"{proposal.id}: no vote cast"
    signed = await _vote_signature(app, proposal, width)
    outcome = await _sent(
        proposal, "approve", said, lambda: app.client().approve(proposal.id, proposal.digest, said, signed)
    )
    return told(outcome, proposal.title)


async def own_yes(app: MusterApp, proposal: Proposal, width: int) -> tuple[str, Signed | None] | None:
    """Reason and signature of a person who approves their own request, which they have just confirmed at that width.
    None where they leave it after all. Raises MusterError."""
    said: str | None = ""
    if proposal.wants_reason:
        said = await _asked(app, proposal, "execute it", "reason", MIN_REASON)
    return None if said is None else (said, await _vote_signature(app, proposal, width))


async def approve_own(app: MusterApp, proposal: Proposal, said: str, signed: Signed | None) -> str:
    """Approve one's own proposal with the result of `own_yes`. Returns the text to show. Raises MusterError."""
    outcome = await _sent(
        proposal, "execute it", said, lambda: app.client().approve(proposal.id, proposal.digest, said, signed)
    )
    return told(outcome, proposal.title)


async def reject(app: MusterApp, proposal: Proposal) -> str:
    """Vote no. No harder than a yes, and a reason is asked for where a yes needs one."""
    said = await _asked(app, proposal, "reject", "key", MIN_REASON if proposal.wants_reason else 0)
    if said is None:
        return f"{proposal.id}: no vote cast"
    done = await _sent(
        proposal, "reject", said, lambda: app.client().vote(proposal.id, proposal.digest, "reject", said)
    )
    return f"{done.id} is {state_word(done.state)}: nothing will be executed"


async def execute(app: MusterApp, proposal: Proposal) -> str:
    if await _asked(app, proposal, "execute", "key" if one_key(proposal, app.environment) else "digest") is None:
        return f"{proposal.id}: cancelled, nothing done"
    return told(await _sent(proposal, "execute", "", lambda: app.client().execute(proposal.id)), proposal.title)


async def pause(app: MusterApp, proposal: Proposal) -> str:
    """No confirmation beside the reason: stopping is safe."""
    said = await _asked(app, proposal, "pause", "reason", 0)
    if said is None:
        return f"{proposal.id}: cancelled, still running"
    done = await _sent(proposal, "pause", said, lambda: app.client().pause(proposal.id, said))
    return f"{done.id} is {state_word(done.state)}"


async def go_on(app: MusterApp, proposal: Proposal) -> str:
    if await _asked(app, proposal, "resume", "key") is None:
        return f"{proposal.id}: still paused"
    return told(await _sent(proposal, "resume", "", lambda: app.client().resume(proposal.id)), proposal.title)


async def accept(app: MusterApp, proposal: Proposal) -> str:
    """Go on although the last step could not be verified."""
    last = next((each for each in reversed(proposal.standing) if each.state in ("failed", "inconclusive")), None)
    found = last.verified if last else ()
    if await _asked(app, proposal, "accept it as is and resume", "digest", None, *found) is None:
        return f"{proposal.id}: still paused"
    return told(
        await _sent(proposal, "accept it as is and resume", "", lambda: app.client().resume(proposal.id, accept=True)),
        proposal.title,
    )


async def say_go(app: MusterApp, proposal: Proposal) -> str:
    """To the step that waits for a word."""
    step = waiting_step(proposal)
    if step is None:
        raise RefusedError(f"no step of {proposal.id} waits for confirmation", "See the page for what it waits for")
    if (
        await _asked(app, proposal, f"confirm step {step}", "key" if one_key(proposal, app.environment) else "digest")
        is None
    ):
        return f"{proposal.id}: step {step} still waits"
    return told(
        await _sent(proposal, "confirm the step", "", lambda: app.client().confirm(proposal.id, step)), proposal.title
    )


async def roll_back(app: MusterApp, proposal: Proposal) -> str:
    """Show what that does now. Where the votes on it cover that, do it; else put it to the vote, as any other act."""
    asked = Request(rolls_back=proposal.id)
    now = await in_thread(lambda: app.client().preview(asked))
    if not now.covered:
        action = app.actions["roll_back"]
        shell = action.shell_line((proposal.id,))
        return await finish(app, action, lambda: app.client().propose(asked), shell, follow=True)
    ending: Ending = "key" if one_key(now, app.environment) else "digest"
    said = await _asked(app, proposal, "roll it back", ending, MIN_REASON, does=now)
    if said is None:
        return f"{proposal.id}: cancelled, nothing rolled back"
    return told(
        await _sent(proposal, "roll it back", said, lambda: app.client().rollback(proposal.id, said)),
        f"{proposal.title}, rolled back",
    )


async def withdraw(app: MusterApp, proposal: Proposal) -> str:
    said = await _asked(app, proposal, "withdraw", "reason", 0)
    if said is None:
        return f"{proposal.id}: cancelled, still open"
    done = await _sent(proposal, "withdraw", said, lambda: app.client().cancel(proposal.id, said))
    return f"{done.id} is {state_word(done.state)}"


async def ask_again(app: MusterApp, proposal: Proposal) -> str:
    """Show what it would do now, and put that to the vote: the author's as a new revision, anybody else's as a new
    proposal. Nobody has voted on either."""
    from console.tui.decision_dialogs import ConfirmDialog

    request = request_of(proposal)
    fresh = await in_thread(lambda: app.client().preview(request))
    if not await app.push_screen_wait(ConfirmDialog(fresh, "", app.clock, asks_only=True)):
        return f"{proposal.id}: cancelled, nothing proposed"

    def propose() -> Proposal:
        client = app.client()
        mine = client.whoami().me == proposal.plan.author.subject
        return client.revise(proposal.id, request) if mine else client.propose(request)

    made = await in_thread(propose)
    return f"{made.id} is proposed: {others_needed(made)}" if made.needs else f"{made.id} is proposed"


async def break_glass(app: MusterApp, proposal: Proposal, width: int) -> str:
    """Never by one key: a reason, then the digest; signed where votes are."""
    said = await _asked(app, proposal, "BREAK THE GLASS", "digest", MIN_GLASS, *WARNING, alarm=True)
    if said is None:
        return f"{proposal.id}: cancelled, nothing done"
    signed = await _signature(app, proposal, "breakglass", width) if proposal.signed else None
    outcome = await _sent(
        proposal, "BREAK THE GLASS", said, lambda: app.client().break_glass(proposal.id, proposal.digest, said, signed)
    )
    return f"{told(outcome, proposal.title)}\na review is now open"


async def _sent(proposal: Proposal, deed: str, said: str, call: Callable[[], T]) -> T:
    """Have the engine do it. Where it goes away meanwhile, say so plainly, and keep what was written for the next try.
    Asking twice does nothing twice: a vote counts once, and a plan is carried out once. Raises MusterError."""
    try:
        done = await in_thread(call)
    except UnreachableError as error:
        _UNSENT[proposal.id, deed] = said
        raise UnreachableError(
            f"connection lost before the engine confirmed '{deed}' for {proposal.id}: {error.problem}",
            "This page shows the result once the engine is back. Your text is kept; trying again cannot do it twice",
        ) from None
    _UNSENT.pop((proposal.id, deed), None)
    return done


async def _asked(
    app: MusterApp,
    proposal: Proposal,
    deed: str,
    ending: Ending,
    least_reason: int | None = None,
    *told: str,
    alarm: bool = False,
    does: Proposal | None = None,
) -> str | None:
    """The reason that was given, empty where none was asked for; None: no. `told` is said above what it is about;
    `does`: what is done, where that is not the proposal itself."""
    from console.tui.decision_dialogs import DecideDialog, DialogUpdate

    def sections(width: int) -> list[Section]:
        tone = "bad" if alarm else "warn"
        lines = [line for text in told if text for line in hanging("", printable(text), width, "", tone)]
        if does is not None:
            return [Section(printable(does.title), (*lines, *done_now(does, width)), f"{does.tier} now")]
        lines += step_lines(proposal, 4, width)
        lines += hanging("touches  ", ", ".join(touched(proposal.plan)), width, "dim")
        head = f"{proposal.id} {proposal.tier}, plan {printable(proposal.digest)[:12]}"
        title = printable(f"{deed[0].upper()}{deed[1:]}: {proposal.title}")
        if len(title) + len(head) + 3 > width:
            title, _, rest = title.partition(": ")
            lines = [*hanging("", rest, width, "", "strong"), text_line(head, "dim"), *lines]
            head = ""
        return [Section(title, tuple(lines), head)]

    def look() -> DialogUpdate:
        now = app.client().proposal(proposal.id)
        return DialogUpdate(new_votes(proposal, now), what_moved(proposal, now, _GOOD_IN.get(deed, (proposal.state,))))

    dialog = DecideDialog(
        sections, deed, ending, digest=(does or proposal).digest, least_reason=least_reason,
        written=_UNSENT.get((proposal.id, deed), ""), alarm=alarm, look=look, clock=app.clock,
    )  # fmt: skip
    return dialog.reason if await app.push_screen_wait(dialog) else None


def step_lines(proposal: Proposal, most: int, width: int) -> list[Line]:
    lines = [line for step in proposal.steps[:most] for line in hanging("· ", printable(step), width)[:2]]
    if len(proposal.steps) > most:
        lines.append(text_line(f"and {len(proposal.steps) - most:,} more", "dim"))
    return lines


def done_now(proposal: Proposal, width: int) -> list[Line]:
    """Effect of a rollback on the cell as it is now: steps, changes, affected work, reasons of its tier."""
    changed = [effect for effect in proposal.effects if effect.before != effect.after]
    return [
        *step_lines(proposal, MAX_STEPS, width),
        *(effect_lines(changed, width) if changed else []),
        *hanging("touches  ", ", ".join(touched(proposal.plan)), width, "dim"),
        *(line for why in proposal.why_tier for line in hanging("because  ", printable(why), width, "dim")),
    ]


async def _vote_signature(app: MusterApp, proposal: Proposal, width: int) -> Signed | None:
    """The signature of a vote, where the policy wants one or nothing else proves whose the vote is."""
    must_sign = proposal.signed or (await in_thread(lambda: app.client().whoami())).proved_by_key
    return await _signature(app, proposal, "vote", width) if must_sign else None


async def _signature(app: MusterApp, proposal: Proposal, kind: DecisionKind, width: int) -> Signed:
    """Over exactly this plan, and the text that was shown of it."""
    screen = screen_digest(plan_sections(proposal, width))

    def sign() -> Signed:
        return app.identity.sign(
            app.client().whoami(), kind=kind, proposal=proposal.id, revision=proposal.revision,
            digest=proposal.digest, verdict="approve", screen=screen,
        )  # fmt: skip

    return await in_thread(sign)


def ask_passphrase(app: MusterApp) -> Callable[[str], str]:
    """For a thread that signs: asks the person at the console. Raises RefusedError when they give none."""

    def ask(prompt: str) -> str:
        from console.tui.decision_dialogs import PassphraseDialog

        dialog, answer = PassphraseDialog(prompt), Future[bool]()
        app.call_from_thread(app.push_screen, dialog, lambda given: answer.set_result(bool(given)))
        if not answer.result():
            raise RefusedError("no passphrase was given, so nothing was signed", "No vote was cast; vote again to sign")
        return dialog.value

    return ask


def told(outcome: Outcome, title: str) -> str:
    """Result of a step, for the person who took it."""
    if outcome.waits_for:
        return f"{outcome.proposal}: your vote is recorded. Waiting for {outcome.waits_for}"
    if outcome.state == "rolled_back":
        # What was read back tells of the effect, not of its undoing.
        return f"{title}: done"
    if outcome.state == "verified":
        return "\n".join([f"{title}: done", *outcome.verified[:5]])
    return "\n".join([f"{title}: {state_word(outcome.state)}", *outcome.verified[:5]])


def put_to_vote(proposal: Proposal) -> str:
    """As in "P-3 is open for votes until 13:00:00 UTC (wall)"."""
    until = wall_time(proposal.expires_ms, date=False)
    return "\n".join(
        (
            f"{proposal.id} is open for votes until {until}",
            f"{others_needed(proposal)}; follow it with :proposals",
        )
    )


async def propose(app: MusterApp, action: ConsoleAction, ids: tuple[str, ...]) -> str:
    """Propose, and return the text to show in the end. Raises MusterError where the engine refuses or does not
    answer."""
    name = cast("ActionName", action.id)
    return await finish(app, action, lambda: app.client().propose(asks(name, ids)), action.shell_line(ids))
