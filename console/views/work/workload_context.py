"""What lies beside a workload: its money and its deadline, what it waits for and who for it, its array, proposals and
findings about it, what was said of it. No Textual in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.forms.filters import quoted
from console.text.terminal_text import cut, duration, fit, money, printable, timestamp
from console.text.tones import state_look
from console.views.sections import Line, Section, fact, plural, text_line
from engine.executors.process_queries import ProcessReport
from engine.model.queries import Change, WorkloadDetail

if TYPE_CHECKING:
    from console.actions.action_types import Action, Context
    from console.client.cell_questions import RuntimeEstimate
    from engine.external.slurm.mirror.report import Mirrored

SHOWN = 12
"""Lines of one kind."""
OVER = ("finished", "failed", "cancelled")


class WorkloadContext(NamedTuple):
    """What was asked for besides the workload itself; None: not known yet."""

    siblings: tuple[str, ...] | None = None
    """States of members of its array, itself among them: of the first thousand."""
    siblings_total: int = 0
    proposals: tuple[tuple[str, str, str], ...] | None = None
    """(id, state, title) of those that act on it."""
    findings: tuple[tuple[str, str], ...] | None = None
    """(id, what is found) of those about it."""
    job: Mirrored | None = None
    """What the scheduler says of it that decides, where that is not Muster."""
    outside: bool = False
    """Whether another scheduler decides, whether or not it still knows this job."""
    processes: ProcessReport | None = None
    """What runs for it on this machine."""
    said: tuple[Change, ...] = ()
    """What happened to it since this console looks, newest first."""


def money_section(view: WorkloadDetail, likely: RuntimeEstimate | None) -> list[Section]:
    """What it has cost, costs now and may come to; whether it makes its deadline."""
    lines = []
    if view.cost_microusd or view.rate_microusd_hour:
        rate = f", {money(view.rate_microusd_hour)} an hour now" if view.rate_microusd_hour else ""
        lines.append(fact("so far", money(view.cost_microusd) + rate))
        if view.wasted_microusd:
            share = view.wasted_microusd * 100 // max(1, view.cost_microusd)
            lines.append(fact("wasted", f"{money(view.wasted_microusd)}, {share}%: work that was lost", "warn"))
    left = _left(view, likely)
    if left is not None and view.rate_microusd_hour:
        low, high = (view.cost_microusd + view.rate_microusd_hour * ms // 3_600_000 for ms in left)
        lines.append(fact("in the end", f"{money(low)} likely, {money(high)} if it runs long"))
    if view.loss_ms:
        lines.append(fact("if stopped", f"{duration(view.loss_ms)} of work is lost", "warn"))
    if view.deadline_ms is not None:
        lines.append(_deadline(view, left))
    return [Section("Cost and deadline" if view.deadline_ms is not None else "Cost", tuple(lines))] if lines else []


def _left(view: WorkloadDetail, likely: RuntimeEstimate | None) -> tuple[int, int] | None:
    """Time it runs yet, as half and as nine in ten of its like do; None where that is not known."""
    if likely is None or view.state in OVER:
        return None
    ran = view.now_ms - view.started_ms if view.started_ms is not None and view.state == "running" else 0
    return max(0, likely.p50_ms - ran), max(0, likely.p90_ms - ran)


def _deadline(view: WorkloadDetail, left: tuple[int, int] | None) -> Line:
    assert view.deadline_ms is not None
    when = f"{timestamp(view.deadline_ms)} UTC"
    if view.state in OVER or view.ended_ms is not None:
        met = view.ended_ms is not None and view.ended_ms <= view.deadline_ms
        return fact("deadline", f"{when}, {'met' if met else 'missed'}", "" if met else "bad")
    away = view.deadline_ms - view.now_ms
    when += f", in {duration(away)}" if away >= 0 else f", {duration(-away)} ago"
    begin = view.now_ms if view.state == "running" else view.start_not_before_ms
    if away < 0:
        return fact("deadline", f"{when}: missed", "bad")
    if left is None or begin is None:
        return fact("deadline", f"{when}; unknown whether it makes it", "dim")
    if view.state != "running" and begin + left[1] <= view.deadline_ms:
        # It starts then or later: that says when it misses, never that it makes it.
        return fact("deadline", f"{when}: met if it starts by {timestamp(view.deadline_ms - left[1])}")
    if begin + left[1] <= view.deadline_ms:
        return fact("deadline", f"{when}: likely met", "ok")
    if begin + left[0] <= view.deadline_ms:
        return fact("deadline", f"{when}: at risk, ends {timestamp(begin + left[1])} if it runs long", "warn")
    return fact("deadline", f"{when}: likely missed, ends {timestamp(begin + left[0])}", "bad")


def dependency_sections(view: WorkloadDetail, width: int) -> list[Section]:
    """Both ways."""
    sections = []
    if view.waits_for:
        lines = [
            _other(each.id, each.state, f"until it is {each.on}{', which cannot be' if each.never else ''}", width)
            for each in view.waits_for[:SHOWN]
        ]
        lines += _more(len(view.waits_for) - SHOWN)
        sections.append(Section("It waits for", tuple(lines), f"{len(view.waits_for):,}"))
    if view.needed_by:
        lines = [_other(each.id, each.state, f"once this is {each.on}", width) for each in view.needed_by[:SHOWN]]
        lines += _more(view.needed_by_total - min(SHOWN, len(view.needed_by)))
        sections.append(Section("Wait for it", tuple(lines), f"{view.needed_by_total:,}"))
    return sections


def _other(name: str, state: str, told: str, width: int) -> Line:
    glyph, tone = state_look(state)
    room = max(8, min(32, width - 14 - len(told)))
    spans = ((fit(printable(name), room), "link"), (f" {glyph} {fit(state, 10)}", tone), (told, "dim"))
    return Line(spans, f"workload {printable(name)}")


def _more(count: int) -> list[Line]:
    return [text_line(f"… and {count:,} more", "dim")] if count > 0 else []


def related_section(view: WorkloadDetail, beside: WorkloadContext, width: int) -> Section:
    """Where to go from here."""
    room = max(8, width - 12)
    queue, tenant, array = (cut(printable(name), room) for name in (view.queue, view.tenant, view.array))
    lines = [Line((("queue      ", "dim"), (queue, "link")), _listed("queue", view.queue))]
    if view.array:
        told = _states(beside)
        lines.append(Line((("array      ", "dim"), (array, "link"), (told, "dim")), _listed("array", view.array)))
    lines.append(Line((("tenant     ", "dim"), (tenant, "link")), _listed("tenant", view.tenant)))
    for name, state, title in (beside.proposals or ())[:SHOWN]:
        told = f"  {state}  {printable(title)}"
        spans = (("proposal   ", "dim"), (printable(name), "link"), (cut(told, max(8, width - 20)), ""))
        lines.append(Line(spans, f"proposal {printable(name)}"))
    for name, found in (beside.findings or ())[:SHOWN]:
        spans = (("finding    ", "dim"), (printable(name), "link"), (cut("  " + printable(found), width - 20), ""))
        lines.append(Line(spans, "recommendations"))
    lines.append(
        Line((("events     ", "dim"), ("all about it", "link")), f"events subject:{quoted(printable(view.id))}")
    )
    note = "" if beside.proposals is not None else "looking for proposals and findings …"
    return Section("Related", tuple(line for line in lines if line.spans[1][0]), note)


def _listed(column: str, value: str) -> str:
    return f"workloads {column}:{quoted(printable(value))}"


def _states(beside: WorkloadContext) -> str:
    if beside.siblings is None:
        return ""
    counts = ", ".join(f"{count:,} {state}" for state, count in Counter(beside.siblings).most_common())
    first = f" of the first {len(beside.siblings):,}" if beside.siblings_total > len(beside.siblings) else ""
    return f"  {beside.siblings_total:,} {plural('member', beside.siblings_total)}: {counts}{first}"


def said_section(view: WorkloadDetail, beside: WorkloadContext, width: int) -> Section:
    """What was told of it as it happened; and that there is no more."""
    lines = [
        Line(
            (
                (f"{timestamp(item.at_ms)[5:]}  ", "dim"),
                (fit(printable(item.what), 12), ""),
                (cut(printable(item.detail), max(8, width - 28)), "dim"),
            )
        )
        for item in beside.said[:SHOWN]
    ]
    if beside.job is not None or beside.outside:
        path = f": {printable(beside.job.stdout)}" if beside.job is not None and beside.job.stdout else ""
        lines.append(text_line(cut(f"Slurm runs it: what it writes is on the cluster{path}", max(8, width)), "dim"))
    elif view.run is None:
        lines.append(text_line("this cell's executor is simulated: it writes no log of its own", "dim"))
    return Section("Said of it", tuple(lines), "since this console looks" if beside.said else "")


def action_section(available: Sequence[Action], context: Context) -> Section:
    """What can be done with it, and what not and why."""
    lines = []
    for action in available:
        if action.mutates and action.targets == "workload" and context.screen in action.screens:
            reason = action.disabled_reason(context)
            key = action.keys[0] if action.keys else ":" + action.commands[0]
            spans = (
                (fit(key, 18), "accent"),
                (fit(action.title, 18), "dim" if reason else ""),
                (reason or f"{action.tier}, asks first", "dim"),
            )
            lines.append(Line(spans))
    return Section("What can be done", tuple(lines) or (text_line("nothing: this session only reads", "dim"),))
