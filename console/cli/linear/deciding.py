"""Deciding in the console's line mode: the same gate, and the same guards, as on the screen.

A plan is voted on once it was said to its end, by the beginning of its digest where the policy wants that, and signed
where votes are. The default answer is no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from console.cli.linear.spoken_text import SpokenLine, said_of
from console.views.decisions.proposal import (
    carried_sections,
    head_section,
    plan_sections,
    screen_digest,
    state_word,
    step_section,
    vote_section,
    what_next,
    why_not_mine,
    word_sections,
)
from console.views.decisions.proposal_needs import by_author_alone, one_key, others_needed
from engine.model.errors import RefusedError, SpecError
from runbooks.plans.typed_plan import DIGEST_TYPED, Outcome, Proposal, Request, asks

if TYPE_CHECKING:
    from console.actions.action_types import Action
    from console.auth.identity import Identity
    from console.client.protocol import Client
    from runbooks.people.identity import Signed
    from runbooks.plans.typed_plan import ActionName

DECISIONS = ("approve", "reject", "execute", "pause", "withdraw", "roll_back")
MIN_REASON = 3
"""Characters of a reason."""
WIDTH = 100
"""Of the plan whose text is hashed for a signature, in cells."""


class Deciding:
    """What one person has heard of plans, and what they answer."""

    def __init__(
        self,
        client: Callable[[], Client],
        identity: Identity,
        say: Callable[[str], None],
        ask: Callable[[str], str],
    ) -> None:
        self._client = client
        self._identity = identity
        self._say = say
        self._ask = ask
        self._said: dict[str, str] = {}
        """Proposal -> digest of the plan that was looked up last."""
        self._heard: dict[str, str] = {}
        """Proposal -> digest of the plan that was said to its end."""

    # --- looking

    def shown(self, proposal_id: str) -> list[SpokenLine]:
        """All that a voter must hear, in the order in which it is decided on."""
        proposal, caller = self._client().proposal(proposal_id), self._client().whoami()
        self._said[proposal_id] = proposal.digest
        return said_of(
            [
                head_section(proposal, caller.now_ms, WIDTH),
                *plan_sections(proposal, WIDTH),
                *carried_sections(proposal, WIDTH),
                vote_section(proposal, WIDTH, caller.me),
                *step_section(proposal, WIDTH),
                *word_sections(proposal, WIDTH),
            ]
        )

    def read_to_the_end(self, proposal_id: str) -> None:
        self._heard[proposal_id] = self._said[proposal_id]

    # --- acting

    def act(self, action: Action, argument: str) -> None:
        """Say what it would do; on a yes, put it to the vote. Nothing is done by that. Raises MusterError."""
        from console.actions.request_builder import parse, wanted

        client = self._client()
        if action.argument == "flags":
            name = action.commands[0]
            request = wanted(client, name, parse(name, argument))
        elif argument:
            request = asks(cast("ActionName", action.id), tuple(argument.split()))
        else:
            raise SpecError("", f"{action.commands[0]} needs an id", f"Say {action.commands[0]} ID")
        for line in said_of(plan_sections(client.preview(request), WIDTH)):
            self._say(line.text)
        self._put_to_vote(request)

    def _put_to_vote(self, request: Request) -> None:
        if not self._yes("Propose this?"):
            self._say("nothing was proposed")
            return
        made = self._client().propose(request)
        who = "you may approve it yourself" if by_author_alone(made) else others_needed(made)
        self._say(f"{made.id} is put to the vote; nothing is done yet; {who}. Say approve {made.id}")

    def decide(self, deed: str, argument: str) -> str:
        """Do it. Gives the id of a proposal that must be read before. Raises MusterError."""
        proposal_id, _, reason = argument.partition(" ")
        if deed == "reject" and not proposal_id.startswith("P-"):
            done = self._client().reject_recommendation(proposal_id, reason)
            self._say(f"{done.suggestion.id} is set aside until things change")
            return ""
        proposal = self._client().proposal(proposal_id)
        if deed == "approve":
            return self._approve(proposal)
        if deed in ("execute", "roll_back"):
            self._carry_out(deed, proposal, reason)
            return ""
        reason = reason or self._ask("Why?")
        if len(reason) < MIN_REASON:
            self._say(f"{proposal.id}: nothing was done, that needs a reason")
            return ""
        match deed:
            case "reject":
                done_now = self._client().vote(proposal.id, proposal.digest, "reject", reason)
            case "pause":
                done_now = self._client().pause(proposal.id, reason)
            case _:
                done_now = self._client().cancel(proposal.id, reason)
        self._say(f"{done_now.id} is {state_word(done_now.state)}")
        return ""

    def _approve(self, proposal: Proposal) -> str:
        if proposal.state != "awaiting":
            raise RefusedError(f"{proposal.id} is {state_word(proposal.state)}", what_next(proposal))
        if proposal.plan.digest() != proposal.digest:
            raise RefusedError("the plan that is told does not have the digest that is told", "Run muster audit verify")
        caller = self._client().whoami()
        why_not = why_not_mine(proposal, caller.me)
        if why_not:
            raise RefusedError(f"you {why_not}", f"Whose votes count: show {proposal.id}")
        if self._heard.get(proposal.id) != proposal.digest:
            self._say(f"hear {proposal.id} to its end first, with next; then say approve {proposal.id} again")
            return proposal.id
        self._say(f"to approve: {proposal.title}, {proposal.tier}")
        comment = ""
        if proposal.wants_reason:
            comment = self._ask("Why?")
            if len(comment) < MIN_REASON:
                self._say(f"{proposal.id}: you have not voted, that needs a reason")
                return ""
        if not self._agreed(proposal, "approve it"):
            self._say(f"{proposal.id}: you have not voted")
            return ""
        signed = self._signature(proposal) if proposal.signed or caller.proved_by_key else None
        self._tell(self._client().approve(proposal.id, proposal.digest, comment, signed))
        return ""

    def _carry_out(self, deed: str, proposal: Proposal, reason: str) -> None:
        if deed == "roll_back":
            self._roll_back(proposal, reason)
            return
        self._say(f"{deed.replace('_', ' ')}: {proposal.title}, {proposal.tier}")
        if not self._agreed(proposal, "do it"):
            self._say(f"{proposal.id}: nothing was done")
            return
        self._tell(self._client().execute(proposal.id))

    def _roll_back(self, proposal: Proposal, reason: str) -> None:
        """Say what it does now, and do that where the votes on the proposal cover it; else put it to the vote."""
        request = Request(rolls_back=proposal.id, reason=reason)
        now = self._client().preview(request)
        self._say(f"{now.title}, {now.tier} now")
        for line in said_of(plan_sections(now, WIDTH)):
            self._say(line.text)
        reason = reason or self._ask("Why?")
        if len(reason) < MIN_REASON:
            self._say(f"{proposal.id}: nothing was taken back, that needs a reason")
        elif not now.covered:
            self._say(now.note)
            self._put_to_vote(msgspec.structs.replace(request, reason=reason))
        elif self._agreed(now, "do it"):
            self._tell(self._client().rollback(proposal.id, reason))
        else:
            self._say(f"{proposal.id}: nothing was done")

    def _agreed(self, proposal: Proposal, deed: str) -> bool:
        """By yes, or by the beginning of the digest where the tier or the policy wants that."""
        if one_key(proposal):
            return self._yes(f"To {deed}:")
        wanted = proposal.digest[:DIGEST_TYPED]
        return self._ask(f"To {deed}, type {wanted}; anything else leaves it:").lower() == wanted

    def _yes(self, question: str) -> bool:
        return self._ask(f"{question} type yes; anything else leaves it:").lower() == "yes"

    def _signature(self, proposal: Proposal) -> Signed:
        return self._identity.sign(
            self._client().whoami(), kind="vote", proposal=proposal.id, revision=proposal.revision,
            digest=proposal.digest, verdict="approve", screen=screen_digest(plan_sections(proposal, WIDTH)),
        )  # fmt: skip

    def _tell(self, outcome: Outcome) -> None:
        from console.cli.acting import outcome_lines

        for line in outcome_lines(outcome):
            self._say(line.strip())
