"""One workload as sections: its state, why it waits and what would end that, where it runs, what happened to it.

No Textual in here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from console.forms.filters import quoted
from console.text.plain_tables import BOUND, conditions, terms, unblocking_lines
from console.text.terminal_text import NONE, cut, duration, fit, mebibytes, milli, printable, timestamp, wrap
from console.text.tones import state_look
from console.views.sections import Line, Section, fact, plural, text_line
from console.views.work.processes import process_sections
from console.views.work.workload_context import (
    WorkloadContext,
    dependency_sections,
    money_section,
    related_section,
    said_section,
)
from console.views.work.workload_timeline import history_section, timeline
from engine.model.queries import GroupDetail, TaskPlace, Unblocking, WorkloadDetail
from engine.model.specs import RunSpec

if TYPE_CHECKING:
    from console.client.cell_questions import RuntimeEstimate

TOLD_ELSEWHERE = ("cost", "deadline", "after", "array")
"""Terms that have a section of their own on the page."""
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
) -> tuple[list[Section], list[Section]]:
    """Left: how it stands, why it waits and what would end that, where its time and money went, what it asked for.
    Right: where it runs, what it hangs together with, what happened. What is not known yet is not there."""
    beside = beside or WorkloadContext()
    left = [
        _workload_state(view),
        *process_sections(view, beside.processes, width),
        *_reasons(view, unblocking, width),
        *timeline(view.history, view.now_ms, width),
        *money_section(view, likely),
        _request(view, width),
    ]
    right = [
        _placement(view, width),
        *dependency_sections(view, width),
        related_section(view, beside, width),
        history_section(view.history, view.now_ms, width),
        said_section(view, beside, width),
    ]
    return left, right


def _workload_state(view: WorkloadDetail) -> Section:
    glyph, tone = state_look(view.state)
    since = f"for {duration(view.now_ms - view.since_ms)}, since {timestamp(view.since_ms)} UTC"
    lines = [Line(((f"{glyph} {printable(view.state)}", tone), (f"  {since}", "dim")))]
    if view.position is not None:
        lines.append(fact("position", f"{view.position:,} in {printable(view.queue)}"))
    if view.start_not_before_ms is not None and view.start_not_before_ms != view.promised_start_ms:
        away = duration(max(0, view.start_not_before_ms - view.now_ms))
        lines.append(fact("not before", f"in {away}, {timestamp(view.start_not_before_ms)} UTC"))
        lines.append(text_line(f"{'':11}{BOUND}", "dim"))
    elif view.reasons and view.promised_start_ms is None:
        lines.append(fact("not before", "unknown", "dim"))
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
    return Section("State", tuple(lines), f"{view.attempts} {plural('start', view.attempts)}")


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
    lines += [fact(name, text) for name, text in terms(view) if name not in TOLD_ELSEWHERE]
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


def _placement(view: WorkloadDetail, width: int) -> Section:
    if not view.placement:
        return Section("Where it runs", (text_line("nowhere now", "dim"),))
    asked_close = view.topology is not None and bool(view.topology.required or view.topology.preferred)
    lines = list(_places(view.placement[:SHOWN_PLACES], asked_close))
    if view.placement_total > len(lines):
        lines.append(text_line(f"… and {view.placement_total - len(lines):,} nodes more", "dim"))
    tasks = sum(place.tasks for place in view.placement)
    all_there = view.placement_total == len(view.placement)
    count = f"{tasks:,} {plural('task', tasks)} on " if all_there else ""
    note = f"{count}{view.placement_total:,} {plural('node', view.placement_total)}"
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
