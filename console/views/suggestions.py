"""Recommendations in words: their list for the shell, and one of them as sections.

One is shown in the order of a decision: action and purpose, the twin's before and after, evidence, objections. Its list
is ranked by the GPU-hours a day that it would gain.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from console.actions.key_map import key_of
from console.text.plain_tables import change, heads, middle, signed_spread, table
from console.text.terminal_text import (
    NONE,
    cut,
    cut_name,
    duration,
    fit,
    fit_name,
    permille,
    printable,
    timestamp,
    wrap,
)
from console.views.proposal import hanging
from console.views.sections import Line, Section, text_line
from engine.model.quantities import counted, shortlist, usd
from recommender.findings.suggestions import figure, relief_permille

if TYPE_CHECKING:
    from recommender.findings.suggestions import (
        Evidence,
        Expected,
        Followed,
        IncidentGroup,
        Recommendation,
        Recommendations,
        SuggestionTrial,
        Track,
    )


WIDTH = 80
SHOWN_IDS = 5
SHOWN_FIGURES = 3
"""Figures of a try that a list shows; the explanation has all."""
ALWAYS_SHOWN = ("wait_mean", "waiting", "evictions", "cost")
"""Figures that are told also where nothing changes."""
SHOWN_LINES = 20
"""Lines of the list where not all is asked for: with the rest, about a screen."""
MIN_OPEN = 2


# --- the list


def recommendation_lines(view: Recommendations, which_engine: Sequence[str], *, every: bool = False) -> list[str]:
    """Open recommendations with their grounds in a line or two: all, or those that fit on a screen. `which_engine` are
    flags that make a command reach the same engine."""
    lines: list[str] = []
    shown = 0
    heads = {group.ids[0]: group for group in view.incidents}
    lasts = {group.ids[-1]: group for group in view.incidents}
    by_id = {each.suggestion.id: each for each in view.open}
    for each in view.open:
        id_ = each.suggestion.id
        brief = [*incident_lines(heads.get(id_), WIDTH), *_brief(each, view, which_engine)]
        if not every and shown >= MIN_OPEN and len(lines) + len(brief) > SHOWN_LINES:
            break
        lines += [*brief, ""]
        shown += 1
        if id_ in lasts:
            lines += [*_wrapped(nothing_text([by_id[one] for one in lasts[id_].ids]), 3), ""]
    if shown < len(view.open):
        lines += [f"{len(view.open) - shown:,} more of lower value: --all lists them", ""]
    if not view.open:
        lines += [f"no suggestions at version {view.version:,}", ""]
    if view.aside:
        lines.append("dismissed:")
        for each in view.aside:
            lines += _wrapped(f"{each.suggestion.id}  {printable(each.suggestion.finding)}", 2)
            lines += _wrapped(printable(each.note), 11)
        lines.append("")
    if view.followed:
        lines.append("outcomes:")
        for followed in view.followed:
            lines += _wrapped(followed_text(followed), 2)
        lines.append("")
    for text in view.unknown:
        lines += _wrapped(f"not known: {printable(text)}", 0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _brief(each: Recommendation, view: Recommendations, which_engine: Sequence[str]) -> list[str]:
    suggestion = each.suggestion
    first = suggestion.evidence[0] if suggestion.evidence else None
    pairs = [("do", action_text(each))]
    if first is not None:
        pairs.append(("evidence", evidence_text(first)))
    pairs += [("thin", printable(text)) for text in suggestion.thin[:1]]
    pairs += [("again", printable(each.note))] if each.note else []
    if suggestion.action != "notify":
        pairs.append(("tried", tried_text(each.simulated)))
    pairs += [("record", track_text(each.track))] if each.track is not None else []
    lines = [f"{each.rank}. {suggestion.id}  worth {worth_text(each)}", *_wrapped(printable(suggestion.finding), 3)]
    lines += _pairs(pairs, 3)
    if each.command:
        lines.append(f"   {shell_line(each, which_engine)}")
    return lines


def incident_lines(group: IncidentGroup | None, width: int) -> list[str]:
    """The heading of a group: what is wrong and what there is of it now."""
    if group is None:
        return []
    return _wrapped(printable(f"{group.title.upper()}{f': {group.symptom}' if group.symptom else ''}"), 0, width)


def nothing_text(group: Sequence[Recommendation]) -> str:
    """What doing nothing means for a group, as the twin foretells it where it has tried one of them; and whether
    anything that was tried helps."""
    tried = [each for each in group if each.simulated.state == "done"]
    reliefs = [removed for each in tried if (removed := relief_permille(each.simulated)) is not None]
    helpless = "nothing that was tried helps; " if reliefs and max(reliefs) <= 0 else ""
    if tried:
        simulated = tried[0].simulated
        told = [
            f"{figure_.title.lower()} {middle(figure_.unit, figure_.before)}"
            for figure_ in simulated.figures
            if figure_.of == "cell" and figure_.name in ("wait_mean", "waiting")
        ]
        if told:
            return printable(f"do nothing: {helpless}in {duration(simulated.horizon_ms)} {', '.join(told)}")
    last = group[0].suggestion.alternatives[-1:] if group else ()
    return printable(f"do nothing: {helpless}{last[0].removeprefix('No action: ') if last else 'it stays as it is'}")


def group_sections(
    view: Recommendations, width: int, lines: Callable[[Sequence[Recommendation]], tuple[Line, ...]]
) -> list[Section]:
    """The open ones by incident for a page: the symptom, the ways that `lines` draws, and doing nothing beside them."""
    left = {each.suggestion.id: each for each in view.open}
    sections = []
    for group in view.incidents:
        chosen = [left.pop(id_) for id_ in group.ids if id_ in left]
        symptom = [text_line(line, "strong") for line in wrap(printable(group.symptom), width)] if group.symptom else []
        nothing = [text_line(line, "dim") for line in wrap(nothing_text(chosen), width)]
        title = printable(group.title[:1].upper() + group.title[1:])
        sections.append(Section(title, (*symptom, *lines(chosen), *nothing), "GPU-hours a day"))
    if left:
        # An engine of an earlier release tells no incidents.
        sections.append(Section("Found", lines(list(left.values())), "GPU-hours a day"))
    return sections


def nothing_found(width: int) -> tuple[Line, ...]:
    """What stands where suggestions would."""
    text = "nothing stands out. Waits, idle or broken nodes, quotas and spending that do are listed here, with a remedy"
    return tuple(text_line(line, "dim") for line in wrap(text, width))


# --- parts


def skill_text(each: Recommendation) -> str:
    """The model of the finding and how good it has proved."""
    skill = each.suggestion.skill
    assert skill is not None
    scored = f"{skill.scored:,} scored" if skill.scored else "not scored here yet"
    return printable(f"{skill.model}: {skill.measure}: {skill.value} ({scored})")


def worth_text(each: Recommendation) -> str:
    """Rank value: GPU-hours a day."""
    return f"{each.worth_gpu_milli_h / 1000:,.1f} GPU-hours a day{', thin evidence' if each.suggestion.thin else ''}"


def action_text(each: Recommendation) -> str:
    """The action in words."""
    suggestion = each.suggestion
    targets = [printable(target) for target in suggestion.targets]
    ids = shortlist(targets, SHOWN_IDS)
    if suggestion.action == "notify":
        return f"notify the owners of {ids}" if targets else "investigate"
    behind = f" {printable(' '.join(suggestion.parameters))}" if suggestion.parameters else ""
    if suggestion.action == "consolidate":
        return f"consolidate{behind}"
    return f"{suggestion.action.replace('_', ' ')} {ids}{behind}"


def evidence_text(item: Evidence) -> str:
    baseline = f", baseline {item.baseline}" if item.baseline else ""
    return printable(f"{item.metric}: {item.value}{baseline} ({item.window}; n={item.rows:,})")


def expected_text(expected: Expected) -> str:
    of = printable(f"{expected.of} {expected.subject}".strip())
    was, to = figure(expected.metric, expected.was), figure(expected.metric, expected.to)
    return f"{expected.metric} of {of} from {was} to {to} within {duration(expected.within_ms)}"


def track_text(track: Track) -> str:
    """Record of suggestions of this kind."""
    judged = track.acted - track.unknown
    told = []
    if judged:
        low, high = permille(track.held_low_permille or 0), permille(track.held_high_permille or 0)
        told.append(f"held {track.held:,} of {judged:,} acted on ({low}..{high})")
        told += [f"{track.partly:,} partly"] if track.partly else []
        told += ["helped in under half of its cases"] if track.helps_rarely else []
    if track.unknown:
        told.append(f"{track.unknown:,} acted on, not measurable")
    if track.left:
        told.append(f"{track.resolved:,} of {track.left:,} not acted on resolved without action")
    return "; ".join(told) or "no track record yet"


def followed_text(followed: Followed) -> str:
    """A promise and what came of it."""
    way = f"acted on by {printable(followed.who)}" if followed.way == "acted" else "not acted on"
    if followed.verdict is None:
        return f"{followed.id}  {way}; check due {timestamp(followed.due_ms)} UTC: {expected_text(followed.expected)}"
    outcome = {"held": "held", "partly": "held partly", "no": "did not hold", "unknown": "not measurable"}
    told = outcome[followed.verdict.outcome]
    if followed.way == "left":
        told = {"held": "resolved without action", "no": "did not resolve"}.get(followed.verdict.outcome, told)
    return f"{followed.id}  {way}: {told}; {printable(followed.verdict.why)}"


_RESULTS = {
    ("acted", "held"): ("✓ held", "ok"),
    ("acted", "partly"): ("◑ held partly", ""),
    ("acted", "no"): ("✗ did not hold", "warn"),
    ("left", "held"): ("✓ resolved", ""),
    ("left", "no"): ("✗ not resolved", ""),
}
"""Sign and word of a verdict, by whether the suggestion was acted on."""


def followed_rows(followed: Sequence[Followed], width: int) -> tuple[Line, ...]:
    """Promises and what came of them, one a line below their headings."""
    wide = [9, 16, 10]
    heads = ("ID", "RESULT, OR DUE", "BY", "MEASURED, OR PREDICTED")
    room = max(10, width - sum(wide))
    lines = [Line(((cut("".join(map(fit, heads, (*wide, room))), width), "dim"),))]
    for each in followed:
        result, tone = f"○ {timestamp(each.due_ms)[5:16]}", "dim"
        promise, seen = each.expected, each.expected.to
        if each.verdict is not None:
            result, tone = _RESULTS.get((each.way, each.verdict.outcome), ("· not measured", "dim"))
            seen = promise.to if each.verdict.seen is None else each.verdict.seen
        of = printable(f"{promise.metric} of {f'{promise.of} {promise.subject}'.strip()}")
        told = f"{figure(promise.metric, promise.was)} → {figure(promise.metric, seen)}  {of}"
        who = fit_name(printable(each.who) if each.way == "acted" else NONE, wide[2] - 2) + "  "
        start = ((fit(printable(each.id), wide[0]), ""), (fit(result, wide[1]), tone), (who, ""))
        lines.append(Line((*start, (cut(told, room), "dim"))))
    return tuple(lines)


def tried_text(simulated: SuggestionTrial, *, brief: bool = True) -> str:
    """State and result of the trial on the twin."""
    if simulated.state == "none":
        return f"not tried: {printable(simulated.why)}"
    if simulated.state == "failed":
        return f"failed: {printable(simulated.why)}"
    if simulated.state == "waiting" or not simulated.figures:
        return "not yet" if simulated.state == "waiting" else "running ahead …"
    # Of when it is, not how long ago: the page may be read long after it was drawn.
    when = f"v{simulated.version:,} at {timestamp(simulated.at_ms, date=False)}"
    basis = f"{when}, {duration(simulated.horizon_ms)} ahead, {counted(simulated.seeds, 'seed')}"
    basis += ", still running" if simulated.state == "running" else ""
    if not brief:
        return basis + (f"; {printable(simulated.why)}" if simulated.why else "")
    told = [
        f"{each.title.lower()} {change(each)[0]}"
        for each in simulated.figures
        if each.of == "cell" and (each.change.least, each.change.most) != (0, 0)
    ]
    return f"{'; '.join(told[:SHOWN_FIGURES]) or 'nothing changes'} ({basis})"


def shell_line(each: Recommendation, which_engine: Sequence[str]) -> str:
    """The command that proposes the action: whole, whatever its length, so that it can be used."""
    return shlex.join(["muster", *map(printable, each.command), *which_engine])


def _pairs(pairs: Sequence[tuple[str, str]], indent: int, width: int = WIDTH) -> list[str]:
    """`name  value` lines, values aligned and wrapped."""
    first = max(len(name) for name, _ in pairs) + 2
    lines = []
    for name, value in pairs:
        parts = wrap(value, max(width - indent - first, 20)) or [""]
        lines.append(f"{' ' * indent}{name:<{first}}{parts[0]}".rstrip())
        lines += [f"{' ' * (indent + first)}{part}" for part in parts[1:]]
    return lines


def _wrapped(text: str, indent: int, width: int = WIDTH) -> list[str]:
    parts = wrap(text, max(width - indent - (2 if indent else 0), 20))
    return [f"{' ' * (indent if not n else indent + 2 * bool(indent))}{part}" for n, part in enumerate(parts)]


def list_line(each: Recommendation, width: int) -> str:
    """A recommendation in one line of a screen."""
    rank = f"{each.rank:>2}" if each.rank else " -"
    worth = f"{each.worth_gpu_milli_h / 1000:>8,.1f}"
    return cut(f"{rank}  {each.suggestion.id}  {worth}  {printable(each.suggestion.finding)}", width)


# --- one, as sections

MAX_TARGETS_SHOWN = 60
"""Characters of targets in a line; the plan lists them all."""


def suggestion_sections(each: Recommendation, width: int) -> list[Section]:
    """All of it, for a page."""
    suggestion = each.suggestion
    asks = (
        ("", f"{key_of('act_on')} shows the plan and asks")
        if each.command
        else ("for people: no action to propose", "")
    )
    sections = [
        Section(printable(suggestion.id), tuple(_what(each, width)), *asks),
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
        pairs.append(("costs", f"{'+' if delta > 0 else ''}{usd(delta)} an hour"))
    if each.simulated.cost_microusd_hour is not None:
        pairs.append(("on twin", f"{signed_spread('money', each.simulated.cost_microusd_hour)} an hour"))
    if suggestion.expected is not None:
        pairs.append(("predicted", expected_text(suggestion.expected)))
    pairs.append(("record", track_text(each.track) if each.track else "no track record yet"))
    pairs += [("model", skill_text(each))] if suggestion.skill else []
    if each.state != "open":
        pairs.append(("state", each.state))
    pairs += [("note", each.note)] if each.note else []
    pairs.append(("found", f"{timestamp(each.first_ms)} UTC"))
    return lines + [line for name, text in pairs for line in hanging(f"{name:<10}", printable(text), width)]


def _tried(each: Recommendation, width: int) -> list[Line]:
    """The twin's figures of the cell, and of what the suggestion is about."""
    simulated, about = each.simulated, {each.suggestion.about, *each.suggestion.targets}
    lines = hanging("", printable(tried_text(simulated, brief=False)), width, "", "dim")
    rows = [
        [cut_name(printable(f"{one.subject}: {one.title}" if one.subject else one.title), width // 3),
         middle(one.unit, one.before), middle(one.unit, one.after), change(one)[0]]
        for one in simulated.figures
        if (one.name in ALWAYS_SHOWN and not one.subject) or one.subject in about
    ]  # fmt: skip
    if rows:
        head, *body = table(heads(simulated.figures), rows, (False, True, True, False))
        lines += [text_line(cut(head, width), "header"), *(text_line(cut(line, width)) for line in body)]
    return lines


def _evidence(each: Recommendation, width: int) -> list[Line]:
    suggestion = each.suggestion
    lines = [line for item in suggestion.evidence for line in hanging("· ", evidence_text(item), width)]
    lines += [line for text in suggestion.thin for line in hanging("note  ", printable(text), width, "warn")]
    if suggestion.targets:
        named = ", ".join(map(printable, suggestion.targets))
        lines += hanging(f"{len(suggestion.targets):,} target{'s' if suggestion.targets[1:] else ''}  ",
                         cut(named, MAX_TARGETS_SHOWN), width)  # fmt: skip
    return lines


def found_sections(each: Recommendation | None, width: int) -> list[Section]:
    """The finding a proposal follows from, beside the evidence attached to its plan."""
    if each is None:
        return []
    return [Section("Found by the recommender", tuple(found_lines(each, width)), each.suggestion.id)]


def found_lines(each: Recommendation, width: int, left_out: Sequence[str] = ()) -> list[Line]:
    """The finding, what it was measured on, what speaks against it, and what doing nothing means. `left_out`: targets
    that have ended since."""
    suggestion = each.suggestion
    told = [("finding", suggestion.finding), *(("evidence", evidence_text(item)) for item in suggestion.evidence)]
    told += [("note", text) for text in suggestion.thin]
    told += [("predicted", expected_text(suggestion.expected))] if suggestion.expected else []
    told += [("otherwise", text) for text in suggestion.alternatives[-1:]]
    if left_out:
        named = cut(", ".join(map(printable, left_out)), MAX_TARGETS_SHOWN)
        told.append(("left out", f"{len(left_out):,} ended since: {named}"))
    return [line for label, text in told for line in hanging(f"{label:<11}", printable(text), width)]
