"""Findings and waiting work as sections of the overview, most urgent first, each with a link to its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.forms.filters import quoted
from console.text.charts import length, spark
from console.text.terminal_text import NONE, cut, duration, fit, fit_name, permille, printable
from console.text.tones import state_look
from console.views.sections import Line, Section, bar, quota_parts, text_line
from engine.model.details import FULL_BURN, Burn
from engine.model.list_queries import Page, Query
from engine.model.overviews import Overview
from engine.model.quantities import counted, usd

if TYPE_CHECKING:
    from console.views.lists import Span
    from engine.model.reports import BudgetLine
    from recommender.findings.suggestions import Recommendation
    from runbooks.plans.incidents import Incident
    from runbooks.plans.typed_plan import Proposal


SLOW_WAIT_MS = 30 * 60_000
"""A wait above this is worth a line on the overview."""
MAX_PROPOSALS, MAX_ADVICE, MAX_INCIDENTS = 3, 2, 3
"""Items that are named one by one."""
_FIRST, _SOON, _WORTH_KNOWING = range(3)
MIN_TEXT = 22
"""Cells below which a finding gives up its word for where Enter leads."""


class OverviewFinding(NamedTuple):
    urgency: int
    """0 is the most urgent."""
    glyph: str
    tone: str
    text: str
    link: str
    """The `:` line that Enter takes."""
    next: str
    """Effect of Enter, in a word or two."""


def line_of(found: OverviewFinding, width: int) -> Line:
    """The finding, and the next key to press at the right."""
    key = f"↵ {found.next}"
    room = width - 2 - len(key) - 1
    if room < MIN_TEXT:
        key, room = "↵", width - 4
    text = fit(printable(found.text), room)
    return Line(((f"{found.glyph} ", found.tone), (text + " ", ""), (key, "dim")), found.link)


def of_the_cell(view: Overview) -> Iterator[OverviewFinding]:
    """Findings from nodes and work."""
    down = sum(pool.down for pool in view.pools)
    if down:
        yield OverviewFinding(_FIRST, "✗", "bad", f"{counted(down, 'node')} down", "nodes state:down", "nodes down")
    if view.suspect:
        network = ": network problem?" if view.mass_suspicion else ""
        text = f"{counted(view.suspect, 'node')} suspect{network}"
        yield OverviewFinding(_FIRST if network else _SOON, "?", "warn", text, "nodes state:suspect", "nodes")
    leaving = sum(pool.cordoned + pool.draining for pool in view.pools)
    if leaving:
        text = f"{counted(leaving, 'node')} cordoned or draining"
        yield OverviewFinding(_WORTH_KNOWING, "◇", "warn", text, "nodes state:cordoned,draining", "nodes")
    booting, ordered = sum(pool.booting for pool in view.pools), sum(pool.ordered for pool in view.pools)
    if booting or ordered:
        text = f"{counted(booting, 'node')} booting, {ordered:,} ordered"
        yield OverviewFinding(_WORTH_KNOWING, "◔", "info", text, "orders", "orders")
    yield from _of_the_work(view)


def _of_the_work(view: Overview) -> Iterator[OverviewFinding]:
    if view.oldest_wait_ms > SLOW_WAIT_MS:
        oldest = printable(view.oldest_waiting)
        text = f"{oldest} has waited {duration(view.oldest_wait_ms)}"
        yield OverviewFinding(_SOON, "!", "warn", text, f"workload {oldest}", "why")
    if view.wait_p95_ms > SLOW_WAIT_MS:
        text = f"wait p95 is {duration(view.wait_p95_ms)}"
        yield OverviewFinding(_SOON, "!", "warn", text, "workloads state:queued sort:-wait", "waiting")
    failed = view.states.get("failed", 0)
    if failed:
        yield OverviewFinding(_SOON, "✗", "bad", f"{failed:,} failed", "workloads state:failed", "failed")


def of_objectives(burns: Sequence[Burn]) -> Iterator[OverviewFinding]:
    """Missed objectives: urgent after six hours, notable within one."""
    for burn in burns:
        if burn.is_missed_lately:
            urgent = burn.is_missed
            text = f"{burn.queue}: late starts ×{times(burn.hour.burn_permille or 0)} of the objective's allowance"
            link = f"queue {printable(burn.queue)}"
            yield OverviewFinding(_FIRST if urgent else _SOON, "▲", "bad" if urgent else "warn", text, link, "queue")


def times(burn_permille: int) -> str:
    """A burn as a factor: "0.4", "3.2", "18"."""
    return f"{burn_permille / 1000:.1f}" if burn_permille < 10_000 else f"{burn_permille // 1000:,}"


def of_budgets(budgets: Sequence[BudgetLine]) -> Iterator[OverviewFinding]:
    for line in budgets:
        spec = line.spec
        held = f", {line.waiting:,} waiting" if line.waiting else ""
        if line.stage == "spent":
            text = f"budget {spec.name} is spent{held}"
            yield OverviewFinding(_FIRST if line.waiting else _SOON, "$", "bad", text, "cost", "cost")
        elif line.forecast_microusd > spec.limit_microusd:
            over = usd(line.forecast_microusd - spec.limit_microusd)
            yield OverviewFinding(_SOON, "$", "warn", f"budget {spec.name} will go {over} over", "cost", "cost")
        elif line.stage == "warned":
            spent = permille(line.spent_microusd * 1000 // max(1, spec.limit_microusd))
            yield OverviewFinding(
                _WORTH_KNOWING, "$", "warn", f"{spent} of budget {spec.name} is spent", "cost", "cost"
            )


def of_proposals(awaiting: int, stuck: int, named: Sequence[Proposal] = ()) -> Iterator[OverviewFinding]:
    """Findings that wait for people."""
    if stuck:
        text = f"{counted(stuck, 'plan')} started, not finished"
        yield OverviewFinding(_FIRST, "!", "bad", text, "proposals", "proposals")
    if awaiting and awaiting <= min(MAX_PROPOSALS, len(named)):
        for each in named[:awaiting]:
            text = f"{each.id} needs votes: {each.title}"
            yield OverviewFinding(_SOON, "◌", "warn", text, f"proposal {printable(each.id)}", "read, vote")
    elif awaiting:
        text = f"{counted(awaiting, 'proposal')} to vote on"
        yield OverviewFinding(_SOON, "◌", "warn", text, "proposals", "vote")


def of_incidents(open_: int, named: Sequence[Incident] = ()) -> Iterator[OverviewFinding]:
    """Incidents that are open, those that nobody has claimed as the most urgent; many of them in one line."""
    if open_ > min(MAX_INCIDENTS, len(named)):
        text = f"{counted(open_, 'incident')} open"
        yield OverviewFinding(_FIRST, "▲", "bad", text, "incidents", "incidents")
        return
    for each in named[:open_]:
        tone = "info" if each.owner else "bad" if each.severity == "critical" else "warn"
        who = f", claimed by {each.owner.removeprefix('person:')}" if each.owner else ", nobody has it"
        text = f"{each.id}{who}: {each.title}"
        urgency = _SOON if each.owner else _FIRST
        yield OverviewFinding(urgency, "▲", tone, text, f"incident {printable(each.id)}", "incident")


def of_advice(found: Sequence[Recommendation]) -> Iterator[OverviewFinding]:
    """The top of what the recommender found."""
    for each in found[:MAX_ADVICE]:
        yield OverviewFinding(_WORTH_KNOWING, "➤", "info", each.suggestion.finding, "recommendations", "suggestion")
    rest = len(found) - MAX_ADVICE
    if rest > 0:
        text = counted(rest, "more suggestion")
        yield OverviewFinding(_WORTH_KNOWING, "➤", "info", text, "recommendations", "suggestion")


def lines_of(found: Sequence[OverviewFinding], width: int, most: int) -> list[Line]:
    """Findings in at most so many lines; the last counts the rest."""
    ordered = sorted(found, key=lambda each: each.urgency)
    if len(ordered) <= most:
        return [line_of(each, width) for each in ordered]
    shown = [line_of(each, width) for each in ordered[: most - 1]]
    rest = ordered[most - 1 :]
    kinds = ", ".join(dict.fromkeys(each.next for each in rest))
    text = cut(f"  and {len(rest)} more: {kinds}", width)
    return [*shown, Line(((text, "dim"),), rest[0].link)]


def pool_filter(name: str) -> str:
    """The `:` line to the nodes of a pool."""
    return f"nodes pool:{quoted(printable(name))}"


MAX_ASKED = 60
"""Queues asked for: those that wait longest, from which the worst are shown."""
_COLUMNS = (
    "name", "parent", "state", "queued", "running", "oldest_wait", "share", "burn", "burst", "gpu_used",
    "gpu_nominal", "gpu_borrowed", "gpu_lent", "cpu_used", "cpu_nominal", "cpu_borrowed", "cpu_lent",
)  # fmt: skip
LATE_MS = 30 * 60_000
ROOMY = 4
"""From so many lines on, one more tells how many there are besides."""
SHARES_FROM, BARS_FROM = 46, 66
"""Widths of a column from which on it has shares, and bars of the quotas."""


class QueueRow(NamedTuple):
    """A queue that takes work."""

    name: str
    state: str
    queued: int
    running: int
    oldest_ms: int
    share_permille: int
    """Share of the cell above its quota, by its weight."""
    burn_permille: int | None
    burst: str
    used: int
    nominal: int | None
    borrowed: int
    lent: int


def question() -> Query:
    return Query(kind="queues", columns=_COLUMNS, sort=("-oldest_wait", "-queued"), limit=MAX_ASKED)


def worst_first(page: Page) -> tuple[QueueRow, ...]:
    """Queues without those below them. What misses its objective comes first, then what waits longest, then what has
    most above its share."""
    at = {name: index for index, name in enumerate(page.columns)}
    parents = {row[at["parent"]] for row in page.rows}
    found = []
    for row in page.rows:
        if row[at["name"]] in parents:
            continue
        kind = "gpu" if row[at["gpu_nominal"]] is not None or row[at["gpu_used"]] else "cpu"
        found.append(
            QueueRow(
                name=row[at["name"]],
                state=row[at["state"]] or "",
                queued=row[at["queued"]],
                running=row[at["running"]],
                oldest_ms=row[at["oldest_wait"]] or 0,
                share_permille=row[at["share"]],
                burn_permille=row[at["burn"]],
                burst=row[at["burst"]] or "",
                used=row[at[f"{kind}_used"]] or 0,
                nominal=row[at[f"{kind}_nominal"]],
                borrowed=row[at[f"{kind}_borrowed"]] or 0,
                lent=row[at[f"{kind}_lent"]] or 0,
            )
        )
    found.sort(
        key=lambda queue: (-max(0, (queue.burn_permille or 0) - FULL_BURN), -queue.oldest_ms, -queue.share_permille)
    )
    return tuple(found)


TREND_MS, TREND, TREND_TITLE = 2 * 3_600_000, 12, "LAST 2H"
"""Length of the trend of a queue, its steps, and its heading."""
Trends = Mapping[str, tuple[int | None, ...]]
"""Queue -> how many waited, oldest first."""
NO_TRENDS: Trends = {}


def queues(rows: Sequence[QueueRow], width: int, most: int, trends: Trends = NO_TRENDS) -> Section:
    """The worst first: name, how many wait, the longest wait, burn; and its trend, share and quota where there is
    room."""
    if not rows:
        return Section("Queues", (text_line("no queues yet", "dim"),))
    shares, bars = width >= SHARES_FROM, width >= BARS_FROM
    heads = f"{'WAIT':>6}{'OLDEST':>8}{'SHARE' if shares else '':>{6 if shares else 0}}{'BURN':>6}"
    longest, room = max(len(row.name) for row in rows), width - len(heads) - 1 - (16 if bars else 0)
    if trends and room - longest > TREND:
        heads = f"{TREND_TITLE:>{TREND + 1}}{heads}"
        room -= TREND + 1
    else:
        trends = NO_TRENDS
    name = max(8, min(longest, room))
    size = min(40, width - name - 1 - len(heads) - 2) if bars else 0
    lines = [
        _queue(
            row, name if bars else width - len(heads) - 1, size, shares, trends.get(row.name, ()) if trends else None
        )
        for row in rows[:most]
    ]
    if len(rows) > most >= ROOMY:
        lines.append(Line(((f"{len(rows) - most} more", "dim"),), "queues"))
    left = " " * (width - name - 1 - len(heads) - 2 - size) if bars else ""
    return Section("Queues", tuple(lines), heads + (f"  {'QUOTA':<{size}}{left}" if bars else ""))


def _queue(row: QueueRow, name_width: int, bar_width: int, shares: bool, trend: tuple[int | None, ...] | None) -> Line:
    burn = NONE if row.burn_permille is None else f"×{times(row.burn_permille)}"
    shut = row.state not in ("open", "")
    glyph, tone = state_look(row.state) if shut else (" ", "")
    spans: list[Span] = [
        (fit_name(printable(row.name), name_width), "link"),
        (glyph, tone),
        *([] if trend is None else [(f" {spark(trend, TREND):>{TREND}}", "bar")]),
        (f"{row.queued:>6,}", "faint" if not row.queued else ""),
        (f"{duration(row.oldest_ms) if row.oldest_ms else NONE:>8}", "warn" if row.oldest_ms > LATE_MS else "dim"),
    ]
    if shares:
        spans.append((f"{permille(row.share_permille) if row.share_permille else NONE:>6}", "dim"))
    spans.append((f"{burn:>6}", burn_tone(row.burn_permille)))
    if bar_width:
        parts = quota_parts(row.used, row.nominal, row.borrowed, row.lent, row.borrowed if row.burst == "burst" else 0)
        spans += [("  ", ""), *bar(parts, bar_width)]
    return Line(tuple(spans), f"queue {printable(row.name)}")


def burn_tone(burn_permille: int | None) -> str:
    if burn_permille is None:
        return "faint"
    return "bad" if burn_permille > 2 * FULL_BURN else "warn" if burn_permille > FULL_BURN else "dim"


def objectives(burns: Sequence[Burn], width: int, most: int) -> Section:
    """Queues with late starts, worst first, over one hour and over six. 1 is exactly the allowed rate."""
    ordered = sorted(burns, key=lambda burn: -(burn.hour.burn_permille or 0))
    lines = [_objective(burn, width) for burn in ordered[:most]]
    return Section("Objectives", tuple(lines), f"{'1 H':>6}{'6 H':>6}{'LATE':>9}")


def _objective(burn: Burn, width: int) -> Line:
    late, every = burn.hour.late + burn.hour.waiting, burn.hour.started + burn.hour.waiting
    wanted = f" {burn.objective_permille / 10:g}% in {duration(burn.within_ms)}" if width >= SHARES_FROM else ""
    both = [window.burn_permille for window in (burn.hour, burn.six_hours)]
    told = [NONE if value is None else f"×{times(value)}" for value in both]
    name = max(6, width - 2 - len(wanted) - 6 - 6 - 9)
    glyph = "▲" if (both[0] or 0) > FULL_BURN else "●" if both[0] is not None else "·"
    spans = (
        (f"{glyph} ", "ok" if glyph == "●" else burn_tone(both[0])),
        (fit_name(printable(burn.queue), name), "link"),
        (wanted, "dim"),
        (f"{told[0]:>6}", burn_tone(both[0])),
        (f"{told[1]:>6}", burn_tone(both[1])),
        (fit(f"{late:,}/{every:,}", 9, right=True), ""),
    )
    return Line(spans, f"queue {printable(burn.queue)}")


def blocked(view: Overview, width: int, most: int) -> Section:
    """Reasons that keep work from starting, most frequent first."""
    if not view.blocked:
        return Section("Why work waits", (text_line("nothing is waiting", "dim"),))
    highest = view.blocked[0][1]
    name_width = min(22, max(12, width - 11))
    lines = []
    for token, count in view.blocked[:most]:
        token = printable(token)
        line = length(count, highest, width - name_width - 10)
        spans = ((fit(token, name_width), ""), (f"{count:>9,} ", ""), (line, "faint"))
        lines.append(Line(spans, f"workloads state:queued,held reason:{quoted(token)}"))
    rest = len(view.blocked) - most
    more = f" · {counted(rest, 'more reason')}" if rest > 0 else ""
    waiting, running = view.states.get("queued", 0), view.states.get("running", 0) + view.states.get("placed", 0)
    return Section("Why work waits", tuple(lines), f"{waiting:,} wait, {running:,} run{more}")
