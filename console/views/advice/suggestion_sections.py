"""A suggestion in the order in which it is decided on: what would be done and what for, what the twin says, what it was
measured on, what speaks against it. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.text.figures import change, heads, middle
from console.text.plain_tables import table
from console.text.terminal_text import cut, cut_name, money, printable, timestamp
from console.views.advice.suggestions import (
    TOLD,
    action_text,
    evidence_text,
    expected_text,
    track_text,
    tried_text,
    worth_text,
)
from console.views.decisions.proposal import hanging
from console.views.sections import Line, Section, text_line

if TYPE_CHECKING:
    from recommender.findings.queries import Recommendation

MAX_LISTED = 60
"""Characters of targets in a line; the plan lists them all."""


def suggestion_sections(each: Recommendation, width: int) -> list[Section]:
    """All of it, for a page."""
    suggestion = each.suggestion
    asks = "A shows the plan and asks" if each.command else "for people: nothing to propose"
    sections = [
        Section(printable(suggestion.id), tuple(_what(each, width)), asks),
        Section("Before and after", tuple(_tried(each, width)), "tried on a fork"),
        Section("Evidence", tuple(_evidence(each, width)), suggestion.kind.replace("_", " ")),
    ]
    other = [line for text in suggestion.alternatives for line in hanging("or  ", printable(text), width)]
    other += hanging("    ", printable(suggestion.counterfactual), width, "", "dim")
    return [*sections, Section("Otherwise", tuple(other))]


def _what(each: Recommendation, width: int) -> list[Line]:
    suggestion = each.suggestion
    lines = hanging("", printable(suggestion.finding), width, "", "strong")
    pairs = [("do", action_text(each)), ("worth", worth_text(each))]
    if suggestion.cost_delta_microusd_hour:
        delta = suggestion.cost_delta_microusd_hour
        pairs.append(("costs", f"{'+' if delta > 0 else ''}{money(delta)} an hour"))
    if suggestion.expected is not None:
        pairs.append(("promised", expected_text(suggestion.expected)))
    pairs.append(("so far", track_text(each.track) if each.track else "none of its kind has come due yet"))
    if each.state != "open":
        pairs.append(("state", each.state))
    pairs += [("note", each.note)] if each.note else []
    pairs.append(("found", f"{timestamp(each.first_ms)} UTC"))
    return lines + [line for name, text in pairs for line in hanging(f"{name:<10}", printable(text), width)]


def _tried(each: Recommendation, width: int) -> list[Line]:
    """What the twin says of the cell, and of what it is about; the rest is `muster explain`'s to tell."""
    simulated, about = each.simulated, {each.suggestion.about, *each.suggestion.targets}
    lines = hanging("", printable(tried_text(simulated, brief=False)), width, "", "dim")
    rows = [
        [cut_name(printable(f"{one.subject}: {one.title}" if one.subject else one.title), width // 3),
         middle(one.unit, one.before), middle(one.unit, one.after), change(one)[0]]
        for one in simulated.figures
        if (one.name in TOLD and not one.subject) or one.subject in about
    ]  # fmt: skip
    if rows:
        head, *body = table(heads(simulated.figures), rows, (False, True, True, False))
        lines += [text_line(cut(head, width), "header"), *(text_line(cut(line, width)) for line in body)]
    return lines


def _evidence(each: Recommendation, width: int) -> list[Line]:
    suggestion = each.suggestion
    lines = [line for item in suggestion.evidence for line in hanging("· ", evidence_text(item), width)]
    lines += [line for text in suggestion.thin for line in hanging("but ", printable(text), width, "warn")]
    if suggestion.targets:
        named = ", ".join(map(printable, suggestion.targets))
        lines += hanging(f"{len(suggestion.targets):,} target{'s' if suggestion.targets[1:] else ''}  ",
                         cut(named, MAX_LISTED), width)  # fmt: skip
    return lines


# --- beside a proposal


def found_sections(each: Recommendation | None, width: int) -> list[Section]:
    """What a proposal follows from, beside the evidence that is attached to its plan."""
    if each is None:
        return []
    return [Section("Found by the recommender", tuple(found_lines(each, width)), each.suggestion.id)]


def found_lines(each: Recommendation, width: int, left_out: Sequence[str] = ()) -> list[Line]:
    """The finding, what it was measured on, what speaks against it, and what doing nothing means. `left_out`: targets
    that have ended since."""
    suggestion = each.suggestion
    told = [("finding", suggestion.finding), *(("evidence", evidence_text(item)) for item in suggestion.evidence)]
    told += [("but", text) for text in suggestion.thin]
    told += [("promised", expected_text(suggestion.expected))] if suggestion.expected else []
    told += [("otherwise", text) for text in suggestion.alternatives[-1:]]
    if left_out:
        named = cut(", ".join(map(printable, left_out)), MAX_LISTED)
        told.append(("left out", f"{len(left_out):,} that ended since it was found: {named}"))
    return [line for label, text in told for line in hanging(f"{label:<11}", printable(text), width)]
