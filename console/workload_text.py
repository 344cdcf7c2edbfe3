"""One workload as sections: its state, why it waits and what would end that, where it runs, what happened to it.

No Textual in here.
"""

from __future__ import annotations

from collections.abc import Sequence

from console.details import Line, Section, fact, plural, text_line
from console.plain import conditions, terms, unblocking_lines
from console.query import quoted
from console.text import NONE, cut, duration, fit, mebibytes, milli, printable, timestamp, wrap
from console.theme import STATES, state_look
from engine.query import GroupDetail, HistoryItem, Unblocking, WorkloadDetail


def workload_columns(
    view: WorkloadDetail, width: int, unblocking: Unblocking | None = None
) -> tuple[list[Section], list[Section]]:
    """Left: what it is, why it waits and what would end that, once that is known. Right: where it runs and what
    happened."""
    left = [_workload_state(view), *_reasons(view, unblocking, width), _request(view, width)]
    right = [_placement(view, width), _history(view.history, view.now_ms, width)]
    return left, right


def _workload_state(view: WorkloadDetail) -> Section:
    glyph, tone = state_look(view.state)
    since = f"for {duration(view.now_ms - view.since_ms)}, since {timestamp(view.since_ms)} UTC"
    lines = [Line(((f"{glyph} {printable(view.state)}", tone), (f"  {since}", "dim")))]
    if view.position is not None:
        lines.append(fact("position", f"{view.position:,} in {printable(view.queue)}"))
    if view.earliest_start_ms is not None:
        away = duration(max(0, view.earliest_start_ms - view.now_ms))
        lines.append(fact("earliest", f"in {away}, {timestamp(view.earliest_start_ms)} UTC"))
    elif view.reasons:
        lines.append(fact("earliest", "unknown", "dim"))
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
    lines += [fact(name, text) for name, text in terms(view)]
    if view.tags:
        lines.append(fact("tags", " ".join(f"{key}={value}" for key, value in sorted(view.tags.items()))))
    for group in view.groups:
        head, *rest = wrap(_group(group), max(20, width - 11))
        lines.append(Line(((fit(printable(group.name), 10) + " ", "dim"), (head, ""))))
        lines += [text_line(" " * 11 + part) for part in rest]
    return Section(
        "Request", tuple(Line(tuple((cut(text, 400), tone) for text, tone in line.spans), line.link) for line in lines)
    )


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
    node_width = min(28, max(len(place.node) for place in view.placement))
    asked_close = view.topology is not None and (view.topology.required or view.topology.preferred)
    lines = []
    for place in view.placement:
        devices = " gpu " + _ranges(place.devices) if place.devices else ""
        ranks = f" {plural('rank', place.tasks)} {_ranges(range(place.rank, place.rank + place.tasks))}"
        spans = (
            (fit(printable(place.node), node_width), "link"),
            (f"  {place.tasks:>4} × {printable(place.group)}", ""),
            ((ranks if asked_close else "") + devices, "dim"),
            (f"  {printable(place.rack)}" if place.rack else "", "dim"),
        )
        lines.append(Line(spans, f"node {printable(place.node)}"))
    if view.placement_total > len(view.placement):
        lines.append(text_line(f"… and {view.placement_total - len(view.placement):,} nodes more", "dim"))
    return Section("Where it runs", tuple(lines), f"{view.placement_total:,} {plural('node', view.placement_total)}")


def _ranges(numbers: Sequence[int]) -> str:
    """Device indexes and ranks in short: 0-3,6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)


def _history(items: Sequence[HistoryItem], now_ms: int, width: int) -> Section:
    lines = []
    for item in reversed(items):
        glyph, tone = state_look(item.what if item.what in STATES else "")
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
    ago = f"last {duration(now_ms - items[-1].at_ms)} ago" if items else ""
    return Section("History", tuple(lines) or (text_line("none recorded", "dim"),), ago)
