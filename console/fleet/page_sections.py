"""The page of a fleet as sections: its cells, its tenants, what waits, what happened; and one submission with what each
cell had to offer. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence

from console.fleet.queries import CellView, FleetEvent, FleetSubmission, FleetView, TenantView
from console.fleet.wording import (
    UNNAMED,
    amounts,
    fullest,
    part_permille,
    quota_words,
    row_words,
    seen_words,
    used_words,
    why_of,
)
from console.text.terminal_text import NONE, cut, duration, fit, money, permille, printable, timestamp, wrap
from console.views.lists import meter
from console.views.sections import Line, Section, fact, plural, text_line
from engine.fleet.routing_policy import CellRow, RoutingDecision

BAR = 10
MAX_WAITING, MAX_EVENTS = 30, 30
CROWDED_PERMILLE = 900
_LOOKS = {"up": ("●", "ok"), "closed": ("◌", "warn"), "down": ("✗", "bad"), "unknown": ("·", "dim")}
_STATES = {
    "waiting": ("◌", "warn"), "sending": ("◐", "info"), "routed": ("●", "ok"), "ended": ("✓", "dim"),
    "withdrawn": ("⊘", "dim"),
}  # fmt: skip


def pages(view: FleetView, width: int) -> tuple[list[Section], list[Section]]:
    """Left: where work can go, and who has how much of it. Right: what waits, and what happened."""
    left = [_cells(view, width), _tenants(view.tenants, width)]
    right = [_waiting(view, width), _events(view.recent, width)]
    if view.error:
        lines = tuple(text_line(line, "bad") for line in wrap(printable(view.error), width))
        left.insert(0, Section("Nothing can be kept", lines))
    return left, right


def _cells(view: FleetView, width: int) -> Section:
    lines: list[Line] = []
    for cell in view.cells:
        lines += _cell(cell, view.now_ms, width)
    up = sum(cell.state == "up" for cell in view.cells)
    return Section("Cells", tuple(lines), f"{up} of {len(view.cells)} up")


def _cell(cell: CellView, now_ms: int, width: int) -> list[Line]:
    glyph, tone = _LOOKS[cell.state]
    used = _used_permille(cell)
    name = fit(printable(cell.name), max(8, min(20, width - 2 - BAR - 26)))
    bar = (meter(used, BAR), "warn" if used > CROWDED_PERMILLE else "bar")
    room = width - 4 - len(name) - BAR
    head = Line(
        ((f"{glyph} ", tone), (name, "strong"), ("  ", ""), bar, (" " + cut(used_words(cell), max(0, room)), ""))
    )
    where = ", ".join(part for part in (cell.region, *cell.residency) if part)
    told = [printable(where)] if where else []
    told += ["Slurm decides"] if cell.decided_by == "slurm" else []
    told += [f"{cell.running:,} run, {cell.queued:,} queued", f"p95 wait {duration(cell.wait_p95_ms)}"]
    told += [f"{cell.fleet_open:,} of the fleet's"] if cell.fleet_open else []
    told += [f"data: {printable(', '.join(cell.datasets))}"] if cell.datasets else []
    told += [f"{money(cell.cost_microusd_hour)}/h"] if cell.cost_microusd_hour else []
    lines = [head, *(Line((("    " + line, "dim"),)) for line in wrap(" · ".join(told), width - 4))]
    if cell.state != "up":
        why = f"{cell.state}, seen {seen_words(cell, now_ms)}: {printable(cell.why) or NONE}"
        lines += [Line((("    " + line, tone),)) for line in wrap(why, width - 4)]
    if cell.unsettled:
        text = f"    {cell.unsettled:,} sent and not acknowledged: nowhere else until it answers"
        lines.append(Line(((cut(text, width), "warn"),)))
    return lines


def _used_permille(cell: CellView) -> int:
    name = fullest(cell)
    return cell.used.get(name, 0) * 1000 // cell.capacity[name] if name else 0


def _tenants(tenants: Sequence[TenantView], width: int) -> Section:
    if not tenants:
        return Section("Tenants", (text_line("no work of any tenant yet", "dim"),))
    lines: list[Line] = []
    for each in tenants:
        name = fit(printable(each.name) or UNNAMED, 14)
        part = part_permille(each)
        spans = (
            (name, "strong"),
            (meter(part, BAR), "bar"),
            (f" {permille(part):>4}", ""),
            (f"  weight {each.weight}", "dim"),
        )
        waits = f"  {each.waiting:,} wait" if each.waiting else ""
        lines.append(Line((*spans, (waits, "warn"))))
        lines += [
            Line((("    " + line, "dim"),)) for line in wrap(f"{amounts(each.held)} of {quota_words(each)}", width - 4)
        ]
    return Section("Tenants", tuple(lines), "of all cells together")


def _waiting(view: FleetView, width: int) -> Section:
    told = " · ".join(f"{count:,} {state}" for state, count in view.counts.items())
    if not view.waiting:
        return Section("Waits in the fleet", (text_line("nothing waits for a cell", "dim"),), told)
    lines: list[Line] = []
    for each in view.waiting[:MAX_WAITING]:
        age = duration(max(0, view.now_ms - each.submitted_ms))
        spans = (("◌ ", "warn"), (cut(printable(each.id), max(8, width - 12)), "link"), (f"  {age}", "dim"))
        lines.append(Line(spans, f"fleet {printable(each.id)}"))
        lines += [Line((("    " + line, "dim"),)) for line in wrap(why_of(each), width - 4)]
    more = view.counts.get("waiting", 0) - MAX_WAITING
    if more > 0:
        lines.append(text_line(f"and {more:,} more", "dim"))
    return Section("Waits in the fleet, in turn", tuple(lines), told)


def _events(events: Sequence[FleetEvent], width: int) -> Section:
    if not events:
        return Section("Happened", (text_line("nothing yet", "dim"),))
    lines = []
    for told in events[:MAX_EVENTS]:
        tone = {"down": "bad", "unsettled": "warn", "refused": "warn", "up": "ok", "acknowledged": "ok"}.get(
            told.what, ""
        )
        about = told.what not in ("up", "down", "closed", "opened")
        spans = [
            (f"{timestamp(told.at_ms, date=False)} ", "faint"), (fit(printable(told.what), 13), tone),
            (printable(told.subject), "link" if about else "strong"), (f"  {printable(told.detail)}", "dim"),
        ]  # fmt: skip
        lines.append(Line(tuple(spans), f"fleet {printable(told.subject)}" if about else ""))
    return Section("Happened", tuple(lines), "newest first")


# -- one submission ---------------------------------------------------------------------------------------------------


def submission_pages(each: FleetSubmission, now_ms: int, width: int) -> tuple[list[Section], list[Section]]:
    """Left: what has become of it. Right: the last decision."""
    glyph, tone = _STATES[each.state]
    since = duration(max(0, now_ms - each.changed_ms))
    lines = [
        Line(((f"{glyph} {each.state}", tone), (f" for {since}", "dim"))),
        fact("cell", f"{each.cell}: {each.cell_state or 'has not said yet'}" if each.cell else NONE),
        fact("queue", each.spec.queue),
        fact("tenant", each.tenant or UNNAMED),
        fact("asks for", amounts(each.asked)),
        fact("submitted", f"{timestamp(each.submitted_ms)} UTC by {each.by}"),
        *(fact(name, value) for name, value in sorted(each.spec.tags.items())),
    ]
    left = [Section(printable(each.id), tuple(lines))]
    if each.why:
        left.append(Section("Why", tuple(text_line(line) for line in wrap(printable(each.why), width))))
    if each.cell:
        told = f"muster --cell {printable(each.cell)} why {printable(each.id)}"
        left.append(Section("There", (text_line(told, "dim"),), "from the shell"))
    return left, [] if each.decision is None else [_decision(each.decision, width)]


def _decision(found: RoutingDecision, width: int) -> Section:
    lines: list[Line] = []
    for row in found.rows:
        lines += _row(row, row.cell == found.cell, width)
    rows = len(found.rows)
    return Section("What each cell had to offer", tuple(lines), f"{rows} {plural('cell', rows)}, the best first")


def _row(row: CellRow, chosen: bool, width: int) -> list[Line]:
    mark, name, start, p90, cost, used, weighed, told = row_words(row, chosen=chosen)
    tone = "ok" if chosen else "dim" if row.why_not else ""
    lines = [
        Line(
            (
                (f"{mark} ", tone),
                (fit(name, 14), "strong" if chosen else ""),
                ("" if used == NONE else f" {used} used", "dim"),
            )
        )
    ]
    if not row.why_not:
        late = "" if p90 == NONE else f" (p90 {p90})"
        text = f"starts {start}{late}, costs {cost}, weighed {weighed}"
        lines += [Line((("    " + line, ""),)) for line in wrap(text, width - 4)]
    return [*lines, *(Line((("    " + line, "warn" if row.why_not else "dim"),)) for line in wrap(told, width - 4))]


def nowhere(problem: str, remedy: str, width: int) -> list[Section]:
    """While there is no fleet."""
    told = [text_line(line, "dim") for text in (problem, remedy) for line in wrap(printable(text), width)]
    example = text_line("muster fleet serve --file fleet.yaml", "accent")
    return [Section("No fleet", (*told, Line(), example), "docs/fleet.md")]
