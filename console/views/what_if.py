"""What the twin answers, in words and tables: for the shell as lines, for screens as sections. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from console.text.plain_tables import UNCHANGED, change, facts, signed, spread, table
from console.text.terminal_text import NONE, cut, duration, fit, printable, timestamp, wrap
from console.views.sections import Line, Section, text_line
from engine.model.quantities import MIN_RUNS, shortlist

if TYPE_CHECKING:
    from engine.model.twin_queries import (
        Driver,
        DryRun,
        Figure,
        Outlook,
        RunStatus,
        Score,
        ScoreReport,
        Start,
        StartEstimate,
        StartFigure,
        StartForecast,
        Trial,
    )


SHOWN_STARTS = 20
SHOWN_NAMES = 5


# --- starts


def start(found: Start | None, now_ms: int, ahead_ms: int) -> str:
    """Start of a workload from now: `2h (1h..5h)`, with its chance below certainty. `ahead_ms`: how far the twin
    looked. Too few runs for quantiles give their values: `2h in one run`, `1h..3h in 3 runs`."""
    if found is None:
        return NONE
    within = duration(ahead_ms)
    few = f" in {runs(found.runs)}" if found.chance_permille is None else ""
    if not found.started:
        return f"not within {within}{few}"
    if found.chance_permille is None:
        times = _from_to(found.least_ms, found.most_ms if found.started == found.runs else None, now_ms, within)
        return f"{times}{few}"
    middle = _from_now(found.p50_ms, now_ms, within)
    if found.p10_ms != found.p90_ms:
        middle += f" ({_from_to(found.p10_ms, found.p90_ms, now_ms, within)})"
    return middle if found.started == found.runs else f"{middle}, {found.chance_permille / 10:g}% within {within}"


def forecast_facts(found: StartForecast | None, now_ms: int) -> list[tuple[str, str]]:
    """The start of what waits: when, what decides it, and how such forecasts have held. (label, text)"""
    if found is None:
        return []
    decides = ("decided by", printable(found.decides))
    if found.p50_ms is None:
        return [("starts", "not known: somebody has to act"), decides]
    times = _from_to(found.p10_ms, found.p90_ms, now_ms, NONE)
    refined = f", refined by {runs(found.seeds)} of the twin" if found.seeds else ""
    facts = [("starts", f"{_from_now(found.p50_ms, now_ms, NONE)} ({times}){refined}"), decides]
    if found.p90_held_permille is not None:
        facts.append(("record", f"of {found.alike:,} like this, p90 held for {found.p90_held_permille / 10:.0f}%"))
    else:
        facts.append(("record", "none like this has started yet: the range is a guess"))
    return facts


def runs(count: int) -> str:
    """A number of runs of the twin."""
    return "one run" if count == 1 else f"{count:,} runs"


def _from_to(low_ms: int | None, high_ms: int | None, now_ms: int, within: str) -> str:
    low, high = _from_now(low_ms, now_ms, within), _from_now(high_ms, now_ms, within)
    return low if low == high else f"{low}..{high}"


def _from_now(at_ms: int | None, now_ms: int, within: str) -> str:
    if at_ms is None:
        return f"over {within}"
    return "now" if at_ms <= now_ms else duration(at_ms - now_ms)


def _moved(figure: StartFigure) -> tuple[str, str]:
    before, after = _middle(figure.before), _middle(figure.after)
    if before is None or after is None:
        return NONE, "dim"
    by = after - before
    return (UNCHANGED, "dim") if not by else (signed("duration", by), "ok" if by < 0 else "bad")


def _middle(found: Start | None) -> int | None:
    """The median, or the start in the only run."""
    if found is None:
        return None
    return found.least_ms if found.runs == 1 else found.p50_ms


# --- what if, for the shell


def outlook_lines(view: Outlook) -> list[str]:
    """Figures before and after, one a line."""
    edits = [("what if" if i == 0 else "", printable(text)) for i, text in enumerate(view.edits)]
    lines = [*facts([*(edits or [("what if", "no edits")]), ("based on", rests_on(view))]), ""]
    told = telling(view.figures)
    rows = [_figure_row(figure) for figure in told]
    lines += table(("", "BEFORE", "AFTER", "CHANGE"), rows, (False, True, True, False))
    if len(told) < len(view.figures):
        lines.append(_rest(len(view.figures) - len(told)))
    if view.starts:
        moves = [
            [
                printable(move.id), printable(move.queue), move.why, start(move.before, view.at_ms, view.covered_ms),
                start(move.after, view.at_ms, view.covered_ms), _moved(move)[0],
            ]
            for move in view.starts[:SHOWN_STARTS]
        ]  # fmt: skip
        lines += ["", *table(("STARTS", "QUEUE", "WHY", "BEFORE", "AFTER", "CHANGE"), moves, (False,) * 6)]
        if len(view.starts) > SHOWN_STARTS:
            lines.append(f"  and {len(view.starts) - SHOWN_STARTS:,} more: --json")
    return [*lines, *(["", *(f"note: {printable(note)}" for note in view.notes)] if view.notes else [])]


def rests_on(view: Outlook) -> str:
    """State, time, horizon and seeds of the figures."""
    ahead = duration(view.horizon_ms)
    if view.covered_ms < view.horizon_ms:
        ahead = f"the first {duration(view.covered_ms)} of {ahead}"
    when = timestamp(view.at_ms)
    few = f", too few for quantiles: min..max of {runs(view.seeds)}" if view.seeds < MIN_RUNS else ""
    return f"state v{view.version:,} at {when} UTC, {ahead} ahead, {_many(view.seeds, 'seed')}{few}"


def telling(figures: Sequence[Figure]) -> list[Figure]:
    """Figures without those of queues and tenants that no seed changes."""
    return [f for f in figures if f.of == "cell" or (f.change.least, f.change.most) != (0, 0)]


def _rest(count: int) -> str:
    return f"{_many(count, 'more figure')} of queues and tenants unchanged by the edits"


def _figure_row(figure: Figure) -> list[str]:
    return [
        _subject(figure) + figure.title,
        spread(figure.unit, figure.before),
        spread(figure.unit, figure.after),
        change(figure)[0],
    ]


def _subject(figure: Figure) -> str:
    """Subject of a figure, in front of its title."""
    if figure.of == "cell":
        return ""
    return f"{figure.of} {printable(figure.subject)}: " if figure.subject else f"no {figure.of}: "


# --- when a workload starts


def eta_lines(view: StartEstimate) -> list[str]:
    """The distribution of the start, and what decides it."""
    pairs = _start_facts(view)
    if view.forecast is not None and view.forecast.p50_ms is not None:
        pairs.append(("median at", f"{timestamp(view.forecast.p50_ms)} UTC"))
    arrivals = "with recent arrival rates" if view.arrivals else "without new arrivals"
    basis = f"state v{view.version:,}, {_many(view.seeds, 'seed')}, {duration(view.horizon_ms)} ahead, {arrivals}"
    pairs.append(("based on", f"{basis}; {printable(view.basis)}" if view.basis else basis))
    if view.leaves_out:
        pairs.append(("ignores", printable(view.leaves_out)))
    lines = [f"{printable(view.id)} is {view.state}", *facts(pairs)]
    return [
        *lines,
        *(["what decides it", *(f"  {driver(d, view.at_ms)}" for d in view.drivers)] if view.drivers else []),
    ]


def _start_facts(view: StartEstimate) -> list[tuple[str, str]]:
    """The start: as told at once, and refined by the runs as soon as they are enough for quantiles."""
    told = forecast_facts(view.forecast, view.forecast.at_ms if view.forecast is not None else view.at_ms)
    few = 0 < view.seeds < MIN_RUNS
    return [*told, ("run ahead", f"{runs(view.seeds)} of the twin, too few to refine it")] if few else told


def driver(item: Driver, now_ms: int) -> str:
    """A cause of a start, and its share of the seeds."""
    when = f", in {duration(item.at_ms - now_ms)}" if item.at_ms is not None and item.at_ms > now_ms else ""
    often = "" if item.chance_permille == 1000 else f" (in {item.chance_permille / 10:g}% of the seeds)"
    return f"{printable(item.text)}{when}{often}"


def score_lines(view: ScoreReport) -> list[str]:
    """Estimates that were shown, compared with the outcome."""
    counted = f"{_many(view.stored, 'estimate')} shown, {view.open:,} of work that has not started"
    if not view.scores:
        return [counted, "no scores yet"]
    titles = ("LEAD", "SCORED", "IN P10..P90", "EARLIER", "LATER", "MEDIAN ERROR")
    return [counted, "", *table(titles, [_score_row(score) for score in view.scores], (False, *(True,) * 5))]


def _score_row(score: Score) -> list[str]:
    shares = (score.covered_permille, score.early_permille, score.late_permille)
    return [
        score.lead,
        f"{score.estimates:,}",
        *(f"{share / 10:.1f}%" for share in shares),
        duration(score.median_error_ms),
    ]


# --- would it run


def dry_run_lines(view: DryRun) -> list[str]:
    """Now or when, at what cost, and who would have to make room."""
    lines = []
    for trial in view.trials:
        lines += [printable(trial.id), *(f"  {line}" for line in facts(_trial(trial, view)))]
    if view.preempts_now:
        lines.append(f"would preempt now: {_names(view.preempts_now)}")
    if view.evictions.most:
        lines.append(f"extra evictions: {spread('count', view.evictions)}")
    if view.delayed:
        rows = [
            [
                printable(move.id),
                start(move.before, view.at_ms, view.covered_ms),
                start(move.after, view.at_ms, view.covered_ms),
                _moved(move)[0],
            ]
            for move in view.delayed[:SHOWN_STARTS]
        ]
        lines += ["", *table(("DELAYED", "BEFORE", "AFTER", "BY"), rows, (False,) * 4)]
    ahead = duration(view.covered_ms) + (
        f" of {duration(view.horizon_ms)}" if view.covered_ms < view.horizon_ms else ""
    )
    basis = f"state v{view.version:,}, {_many(view.seeds, 'seed')}, {ahead} ahead"
    return [*lines, f"nothing was submitted; tried on a fork of {basis}"]


def _trial(trial: Trial, view: DryRun) -> list[tuple[str, str]]:
    told = forecast_facts(trial.forecast, view.at_ms)[:1]
    ahead = "at once" if trial.starts_now else start(trial.start, view.at_ms, view.horizon_ms)
    pairs = told or [("starts", ahead)]
    if trial.reason:
        pairs.append(("not now", printable(trial.reason)))
    if trial.end_p50_ms is not None:
        pairs.append(("ends", f"{timestamp(trial.end_p50_ms)} UTC (median)"))
    pairs.append(("costs", spread("money", trial.cost) if trial.cost.most else "nothing: the nodes have no price"))
    return pairs


def _names(ids: Sequence[str]) -> str:
    return printable(shortlist(ids, SHOWN_NAMES))


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# --- the same on a screen


def run_line(run: RunStatus, width: int, link: str) -> Line:
    """A kept run: its edits and its progress."""
    from engine.model.what_if_edits import written

    ask = run.ask
    edits = "; ".join(written(edit) for edit in getattr(ask, "edits", ())) or "no edits"
    mark, tone = {
        "running": (f"{run.progress_permille // 10:>3}%", "accent"),
        "done": ("done", "ok"),
        "failed": ("fail", "bad"),
        "cancelled": ("stop", "dim"),
    }[run.state]
    return Line(((f"{mark}  ", tone), (cut(printable(edits), width - 6), "")), link)


def outlook_sections(view: Outlook, width: int, beside: Outlook | None = None) -> list[Section]:
    """Figures of the cell, of queues, of tenants, and the starts. `beside`: another run whose "after" is set against
    this one's."""
    sections = []
    for of, title in (("cell", "Cell"), ("queue", "Queues"), ("tenant", "Tenants")):
        figures = [figure for figure in view.figures if figure.of == of]
        told = figures if beside is not None else telling(figures)
        lines = _figure_lines(told, width, beside) if told else []
        if len(told) < len(figures):
            lines.append(text_line(_rest(len(figures) - len(told)), "dim"))
        if lines:
            sections.append(Section(title, tuple(lines), _heads(beside)))
    if view.starts:
        moves = tuple(_start_line(move, view, width) for move in view.starts)
        sections.append(Section("Starts", moves, "before → after"))
    if view.notes:
        notes = tuple(text_line(line, "warn") for note in view.notes for line in wrap(printable(note), width))
        sections.append(Section("Notes", notes))
    return sections


def _heads(beside: Outlook | None) -> str:
    return "before → after: change" if beside is None else "this one | other"


def _figure_lines(figures: Sequence[Figure], width: int, beside: Outlook | None) -> list[Line]:
    """One line a figure, in columns as wide as the widest; the change is what is cut when there is too little room."""
    others = {(f.of, f.subject, f.name): f for f in beside.figures} if beside is not None else {}
    rows = []
    for figure in figures:
        label = (
            f"{printable(figure.subject)} {figure.title.lower()}" if figure.subject else _subject(figure) + figure.title
        )
        if beside is None:
            row = (label, spread(figure.unit, figure.before), spread(figure.unit, figure.after), *change(figure))
        else:
            other = others.get((figure.of, figure.subject, figure.name))
            theirs = spread(other.unit, other.after) if other is not None else NONE
            row = (label, spread(figure.unit, figure.after), theirs, "", "")
        rows.append(row)
    first, second, third = (max(cell_len(row[column]) for row in rows) for column in range(3))
    first = min(first, max(12, width - second - third - 12))
    between = " → " if beside is None else " | "
    return [
        Line(
            (
                (fit(label, first) + "  ", "dim"),
                (fit(before, second, right=True), ""),
                (between, "faint"),
                (fit(after, third), ""),
                (f"  {words}", tone),
            )
        )
        for label, before, after, words, tone in rows
    ]


def _start_line(move: StartFigure, view: Outlook, width: int) -> Line:
    words, tone = _moved(move)
    before, after = (start(each, view.at_ms, view.covered_ms) for each in (move.before, move.after))
    name = fit(printable(move.id), min(28, max(12, width // 3)))
    spans = (
        (f"{name}  ", ""),
        (f"{before} → {after}  ", "dim"),
        (words, tone),
    )
    return Line(spans, f"workload {printable(move.id)}" if move.before is not None else "")


def eta_section(view: StartEstimate, width: int) -> Section:
    """The start estimate of one workload, for its page."""
    lines = [Line(((fit(label, 12), "dim"), (text, ""))) for label, text in _start_facts(view)]
    for item in view.drivers:
        link = f"workload {printable(item.subject)}" if item.kind in ("ends", "ahead") else ""
        first, *rest = wrap(driver(item, view.at_ms), max(20, width - 2))
        lines.append(Line((("· ", "faint"), (first, "link" if link else "")), link))
        lines += [Line(((f"  {line}", ""),)) for line in rest]
    return Section("When it starts", tuple(lines), f"{_many(view.seeds, 'seed')}, v{view.version:,}")
