"""Commands of proposals: propose, show, vote, execute, pause, roll back, review; and the plan file.

A decision is on a plan that was shown first, drawn from its typed form, and a vote names its digest. A plan file is
strict YAML for several steps. Tiers, votes and expiry cannot be written into it.

    reason: rack 4 gets new power
    limits: {nodes: 2}
    when_asked: true                      # somebody executes it; else the last vote does
    steps:
      - id: first
        action: drain
        targets: [g0]
        pre: [{check: node_state, of: g0, op: "==", value: ready}]
        verify: [{check: node_workloads, of: g0, op: "==", value: 0, within_ms: 600000}]
        on_fail: rollback                 # or pause, abort
      - action: uncordon
        targets: [g1]
        confirm: approver                 # or operator, none
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec
from rich.cells import cell_len

from console.client.attach import connect
from console.commands.acting import (
    WIDTH,
    ask_for_yes,
    go_on,
    print_outcome,
    proposal_lines,
    propose_and_do,
    signature,
    why_yes,
)
from console.commands.show import at_terminal, tell_lines, write_json, write_lines
from console.forms.filters import parse_filter
from console.text.plain_tables import table
from console.text.terminal_text import cut, duration, printable, timestamp
from console.views.decision_needs import request_of
from console.views.lists import rows_that_match
from console.views.proposal import (
    LIST_HEADINGS,
    SHOWN_STATES,
    Fresh,
    decision_sections,
    in_order,
    list_row,
    list_rows,
    name_of,
    state_word,
    waits_for_me,
    what_next,
    why_not_mine,
)
from console.views.sections import section_lines
from engine.model.errors import Misfit, MusterError, RefusedError, SpecError, did_you_mean, misfit
from engine.model.quantities import counted, shortlist
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import DIGEST_TYPED, Act, EvidenceRef, Limits, Request, StepRequest
from runbooks.untrusted.strict_formats import MAX_BYTES, YamlDocument, read

if TYPE_CHECKING:
    from console.client.protocol import Client
    from runbooks.gate.approval_policy import Caller, Verdict
    from runbooks.plans.typed_plan import Outcome, Proposal, Review


COLUMNS = 80
"""Terminal width that a list must fit."""
MAX_LISTED = 200


# -- asking -----------------------------------------------------------------------------------------------------------


def propose(arguments: argparse.Namespace) -> None:
    """Propose: the id goes to standard output, the plan and its missing votes to standard error."""
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
    """Revise a proposal; without a file, for the cell as it is now."""
    with closing(connect(arguments)) as client:
        request = read_plan(arguments.file) if arguments.file else request_of(client.proposal(arguments.id))
        made = client.revise(arguments.id, request)
        now_ms = client.whoami().now_ms
    _put(arguments, made, now_ms)


def _asked(arguments: argparse.Namespace, client: Client) -> Request:
    import msgspec

    if arguments.again:
        if arguments.file or arguments.action:
            raise SpecError("propose", "--again takes neither an action nor a file", "Give one of them")
        request = request_of(client.proposal(arguments.again))
        return msgspec.structs.replace(
            request,
            reason=arguments.reason or request.reason,
            start="asked" if arguments.when_asked else request.start,
        )
    if arguments.file and arguments.action:
        raise SpecError("propose", "takes an action or a file, not both", "Put the action into the file")
    if arguments.file:
        return read_plan(arguments.file, arguments.reason, when_asked=arguments.when_asked)
    if not arguments.action:
        raise SpecError("propose", "needs an action, or a file with -f", "See `muster proposal new --help`")
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
    needs = f"needs {counted(made.needs, 'more vote')}: {made.need}; " if made.needs else ""
    _say([f"{made.id}, revision {made.revision}: {printable(needs)}{until}; muster proposal approve {made.id}"])


# -- looking ----------------------------------------------------------------------------------------------------------


def proposals(arguments: argparse.Namespace) -> None:
    """List the proposals that need a person; finished ones on request."""
    terms = parse_filter("proposals", arguments.filter)
    with closing(connect(arguments)) as client:
        me = client.whoami()
        found = client.proposals(() if arguments.all or terms else SHOWN_STATES, MAX_LISTED)
        roles = _roles(client, me)
    kept = {row.id for row in rows_that_match(list_rows(found, me.now_ms, me.me), LIST_HEADINGS, terms)}
    ordered = [each for each in in_order(found, me.me) if each.id in kept]
    if arguments.mine:
        ordered = [each for each in ordered if each.plan.author.subject == me.me]
    ordered.sort(key=lambda each: not waits_for_me(each, me.me, roles))
    if arguments.json:
        write_json(ordered)
        return
    write_lines(list_lines(ordered, me.now_ms))
    mine = [printable(each.id) for each in ordered if waits_for_me(each, me.me, roles)]
    if mine:
        shown = shortlist(mine)
        write_lines(
            [
                "",
                f"waiting for your vote: {shown}; muster proposal show {mine[0]}, muster proposal approve {mine[0]}",
            ]
        )
    if not ordered and not arguments.all and not terms:
        _say(["closed ones: muster proposal list --all"])
    if len(found) == MAX_LISTED:
        _say([f"only the newest {MAX_LISTED} were looked at"])


def _roles(client: Client, me: Caller) -> frozenset[str]:
    """Roles of the caller: of the person they claim to be, else of their account."""
    person = next((line for line in client.policy().people if f"person:{line[0]}" == me.me), None)
    return frozenset(me.roles if person is None else person[1].replace(",", " ").split())


def list_lines(found: Sequence[Proposal], now_ms: int) -> list[str]:
    """The rows of the page's list, at most COLUMNS wide; what the page has in its column of notes stands below."""
    if not found:
        return ["no proposals"]
    shown = [list_row(each, now_ms) for each in found]
    rows = [[text for text, _ in row.cells[:-1]] for row in shown]
    titles = [heading.title for heading in LIST_HEADINGS[:-1]]
    at = next(n for n, heading in enumerate(LIST_HEADINGS) if heading.name == "title")
    others = sum(max(cell_len(row[i]) for row in (titles, *rows)) + 2 for i in range(len(titles)) if i != at)
    for row in rows:
        row[at] = cut(row[at], max(12, COLUMNS - others))
    lines = table(titles, rows, [heading.right for heading in LIST_HEADINGS[:-1]])
    notes = [cut(f"{printable(row.id)}: {row.cells[-1][0]}", COLUMNS) for row in shown if row.cells[-1][0]]
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
    plan, standing = decision_sections(proposal, now_ms, me, WIDTH, fresh)
    return section_lines([*plan, *standing])


def _fresh(client: Client, proposal: Proposal) -> Fresh | None:
    """The stale proposal as it would be if proposed again."""
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
            raise RefusedError(f"you {why_not}", f"Whose votes count: muster proposal show {proposal.id}")
        _confirm(arguments, client, proposal)
        comment = why_yes(proposal, arguments.comment)
        must_sign = proposal.signed or client.whoami().proved_by_key
        signed = signature(arguments, client, proposal, "vote", "approve") if must_sign else None
        outcome = client.approve(proposal.id, proposal.digest, comment, signed)
        then = go_on(client, outcome)
    return print_outcome(arguments, outcome, then)


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
        _confirm(arguments, client, proposal, always_digest=True)
        signed = signature(arguments, client, proposal, "breakglass", "approve") if proposal.signed else None
        outcome = client.break_glass(proposal.id, proposal.digest, arguments.reason, signed)
    _say(["break-glass was used: another person must close the review, see muster proposal reviews"])
    return print_outcome(arguments, outcome)


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


def _confirm(arguments: argparse.Namespace, client: Client, proposal: Proposal, *, always_digest: bool = False) -> None:
    """Raises RefusedError unless the digest's beginning was given, or a person at the terminal says yes."""
    import msgspec

    if arguments.digest:
        given = arguments.digest.strip().lower()
        if len(given) < DIGEST_TYPED or not proposal.digest.startswith(given):
            raise RefusedError(
                f"{given[:64]!a} does not match the digest of {proposal.id}: give its first {DIGEST_TYPED} or "
                "more characters",
                f"Review it again: muster proposal show {proposal.id}",
            )
        return
    if not at_terminal():
        raise RefusedError(
            "no terminal to ask on, so nothing was done",
            f"Give --digest with the first {DIGEST_TYPED} characters or more of the plan's digest",
        )
    asked = msgspec.structs.replace(proposal, typed="digest") if always_digest else proposal
    ask_for_yes(arguments, client, asked, "")


# -- doing ------------------------------------------------------------------------------------------------------------


def execute(arguments: argparse.Namespace) -> int:
    return _do(arguments, lambda client: client.execute(arguments.id))


def resume(arguments: argparse.Namespace) -> int:
    return _do(arguments, lambda client: client.resume(arguments.id, arguments.accept))


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
            ask_for_yes(arguments, client, shown, "Add --yes to execute it")
        outcome = client.rollback(arguments.id, why_yes(shown, arguments.reason))
        then = go_on(client, outcome)
    return print_outcome(arguments, outcome, then)


def _do(arguments: argparse.Namespace, deed: Callable[[Client], Outcome]) -> int:
    with closing(connect(arguments)) as client:
        outcome = deed(client)
        then = go_on(client, outcome)
    return print_outcome(arguments, outcome, then)


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


ACT = frozenset(Act.__struct_fields__)
STEP = frozenset(StepRequest.__struct_fields__) - {"act"} | ACT
TOP = frozenset(("steps", "reason", "requester", "limits", "evidence", "when_asked"))
_WRONG_WORD = re.compile("'(.*)' is not allowed")
_PART = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def read_plan(name: str, reason: str = "", *, when_asked: bool = False) -> Request:
    """The request of a file; `-` is standard input. What is given besides wins over what the file says. Raises
    SpecError naming file, line and field."""
    document = read(_bytes(name), "standard input" if name == "-" else name)
    request = plan_of(document)
    start = "asked" if when_asked else request.start
    return msgspec.structs.replace(request, reason=reason or request.reason, start=start)


def plan_of(document: YamlDocument) -> Request:
    """Raises SpecError."""
    top = document.value
    if not isinstance(top, dict):
        raise SpecError(document.name, "is not a mapping", "Start the file with `steps:`")
    _known(document, (), top, TOP)
    steps = top.get("steps")
    if not isinstance(steps, list) or not steps:
        raise SpecError(document.place(("steps",)), "has no list of steps", "Write `steps:` with at least one step")
    made: dict[str, Any] = {
        key: value for key, value in top.items() if key in ("reason", "requester", "limits", "evidence")
    }
    if "when_asked" in top:
        if not isinstance(top["when_asked"], bool):
            raise SpecError(document.place(("when_asked",)), "when_asked must be true or false", "Write true")
        made["start"] = "asked" if top["when_asked"] else "approved"
    made["steps"] = [_step(document, ("steps", number), step) for number, step in enumerate(steps)]
    if isinstance(made.get("limits"), dict):
        _known(document, ("limits",), made["limits"], Limits.__struct_fields__)
    for number, piece in enumerate(made.get("evidence") or ()):
        _known(document, ("evidence", number), piece, EvidenceRef.__struct_fields__)
    try:
        return msgspec.convert(made, Request)
    except msgspec.ValidationError as error:
        wrong = misfit(str(error))
        path = [part or int(number) for part, number in _PART.findall(wrong.path)]
        shown = tuple(part for part in path if part != "act")
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in shown).lstrip(".")
        raise SpecError(f"{document.place(shown)}: {where}", wrong.problem, _remedy(wrong, shown)) from None


def _remedy(wrong: Misfit, at: tuple[str | int, ...]) -> str:
    """For a word that is not one of a field's: the nearest that is."""
    word = _WRONG_WORD.match(wrong.problem)
    field = at[-1] if at else ""
    types = {**get_type_hints(Act), **get_type_hints(StepRequest), **get_type_hints(Check)}
    words = [word for word in get_args(types.get(str(field))) if isinstance(word, str)]
    if word is None or not words:
        return wrong.remedy
    return did_you_mean(word[1], words, f"Known: {', '.join(words)}", "'{}'")


def _step(document: YamlDocument, at: tuple[str | int, ...], step: Any) -> Any:
    """A step with the fields of its act set apart."""
    if not isinstance(step, dict):
        return step
    _known(document, at, step, STEP)
    if "action" not in step:
        raise SpecError(document.place(at), "has no action", "Write it like `action: drain`")
    for part in ("pre", "verify"):
        for number, check in enumerate(step.get(part) or ()):
            _known(document, (*at, part, number), check, Check.__struct_fields__)
    for number, undoing in enumerate(step.get("rollback") or ()):
        _known(document, (*at, "rollback", number), undoing, ACT)
    act = {key: value for key, value in step.items() if key in ACT}
    return {"act": act, **{key: value for key, value in step.items() if key not in ACT}}


def _known(document: YamlDocument, at: tuple[str | int, ...], value: Any, known: Iterable[str]) -> None:
    """Raises SpecError for a key that means nothing, with the nearest that does."""
    if not isinstance(value, dict):
        return
    for key in value:
        if key not in known:
            remedy = did_you_mean(key, known, f"Known: {', '.join(sorted(known))}", "'{}'")
            raise SpecError(document.place((*at, key)), f"unknown key {key[:40]!a}", remedy)


def _bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(name, f"cannot be read ({error.strerror})", "Give the path of a plan file") from None
