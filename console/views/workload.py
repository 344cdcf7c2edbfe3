"""One workload as sections: state, reasons, timeline, cost, request, placement, relations, processes, and its output.

Each state has its own sign in the timeline, which therefore reads without colour. Output of programs arrives as bytes
in any pieces and becomes lines that are safe to draw.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from console.actions.key_map import key_of
from console.forms.filters import quoted
from console.text.charts import spark
from console.text.plain_tables import conditions, estimate_facts, terms, unblocking_lines
from console.text.terminal_text import NONE, cut, duration, fit, mebibytes, milli, printable, timestamp, wrap
from console.text.tones import state_look
from console.views.lists import RETURNED, Span
from console.views.sections import FACT, Line, Section, fact, plural, text_line
from console.views.what_if import forecast_facts
from engine.executors.task_files import ProcessReport, TaskView
from engine.model.details import GroupDetail, HistoryItem, TaskPlace, Unblocking, WorkloadDetail
from engine.model.errors import MusterError
from engine.model.overviews import Change
from engine.model.quantities import counted, usd
from engine.model.specs import RunSpec
from recommender.history.metrics import GPU_SLOT_MS, HOUR_MS, IDLE_GPU_PERCENT, HistoryRequest

if TYPE_CHECKING:
    from console.actions.registry import ConsoleAction, Context
    from console.client.protocol import Client, RuntimeEstimate
    from engine.external.mirror_report import Mirrored
    from engine.model.twin_queries import StartForecast
    from recommender.history.metrics import History


SHOWN = 12
"""Lines of one kind."""
OVER = ("finished", "failed", "cancelled")


class WorkloadContext(NamedTuple):
    """Answers to the questions besides the workload itself; None: not known yet."""

    siblings: tuple[str, ...] | None = None
    """States of members of its array, itself among them: of the first thousand."""
    siblings_total: int = 0
    proposals: tuple[tuple[str, str, str], ...] | None = None
    """(id, state, title) of those that act on it."""
    findings: tuple[tuple[str, str], ...] | None = None
    """(id, what is found) of those about it."""
    job: Mirrored | None = None
    """The deciding scheduler's view of it, where that is not Muster."""
    outside: bool = False
    """True where another scheduler decides, even if it no longer knows this job."""
    processes: ProcessReport | None = None
    """Its processes on this machine."""
    gpu_use: History | None = None
    """What its GPUs do, where a Prometheus tells."""
    events: tuple[Change, ...] = ()
    """Events of it since this console opened, newest first."""


def money_section(
    view: WorkloadDetail, likely: RuntimeEstimate | None, starts: StartForecast | None = None
) -> list[Section]:
    """Cost so far, per hour and in the end, and the odds of the deadline."""
    lines = []
    if view.cost_microusd or view.rate_microusd_hour:
        rate = f", {usd(view.rate_microusd_hour)} an hour now" if view.rate_microusd_hour else ""
        lines.append(fact("so far", usd(view.cost_microusd) + rate))
        if view.wasted_microusd:
            share = view.wasted_microusd * 100 // max(1, view.cost_microusd)
            lines.append(fact("wasted", f"{usd(view.wasted_microusd)}, {share}%: lost work", "warn"))
    left = _left(view, likely)
    if left is not None and view.rate_microusd_hour:
        low, high = (view.cost_microusd + view.rate_microusd_hour * ms // 3_600_000 for ms in left)
        lines.append(fact("total", f"{usd(low)} likely, {usd(high)} if it runs long"))
    if view.loss_ms:
        lines.append(fact("if stopped", f"{duration(view.loss_ms)} of work lost", "warn"))
    if view.deadline_ms is not None:
        lines.append(_deadline(view, left, starts))
    return [Section("Cost and deadline" if view.deadline_ms is not None else "Cost", tuple(lines))] if lines else []


def _left(view: WorkloadDetail, likely: RuntimeEstimate | None) -> tuple[int, int] | None:
    """Time it runs yet, as half and as nine in ten of its like do; None where that is not known."""
    if likely is None or view.state in OVER:
        return None
    ran = view.now_ms - view.started_ms if view.started_ms is not None and view.state == "running" else 0
    return max(0, likely.p50_ms - ran), max(0, likely.p90_ms - ran)


def _deadline(view: WorkloadDetail, left: tuple[int, int] | None, starts: StartForecast | None) -> Line:
    assert view.deadline_ms is not None
    when = f"{timestamp(view.deadline_ms)} UTC"
    if view.state in OVER or view.ended_ms is not None:
        met = view.ended_ms is not None and view.ended_ms <= view.deadline_ms
        return fact("deadline", f"{when}, {'met' if met else 'missed'}", "" if met else "bad")
    away = view.deadline_ms - view.now_ms
    when += f", in {duration(away)}" if away >= 0 else f", {duration(-away)} ago"
    likely_start = starts.p50_ms if starts is not None else view.start_not_before_ms
    begin = view.now_ms if view.state == "running" else likely_start
    if away < 0:
        return fact("deadline", f"{when}: missed", "bad")
    if left is None or begin is None:
        return fact("deadline", f"{when}; not known whether it will be met", "dim")
    if view.state != "running" and begin + left[1] <= view.deadline_ms:
        # It may well start later: that says when it misses, never that it makes it.
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
            _other(
                each.id, each.state, f"until it is {each.on}{', which can never happen' if each.never else ''}", width
            )
            for each in view.waits_for[:SHOWN]
        ]
        lines += _more(len(view.waits_for) - SHOWN)
        sections.append(Section("Waiting for", tuple(lines), f"{len(view.waits_for):,}"))
    if view.needed_by:
        lines = [_other(each.id, each.state, f"once this is {each.on}", width) for each in view.needed_by[:SHOWN]]
        lines += _more(view.needed_by_total - min(SHOWN, len(view.needed_by)))
        sections.append(Section("Needed by", tuple(lines), f"{view.needed_by_total:,}"))
    return sections


def _other(name: str, state: str, told: str, width: int) -> Line:
    glyph, tone = state_look(state)
    room = max(8, min(32, width - 14 - len(told)))
    spans = ((fit(printable(name), room), "link"), (f" {glyph} {fit(state, 10)}", tone), (told, "dim"))
    return Line(spans, f"workload {printable(name)}")


def _more(count: int) -> list[Line]:
    return [text_line(f"… and {count:,} more", "dim")] if count > 0 else []


GPU_USE = HistoryRequest(metric="gpu_util", of="workload", last_ms=6 * HOUR_MS, step_ms=GPU_SLOT_MS)
"""What is asked for `gpu_use_section`, with the id of the workload."""


def ask_gpu_use(client: Client, view: WorkloadDetail) -> History | None:
    """What the GPUs of running work do; None for other work, and where it cannot be told."""
    if view.state != "running" or not any(group.gpu_milli or group.mig for group in view.groups):
        return None
    try:
        return client.history(msgspec.structs.replace(GPU_USE, subject=view.id))
    except MusterError:
        return None


def gpu_use_section(use: History | None, width: int) -> list[Section]:
    """One line: use of its GPUs over the last hours. Nothing where no Prometheus is followed."""
    if use is None or use.followed is None:
        return []
    means = [point.mean for point in use.points]
    known = [mean for mean in means if mean is not None]
    if not known:
        why = use.followed.trouble or f"{use.followed.source} tells nothing of its devices"
        return [Section("GPU use", (text_line(cut(f"not known: {printable(why)}", width), "dim"),))]
    idle = next((n for n, mean in enumerate(reversed(means)) if mean is None or mean >= IDLE_GPU_PERCENT), len(means))
    drawn = spark([None if mean is None else round(mean) for mean in means], min(24, max(width - 40, 0)))
    told = f"{known[-1]:.0f} % now, {sum(known) / len(known):.0f} % over {duration(len(means) * GPU_SLOT_MS)}"
    if use.followed.trouble:
        told += f", as of {timestamp(use.followed.until_ms)[5:16]}"
    spans: tuple[Span, ...] = ((drawn, "accent"), (f"  {told}", ""))
    if idle:
        spans += ((f", idle for {duration(idle * GPU_SLOT_MS)}", "warn"),)
    return [Section("GPU use", (Line(spans),))]


def related_section(view: WorkloadDetail, beside: WorkloadContext, width: int) -> Section:
    """Links to related lists, proposals and findings."""
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
        Line((("events     ", "dim"), ("all of this workload", "link")), f"events subject:{quoted(printable(view.id))}")
    )
    note = "" if beside.proposals is not None else "loading proposals and findings …"
    return Section("Related", tuple(line for line in lines if line.spans[1][0]), note)


def _listed(column: str, value: str) -> str:
    return f"workloads {column}:{quoted(printable(value))}"


def _states(beside: WorkloadContext) -> str:
    if beside.siblings is None:
        return ""
    counts = ", ".join(f"{count:,} {state}" for state, count in Counter(beside.siblings).most_common())
    first = f" of the first {len(beside.siblings):,}" if beside.siblings_total > len(beside.siblings) else ""
    return f"  {counted(beside.siblings_total, 'member')}: {counts}{first}"


def events_section(view: WorkloadDetail, beside: WorkloadContext, width: int) -> Section:
    """Recent events of the workload; and that there is no more."""
    lines = [
        Line(
            (
                (f"{timestamp(item.at_ms)[5:]}  ", "dim"),
                (fit(printable(item.what), 12), ""),
                (cut(printable(item.detail), max(8, width - 28)), "dim"),
            )
        )
        for item in beside.events[:SHOWN]
    ]
    if beside.job is not None or beside.outside:
        path = f": {printable(beside.job.stdout)}" if beside.job is not None and beside.job.stdout else ""
        if beside.job is not None and beside.job.voices:
            told = "runs in pods: kubectl logs shows the output"
        else:
            told = f"runs in Slurm: {key_of('output')} shows the output{path}"
        lines.append(text_line(cut(told, max(8, width)), "dim", f"output {printable(view.id)}"))
    elif view.run is None:
        lines.append(text_line("simulated executor: no log output", "dim"))
    return Section("Log", tuple(lines), "since this console opened" if beside.events else "")


def action_section(available: Sequence[ConsoleAction], context: Context) -> Section:
    """Actions on it; impossible ones with the reason."""
    lines = []
    for action in available:
        if action.mutates and action.targets == "workload" and context.screen in action.screens:
            reason = action.disabled_reason(context)
            key = key_of(action.id)
            spans = (
                (fit(key, 18), "accent"),
                (fit(action.title, 18), "dim" if reason else ""),
                (reason or f"{action.tier}, asks first", "dim"),
            )
            lines.append(Line(spans))
    return Section("Actions", tuple(lines) or (text_line("none: read-only session", "dim"),))


SIGNS = {
    "queued": "─", "held": "╌", "waiting": "·", "suspended": "‖", "placed": "═", "running": "━", "checkpointing": "≡",
}  # fmt: skip
_BEGINS = {
    "submitted": "queued", "held": "held", "released": "queued", "placed": "placed", "running": "running",
    "finished": "finished", "failed": "failed", "cancelled": "cancelled", RETURNED: "queued",
    "suspended": "suspended", "resumed": "queued", "waiting": "waiting", "woke": "queued",
    "checkpointing": "checkpointing",
}  # fmt: skip
"""Transition -> the state that begins with it. Others change something else."""
SHOWN_STRETCHES = 8
SHOWN_HISTORY = 100


class TimelineStretch(NamedTuple):
    """A time in one state."""

    state: str
    begin_ms: int
    end_ms: int
    why: str
    """Detail of the transition that began it."""


def stretches(history: Sequence[HistoryItem], now_ms: int) -> list[TimelineStretch]:
    """The states one after another, up to now or to its end; transitions at the same moment count as one."""
    begins = [(item, _BEGINS[item.what]) for item in history if item.what in _BEGINS]
    if not begins:
        return []
    ends = [item.at_ms for item, _ in begins[1:]] + [now_ms]
    found: list[TimelineStretch] = []
    for (item, state), end in zip(begins, ends, strict=True):
        if state in OVER:
            break
        if found and found[-1].state == state:
            found[-1] = found[-1]._replace(end_ms=max(end, item.at_ms))
        elif end > item.at_ms or end == now_ms:
            found.append(TimelineStretch(state, item.at_ms, max(end, item.at_ms), item.detail))
    return found


def bar(found: Sequence[TimelineStretch], width: int) -> tuple[Span, ...]:
    """Cells from its submission to now. A state that was short is there all the same where there is room."""
    if not found or width <= 0:
        return ()
    begin, span = found[0].begin_ms, max(1, found[-1].end_ms - found[0].begin_ms)
    cells = [""] * width
    for stretch in sorted(found, key=lambda each: each.begin_ms - each.end_ms):  # the longest first
        first = min(width - 1, (stretch.begin_ms - begin) * width // span)
        last = max(first + 1, -(-(stretch.end_ms - begin) * width // span))
        for cell in range(first, min(width, last)):
            cells[cell] = stretch.state
    runs = [(state, len(list(run))) for state, run in groupby(cells)]
    return tuple((SIGNS.get(state, " ") * count, _tone(state)) for state, count in runs)


def timeline(history: Sequence[HistoryItem], now_ms: int, width: int) -> list[Section]:
    """Time spent in each state."""
    found = stretches(history, now_ms)
    if not found:
        return []
    begin, end = found[0].begin_ms, found[-1].end_ms
    left, right = timestamp(begin), "now" if end == now_ms else timestamp(end)
    totals: dict[str, int] = {}
    for stretch in found:
        totals[stretch.state] = totals.get(stretch.state, 0) + stretch.end_ms - stretch.begin_ms
    legend: list[Span] = []
    for state, spent in totals.items():
        legend += [(f"{SIGNS.get(state, ' ')} ", _tone(state)), (f"{state} {duration(spent)}   ", "")]
    lines = [
        Line(bar(found, width)),
        Line(((fit(left, max(0, width - len(right))), "dim"), (right, "dim"))),
        Line(tuple(legend)),
    ]
    if len(found) > 2:
        lines += [_stretch_line(stretch, width) for stretch in reversed(found[-SHOWN_STRETCHES:])]
        if len(found) > SHOWN_STRETCHES:
            lines.append(text_line(f"… and {len(found) - SHOWN_STRETCHES:,} earlier", "dim"))
    return [Section("Timeline", tuple(lines), duration(end - begin))]


def _stretch_line(stretch: TimelineStretch, width: int) -> Line:
    told = f"{timestamp(stretch.begin_ms)[5:]}  {SIGNS.get(stretch.state, ' ')} "
    head = f"{told}{fit(stretch.state, 13)} {fit(duration(stretch.end_ms - stretch.begin_ms), 8, right=True)}  "
    return Line(((head, ""), (cut(printable(stretch.why), max(0, width - len(head))), "dim")))


def history_section(
    items: Sequence[HistoryItem], now_ms: int, width: int, most: int = SHOWN_HISTORY
) -> Section:  # fmt: skip
    """Transitions, newest first."""
    lines = []
    for item in list(reversed(items))[:most]:
        glyph, tone = state_look(item.what)
        room = max(8, width - 33)
        lines.append(
            Line(
                (
                    (timestamp(item.at_ms), "dim"),
                    (f"  {glyph} ", tone),
                    (fit(printable(item.what), 11), ""),
                    (cut(printable(item.detail), room), "dim"),
                )
            )
        )
    if len(items) > most:
        lines.append(text_line(f"… and {len(items) - most:,} earlier", "dim"))
    ago = f"last {duration(now_ms - items[-1].at_ms)} ago" if items else ""
    return Section("History", tuple(lines) or (text_line("none recorded", "dim"),), ago)


def _tone(state: str) -> str:
    return "info" if state == "checkpointing" else state_look(state)[1]


MAX_PROCESSES = 16
"""Tasks that are told one by one."""
_TONES = {"running": "ok", "lost": "bad"}


def process_sections(view: WorkloadDetail, report: ProcessReport | None, width: int) -> list[Section]:
    """The tasks of the last attempt, each leading to what it writes; nothing of work that names no command, or of a
    cell that runs none."""
    if view.run is None or report is None or not report.attempts:
        return []
    last = report.attempts[0]
    lines = [_line(view.id, task, width) for task in last.tasks[:MAX_PROCESSES]]
    more = last.tasks_total - len(lines)
    if more > 0:
        lines.append(text_line(f"… and {counted(more, 'task')} more", "dim"))
    earlier = f", {len(report.attempts) - 1} earlier" if len(report.attempts) > 1 else ""
    return [
        Section("Processes", tuple(lines), f"attempt {last.attempt}{earlier}", f"{key_of('output')} shows the output")
    ]


def _line(workload: str, task: TaskView, width: int) -> Line:
    tone = "bad" if task.ended else _TONES.get(task.phase, "dim")
    told = cut(" · ".join(task_facts(task)), max(8, width - 22))
    spans = ((fit(printable(task.name), 12), "link"), (fit(task.phase, 9), tone), (told, "dim"))
    return Line(spans, f"output {printable(workload)} {printable(task.name)}")


def task_line(task: TaskView) -> str:
    """A task in a line."""
    return " · ".join([f"{printable(task.name):<10}", f"{task.phase:<8}", *task_facts(task)])


def task_facts(task: TaskView) -> list[str]:
    """Facts of a task besides its name and phase."""
    ran = duration(task.ended_ms - task.started_ms) if task.ended_ms else ""
    words = (
        printable(task.ended),
        f"process {task.pid}" if task.pid else "",
        f"ran {ran}" if ran else f"since {timestamp(task.started_ms)} UTC" if task.started_ms else "",
        f"{duration(task.cpu_ms)} of CPU" if task.cpu_ms else "",
        f"{mebibytes(task.memory_mib)} now" if task.memory_mib else "",
        f"{mebibytes(task.peak_mib)} at most" if task.peak_mib else "",
        f"{task.output_bytes:,} bytes written",
    )
    return [word for word in words if word]


MAX_COMMAND = 1_000
"""Letters of a command."""
SHOWN_PLACES = 200
"""Nodes that are told one by one."""


def workload_columns(
    view: WorkloadDetail,
    width: int,
    unblocking: Unblocking | None = None,
    likely: RuntimeEstimate | None = None,
    beside: WorkloadContext | None = None,
    starts: StartForecast | None = None,
) -> tuple[list[Section], list[Section]]:
    """Left: how it stands, why it waits and what would end that, where its time and money went, what it asked for.
    Right: where it runs, what it hangs together with, what happened. What is not known yet is not there."""
    beside = beside or WorkloadContext()
    state, *why = status_sections(view, width, unblocking, starts)
    left = [
        state,
        *process_sections(view, beside.processes, width),
        *why,
        *timeline(view.history, view.now_ms, width),
        *money_section(view, likely, starts),
        *gpu_use_section(beside.gpu_use, width),
        _request(view, width),
    ]
    right = [
        _placement(view, width),
        # Behind where it runs, which comes first on a small screen.
        *([run_time_section(likely, width)] if likely is not None and view.state not in OVER else []),
        *dependency_sections(view, width),
        related_section(view, beside, width),
        history_section(view.history, view.now_ms, width),
        events_section(view, beside, width),
    ]
    return left, right


def workload_sections(
    view: WorkloadDetail,
    likely: RuntimeEstimate | None,
    width: int,
    starts: StartForecast | None = None,
    use: History | None = None,
) -> list[Section]:
    """The facts of the workload itself, as its page has them, in one column: for the shell."""
    return [
        *status_sections(view, width, starts=starts),
        *timeline(view.history, view.now_ms, width),
        *money_section(view, likely, starts),
        *gpu_use_section(use, width),
        _request(view, width),
        _placement(view, width, SHOWN),
        *dependency_sections(view, width),
        history_section(view.history, view.now_ms, width, SHOWN),
    ]


def status_sections(
    view: WorkloadDetail, width: int, unblocking: Unblocking | None = None, starts: StartForecast | None = None
) -> list[Section]:
    """State of the workload; where it waits also when it may start, the reasons, and a change that was found to end
    that."""
    return [_workload_state(view, starts), *_reasons(view, unblocking, width)]


def run_time_section(likely: RuntimeEstimate | None, width: int) -> Section:
    """Estimate of its whole run time, and its reliability."""
    if likely is None:
        return Section("How long it runs", (text_line("too few similar finished jobs for an estimate", "dim"),))
    lines = [
        fact("" if n else label, part)
        for label, text in estimate_facts(likely)
        for n, part in enumerate(wrap(text, max(12, width - FACT)))
    ]
    return Section("How long it runs", tuple(lines))


def _workload_state(view: WorkloadDetail, starts: StartForecast | None) -> Section:
    glyph, tone = state_look(view.state)
    since = f"for {duration(view.now_ms - view.since_ms)}, since {timestamp(view.since_ms)} UTC"
    lines = [Line(((f"{glyph} {printable(view.state)}", tone), (f"  {since}", "dim")))]
    if view.position is not None:
        lines.append(fact("position", f"{view.position:,} in {printable(view.queue)}"))
    lines += [fact(label, text) for label, text in forecast_facts(starts, view.now_ms)]
    lines.append(fact("submitted", f"{timestamp(view.submitted_ms)} UTC"))
    if view.promised_start_ms is not None:
        lines.append(fact("promised", f"{timestamp(view.promised_start_ms)} UTC"))
    if view.started_ms is not None:
        ran = (view.ended_ms if view.ended_ms is not None else view.now_ms) - view.started_ms
        lines.append(
            fact(
                "started", f"{timestamp(view.started_ms)} UTC, {'ran' if view.ended_ms else 'running'} {duration(ran)}"
            )
        )
    if view.ended_ms is not None:
        lines.append(fact("ended", f"{timestamp(view.ended_ms)} UTC"))
    return Section("State", tuple(lines), counted(view.attempts, "start"))


def _reasons(view: WorkloadDetail, unblocking: Unblocking | None, width: int) -> list[Section]:
    """The primary reason first, each with what it needs; then the change that was found to be enough."""
    lines: list[Line] = []
    for rank, reason in enumerate(view.reasons):
        lines.append(
            Line((("▸ " if rank == 0 else "· ", "warn"), (printable(reason.token), "strong" if rank == 0 else "")))
        )
        lines += [text_line("  " + part) for part in wrap(printable(reason.text), width - 2)]
        if reason.unblock:
            first, *rest = wrap(printable(reason.unblock), width - 4)
            lines.append(Line((("  → ", "ok"), (first, "ok"))))
            lines += [text_line("    " + part, "ok") for part in rest]
    if lines and unblocking is not None:
        for text in unblocking_lines(unblocking):
            lines += [text_line(part, "dim" if unblocking.found is None else "ok") for part in wrap(text, width)]
    return [Section("Why it waits", tuple(lines))] if lines else []


def _request(view: WorkloadDetail, width: int) -> Section:
    lines = [
        fact("name", view.name or NONE),
        Line(
            (("queue      ", "dim"), (printable(view.queue), "link")),
            f"workloads queue:{quoted(printable(view.queue))}",
        ),
        fact("priority", f"{view.priority_class} ({view.priority})"),
        fact("tenant", " / ".join(part for part in (view.tenant, view.team) if part) or NONE),
        fact("estimate", duration(view.estimate_ms) if view.estimate_ms else "unknown"),
    ]
    if view.checkpoint_interval_ms:
        kept = f", {duration(view.kept_ms)} of work kept" if view.kept_ms else ""
        lines.append(fact("checkpoint", f"every {duration(view.checkpoint_interval_ms)}{kept}"))
    lines += [fact(name, text) for name, text in terms(view)]
    if view.run is not None:
        lines += _run(view.run, width)
    if view.tags:
        lines.append(fact("tags", " ".join(f"{key}={value}" for key, value in sorted(view.tags.items()))))
    for group in view.groups:
        head, *rest = wrap(_group(group), max(20, width - 11))
        lines.append(Line(((fit(printable(group.name), 10) + " ", "dim"), (head, ""))))
        lines += [text_line(" " * 11 + part) for part in rest]
    return Section(
        "Request", tuple(Line(tuple((cut(text, 400), tone) for text, tone in line.spans), line.link) for line in lines)
    )


def _run(run: RunSpec, width: int) -> list[Line]:
    """The command as a shell would be given it, its folder, and the names of the variables it is given."""
    head, *rest = wrap(printable(shlex.join(run.argv))[:MAX_COMMAND], max(20, width - 11))
    lines = [fact("runs", head), *(text_line(" " * 11 + part) for part in rest)]
    if run.cwd:
        lines.append(fact("in", run.cwd))
    if run.env:
        lines.append(fact("given", " ".join(sorted(run.env))))
    return lines


def _group(group: GroupDetail) -> str:
    gpu = f"MIG {printable(group.mig)}" if group.mig else f"{milli(group.gpu_milli)} GPU"
    parts = [gpu] if group.gpu_milli else []
    parts += [f"{milli(group.cpu_milli)} CPU"] if group.cpu_milli else []
    parts += [mebibytes(group.memory_mib)] if group.memory_mib else []
    parts += [f"disk {mebibytes(group.disk_mib)}"] if group.disk_mib else []
    text = f"{group.count:,} × {' · '.join(parts)}"
    for word, names in (("on", group.gpu_models), ("in", group.pools)):
        if names:
            text += f" {word} {' or '.join(printable(name) for name in names)}"
    return "; ".join([text, *conditions(group)])


def _placement(view: WorkloadDetail, width: int, most: int = SHOWN_PLACES) -> Section:
    if not view.placement:
        return Section("Where it runs", (text_line("not placed", "dim"),))
    asked_close = view.topology is not None and bool(view.topology.required or view.topology.preferred)
    lines = list(_places(view.placement[:most], asked_close))
    if view.placement_total > len(lines):
        lines.append(text_line(f"… and {view.placement_total - len(lines):,} nodes more", "dim"))
    tasks = sum(place.tasks for place in view.placement)
    all_there = view.placement_total == len(view.placement)
    count = f"{counted(tasks, 'task')} on " if all_there else ""
    note = f"{count}{counted(view.placement_total, 'node')}"
    return Section("Where it runs", tuple(lines), note)


@lru_cache(maxsize=4)
def _places(placement: tuple[TaskPlace, ...], asked_close: bool) -> tuple[Line, ...]:
    """A line per node. Hundreds of them are the same from one look to the next."""
    node_width = min(28, max(len(place.node) for place in placement))
    lines = []
    for place in placement:
        devices = " gpu " + _ranges(place.devices) if place.devices else ""
        ranks = f" {plural('rank', place.tasks)} {_ranges(range(place.rank, place.rank + place.tasks))}"
        spans = (
            (fit(printable(place.node), node_width), "link"),
            (f"  {place.tasks:>4} × {printable(place.group)}", ""),
            ((ranks if asked_close else "") + devices, "dim"),
            (f"  {printable(place.rack)}" if place.rack else "", "dim"),
        )
        lines.append(Line(spans, f"node {printable(place.node)}"))
    return tuple(lines)


def _ranges(numbers: Iterable[int]) -> str:
    """Device indexes and ranks in short: 0-3,6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[()][A-Za-z0-9]|\x1b[=>NOMDEHc78]"
)
MAX_LINE = 16_384
"""Letters of a line; a longer one is broken."""


class LogLines:
    """Decodes what comes, and takes it apart. A line that a program has written over again and again, as a progress bar
    does, is what it was last. What colours or moves on a terminal is taken out; whatever else there is is for
    `printable`."""

    def __init__(self, offset: int = 0) -> None:
        """`offset`: of the first byte that comes."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = self._line_at = offset
        self.rest = ""
        """The line that has not ended."""
        self.starts: list[int] = []
        """Offset of each of the lines that were last taken."""

    def take(self, data: bytes) -> list[str]:
        """The lines that have ended with this."""
        *whole, self.rest = (self.rest + self._decoder.decode(data)).split("\n")
        starts = [self._line_at, *(self._at + end.end() for end in re.finditer(b"\n", data))]
        self._line_at = starts.pop()
        self._at += len(data)
        while len(self.rest) > MAX_LINE:
            whole.append(self.rest[:MAX_LINE])
            starts.append(self._line_at)
            self.rest = self.rest[MAX_LINE:]
        taken = [(part, start) for line, start in zip(whole, starts, strict=True) for part in _broken(as_left(line))]
        self.starts = [start for _, start in taken]
        return [part for part, _ in taken]


def as_left(line: str) -> str:
    """A line as a terminal would show it in the end."""
    line = line.rstrip("\r")
    if "\r" in line:
        line = line[line.rindex("\r") + 1 :]
    return _ESCAPES.sub("", line).expandtabs() if "\x1b" in line or "\t" in line else line


def _broken(line: str) -> list[str]:
    return [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)] or [""]
