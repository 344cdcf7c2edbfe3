"""View models of proposals: the list, the plan under vote, its status, and the words of people.

The plan is drawn from its typed form. Text of people stands behind a gutter, so that none of it can pass for a part of
the plan or for a vote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from console.text.terminal_text import cut, duration, fit, milli, printable, wall_time, wrap
from console.text.tones import state_look
from console.views.lists import Heading, Row, Span
from console.views.sections import Line, Section, text_line
from engine.model.quantities import counted, shortlist, usd
from runbooks.plans import checks, typed_plan
from runbooks.plans.typed_plan import (
    Difference,
    EarlierPlan,
    Effect,
    EvidenceRef,
    Plan,
    Proposal,
    Step,
    StepStanding,
    VoteLine,
)

if TYPE_CHECKING:
    from runbooks.gate.approval_policy import Caller


GUTTER = "┃ "
"""Prefix of every line of untrusted text."""
HANG = "┊ "
"""Prefix of continuation lines of the plan, so that no foreign text begins a line."""
MAX_LINES = 400
"""Lines of one untrusted text."""
MAX_LISTED = 2_000
"""Lines of "Actions"; more are counted."""
SOON_MS = 5 * 60_000
"""Time left below which it is said in the colour of a warning."""
TIERS = {
    "T0": "notification; changes nothing",
    "T1": "can be rolled back",
    "T2": "disrupts running work",
    "T3": "hard to undo",
}
ONE_ACCOUNT = "came from the author's OS account: there are two keys, but one person may hold both"
NOBODY_NAMED = (
    "the policy names nobody yet, so nobody else can vote: muster policy propose FILE names people; "
    "alone on this cell, muster policy use solo"
)
NO_TWO = "the author may vote too: this policy has no two-person rule"
SHOWN_STATES = (*typed_plan.OPEN, *typed_plan.LIVE, "stale", "failed", "rollback_failed")
"""States in which a proposal may still need somebody."""


class Fresh(NamedTuple):
    """A stale proposal as it would be if proposed again now."""

    proposal: Proposal | None
    why_not: str = ""
    """Reason why it cannot be proposed any more."""


# --- the list

LIST_HEADINGS = (
    Heading("id", "ID", most=10),
    Heading("state", "STATE", most=18),
    Heading("tier", "TIER", most=4),
    Heading("title", "TITLE", most=48),
    Heading("author", "AUTHOR", most=16),
    Heading("votes", "VOTES", most=7),
    Heading("expires", "EXPIRES", right=True, most=10),
    Heading("note", "NOTE", most=200),
)
NARROW_TITLE, NARROW_AUTHOR = 19, 8


def headings(width: int) -> tuple[Heading, ...]:
    """Columns; on a narrow screen what comes behind the title is in view all the same."""
    if width >= 110:
        return LIST_HEADINGS
    narrow = {"title": NARROW_TITLE, "author": NARROW_AUTHOR}
    return tuple(each._replace(most=narrow.get(each.name, each.most)) for each in LIST_HEADINGS)


_RANK = {
    "rollback_failed": 0, "paused": 1, "awaiting": 2, "approved": 3, "stale": 4, "failed": 4, "executing": 5,
    "verifying": 5, "rolling_back": 5,
}  # fmt: skip


def in_order(found: Sequence[Proposal], me: str = "") -> list[Proposal]:
    """Proposals by urgency: stuck ones, then those that wait for votes, shortest time left first. Of these the person's
    own, on which they may not vote, come last. Finished ones come last, newest first."""

    def key(each: Proposal) -> tuple[int, int, int]:
        rank = _RANK.get(each.state, 9)
        mine = each.state == "awaiting" and not each.self_approvable and each.plan.author.subject == me
        urgent = each.expires_ms if each.state in typed_plan.OPEN else -_number(each)
        return rank, int(mine), urgent

    return sorted(found, key=key)


def _number(proposal: Proposal) -> int:
    digits = proposal.id.removeprefix("P-")
    return int(digits) if digits.isdecimal() else 0


def list_rows(found: Sequence[Proposal], now_ms: int, me: str = "") -> list[Row]:
    return [list_row(each, now_ms) for each in in_order(found, me)]


def list_row(proposal: Proposal, now_ms: int) -> Row:
    glyph, tone = state_look(proposal.state)
    left, left_tone = time_left(proposal, now_ms)
    cells: tuple[Span, ...] = (
        (printable(proposal.id), ""),
        (f"{glyph} {state_word(proposal.state)}", tone),
        (proposal.tier, "warn" if proposal.tier in ("T2", "T3") and proposal.state not in typed_plan.ENDED else "dim"),
        (printable(proposal.title), ""),
        (name_of(proposal.plan.author.subject), "dim"),
        (votes_word(proposal), ""),
        (left, left_tone),
        (list_note(proposal), "dim"),
    )
    return Row(proposal.id, cells, proposal.state)


def list_note(proposal: Proposal) -> str:
    if proposal.breakglass:
        return f"break-glass. {printable(proposal.note)}"
    if proposal.state == "awaiting":
        return f"needs {printable(proposal.need)}" if proposal.need else ""
    if proposal.state == "approved" and proposal.plan.start == "asked":
        return "waiting for somebody to execute it"
    return printable(proposal.note)


def state_word(state: str) -> str:
    """As people say it."""
    return {"cancelled": "withdrawn"}.get(state, printable(state).replace("_", " "))


def name_of(subject: str) -> str:
    """A subject, short: people by their id."""
    return printable(subject.removeprefix("person:"))


def votes_word(proposal: Proposal) -> str:
    """Given, of so many that are needed: "1/2"."""
    given = sum(vote.verdict == "approve" and not vote.counts for vote in proposal.votes)
    needed = given + proposal.needs
    return f"{given}/{needed}" if needed else "–"


def time_left(proposal: Proposal, now_ms: int) -> Span:
    if proposal.state not in typed_plan.OPEN:
        return "", "faint"
    left = proposal.expires_ms - now_ms
    if left <= 0:
        return "over", "bad"
    return duration(left), "warn" if left < SOON_MS else ""


# --- the plan, as it is approved


def decision_sections(
    proposal: Proposal,
    now_ms: int,
    me: str,
    width: int,
    fresh: Fresh | None,
    *,
    caller: Caller | None = None,
    found: Sequence[Section] = (),
) -> tuple[list[Section], list[Section]]:
    """The plan and how it stands, in the order in which it is decided on: for the page, the shell and linear mode.
    `caller`: tells what this console lacks to sign; `found`: the finding that the proposal follows from."""
    plan = [head_section(proposal, now_ms, width), *plan_sections(proposal, width), *context_sections(proposal, width)]
    keys, nobody_named = (keys_note(caller), not caller.keys) if caller is not None else ("", False)
    standing = [
        vote_section(proposal, width, me, keys, nobody_named=nobody_named),
        *step_section(proposal, width),
        *stale_section(proposal, width, fresh),
        *found,
        *word_sections(proposal, width),
    ]
    return plan, standing


def plan_sections(proposal: Proposal, width: int) -> list[Section]:
    """The plan under vote, from its typed form: steps, before and after, tier and limits, evidence, the way back."""
    return [
        _what(proposal, width),
        *_before_and_after(proposal, width),
        *_conditions(proposal, width),
        _tier(proposal, width),
        _evidence(proposal, width),
        _way_back(proposal, width),
    ]


def context_sections(proposal: Proposal, width: int) -> list[Section]:
    """What is no part of the plan, and not signed: earlier plans whose effect it takes back, and how the deciding
    scheduler is reached now."""
    earlier = [line for each in proposal.takes_back for line in _earlier(each, width)]
    carried = [line for told in proposal.carried for line in hanging("", printable(told), width)]
    return [
        *([Section("What it takes back", tuple(earlier), "on the record")] if earlier else []),
        *([Section("How it reaches the cluster", tuple(carried), "current connection")] if carried else []),
    ]


def _earlier(each: EarlierPlan, width: int) -> list[Line]:
    """A plan that was carried out, who wanted it, and why in their own words."""
    votes = ", ".join(map(name_of, each.approved_by))
    by = f"by {name_of(each.author)}{f', approved by {votes}' if votes else ''}"
    head = f"{each.proposal}  {each.title}  {by}, {wall_time(each.executed_ms)}"
    first, *rest = hanging("", printable(head), width, "", "strong")
    lines = [Line(first.spans, f"proposal {printable(each.proposal)}"), *rest]
    return [*lines, *(framed(each.reason, width - 2, "  ") if each.reason else [text_line("  gave no reason", "dim")])]


def screen_digest(sections: Sequence[Section]) -> str:
    """SHA-256, hex, of the text that is shown: what a signature says was looked at."""
    lines = [
        line
        for section in sections
        for line in (section.title, *("".join(text for text, _ in line.spans) for line in section.lines))
    ]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()


def _what(proposal: Proposal, width: int) -> Section:
    plan = proposal.plan
    count = len({(step.act.action, target) for step in plan.steps for target in step.act.targets})
    lines = [
        line
        for number, step in enumerate(proposal.steps[:MAX_LISTED], 1)
        for line in hanging(f"{number:>4}  ", printable(step), width)
    ]
    if len(proposal.steps) > MAX_LISTED:
        lines.append(
            text_line(f"      and {len(proposal.steps) - MAX_LISTED:,} more, listed by muster proposal show", "warn")
        )
    for step in plan.steps:
        if step.act.note is not None:
            told = ", ".join(step.act.targets[:5])
            lines.append(text_line(cut(f"      message to {told}:", width), "dim"))
            lines += framed(step.act.note.text, width - 6, "      ")
    lines += hanging("touches  ", ", ".join(touched(plan)), width, "dim", "strong")
    return Section("Actions", tuple(lines), counted(count, "target"))


def touched(plan: Plan) -> list[str]:
    """The plan's blast, counted."""
    blast = plan.blast
    found = [f"{counted(nodes, 'node')} of {printable(pool)}" for pool, nodes in blast.nodes]
    if blast.gpu_milli:
        found.append(f"{milli(blast.gpu_milli)} GPU")
    if blast.workloads:
        found.append(counted(blast.workloads, "workload"))
    if blast.tenants:
        names = ", ".join(map(printable, blast.tenants[:5])) + (" …" if len(blast.tenants) > 5 else "")
        found.append(f"{counted(len(blast.tenants), 'tenant')} ({names})")
    if blast.cost_microusd_hour:
        found.append(f"{usd(blast.cost_microusd_hour)}/h added cost")
    return found or ["no work stopped, no node taken, no cost"]


def _conditions(proposal: Proposal, width: int) -> list[Section]:
    """Checks, confirmations and failure handling of each step. Left out for a plan that is one act without any."""
    steps = proposal.plan.steps
    if len(steps) == 1 and not steps[0].pre and not steps[0].verify and steps[0].confirm == "none":
        return []
    lines = [line for step in steps for line in _step_conditions(step, width)]
    return [Section("Step by step", tuple(lines), counted(len(steps), "step"))]


_ON_FAIL = {"rollback": "roll back", "pause": "pause", "abort": "stop"}


def _step_conditions(step: Step, width: int) -> list[Line]:
    action = step.act.action.replace("_", " ")
    many = f"{len(step.act.targets)} targets" if len(step.act.targets) != 1 else printable(step.act.targets[0])
    lines = hanging(f"{printable(step.id)}  ", f"{action} {many}", width, "accent")
    facts = [step.tier, f"if it fails: {_ON_FAIL[step.on_fail]}", f"verified within {duration(step.timeout_ms)}"]
    if step.confirm != "none":
        facts.insert(1, f"needs confirmation by an {step.confirm}")
    lines += hanging("      ", " · ".join(facts), width, "", "dim")
    for check in step.pre:
        lines += hanging("      first  ", printable(checks.words(check)), width, "dim")
    for check in step.verify:
        within = f", within {duration(check.within_ms)}" if check.within_ms else ""
        lines += hanging("      then   ", printable(checks.words(check)) + within, width, "dim")
    return lines


def _before_and_after(proposal: Proposal, width: int) -> list[Section]:
    if not proposal.effects:
        return []
    note = f"tried on a fork of v{proposal.version:,}"
    return [Section("Before and after", tuple(effect_lines(proposal.effects, width)), note)]


MIN_BESIDE = 56
"""Below this width before and after stand below what they are of, so that neither is cut."""


def effect_lines(effects: Sequence[Effect], width: int) -> list[Line]:
    """What it is, before and after: side by side, or each below what it is where that would cut one."""
    if width < MIN_BESIDE:
        return [line for effect in effects for line in _stacked(effect, width)]
    label = min(max(len(printable(effect.label)) for effect in effects), max(12, width - 40))
    before = min(max(len(printable(effect.before)) for effect in effects), 30)
    lines = []
    for effect in effects:
        spans = (
            (fit(printable(effect.label), label) + "  ", "dim"),
            (fit(printable(effect.before), before, right=True), ""),
            ("  →  ", "dim"),
            (
                cut(printable(effect.after), max(8, width - label - before - 7)),
                "dim" if effect.after == effect.before else "accent",
            ),
        )
        lines.append(Line(spans))
    return lines


def _stacked(effect: Effect, width: int) -> list[Line]:
    moved = effect.after != effect.before
    told = f"{printable(effect.before)}  →  {printable(effect.after)}" if moved else printable(effect.before)
    return [
        text_line(cut(printable(effect.label), width), "dim"),
        *hanging("  ", told, width, "", "accent" if moved else ""),
    ]


def _tier(proposal: Proposal, width: int) -> Section:
    plan = proposal.plan
    lines = [Line(((f"{proposal.tier}  ", "warn"), (TIERS[proposal.tier], "")))]
    for why in proposal.why_tier:
        lines += hanging("    because  ", printable(why), width, "dim")
    lines += hanging("counts as ", f"1 plan of {proposal.tier} this hour, {', '.join(touched(plan))}", width, "dim")
    most = [
        f"{value:,} {what}"
        for value, what in (
            (plan.limits.nodes, "nodes"), (plan.limits.gpus, "GPUs"), (plan.limits.workloads, "workloads"),
        )
        if value is not None
    ]  # fmt: skip
    if plan.limits.duration_ms is not None:
        most.append(duration(plan.limits.duration_ms))
    if most:
        lines += hanging("limits    ", f"at most {', '.join(most)}", width, "dim")
    begins = "with the last vote" if plan.start == "approved" else "after approval, when somebody executes it"
    lines += hanging("starts    ", begins, width, "dim")
    digests = f"{printable(proposal.digest)[:16]}, revision {proposal.revision}"
    lines += hanging("plan      ", f"{digests}, policy {printable(plan.policy_digest)[:12]}", width, "dim")
    return Section("Tier and limits", tuple(lines), "limits can only tighten")


def _evidence(proposal: Proposal, width: int) -> Section:
    plan = proposal.plan
    author = f"{name_of(plan.author.subject)} ({plan.author.kind}{', signed' if plan.author.signed else ''})"
    lines = hanging("origin      ", printable(origin_words(plan)), width, "dim")
    lines += hanging("written by  ", author, width, "dim")
    if plan.rolls_back:
        lines += hanging("rolls back  ", printable(plan.rolls_back), width, "dim", "warn")
    if plan.requester:
        lines += hanging("asked by    ", name_of(plan.requester), width, "dim")
    if plan.runbook is not None:
        book = f"{printable(plan.runbook.id)} version {plan.runbook.version}, {printable(plan.runbook.sha256)[:12]}"
        lines += hanging("runbook     ", book, width, "dim")
    lines += [line for each in plan.evidence for line in _piece(each, width)]
    if not plan.evidence:
        lines.append(text_line("none attached to the plan", "dim"))
    return Section("Evidence", tuple(lines))


def origin_words(plan: Plan) -> str:
    """As in "suggestion R-k3vq7 (quota_beside_idle)"."""
    return plan.source.words() if plan.source is not None else plan.origin


def _piece(piece: EvidenceRef, width: int) -> list[Line]:
    return hanging("evidence    ", f"{printable(piece.id)}, {printable(piece.sha256)[:12]}", width, "dim")


def _way_back(proposal: Proposal, width: int) -> Section:
    lines = hanging("", printable(proposal.inverse), width)
    for step in reversed(proposal.plan.steps):
        if not step.rollback:
            lines += hanging("  ", f"step {printable(step.id)}: cannot be rolled back", width, "dim", "warn")
        for act in step.rollback:
            told = f"step {step.id}: {act.action.replace('_', ' ')} {shortlist(act.targets)}"
            lines += hanging("  ", printable(told), width, "dim")
    return Section("Rollback", tuple(lines), "approved with the plan")


# --- how it stands


def head_section(proposal: Proposal, now_ms: int, width: int) -> Section:
    """State and time left: what changes while one looks, above what does not."""
    glyph, tone = state_look(proposal.state)
    spans: list[Span] = [(f"{glyph} {state_word(proposal.state)}", tone)]
    left, left_tone = time_left(proposal, now_ms)
    if left:
        spans += [("   expires in ", "dim"), (left, left_tone)]
    if proposal.breakglass:
        spans.append(("   break-glass", "bad"))
    lines = [Line(tuple(spans))]
    if proposal.note:
        lines += hanging("", printable(proposal.note), width, "", "bad" if tone == "bad" else "")
    return Section(printable(proposal.title), tuple(lines), f"{printable(proposal.id)} {proposal.tier}")


def vote_section(
    proposal: Proposal, width: int, me: str = "", keys: str = "", *, nobody_named: bool = False
) -> Section:
    """Votes, missing votes, and votes that do not count. `keys`: missing requirement to sign; `nobody_named`: the
    policy names no people."""
    lines = [line for vote in proposal.votes for line in _vote(vote, width)]
    if not lines:
        lines.append(text_line("no votes yet", "dim"))
    if proposal.needs:
        more = f"{counted(proposal.needs, 'more vote')}: {printable(proposal.need)}"
        lines += hanging("needs  ", more, width, "warn")
    if proposal.needs and proposal.self_approvable and proposal.tier in ("T2", "T3"):
        lines += hanging("       ", NO_TWO, width, "", "warn")
    why_not = why_not_mine(proposal, me)
    if why_not:
        lines += hanging("you    ", why_not, width, "dim", "warn")
    elif keys and proposal.signed and proposal.needs:
        lines += hanging("you    ", keys, width, "dim", "warn")
    if nobody_named and proposal.needs and not proposal.self_approvable:
        lines += hanging("how    ", NOBODY_NAMED, width, "dim", "accent")
    return Section("Votes", tuple(lines), votes_word(proposal))


def keys_note(caller: Caller | None) -> str:
    """Missing requirement for a signed vote of this person; empty where none is known."""
    if caller is None:
        return ""
    if caller.shared_with:
        people = ", ".join(printable(each.removeprefix("person:")) for each in caller.shared_with)
        return f"your OS account is shared by {people}: start with muster --as NAME, and sign"
    if not caller.me.startswith("person:"):
        return "the policy names no person with your account, so you cannot sign: start with muster --as NAME"
    if not caller.keys.get(caller.me):
        return "this vote must be signed, and you have no enrolled key: muster policy operator new-key"
    return ""


def why_not_mine(proposal: Proposal, me: str) -> str:
    """Reason why a vote of this person cannot count, as far as the plan tells; the gate has the last word."""
    if not me or not proposal.needs or proposal.self_approvable:
        return ""
    if proposal.plan.author.subject == me:
        return "wrote this plan: another person must vote"
    if proposal.plan.requester == me:
        return "asked for this plan: another person must vote"
    return ""


def waits_for_me(proposal: Proposal, me: str, roles: frozenset[str]) -> bool:
    """True where it waits for a vote of this person, as far as the plan tells."""
    if proposal.state != "awaiting" or not proposal.needs or why_not_mine(proposal, me):
        return False
    if any(vote.subject == me for vote in proposal.votes):
        return False
    wanted = {"approver"} if proposal.tier in ("T2", "T3") else {"approver", "operator"}
    return not wanted.isdisjoint(roles)


_VERDICTS = {"approve": ("✓", "ok", "yes"), "reject": ("✗", "bad", "no"), "abstain": ("·", "dim", "abstain")}


def _vote(vote: VoteLine, width: int) -> list[Line]:
    glyph, tone, word = _VERDICTS[vote.verdict]
    if vote.counts:
        glyph, tone = "·", "dim"
    spans = ((f"{glyph} ", tone), (fit(word, 9), tone), (cut(name_of(vote.subject), width - 11), ""))
    lines = _dated(spans, vote.at_ms, width)
    if vote.counts:
        lines += hanging("     does not count: it ", printable(vote.counts), width, "warn", "warn")
    if vote.one_account:
        lines += hanging("     ", ONE_ACCOUNT, width, "", "warn")
    return lines


def _dated(spans: Sequence[Span], at_ms: int, width: int) -> list[Line]:
    """A line with its time behind it, or below it where there is no room."""
    when = wall_time(at_ms)[5:]
    if sum(cell_len(text) for text, _ in spans) + 2 + len(when) <= width:
        return [Line((*spans, (f"  {when}", "dim")))]
    return [Line(tuple(spans)), text_line(f"  {when}", "dim")]


_STEP_STATES = {
    "waiting": ("○", "dim"), "done": ("◑", "info"), "verified": ("✓", "ok"), "failed": ("✗", "bad"),
    "inconclusive": ("?", "warn"), "rolled_back": ("◂", "dim"),
}  # fmt: skip


def step_section(proposal: Proposal, width: int) -> list[Section]:
    """Progress of the steps, and the values read back, once it has begun."""
    if proposal.state in ("drafted", "simulated", "awaiting", "approved", "denied", "rejected", "expired"):
        return []
    begun = [each for each in proposal.standing if each.state != "waiting"]
    if not begun and proposal.state not in typed_plan.LIVE:
        return []
    lines = [line for each in proposal.standing for line in _standing(each, width)]
    return [Section("Steps", tuple(lines), f"{len(begun)} of {len(proposal.standing)} started")]


def _standing(each: StepStanding, width: int) -> list[Line]:
    glyph, tone = _STEP_STATES[each.state]
    spans: list[Span] = [(f"{glyph} ", tone), (fit(each.state.replace("_", " "), 13), tone), (printable(each.id), "")]
    lines = _dated(spans, each.at_ms, width) if each.at_ms else [Line(tuple(spans))]
    for text in each.verified:
        lines += hanging("     ", printable(text), width, "", "bad" if text.startswith("NOT") else "dim")
    return lines


def stale_section(proposal: Proposal, width: int, fresh: Fresh | None) -> list[Section]:
    """Three columns: what was shown, what is now, and what proposing it again would bring."""
    if not proposal.stale:
        return []
    room = max(8, (width - 6) // 3)
    lines = [_columns("shown", "now", "new", room, "header")]
    for each in proposal.stale:
        lines += hanging("", printable(each.what), width, "", "strong")
        lines += _three(printable(each.shown), printable(each.now), _new_of(each, fresh), room)
        lines += hanging("  ", printable(each.text), width, "", "dim")
    if fresh is not None and fresh.proposal is not None:
        now = {effect.label: effect for effect in fresh.proposal.effects}
        for was in proposal.effects:
            new = now.get(was.label)
            if new is not None:
                lines += hanging("", printable(was.label), width, "", "strong")
                lines += _three(printable(was.after), printable(new.before), printable(new.after), room)
    elif fresh is not None:
        lines += hanging("cannot be proposed again: ", printable(fresh.why_not), width, "bad")
    return [Section("Changed since it was shown", tuple(lines), "no step was done since")]


def _new_of(each: Difference, fresh: Fresh | None) -> str:
    if fresh is None:
        return "…"
    return printable(each.now) if fresh.proposal is not None else "not possible"


def _three(shown: str, now: str, new: str, room: int) -> list[Line]:
    cells = [wrap(text, room) for text in (shown, now, new)]
    height = max(map(len, cells))
    rows = zip(*(cell + [""] * (height - len(cell)) for cell in cells), strict=True)
    return [_columns(shown, now, new, room, "") for shown, now, new in rows]


def _columns(shown: str, now: str, new: str, room: int, tone: str) -> Line:
    bar = (" │ ", "faint")
    return Line(
        (
            (fit(shown, room), tone or "dim"),
            bar,
            (fit(now, room), tone or "warn"),
            bar,
            (fit(new, room), tone or "accent"),
        )
    )


_NEXT = {
    "approved": "Execute it with muster proposal execute {id}", "executing": "Follow it with muster proposal show {id}",
    "verifying": "Follow it with muster proposal show {id}",
    "paused": "Resume it with muster proposal resume {id}, or roll it back with muster proposal rollback {id}",
    "failed": "Roll back the finished steps with muster proposal rollback {id}",
    "verified": "Roll it back with muster proposal rollback {id}",
    "rolling_back": "Follow it with muster proposal show {id}",
    "rollback_failed": "See what is left with muster proposal show {id}; try muster proposal rollback {id} again",
}  # fmt: skip


def what_next(proposal: Proposal) -> str:
    """The command that goes on from a state in which nobody votes any more."""
    if proposal.state == "verified" and not any(step.rollback for step in proposal.plan.steps):
        return "It cannot be rolled back"
    if proposal.state == "paused" and (word := _word_wanted(proposal)):
        return word
    told = _NEXT.get(proposal.state, "Propose it again for the current state: muster proposal new --again {id}")
    return told.format(id=printable(proposal.id))


def _word_wanted(proposal: Proposal) -> str:
    """The command that lets a waiting step go on; empty where it waits for something else."""
    back = f"muster proposal rollback {proposal.id}"
    if any(each.state in ("failed", "inconclusive") for each in proposal.standing):
        return f"Accept it unverified with muster proposal resume {proposal.id} --accept, or {back}"
    waiting = next((each.id for each in proposal.standing if each.state == "waiting"), "")
    if any(step.id == waiting and step.confirm != "none" for step in proposal.plan.steps):
        return f"Confirm it with muster proposal confirm {proposal.id} {waiting}, or {back}"
    return ""


# --- what people wrote


def word_sections(proposal: Proposal, width: int) -> list[Section]:
    """Reason and comments, framed: they decide nothing and nobody has checked them."""
    written = [("gave the reason", name_of(proposal.plan.author.subject), proposal.reason)]
    written += [(f"commented, voting {_VERDICTS[vote.verdict][2]}", name_of(vote.subject), vote.comment)
                for vote in proposal.votes]  # fmt: skip
    written = [each for each in written if each[2]]
    if not written:
        return []
    lines: list[Line] = []
    for what, who, text in written:
        lines.append(text_line(cut(f"{who} {what}:", width), "dim"))
        lines += framed(text, width)
    return [Section("Comments", tuple(lines), "not checked, not part of the plan")]


def framed(text: str, width: int, indent: str = "") -> list[Line]:
    """A foreign text, every line behind a gutter."""
    rows = text.replace("\r\n", "\n").split("\n", MAX_LINES)
    lines = [
        Line(((indent + GUTTER, "accent"), (part, "dim")))
        for row in rows[:MAX_LINES]
        for part in _indented(printable(row), max(8, width - len(GUTTER)))
    ]
    if len(rows) > MAX_LINES or len(lines) > MAX_LINES:
        del lines[MAX_LINES:]
        lines.append(text_line(f"{indent}the rest is not shown", "warn"))
    return lines


def _indented(row: str, width: int) -> list[str]:
    """A line in several, all as far from the left as it is: in YAML that has a meaning."""
    room = len(row) - len(row.lstrip(" "))
    if not 0 < room < width // 2:
        return wrap(row, width)
    return [" " * room + part for part in wrap(row, width - room)]


def hanging(label: str, text: str, width: int, label_tone: str = "dim", tone: str = "") -> list[Line]:
    """A label and a text that may take several lines, of which none begins at the left."""
    room = max(8, width - len(label))
    first, *rest = wrap(text, room)
    lines = [Line(((label, label_tone), (first, tone)))]
    if rest:
        indent = max(0, len(label) - len(HANG))
        more = wrap(" ".join(text.split())[len(first) :], max(8, width - indent - len(HANG)))
        lines += [Line(((" " * indent + HANG, "faint"), (part, tone))) for part in more]
    return lines
