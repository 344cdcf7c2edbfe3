"""Open needs of a proposal: who else must vote, which key is next, what has changed, and the request to ask again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.actions.key_map import key_of
from console.forms.settings import Environment
from console.text.terminal_text import duration, printable, wall_time
from console.views.proposal import name_of, state_word, why_not_mine
from engine.model.quantities import counted
from runbooks.plans import typed_plan
from runbooks.plans.typed_plan import Plan, Proposal, Request, StepRequest

if TYPE_CHECKING:
    pass


VOTED = {"approve": "yes", "reject": "no", "abstain": "neither"}


def one_key(proposal: Proposal, environment: Environment) -> bool:
    """True where `y` approves. The tier, the policy or the environment may want the digest instead."""
    return proposal.typed == "key" and proposal.tier in ("T0", "T1") and environment.confirm == "usual"


def by_author_alone(proposal: Proposal) -> bool:
    """True where no votes of others are needed."""
    return not proposal.needs or (proposal.self_approvable and proposal.needs == 1)


def others_needed(proposal: Proposal) -> str:
    """As in "needs 1 vote from others: approver, neither its author nor who asked for it"."""
    votes = "1 vote" if proposal.needs == 1 else f"{proposal.needs} votes"
    return f"needs {votes} from others: {printable(proposal.need)}"


def press_next(proposal: Proposal, me: str, now_ms: int, *, read: bool, waits_for_word: bool, unverified: bool) -> str:
    """The key to press next, or the reason for waiting, for the title line."""
    state = proposal.state
    back, again = key_of("roll_back"), key_of("ask_again")
    if state == "awaiting":
        if why_not_mine(proposal, me):
            return f"waiting for {votes_missing(proposal)} from others"
        if any(vote.subject == me and vote.verdict == "approve" and not vote.counts for vote in proposal.votes):
            return f"you voted; waiting for {votes_missing(proposal)} more"
        return (
            f"{key_of('approve')} approves, {key_of('reject')} rejects"
            if read
            else "scroll to the end of the plan to vote (pgdn, G)"
        )
    if state == "paused":
        if unverified:
            return f"{key_of('accept')} accepts it as is, {back} rolls it back"
        onwards = f"{key_of('say_go')} confirms" if waits_for_word else f"{key_of('go_on')} resumes"
        return f"{onwards}, {back} rolls it back"
    if state in typed_plan.LIVE:
        return progress(proposal, now_ms)
    takes_back = any(step.rollback for step in proposal.plan.steps)
    return {
        "approved": f"{key_of('execute')} executes it",
        "verified": "verified" + (f": {back} rolls it back" if takes_back else ""),
        "failed": f"{back} rolls back the finished steps" if takes_back else "failed; cannot be rolled back",
        "rollback_failed": f"{back} retries the rollback",
        "stale": f"{again} proposes it again for the current state",
        "expired": f"{again} proposes it again",
        "rolled_back": "rolled back",
    }.get(state, "")


def votes_missing(proposal: Proposal) -> str:
    return counted(proposal.needs, "vote")


def progress(proposal: Proposal, now_ms: int) -> str:
    """Progress of a running plan: "step 2 of 3, drain: 4m 10s of at most 20m". `now_ms` is the engine's wall clock."""
    steps = list(zip(proposal.plan.steps, proposal.standing, strict=False))
    for number, (step, standing) in enumerate(steps, 1):
        if standing.state in ("verified", "rolled_back"):
            continue
        what = f"step {number} of {len(steps)}, {printable(step.act.action).replace('_', ' ')}"
        if standing.state == "done" and standing.at_ms:
            gone = max(0, now_ms - standing.at_ms)
            return f"{what}: verifying, {duration(gone)} of at most {duration(step.timeout_ms)}"
        return f"{what}: {standing.state.replace('_', ' ')}"
    return f"all {len(steps)} steps are done"


def what_moved(shown: Proposal, now: Proposal, good_in: Sequence[str]) -> str:
    """Reason why an answer to the plan shown would come too late: who did what, and when. Empty while it would not."""
    if now.digest != shown.digest:
        return f"{printable(now.id)} has a new plan, revision {now.revision}: review that one"
    if now.state in good_in:
        return ""
    return f"{printable(now.id)} {became(now)}: no answer is needed any more"


def became(proposal: Proposal) -> str:
    """As in "is verified, approved by bob at 12:00:03 UTC (wall)": its state, and by whom it came to that."""
    last = max(proposal.votes, key=lambda vote: vote.at_ms, default=None)
    state = f"is {state_word(proposal.state)}"
    if last is None or proposal.state in ("cancelled", "expired", "superseded"):
        return f"{state}{f', {printable(proposal.note)}' if proposal.note else ''}"
    word = {"approve": "approved", "reject": "rejected", "abstain": "reviewed"}[last.verdict]
    return f"{state}, {word} by {name_of(last.subject)} at {wall_time(last.at_ms, date=False)}"


def new_votes(shown: Proposal, now: Proposal) -> str:
    """Votes that came while it was looked at, as in "bob votes yes"; empty where there is none."""
    before = {(vote.subject, vote.verdict, vote.at_ms) for vote in shown.votes}
    came = [vote for vote in now.votes if (vote.subject, vote.verdict, vote.at_ms) not in before]
    return ", ".join(f"{name_of(vote.subject)} voted {VOTED[vote.verdict]} just now" for vote in came)


def waiting_step(proposal: Proposal) -> str | None:
    """The step that is done once somebody says go: the first not begun, of what is paused."""
    if proposal.state != "paused":
        return None
    for step, standing in zip(proposal.plan.steps, proposal.standing, strict=False):
        if standing.state == "waiting":
            return step.id if step.confirm != "none" else None
        if standing.state != "verified":
            return None
    return None


def unverified(proposal: Proposal) -> bool:
    """Something that was done is not seen to have worked."""
    return any(each.state in ("failed", "inconclusive") for each in proposal.standing)


def request_of(proposal: Proposal) -> Request:
    """The request of a proposal, to ask for it again. The catalogue makes new ways back from the present state."""
    plan: Plan = proposal.plan
    if plan.rolls_back:
        return Request(rolls_back=plan.rolls_back, reason=proposal.reason, start=plan.start)
    steps = tuple(
        StepRequest(
            act=step.act, id=step.id, pre=step.pre, verify=step.verify, on_fail=step.on_fail, confirm=step.confirm
        )
        for step in plan.steps
    )
    return Request(
        steps=steps, reason=proposal.reason, requester=plan.requester, source=plan.source, limits=plan.limits,
        evidence=plan.evidence, start=plan.start,
    )  # fmt: skip
