"""One node as sections: what it has, what is free on it and on each device, what is bound to it. No Textual in here."""

from __future__ import annotations

from console.forms.filters import quoted
from console.text.plain_tables import beneath, layout, linked
from console.text.terminal_text import NONE, cut, cut_name, duration, fit_name, milli, printable, timestamp, wrap
from console.text.tones import state_look
from console.views.lists import meter
from console.views.sections import Line, Section, fact, fact_bars, plural, text_line
from engine.model.queries import NodeDetail
from engine.model.specs import LEVELS


def node_columns(view: NodeDetail, width: int) -> tuple[list[Section], list[Section]]:
    """Left: state, capacity, devices. Right: what is bound here."""
    return [_node_state(view, width), _node_capacity(view, width), *_devices(view, width)], [_node_work(view, width)]


MAX_LABELS = 6
"""Labels, and taints, of a node that are shown."""
MAX_OF_A_NAME = 40
"""Cells of the name of one place among several."""


def _node_state(view: NodeDetail, width: int) -> Section:
    glyph, tone = state_look(view.state)
    since = f"for {duration(view.now_ms - view.since_ms)}, since {timestamp(view.since_ms)} UTC"
    lines = [
        Line(((f"{glyph} {printable(view.state)}", tone), (f"  {since}", "dim"))),
        *([fact("kept out", cut(view.note, width - 11), "warn")] if view.note else []),
        *([fact("ends", f"in {duration(view.ends_ms - view.now_ms)}: taken back", "warn")] if view.ends_ms else []),
        Line((("pool       ", "dim"), (printable(view.pool), "link")), f"nodes pool:{quoted(printable(view.pool))}"),
        *_places(view, width),
    ]
    if view.rack:
        rack = printable(view.rack)
        lines.append(Line((("rack       ", "dim"), (rack, "link")), f"nodes rack:{quoted(rack)}"))
    lines += [fact("label", printable(f"{key}={value}")) for key, value in sorted(view.labels.items())[:MAX_LABELS]]
    lines += [fact("taint", printable(taint)) for taint in view.taints[:MAX_LABELS]]
    return Section("State", tuple(lines))


def _places(view: NodeDetail, width: int) -> list[Line]:
    """Where it is in the network, widest level first."""
    named = [(level, getattr(view, level)) for level in LEVELS[:-1]]
    text = " › ".join(f"{level} {cut_name(printable(name), MAX_OF_A_NAME)}" for level, name in named if name) or NONE
    return [fact("" if n else "topology", part) for n, part in enumerate(wrap(text, max(12, width - 11)))]


def _node_capacity(view: NodeDetail, width: int) -> Section:
    used = {name: total - view.free.get(name, 0) for name, total in view.capacity.items()}
    return Section("Allocated", (*fact_bars(view.capacity, used, width), *_beneath(view)))


def _beneath(view: NodeDetail) -> list[Line]:
    """What there really is, and what is known to be in use of it."""
    return [fact(title, text) for title, text in beneath(view)]


def _devices(view: NodeDetail, width: int) -> list[Section]:
    """How much of each device is free, or how it is partitioned, and which are linked with each other."""
    if not view.devices:
        return []
    lines = []
    for index, free in enumerate(view.devices):
        instances = view.instances[index] if index < len(view.instances) else ()
        used = 1000 - free
        word = "free" if not used else "in use" if not free else f"{milli(free)} free"
        if instances:
            used = sum(instance.used for instance in instances) * 1000 // len(instances)
            word = layout(instances)
        bar = min(24, max(6, width - 20)) if not instances else 7
        start = ((f"gpu {index:<3}", "dim"), (_link(index, len(view.devices), view.nvlink_group), "faint"))
        first, *rest = wrap(word, max(8, width - 10 - bar))
        lines.append(Line((*start, (meter(used, bar), "bar"), (f" {first}", "" if free or instances else "dim"))))
        lines += [Line(((" " * (sum(len(text) for text, _ in start) + bar + 1), ""), (part, ""))) for part in rest]
    if view.profiles:
        lines += [fact("" if n else "MIG", part, "dim") for n, part in
                  enumerate(wrap(" ".join(map(printable, view.profiles)), max(12, width - 11)))]  # fmt: skip
    links = linked(len(view.devices), view.nvlink_group)
    return [Section("Devices", tuple(lines), printable(view.gpu_model) + (f" · NVLink {links}" if links else ""))]


def _link(index: int, devices: int, group: int) -> str:
    """Left edge that holds devices together which are linked; none where all are."""
    if not linked(devices, group):
        return ""
    at = index % group
    return "  " if group == 1 else "┌ " if not at else "└ " if at == group - 1 else "│ "


def _node_work(view: NodeDetail, width: int) -> Section:
    if not view.workloads:
        return Section("Work here", (text_line("nothing is bound to this node", "dim"),))
    lines = tuple(
        Line(
            ((fit_name(printable(name), max(12, width - 14)), "link"), (f"{count:>6,} {plural('task', count)}", "")),
            f"workload {printable(name)}",
        )
        for name, count in view.workloads
    )
    return Section("Work here", lines, f"{len(view.workloads):,} {plural('workload', len(view.workloads))}")
