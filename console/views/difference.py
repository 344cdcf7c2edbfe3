"""The difference of two times, as sections: counts by queue first, then what happened and what is another rule."""

from __future__ import annotations

from collections.abc import Sequence

from console.text.terminal_text import cut, duration, fit_name, mebibytes, milli, permille, printable, timestamp
from console.views.sections import Line, Section, plural, text_line
from engine.model.past_queries import CellDifference, CountedHappenings, QueueDifference, ValueChange
from engine.model.quantities import usd

_COUNTS = ("submitted", "started", "finished", "failed", "cancelled", "evicted")
_HEADS = ("SUBMIT", "START", "FINISH", "FAIL", "CANCEL", "EVICT", "RUNNING", "QUEUED")
_WIDTHS = (7, 6, 7, 5, 7, 6, 12, 11)
MIN_NAME = 17
_UNITS = {
    "_milli": milli, "_mib": mebibytes, "_ms": duration, "_microusd_hour": usd, "_microusd": usd,
    "_permille": permille,
}  # fmt: skip
"""End of a field's name -> how its value is told."""


def queue_section(found: CellDifference, width: int) -> Section:
    """Counts of every queue in which anything is otherwise, as far as they fit into the width."""
    columns = _columns_within(width - MIN_NAME)
    name = width - sum(_WIDTHS[index] for index in columns)
    head = " " * name + "".join(_HEADS[index].rjust(_WIDTHS[index]) for index in columns)
    lines = [Line(((head, "dim"),))]
    for queue in found.queues:
        cells = _cells(queue)
        numbers = "".join(cells[index].rjust(_WIDTHS[index]) for index in columns)
        lines.append(Line(((fit_name(printable(queue.queue), name), ""), (numbers, "")), f"queue {queue.queue}"))
    count = len(found.queues)
    if not count:
        lines = [text_line("no work came, started, ended or was stopped", "dim")]
    return Section("Queues", tuple(lines), f"{count} with changes" if count else "")


def _columns_within(room: int) -> list[int]:
    """Columns that fit, those of use first."""
    found = []
    for index in (6, 7, 5, 3, 2, 1, 4, 0):
        if _WIDTHS[index] <= room:
            room -= _WIDTHS[index]
            found.append(index)
    return sorted(found)


def _cells(queue: QueueDifference) -> tuple[str, ...]:
    counts = (getattr(queue, name) for name in _COUNTS)
    ends = ((queue.running_before, queue.running_after), (queue.queued_before, queue.queued_after))
    return (
        *(f"{count:,}" if count else "·" for count in counts),
        *(f"{before:,}→{after:,}" if before != after else f"{after:,}" for before, after in ends),
    )


def happening_sections(counted: Sequence[CountedHappenings], kind: str, width: int) -> list[Section]:
    """One section for each kind of happening: how many, and the latest of them."""
    return [_happenings(each, kind, width) for each in counted]


def _happenings(counted: CountedHappenings, kind: str, width: int) -> Section:
    lines = []
    for each in reversed(counted.latest):
        where = f"{each.place}{', ' if each.detail else ''}{each.detail}"
        text = f"{timestamp(each.at_ms, date=False)}  {printable(each.subject)}  {printable(where)}"
        by = f"  {printable(each.by)}"
        room = max(10, width - len(by))
        lines.append(Line(((cut(text, room), ""), (cut(by, width), "dim")), f"{kind} {each.subject}"))
    note = f"the latest {len(counted.latest)}" if counted.count > len(counted.latest) else ""
    noun = plural(kind, counted.count)
    return Section(f"{counted.count:,} {noun} {counted.what}", tuple(lines), note)


def rule_section(found: CellDifference, width: int) -> Section:
    """Quota, policy, prices, budgets and sizes that are others, with the values before and after."""
    lines: list[Line] = []
    for rule in found.rules:
        what = f"{printable(rule.kind)} {printable(rule.subject)}".rstrip()
        change = f"{_label(rule.field)} {_value(rule.field, rule.before)} → {_value(rule.field, rule.after)}"
        at = timestamp(rule.at_ms, date=False)
        lines.append(Line(((cut(f"{at}  {what}  {change}", width), ""),), _link(rule)))
        lines.append(Line(((cut(f"          {printable(rule.by)}", width), "dim"),)))
    more = f"the first {len(found.rules):,} of {found.rule_count:,}" if found.rule_count > len(found.rules) else ""
    if not lines:
        return Section("Rules", (text_line("no quota, policy, price, budget or pool size changed", "dim"),))
    return Section("Rules", tuple(lines), more)


def _link(rule: ValueChange) -> str:
    return {"queue": f"queue {rule.subject}", "pool": f"pools name:{rule.subject}"}.get(rule.kind, "")


def _label(field: str) -> str:
    end = next((end for end in _UNITS if field.endswith(end)), "")
    words = field.removesuffix(end).replace("_", " ").replace(".", " ")
    return printable(f"{words} an hour" if end.endswith("_hour") else words)


def _value(field: str, text: str) -> str:
    if not text:
        return "none"
    for end, told in _UNITS.items():
        if field.endswith(end) and text.lstrip("-").isdigit():
            return told(int(text))
    return printable(text)


def columns(found: CellDifference, width: int) -> tuple[list[Section], list[Section]]:
    """The page in two columns: queues and rules, then happenings."""
    left = [queue_section(found, width), rule_section(found, width)]
    right = [
        *happening_sections(found.nodes, "node", width), *happening_sections(found.workloads, "workload", width),
    ]  # fmt: skip
    return left, right
