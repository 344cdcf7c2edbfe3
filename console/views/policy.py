"""View models of the approval policy, freezes, reviews, and runbooks.

The front matter of a runbook is shown as the engine reads it. Its prose is untrusted text in a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from console.actions.key_map import key_of
from console.text.terminal_text import cut, duration, printable, wall_time, wrap
from console.text.tones import state_look
from console.views.lists import Heading, Row, Span
from console.views.proposal import framed, hanging, name_of
from console.views.sections import Line, Section, text_line
from runbooks.gate.approval_policy import Candidate, PolicyView
from runbooks.gate.run_limits import Freeze, freeze_words
from runbooks.gate.starting_points import FOR_WHOM, one_person
from runbooks.plans.queries import RunbookLine, RunbookRun, RunbookView
from runbooks.plans.typed_plan import Review

CANDIDATE, FREEZE, REVIEW = "candidate:", "freeze:", "review:"
"""Prefixes of links."""


def policy_columns(view: PolicyView, now_ms: int, width: int) -> tuple[list[Section], list[Section]]:
    """Candidates and freezes that wait for a person first, then the policy in force."""
    left = [section for each in view.candidates for section in candidate_sections(each, now_ms, width)]
    left += [_freezes(view.freezes, width), _head(view, width)]
    left.append(_pairs("Votes needed", view.rules, width))
    own = hanging("", printable(view.own_work or "nothing"), width)
    left.append(Section("Owners alone, with their own work", tuple(own)))
    left.append(_pairs("Limits per hour", view.limits, width))
    right = [_people(view, width), _answers("At night, alone, you may", view.alone, width)]
    if view.unchosen:
        right += starting_points(width)
    if view.services:
        right.append(_pairs("Services", tuple((each, "drafts, never votes") for each in view.services), width))
    right.append(_pairs("Channels", view.channels, width))
    right.append(Section("Changing the policy needs", tuple(hanging("", printable(view.change_need), width))))
    if view.notes:
        told = [line for note in view.notes for line in hanging("· ", printable(note), width)]
        right.append(Section("Notes", tuple(told)))
    return left, right


def candidate_sections(candidate: Candidate, now_ms: int, width: int) -> list[Section]:
    """A policy that waits for votes: what it changes, what loosens marked, and whose votes are missing."""
    left = candidate.expires_ms - now_ms
    state = candidate.state.replace("_", " ")
    head = [(f"◌ {printable(candidate.id)} is {printable(state)}", "warn"), (f"   {duration(left)} left", "dim")]
    lines = [Line(tuple(head if left > 0 else head[:1]), CANDIDATE + candidate.id)]
    lines += hanging("proposed by  ", f"{name_of(candidate.author)}, {wall_time(candidate.at_ms)}", width)
    if candidate.needs:
        lines += hanging("needs        ", f"{candidate.needs} more: {printable(candidate.need)}", width, "warn")
    lines += hanging("digest       ", printable(candidate.digest)[:16], width)
    if not candidate.changes:
        lines.append(text_line("no changes", "dim"))
    for change in candidate.changes:
        label, tone = ("! loosens  ", "bad") if change.loosens else ("  changes  ", "dim")
        lines += hanging(label, printable(change.text), width, tone)
    for vote in candidate.votes:
        lines += hanging("vote         ", name_of(printable(vote)), width)
    keys = f"{key_of('approve_policy')} approves, {key_of('reject_policy')} rejects"
    return [Section(f"Waiting for votes: version {candidate.revision}", tuple(lines), keys)]


def starting_points(width: int) -> list[Section]:
    """What one person may do under each policy that may be chosen first, and how it is chosen."""
    said = "the policy of a team holds until somebody does: muster policy use NAME"
    return [
        Section("Nobody has chosen a policy", tuple(hanging("", said, width, "", "warn"))),
        *(_answers(f"{name}, for {whom}", one_person(name), width) for name, whom in FOR_WHOM.items()),
    ]


def _answers(title: str, pairs: Sequence[tuple[str, str]], width: int) -> Section:
    return Section(
        title, tuple(line for what, how in pairs for line in hanging("", printable(f"{what}: {how}"), width))
    )


def _freezes(freezes: Sequence[Freeze], width: int) -> Section:
    lines: list[Line] = []
    for freeze in freezes:
        by = f"set by {name_of(freeze.by)}" if freeze.by else "by the policy"
        now, tone = ("● in effect", "warn") if freeze.holds else ("○ not in effect", "dim")
        link = FREEZE + freeze.spec.name if freeze.by else ""
        lines.append(Line(((f"{now}  ", tone), (printable(freeze.spec.name), "strong"), (f"  {by}", "dim")), link))
        lines += hanging("    ", printable(freeze_words(freeze.spec)), width)
        if freeze.spec.reason:
            lines += framed(freeze.spec.reason, width - 4, "    ")
    return Section(
        "Freezes",
        tuple(lines or [text_line("none: plans may run at any time", "dim")]),
        f"{key_of('set_freeze')} sets one, {key_of('end_freeze')} ends one",
    )


def _head(view: PolicyView, width: int) -> Section:
    since = f"since {wall_time(view.since_ms)}, by {name_of(view.by)}" if view.since_ms else "built in"
    lines = [Line(((view.mode, "accent"), (f"   {since}", "dim")))]
    lines += hanging("digest  ", view.digest, width)
    lines += hanging("", printable(view.two_people), width, "", "warn" if view.mode == "solo" else "")
    return Section(f"In force: {printable(view.name)}", tuple(lines), f"version {view.version}")


def _pairs(title: str, pairs: Sequence[tuple[str, str]], width: int) -> Section:
    room = min(max((len(printable(name)) for name, _ in pairs), default=0), 24) + 2
    lines = [line for name, text in pairs for line in hanging(f"{printable(name):<{room}}", printable(text), width)]
    return Section(title, tuple(lines or [text_line("none", "dim")]))


def _people(view: PolicyView, width: int) -> Section:
    lines: list[Line] = []
    for who, roles, accounts, keys, note in view.people:
        more = f"  {printable(note)}" if note else ""
        lines.append(Line(((printable(who), "strong"), (f"  {printable(roles)}{more}", ""))))
        lines += hanging("    ", printable(f"{accounts}; keys {keys}"), width, "", "dim")
    return Section("People", tuple(lines or [text_line("none: the owner of the engine decides", "dim")]))


def review_sections(reviews: Sequence[Review], width: int) -> list[Section]:
    """Open reviews first."""
    waiting = [each for each in reviews if not each.closed_ms]
    looked = [each for each in reviews if each.closed_ms]
    lines = [line for each in waiting for line in _review(each, width)] or [
        text_line(line, "dim") for line in wrap("none open: what was executed without votes is reviewed here", width)
    ]
    sections = [Section("Open reviews", tuple(lines), f"{key_of('close_review')} closes one, ↵ opens its proposal")]
    if looked:
        gone = [line for each in looked for line in _review(each, width)]
        sections.append(Section("Closed reviews", tuple(gone)))
    return sections


def _review(each: Review, width: int) -> list[Line]:
    what = "break-glass by" if each.forced else "opened by"
    glyph, tone = ("✓", "ok") if each.closed_ms else ("!", "bad") if each.forced else ("○", "warn")
    head = ((f"{glyph} {each.id}  ", tone), (f"{printable(each.about)}  ", "strong"), (f"{what} ", "dim"),
            (name_of(each.subject), ""), (f"  {wall_time(each.opened_ms)}", "dim"))  # fmt: skip
    lines = [Line(head, f"{REVIEW}{each.id}")]
    if each.closed_ms:
        lines += hanging("    ", f"closed by {name_of(each.closed_by)}, {wall_time(each.closed_ms)}", width)
    return [*lines, *framed(each.text, width - 4, "    ")]


HEADINGS = (
    Heading("id", "ID", most=28),
    Heading("version", "VER", right=True, most=5),
    Heading("status", "STATUS", most=12),
    Heading("problems", "PROBLEMS", right=True, most=8),
    Heading("title", "TITLE", most=48),
    Heading("note", "NOTE", most=200),
)
STATUS = {
    "draft": "not approved here: dry run only",
    "approved": "this exact file is approved",
    "changed": "changed since it was approved: dry run only",
    "retired": "retired for good",
    "faulty": "has problems: cannot run",
}


def row_of(line: RunbookLine) -> Row:
    glyph, tone = state_look(line.status)
    cells: tuple[Span, ...] = (
        (printable(line.id), ""),
        (str(line.version), "dim"),
        (f"{glyph} {line.status}", tone),
        (f"{line.problems:,}" if line.problems else "–", "bad" if line.problems else "faint"),
        (printable(line.title), ""),
        (printable(line.note), "dim"),
    )
    return Row(line.id, cells, line.status)


def columns(view: RunbookView, tried: RunbookRun | str | None, width: int) -> tuple[list[Section], list[Section]]:
    """`tried`: a dry run with what is selected and by default, why there is none, or not asked yet."""
    left = [_runbook_title(view.line, width)]
    if view.problems:
        left.append(_problems(view, width))
    left += [_inputs(view, width), _applies(view, tried, width), _steps(view, width)]
    right = []
    if view.votes:
        votes = [line for vote in view.votes for line in hanging("", printable(vote), width)]
        right.append(Section("Approved by", tuple(votes)))
    prose = framed(view.prose, width) if view.prose else [text_line("none", "dim")]
    right.append(Section("Prose", tuple(prose), "not checked, no effect"))
    return left, right


def _runbook_title(line: RunbookLine, width: int) -> Section:
    glyph, tone = state_look(line.status)
    lines = [Line(((f"{glyph} {line.status}", tone), (f"   {STATUS[line.status]}", "dim")))]
    lines += hanging("", printable(line.note), width) if line.note else []
    for name, value in (("owner", line.owner), ("file", line.source), ("sha256", line.sha256)):
        lines += hanging(f"{name:<8}", printable(value), width)
    return Section(cut(printable(line.title), width - 12), tuple(lines), f"version {line.version}")


def _problems(view: RunbookView, width: int) -> Section:
    lines: list[Line] = []
    for each in view.problems:
        lines += hanging("✗ ", printable(f"{each.where}: {each.problem} ({each.rule})"), width, "bad")
        lines += hanging("  ", printable(each.remedy), width, "", "dim")
    return Section("Problems", tuple(lines), f"{len(view.problems):,}")


def _inputs(view: RunbookView, width: int) -> Section:
    lines: list[Line] = []
    for each in view.inputs:
        lines += hanging(f"{printable(each.name)}  ", printable(f"{each.type}, {each.bounds}"), width, "accent")
        lines += hanging("    ", printable(each.help), width, "", "dim") if each.help else []
    return Section("Inputs", tuple(lines or [text_line("none", "dim")]), f"{key_of('run')} asks for values")


def _applies(view: RunbookView, tried: RunbookRun | str | None, width: int) -> Section:
    lines: list[Line] = []
    note = ""
    if isinstance(tried, RunbookRun):
        note = "yes" if tried.applies else "no"
        lines += findings(tried, width)
    else:
        lines += [line for text in view.when for line in hanging("·  ", printable(text), width)]
        if isinstance(tried, str):
            lines += hanging("not known yet: ", printable(tried), width, "warn")
    return Section("Applies now?", tuple(lines or [text_line("always", "dim")]), note)


def findings(run: RunbookRun, width: int) -> list[Line]:
    """Each condition, and whether it holds."""
    looks = {"success": ("✓ ", "ok"), "failure": ("✗ ", "bad"), "inconclusive": ("? ", "warn")}
    return [
        line
        for each in run.when
        for line in hanging(looks[each.verdict][0], printable(each.found), width, looks[each.verdict][1])
    ]


def _steps(view: RunbookView, width: int) -> Section:
    lines = [
        line
        for text in view.steps
        for line in hanging("      " if text.startswith(" ") else "  ", printable(text.strip()), width)
    ]
    lines += [text_line(line, "dim") for line in wrap(printable(view.limits), width)] if view.limits else []
    return Section("Steps", tuple(lines or [text_line("none readable", "dim")]))


def run_lines(run: RunbookRun, width: int) -> list[Line]:
    """Above the plan of a run: whether it applies, and what its inputs are."""
    lines = findings(run, width)
    if not run.applies:
        lines.append(text_line("it does NOT apply now: view only, cannot be proposed", "bad"))
    for each in run.inputs:
        value = ", ".join(each.values) or "–"
        lines += hanging(f"{printable(each.name)}  ", printable(f"{value} ({each.source})"), width, "accent")
    if run.skipped:
        lines += hanging("skipped, nothing to act on: ", printable(", ".join(run.skipped)), width, "warn")
    return lines


def request_words(line: str) -> tuple[str, dict[str, str]]:
    """`ID node=n1 pool=gpu` as id and inputs. Raises ValueError saying what is wrong."""
    import shlex

    words: Sequence[str] = shlex.split(line)
    if not words:
        raise ValueError("name a runbook, as in :run ID node=n1")
    inputs: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"'{printable(word)[:40]}' is not NAME=VALUE")
        if name in inputs:
            raise ValueError(f"{printable(name)[:40]} is given twice")
        inputs[name] = value
    return words[0], inputs
