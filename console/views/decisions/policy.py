"""View models of the approval policy, of the policies that wait for votes, of freezes, and of reviews. No Textual in
here."""

from __future__ import annotations

from collections.abc import Sequence

from console.text.terminal_text import duration, printable, timestamp
from console.views.decisions.proposal import framed, hanging, name_of
from console.views.sections import Line, Section, text_line
from runbooks.plans.typed_plan import Review
from runbooks.policy.freezes import Freeze, freeze_words
from runbooks.policy.queries import Candidate, PolicyView

CANDIDATE, FREEZE, REVIEW = "candidate:", "freeze:", "review:"
"""What links begin with."""


def policy_columns(view: PolicyView, now_ms: int, width: int) -> tuple[list[Section], list[Section]]:
    """What waits for a person first; then what is in force."""
    left = [section for each in view.candidates for section in candidate_sections(each, now_ms, width)]
    left += [_freezes(view.freezes, width), _head(view, width)]
    left.append(_pairs("What plans need", view.rules, width))
    left.append(_pairs("At most in an hour", view.limits, width))
    right = [_people(view, width)]
    if view.services:
        right.append(_pairs("Services", tuple((each, "drafts, and never votes") for each in view.services), width))
    right.append(_pairs("Channels", view.channels, width))
    right.append(Section("Another policy needs", tuple(hanging("", printable(view.change_need), width))))
    if view.notes:
        told = [line for note in view.notes for line in hanging("· ", printable(note), width)]
        right.append(Section("To know", tuple(told)))
    return left, right


def candidate_sections(candidate: Candidate, now_ms: int, width: int) -> list[Section]:
    """A policy that waits for votes: what it changes, what loosens marked, and whose votes are missing."""
    left = candidate.expires_ms - now_ms
    state = candidate.state.replace("_", " ")
    head = [(f"◌ {printable(candidate.id)} is {printable(state)}", "warn"), (f"   {duration(left)} left", "dim")]
    lines = [Line(tuple(head if left > 0 else head[:1]), CANDIDATE + candidate.id)]
    lines += hanging("proposed by  ", f"{name_of(candidate.author)}, {timestamp(candidate.at_ms)} UTC", width)
    if candidate.needs:
        lines += hanging("needs        ", f"{candidate.needs} more of {printable(candidate.need)}", width, "warn")
    lines += hanging("digest       ", printable(candidate.digest)[:16], width)
    if not candidate.changes:
        lines.append(text_line("it changes nothing", "dim"))
    for change in candidate.changes:
        label, tone = ("! loosens  ", "bad") if change.loosens else ("  changes  ", "dim")
        lines += hanging(label, printable(change.text), width, tone)
    for vote in candidate.votes:
        lines += hanging("vote         ", name_of(printable(vote)), width)
    return [Section(f"Waits for votes: version {candidate.revision}", tuple(lines), "A approves, N rejects")]


def _freezes(freezes: Sequence[Freeze], width: int) -> Section:
    lines: list[Line] = []
    for freeze in freezes:
        by = f"set by {name_of(freeze.by)}" if freeze.by else "of the policy"
        now, tone = ("● holds now", "warn") if freeze.holds else ("○ not now", "dim")
        link = FREEZE + freeze.spec.name if freeze.by else ""
        lines.append(Line(((f"{now}  ", tone), (printable(freeze.spec.name), "strong"), (f"  {by}", "dim")), link))
        lines += hanging("    ", printable(freeze_words(freeze.spec)), width)
        if freeze.spec.reason:
            lines += framed(freeze.spec.reason, width - 4, "    ")
    return Section(
        "Freezes", tuple(lines or [text_line("none: plans run at any time", "dim")]), "F sets one, T ends one"
    )


def _head(view: PolicyView, width: int) -> Section:
    since = f"since {timestamp(view.since_ms)} UTC, by {name_of(view.by)}" if view.since_ms else "built in"
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
    return Section("People", tuple(lines or [text_line("nobody is named: the owner of the engine decides", "dim")]))


def review_sections(reviews: Sequence[Review], width: int) -> list[Section]:
    """What waits for a person to look at it first."""
    waiting = [each for each in reviews if not each.closed_ms]
    looked = [each for each in reviews if each.closed_ms]
    lines = [line for each in waiting for line in _review(each, width)] or [text_line("nothing waits", "dim")]
    sections = [Section("Wait for a person to look at them", tuple(lines), "K closes one, ↵ opens its proposal")]
    if looked:
        gone = [line for each in looked for line in _review(each, width)]
        sections.append(Section("Were looked at", tuple(gone)))
    return sections


def _review(each: Review, width: int) -> list[Line]:
    what = "the glass was broken by" if each.forced else "opened by"
    glyph, tone = ("✓", "ok") if each.closed_ms else ("!", "bad") if each.forced else ("○", "warn")
    head = ((f"{glyph} {each.id}  ", tone), (f"{printable(each.about)}  ", "strong"), (f"{what} ", "dim"),
            (name_of(each.subject), ""), (f"  {timestamp(each.opened_ms)} UTC", "dim"))  # fmt: skip
    lines = [Line(head, f"{REVIEW}{each.id}")]
    if each.closed_ms:
        lines += hanging("    ", f"closed by {name_of(each.closed_by)}, {timestamp(each.closed_ms)} UTC", width)
    return [*lines, *framed(each.text, width - 4, "    ")]
