"""The commands of proposals: put to the vote, shown, voted on, carried out, paused, taken back, reviewed.

Whatever is decided on is shown first, rendered from the typed plan, and a vote names the digest of exactly that.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, get_args

from console.cli.acting import (
    WIDTH,
    act,
    ask_for_yes,
    at_terminal,
    go_on,
    proposal_lines,
    propose_and_do,
    signature,
    told,
    why_yes,
)
from console.cli.show import tell_lines, write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import table
from console.text.terminal_text import cut, duration, printable, timestamp
from console.views.decisions.proposal import (
    SHOWN_STATES,
    Fresh,
    carried_sections,
    head_section,
    in_order,
    list_note,
    name_of,
    plan_sections,
    stale_section,
    state_word,
    step_section,
    time_left,
    vote_section,
    votes_word,
    waits_for_me,
    what_next,
    why_not_mine,
    word_sections,
)
from console.views.decisions.proposal_needs import request_of
from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.plans import proposal_states
from runbooks.plans.typed_plan import DIGEST_TYPED

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.views.sections import Section
    from runbooks.plans.typed_plan import Outcome, Proposal, Request, Review
    from runbooks.policy.approval_policy import Verdict
    from runbooks.policy.queries import Caller

COLUMNS = 80
"""Of a terminal that a list must fit."""
MAX_LISTED = 200
_PROPOSAL = re.compile(r"P-[0-9]{1,11}")


# -- asking -----------------------------------------------------------------------------------------------------------


def propose(arguments: argparse.Namespace) -> None:
    """Its id to standard output; what was put to the vote, and whose votes it needs, beside it."""
    with closing(connect(arguments)) as client:
        request = _asked(arguments, client)
        if arguments.dry_run:
            shown = client.preview(request)
            write_json(shown) if arguments.json else write_lines(proposal_lines(shown))
            return
        made = client.propose(request)
        now_ms = client.whoami().now_ms
    _put(arguments, made, now_ms)


def revise(arguments: argparse.Namespace) -> None:
    """Without a file: the same again, for the cell as it is now."""
    with closing(connect(arguments)) as client:
        if arguments.file:
            from console.forms.plan_files import read_plan

            request = read_plan(arguments.file)
        else:
            request = request_of(client.proposal(arguments.id))
        made = client.revise(arguments.id, request)
        now_ms = client.whoami().now_ms
    _put(arguments, made, now_ms)


def _asked(arguments: argparse.Namespace, client: Client) -> Request:
    import msgspec

    if arguments.again:
        if arguments.file or arguments.action:
            raise SpecError("propose", "--again takes neither an action nor a file", "Ask for one of them")
        request = request_of(client.proposal(arguments.again))
        return msgspec.structs.replace(
            request,
            reason=arguments.reason or request.reason,
            start="asked" if arguments.when_asked else request.start,
        )
    if arguments.file and arguments.action:
        raise SpecError("propose", "takes an action or a file, not both", "Put the action into the file")
    if arguments.file:
        from console.forms.plan_files import read_plan

        return read_plan(arguments.file, arguments.reason, when_asked=arguments.when_asked)
    if not arguments.action:
        raise SpecError("propose", "needs an action, or a file with -f", "See `muster propose --help`")
    from console.actions.request_builder import wanted

    request = wanted(client, arguments.action, arguments, arguments.reason, arguments.suggestion)
    return msgspec.structs.replace(request, start="asked") if arguments.when_asked else request


def _put(arguments: argparse.Namespace, made: Proposal, now_ms: int) -> None:
    if arguments.json:
        write_json(made)
        return
    _say(proposal_lines(made))
    write_lines([made.id])
    until = f"expires in {duration(max(0, made.expires_ms - now_ms))}"
    needs = f"needs {made.needs} more vote{'s' if made.needs != 1 else ''} of {made.need}, " if made.needs else ""
    _say([f"{made.id}, revision {made.revision}: {printable(needs)}{until}; muster approve {made.id}"])


# -- looking ----------------------------------------------------------------------------------------------------------


def proposals(arguments: argparse.Namespace) -> None:
    """What needs a person first; those that are over only when asked for."""
    states = _states(arguments)
    with closing(connect(arguments)) as client:
        me = client.whoami()
        found = client.proposals(states, MAX_LISTED)
        roles = _roles(client, me)
    if arguments.mine:
        found = tuple(each for each in found if each.plan.author.subject == me.me)
    ordered = in_order(found, me.me)
    ordered.sort(key=lambda each: not waits_for_me(each, me.me, roles))
    if arguments.json:
        write_json(ordered)
        return
    write_lines(list_lines(ordered, me.now_ms))
    mine = [printable(each.id) for each in ordered if waits_for_me(each, me.me, roles)]
    if mine:
        shown = ", ".join(mine[:5]) + (f" and {len(mine) - 5} more" if mine[5:] else "")
        write_lines(["", f"waiting for your vote: {shown}; muster show {mine[0]}, then muster approve {mine[0]}"])
    if not found and not arguments.all and not arguments.state:
        _say(["what is over: muster proposals --all"])
    if len(found) == MAX_LISTED:
        _say([f"the newest {MAX_LISTED} are shown; choose with --state"])


def _roles(client: Client, me: Caller) -> frozenset[str]:
    """Of whoever asks: those of the person that they say they are, else those of their account."""
    person = next((line for line in client.policy().people if f"person:{line[0]}" == me.me), None)
    return frozenset(me.roles if person is None else person[1].replace(",", " ").split())


def _states(arguments: argparse.Namespace) -> tuple[str, ...]:
    known = get_args(proposal_states.State)
    for state in arguments.state or ():
        if state not in known:
            near = difflib.get_close_matches(state, known, n=1)
            remedy = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}"
            raise SpecError("--state", f"{state[:40]!a} is no state", remedy)
    return tuple(arguments.state or (() if arguments.all else SHOWN_STATES))


def list_lines(found: Sequence[Proposal], now_ms: int) -> list[str]:
    """One line each, at most COLUMNS wide."""
    if not found:
        return ["nothing is proposed"]
    titles = ("ID", "STATE", "TIER", "TITLE", "AUTHOR", "VOTES", "EXPIRES IN")
    rows = [
        [
            printable(each.id), state_word(each.state), each.tier, printable(each.title),
            cut(name_of(each.plan.author.subject), 12), votes_word(each), time_left(each, now_ms)[0],
        ]
        for each in found
    ]  # fmt: skip
    others = sum(max(len(row[i]) for row in (titles, *rows)) + 2 for i in range(len(titles)) if i != 3)
    for row in rows:
        row[3] = cut(row[3], max(12, COLUMNS - others))
    lines = table(titles, rows, (False, False, False, False, False, True, True))
    notes = [cut(f"{printable(each.id)}: {list_note(each)}", COLUMNS) for each in found if list_note(each)]
    return [*lines, *(["", *notes] if notes else [])]


def show(arguments: argparse.Namespace) -> None:
    """All that a voter must see, in the order in which it is decided on."""
    with closing(connect(arguments)) as client:
        proposal = client.proposal(arguments.id)
        if arguments.json:
            write_json(proposal)
            return
        me = client.whoami()
        fresh = _fresh(client, proposal)
    write_lines(show_lines(proposal, me.now_ms, me.me, fresh))
    if proposal.state != "awaiting":
        write_lines(["", what_next(proposal)])


def show_lines(proposal: Proposal, now_ms: int, me: str, fresh: Fresh | None) -> list[str]:
    sections = [
        head_section(proposal, now_ms, WIDTH),
        *plan_sections(proposal, WIDTH),
        *carried_sections(proposal, WIDTH),
        vote_section(proposal, WIDTH, me),
        *step_section(proposal, WIDTH),
        *stale_section(proposal, WIDTH, fresh),
        *word_sections(proposal, WIDTH),
    ]
    return section_lines(sections)


def section_lines(sections: Sequence[Section]) -> list[str]:
    """Headed paragraphs, as text."""
    lines: list[str] = []
    for section in sections:
        note = f"  ({section.note})" if section.note else ""
        lines += ["", f"{section.title}{note}"] if lines else [f"{section.title}{note}"]
        lines += [("  " + "".join(text for text, _ in line.spans)).rstrip() for line in section.lines]
    return lines


def _fresh(client: Client, proposal: Proposal) -> Fresh | None:
    """What proposing a stale plan again would show."""
    if not proposal.stale:
        return None
    try:
        return Fresh(client.preview(request_of(proposal)))
    except MusterError as error:
        return Fresh(None, error.problem)


# -- deciding ---------------------------------------------------------------------------------------------------------


def approve(arguments: argparse.Namespace) -> int:
    """Shows the plan, has the yes confirmed, and votes on the digest of what was shown."""
    with closing(connect(arguments)) as client:
        proposal = _shown(arguments, client)
        why_not = why_not_mine(proposal, client.whoami().me)
        if why_not and not arguments.digest:
            raise RefusedError(f"you {why_not}", f"Whose votes count: muster show {proposal.id}")
        _confirm(arguments, proposal)
        comment = why_yes(proposal, arguments.comment)
        must_sign = proposal.signed or client.whoami().proved_by_key
        signed = signature(arguments, client, proposal, "vote", "approve") if must_sign else None
        outcome = client.approve(proposal.id, proposal.digest, comment, signed)
        then = go_on(client, outcome)
    return told(arguments, outcome, then)


def reject(arguments: argparse.Namespace) -> None:
    _vote(arguments, "reject", arguments.reason)


def abstain(arguments: argparse.Namespace) -> None:
    _vote(arguments, "abstain", arguments.comment)


def _vote(arguments: argparse.Namespace, verdict: Verdict, comment: str) -> None:
    with closing(connect(arguments)) as client:
        proposal = client.proposal(arguments.id)
        shown = client.vote(proposal.id, proposal.digest, verdict, comment)
    _stands(arguments, shown)


def break_glass(arguments: argparse.Namespace) -> int:
    """Never without the digest: it does what others would have had to agree to."""
    with closing(connect(arguments)) as client:
        proposal = _shown(arguments, client)
        _confirm(arguments, proposal, always_digest=True)
        signed = signature(arguments, client, proposal, "breakglass", "approve") if proposal.signed else None
        outcome = client.break_glass(proposal.id, proposal.digest, arguments.reason, signed)
    _say(["the glass was broken: another person must close the review, see muster reviews"])
    return told(arguments, outcome)


def _shown(arguments: argparse.Namespace, client: Client) -> Proposal:
    """The proposal, after showing it beside what is the command's output. Raises RefusedError where nothing is to be
    decided any more."""
    proposal = client.proposal(arguments.id)
    me = client.whoami()
    if proposal.state != "awaiting" and not arguments.digest:
        # With a digest the gate refuses, which puts it on record.
        note = f": {printable(proposal.note)}" if proposal.note else ""
        raise RefusedError(f"{proposal.id} is {state_word(proposal.state)}{note}", what_next(proposal))
    _say(show_lines(proposal, me.now_ms, me.me, None))
    _say([""])
    return proposal


def _confirm(arguments: argparse.Namespace, proposal: Proposal, *, always_digest: bool = False) -> None:
    """Raises RefusedError unless the digest's beginning was given, or a person at the terminal says yes."""
    import msgspec

    if arguments.digest:
        given = arguments.digest.strip().lower()
        if len(given) < DIGEST_TYPED or not proposal.digest.startswith(given):
            raise RefusedError(
                f"{given[:64]!a} is not the beginning of the digest of {proposal.id}, of {DIGEST_TYPED} characters or "
                "more",
                f"Look at it again: muster show {proposal.id}",
            )
        return
    if not at_terminal():
        raise RefusedError(
            "nobody can be asked here, so nothing was done",
            f"Give --digest with the first {DIGEST_TYPED} characters or more of the plan's digest",
        )
    ask_for_yes(msgspec.structs.replace(proposal, typed="digest") if always_digest else proposal, "")


# -- doing ------------------------------------------------------------------------------------------------------------


def execute(arguments: argparse.Namespace) -> int:
    return _do(arguments, lambda client: client.execute(arguments.id))


def resume(arguments: argparse.Namespace) -> int:
    """Of a proposal, or the action of that name on workloads."""
    if len(arguments.ids) == 1 and _PROPOSAL.fullmatch(arguments.ids[0]):
        return _do(arguments, lambda client: client.resume(arguments.ids[0], arguments.accept))
    if arguments.accept:
        raise SpecError("--accept", "is for a proposal", "Give the id of one, such as P-3")
    return act(arguments)


def confirm(arguments: argparse.Namespace) -> int:
    return _do(arguments, lambda client: client.confirm(arguments.id, arguments.step))


def rollback(arguments: argparse.Namespace) -> int:
    """Shows what it does now, asks, and does it where the votes on the proposal cover that; else it is proposed, and
    asks as any other act."""
    from runbooks.plans.typed_plan import Request

    request = Request(rolls_back=arguments.id, reason=arguments.reason)
    with closing(connect(arguments)) as client:
        shown = client.preview(request)
        if arguments.dry_run or not shown.covered:
            return propose_and_do(arguments, client, request)
        _say(proposal_lines(shown))
        if not arguments.yes:
            ask_for_yes(shown, "Add --yes to do what is shown")
        outcome = client.rollback(arguments.id, why_yes(shown, arguments.reason))
        then = go_on(client, outcome)
    return told(arguments, outcome, then)


def _do(arguments: argparse.Namespace, deed: Callable[[Client], Outcome]) -> int:
    with closing(connect(arguments)) as client:
        outcome = deed(client)
        then = go_on(client, outcome)
    return told(arguments, outcome, then)


def pause(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        shown = client.pause(arguments.id, arguments.reason)
    _stands(arguments, shown)


def withdraw(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        shown = client.cancel(arguments.id, arguments.reason)
    _stands(arguments, shown)


def _stands(arguments: argparse.Namespace, shown: Proposal) -> None:
    if arguments.json:
        write_json(shown)
        return
    write_lines([shown.id])
    note = f": {printable(shown.note)}" if shown.note else ""
    _say([f"{shown.id} is {state_word(shown.state)}{note}"])


# -- reviews ----------------------------------------------------------------------------------------------------------


def reviews(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        found = client.reviews()
    write_json(found) if arguments.json else write_lines(review_lines(found))


def review_lines(found: Sequence[Review]) -> list[str]:
    if not found:
        return ["no reviews"]
    rows = [
        [
            str(each.id), "closed" if each.closed_ms else "open", timestamp(each.opened_ms), printable(each.about),
            cut(name_of(each.closed_by or each.subject), 16), cut(printable(each.text), 28),
        ]
        for each in found
    ]  # fmt: skip
    return table(("N", "STATE", "SINCE", "ABOUT", "WHOSE", "WHAT"), rows, (True, *([False] * 5)))


def close_review(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        client.close_review(arguments.review, arguments.comment)
    if arguments.json:
        write_json({"review": arguments.review, "state": "closed"})
        return
    write_lines([str(arguments.review)])
    _say([f"review {arguments.review} is closed"])


def _say(lines: Sequence[str]) -> None:
    tell_lines(lines)
