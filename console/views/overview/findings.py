"""What is not as it should be, most urgent first, and where each thing is worked on. No Textual in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.forms.filters import quoted
from console.text.terminal_text import cut, duration, fit, money, permille, printable
from console.views.sections import Line, plural
from engine.model.queries import Burn, Overview

if TYPE_CHECKING:
    from engine.reads.cost_reports import BudgetLine
    from recommender.findings.queries import Recommendation
    from runbooks.plans.typed_plan import Proposal

SLOW_WAIT_MS = 30 * 60_000
"""A wait above this is worth a line on the overview."""
FULL_PERMILLE = 1000
"""Burn from which on an objective is missed."""
MAX_PROPOSALS, MAX_ADVICE = 3, 2
"""That are named one by one."""
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
    """What Enter does, in a word or two."""


def line_of(found: OverviewFinding, width: int) -> Line:
    """The finding, and the next key to press at the right."""
    key = f"↵ {found.next}"
    room = width - 2 - len(key) - 1
    if room < MIN_TEXT:
        key, room = "↵", width - 4
    text = fit(printable(found.text), room)
    return Line(((f"{found.glyph} ", found.tone), (text + " ", ""), (key, "dim")), found.link)


def of_the_cell(view: Overview) -> Iterator[OverviewFinding]:
    """What nodes and work tell by themselves."""
    down = sum(pool.down for pool in view.pools)
    if down:
        yield OverviewFinding(
            _FIRST, "✗", "bad", f"{down:,} {plural('node', down)} down", "nodes state:down", "nodes down"
        )
    if view.suspect:
        network = ": the network?" if view.mass_suspicion else ""
        text = f"{view.suspect:,} {plural('node', view.suspect)} suspect{network}"
        yield OverviewFinding(_FIRST if network else _SOON, "?", "warn", text, "nodes state:suspect", "nodes")
    leaving = sum(pool.cordoned + pool.draining for pool in view.pools)
    if leaving:
        text = f"{leaving:,} {plural('node', leaving)} cordoned or draining"
        yield OverviewFinding(_WORTH_KNOWING, "◇", "warn", text, "nodes state:cordoned,draining", "nodes")
    booting, ordered = sum(pool.booting for pool in view.pools), sum(pool.ordered for pool in view.pools)
    if booting or ordered:
        text = f"{booting:,} {plural('node', booting)} booting, {ordered:,} ordered"
        yield OverviewFinding(_WORTH_KNOWING, "◔", "info", text, "orders", "orders")
    yield from _of_the_work(view)


def _of_the_work(view: Overview) -> Iterator[OverviewFinding]:
    if view.oldest_wait_ms > SLOW_WAIT_MS:
        oldest = printable(view.oldest_waiting)
        text = f"{oldest} waits {duration(view.oldest_wait_ms)}"
        yield OverviewFinding(_SOON, "!", "warn", text, f"workload {oldest}", "why")
    if view.wait_p95_ms > SLOW_WAIT_MS:
        text = f"wait p95 is {duration(view.wait_p95_ms)}"
        yield OverviewFinding(_SOON, "!", "warn", text, "workloads state:queued sort:-wait", "waiting")
    failed = view.states.get("failed", 0)
    if failed:
        yield OverviewFinding(_SOON, "✗", "bad", f"{failed:,} failed", "workloads state:failed", "failed")


def of_objectives(burns: Sequence[Burn]) -> Iterator[OverviewFinding]:
    """Those that are missed: for six hours already it is urgent, in the last hour alone it may pass."""
    for burn in burns:
        hour, long = burn.hour.burn_permille or 0, burn.six_hours.burn_permille or 0
        if hour > FULL_PERMILLE:
            urgent = long > FULL_PERMILLE
            text = f"{burn.queue}: late starts ×{times(hour)} of what its objective allows"
            link = f"queue {printable(burn.queue)}"
            yield OverviewFinding(_FIRST if urgent else _SOON, "▲", "bad" if urgent else "warn", text, link, "queue")


def times(burn_permille: int) -> str:
    """A burn as a factor: "0.4", "3.2", "18"."""
    return f"{burn_permille / 1000:.1f}" if burn_permille < 10_000 else f"{burn_permille // 1000:,}"


def of_budgets(budgets: Sequence[BudgetLine]) -> Iterator[OverviewFinding]:
    for line in budgets:
        spec = line.spec
        held = f", {line.waiting:,} wait for it" if line.waiting else ""
        if line.stage == "spent":
            text = f"budget {spec.name} is spent{held}"
            yield OverviewFinding(_FIRST if line.waiting else _SOON, "$", "bad", text, "cost", "cost")
        elif line.forecast_microusd > spec.limit_microusd:
            over = money(line.forecast_microusd - spec.limit_microusd)
            yield OverviewFinding(_SOON, "$", "warn", f"budget {spec.name} will be {over} over", "cost", "cost")
        elif line.stage == "warned":
            spent = permille(line.spent_microusd * 1000 // max(1, spec.limit_microusd))
            yield OverviewFinding(
                _WORTH_KNOWING, "$", "warn", f"{spent} of budget {spec.name} is spent", "cost", "cost"
            )


def of_proposals(awaiting: int, stuck: int, named: Sequence[Proposal] = ()) -> Iterator[OverviewFinding]:
    """What waits for people."""
    if stuck:
        text = f"{stuck:,} {plural('plan', stuck)} begun, not done"
        yield OverviewFinding(_FIRST, "!", "bad", text, "proposals", "proposals")
    if awaiting and awaiting <= min(MAX_PROPOSALS, len(named)):
        for each in named[:awaiting]:
            text = f"{each.id} waits for votes: {each.title}"
            yield OverviewFinding(_SOON, "◌", "warn", text, f"proposal {printable(each.id)}", "read, vote")
    elif awaiting:
        text = f"{awaiting:,} {plural('proposal', awaiting)} to vote on"
        yield OverviewFinding(_SOON, "◌", "warn", text, "proposals", "vote")


def of_advice(found: Sequence[Recommendation]) -> Iterator[OverviewFinding]:
    """The top of what the recommender found."""
    for each in found[:MAX_ADVICE]:
        yield OverviewFinding(_WORTH_KNOWING, "➤", "info", each.suggestion.finding, "recommendations", "suggestion")
    rest = len(found) - MAX_ADVICE
    if rest > 0:
        text = f"{rest:,} more {plural('suggestion', rest)}"
        yield OverviewFinding(_WORTH_KNOWING, "➤", "info", text, "recommendations", "suggestion")


def lines_of(found: Sequence[OverviewFinding], width: int, most: int) -> list[Line]:
    """At most so many lines. What does not fit is counted in the last."""
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
