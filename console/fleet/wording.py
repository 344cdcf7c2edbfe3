"""A fleet in words: as text for the shell, and as sections of a page.

Shows its cells, its tenants, the waiting submissions and recent events; and one submission with the offer of each
cell. Imports no Textual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from console.fleet.queries import CellView, FleetEvent, FleetSubmission, FleetView, TenantView
from console.text.plain_tables import facts, table
from console.text.terminal_text import NONE, cut, duration, fit, permille, printable, timestamp, wrap
from console.views.sections import Line, Section, fact, metered, quantity, text_line
from engine.admission.fleet_routing import CellRow, RoutingDecision
from engine.model.quantities import MIN_RUNS, counted, usd

NAMES = (("gpu_milli", "GPU"), ("cpu_milli", "CPU"), ("memory_mib", "memory"), ("disk_mib", "disk"))
UNNAMED = "(none)"
SHOWN_WAITING = 20


def status_lines(view: FleetView) -> list[str]:
    """The fleet for a terminal or an incident's notes."""
    up = sum(cell.state == "up" for cell in view.cells)
    head = f"fleet {printable(view.name)} at {timestamp(view.now_ms)} UTC: {up} of {len(view.cells)} cells up"
    lines = [head, *([f"! {printable(view.error)}"] if view.error else [])]
    lines += [*([f"stored in {printable(view.kept_in)}"] if view.kept_in else []), "", *cell_lines(view)]
    if view.tenants:
        lines += ["", *_tenant_lines(view.tenants)]
    told = ", ".join(f"{count:,} {state}" for state, count in view.counts.items()) or "no submissions yet"
    lines += ["", f"submissions: {told}"]
    for each in view.waiting[:SHOWN_WAITING]:
        lines.append(f"  {printable(each.id)} has waited {duration(view.now_ms - each.submitted_ms)}: {why_of(each)}")
    if len(view.waiting) > SHOWN_WAITING:
        lines.append("  and more: muster fleet jobs --state waiting")
    return lines


def cell_lines(view: FleetView) -> list[str]:
    rows = [
        [printable(cell.name), cell.state, printable(cell.region) or NONE, used_words(cell), f"{cell.running:,}",
         f"{cell.queued:,}", duration(cell.wait_p95_ms), f"{cell.fleet_open:,}", seen_words(cell, view.now_ms),
         printable(cell.why)]
        for cell in view.cells
    ]  # fmt: skip
    titles = ("CELL", "STATE", "REGION", "IN USE", "RUNNING", "QUEUED", "WAIT P95", "OF FLEET", "SEEN", "WHY")
    return table(titles, rows, (False, False, False, False, True, True, True, True, True, False))


def fullest(cell: CellView) -> str:
    """Resource with the highest use; its GPUs where nothing is used; empty where the cell has nothing."""
    there = [name for name, _ in NAMES[:3] if cell.capacity.get(name)]
    return max(there, key=lambda name: cell.used.get(name, 0) / cell.capacity[name], default="")


def used_words(cell: CellView) -> str:
    """Use of the fullest resource."""
    name = fullest(cell)
    if not name:
        return NONE
    used, have = cell.used.get(name, 0), cell.capacity[name]
    return f"{quantity(name, used)}/{quantity(name, have)} {dict(NAMES)[name]}, {permille(used * 1000 // have)}"


def seen_words(cell: CellView, now_ms: int) -> str:
    if not cell.seen_ms:
        return "never"
    return "now" if cell.state != "down" else f"{duration(max(0, now_ms - cell.seen_ms))} ago"


def _tenant_lines(tenants: Sequence[TenantView]) -> list[str]:
    rows = [
        [printable(each.name) or UNNAMED, f"{each.weight}", permille(part_permille(each)), amounts(each.held),
         quota_words(each), f"{each.waiting:,}"]
        for each in tenants
    ]  # fmt: skip
    return table(
        ("TENANT", "WEIGHT", "SHARE", "HOLDS", "QUOTA", "WAITING"), rows, (False, True, True, False, False, True)
    )


def part_permille(tenant: TenantView) -> int:
    """A tenant's part of the fleet by its dominant resource. (Turns go by that and the weight: `share_ppm`.)"""
    return min(1000, tenant.share_ppm * tenant.weight // 1000)


def amounts(held: Mapping[str, int]) -> str:
    """Held quantities of every resource."""
    told = [f"{quantity(name, held[name])} {title}" for name, title in NAMES if held.get(name)]
    return ", ".join(told) or NONE


def quota_words(tenant: TenantView) -> str:
    told = [f"{quantity(name, tenant.quota[name])} {title}" for name, title in NAMES if name in tenant.quota]
    return ", ".join(told) or "no limit"


def jobs_lines(items: Sequence[FleetSubmission], now_ms: int) -> list[str]:
    rows = [
        [f"{each.seq}", printable(each.id), each.state, printable(each.cell) or NONE,
         printable(each.cell_state) or NONE,
         printable(each.tenant) or UNNAMED, duration(max(0, now_ms - each.submitted_ms)), why_of(each)]
        for each in items
    ]  # fmt: skip
    titles = ("NO", "ID", "STATE", "CELL", "THERE", "TENANT", "AGE", "WHY")
    return table(titles, rows, (True, False, False, False, False, False, True, False))


def why_of(each: FleetSubmission) -> str:
    return printable(each.why) or ("not checked yet" if each.state == "waiting" else "")


def submission_lines(each: FleetSubmission, now_ms: int) -> list[str]:
    """One submission, and the last decision with a row for every cell."""
    pairs = [
        ("id", printable(each.id)),
        ("state", f"{each.state} for {duration(max(0, now_ms - each.changed_ms))}"),
        ("cell", f"{printable(each.cell)}: {printable(each.cell_state) or 'not known yet'}" if each.cell else NONE),
        *([("was in", printable(", ".join(each.left)))] if each.left else []),
        ("queue", printable(each.spec.queue)),
        ("tenant", printable(each.tenant) or UNNAMED),
        ("asks for", amounts(each.asked)),
        ("submitted", f"{timestamp(each.submitted_ms)} UTC by {printable(each.by)}"),
        ("why", why_of(each) or NONE),
    ]
    lines = facts(pairs)
    return [*lines, "", *decision_lines(each.decision)] if each.decision is not None else lines


def decision_lines(found: RoutingDecision) -> list[str]:
    """The decision with every cell's figures or reasons."""
    head = f"goes to {printable(found.cell)}: {printable(found.why)}" if found.cell else printable(found.why)
    rows = [row_words(row, chosen=row.cell == found.cell) for row in found.rows]
    if not rows:
        return [head]
    return [head, *table(ROW_TITLES, rows, (False, False, True, True, True, True, True, False))]


ROW_TITLES = ("", "CELL", "STARTS", "P90", "COST", "IN USE", "WEIGHED", "WHY NOT, OR BASIS")


def row_words(row: CellRow, *, chosen: bool) -> list[str]:
    mark = "→" if chosen else " "
    # Of a cell that was not asked nothing is known: 0% would look like room.
    used = NONE if row.why_not and not row.used_permille else permille(row.used_permille)
    if row.why_not:
        return [mark, printable(row.cell), NONE, NONE, NONE, used, NONE, printable(row.why_not)]
    cost = NONE if row.cost_microusd is None else usd(row.cost_microusd + row.data_microusd)
    few = counted(row.runs, "run") if 0 < row.runs < MIN_RUNS else ""
    notes = [row.crowded and "over the limit", few, row.note, row.reason]
    told = "; ".join(printable(note) for note in notes if note)
    starts = (_start(row.start_p50_ms, row), _start(row.start_p90_ms, row) if row.runs >= MIN_RUNS else NONE)
    return [mark, printable(row.cell), *starts, cost, used, usd(row.score_microusd), told]


def _start(delay_ms: int | None, row: CellRow) -> str:
    if delay_ms is None:
        return "later"
    if delay_ms + row.data_ms < 1000:
        return "now"
    return f"+{duration(delay_ms + row.data_ms)}"


BAR = 10
MAX_WAITING, MAX_EVENTS = 30, 30
CROWDED_PERMILLE = 900
_LOOKS = {"up": ("●", "ok"), "closed": ("◌", "warn"), "down": ("✗", "bad"), "unknown": ("·", "dim")}
_STATES = {
    "waiting": ("◌", "warn"), "sending": ("◐", "info"), "routed": ("●", "ok"), "moving": ("◐", "info"),
    "ended": ("✓", "dim"),
    "withdrawn": ("⊘", "dim"),
}  # fmt: skip


def pages(view: FleetView, width: int) -> tuple[list[Section], list[Section]]:
    """Sections of the page: left the cells and tenants, right the waiting submissions and events."""
    left = [_cells(view, width), _tenants(view.tenants, width)]
    right = [_waiting(view, width), _events(view.recent, width)]
    if view.error:
        lines = tuple(text_line(line, "bad") for line in wrap(printable(view.error), width))
        left.insert(0, Section("Nothing can be stored", lines))
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
    bar = metered(used, BAR, "warn" if used > CROWDED_PERMILLE and cell.queued else "bar")
    room = width - 4 - len(name) - BAR
    head = Line(
        ((f"{glyph} ", tone), (name, "strong"), ("  ", ""), *bar, (" " + cut(used_words(cell), max(0, room)), ""))
    )
    where = ", ".join(part for part in (cell.region, *cell.residency) if part)
    told = [printable(where)] if where else []
    told += [f"{printable(cell.decided_by.capitalize())} decides"] if cell.decided_by else []
    told += [f"{cell.running:,} running, {cell.queued:,} queued", f"p95 wait {duration(cell.wait_p95_ms)}"]
    told += [f"{cell.fleet_open:,} of the fleet's"] if cell.fleet_open else []
    told += [f"data: {printable(', '.join(cell.datasets))}"] if cell.datasets else []
    told += [f"{usd(cell.cost_microusd_hour)}/h"] if cell.cost_microusd_hour else []
    lines = [head, *(Line((("    " + line, "dim"),)) for line in wrap(" · ".join(told), width - 4))]
    if cell.state != "up":
        why = f"{cell.state}, seen {seen_words(cell, now_ms)}: {printable(cell.why) or NONE}"
        lines += [Line((("    " + line, tone),)) for line in wrap(why, width - 4)]
    if cell.unsettled:
        text = f"    {cell.unsettled:,} sent, not acknowledged: not tried elsewhere until it answers"
        lines.append(Line(((cut(text, width), "warn"),)))
    return lines


def _used_permille(cell: CellView) -> int:
    name = fullest(cell)
    return cell.used.get(name, 0) * 1000 // cell.capacity[name] if name else 0


def _tenants(tenants: Sequence[TenantView], width: int) -> Section:
    if not tenants:
        return Section("Tenants", (text_line("no tenant has work yet", "dim"),))
    lines: list[Line] = []
    for each in tenants:
        name = fit(printable(each.name) or UNNAMED, 14)
        part = part_permille(each)
        spans = (
            (name, "strong"),
            *metered(part, BAR, "bar"),
            (f" {permille(part):>4}", ""),
            (f"  weight {each.weight}", "dim"),
        )
        waits = f"  {each.waiting:,} waiting" if each.waiting else ""
        lines.append(Line((*spans, (waits, "warn"))))
        lines += [
            Line((("    " + line, "dim"),)) for line in wrap(f"{amounts(each.held)} of {quota_words(each)}", width - 4)
        ]
    return Section("Tenants", tuple(lines), "over all cells")


def _waiting(view: FleetView, width: int) -> Section:
    told = " · ".join(f"{count:,} {state}" for state, count in view.counts.items())
    if not view.waiting:
        return Section("Waiting in the fleet", (text_line("nothing is waiting for a cell", "dim"),), told)
    lines: list[Line] = []
    for each in view.waiting[:MAX_WAITING]:
        age = duration(max(0, view.now_ms - each.submitted_ms))
        spans = (("◌ ", "warn"), (cut(printable(each.id), max(8, width - 12)), "link"), (f"  {age}", "dim"))
        lines.append(Line(spans, f"fleet {printable(each.id)}"))
        lines += [Line((("    " + line, "dim"),)) for line in wrap(why_of(each), width - 4)]
    more = view.counts.get("waiting", 0) - MAX_WAITING
    if more > 0:
        lines.append(text_line(f"and {more:,} more", "dim"))
    return Section("Waiting in the fleet, in order", tuple(lines), told)


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
    """Sections of one submission: left its state, right the last decision."""
    glyph, tone = _STATES[each.state]
    since = duration(max(0, now_ms - each.changed_ms))
    lines = [
        Line(((f"{glyph} {each.state}", tone), (f" for {since}", "dim"))),
        fact("cell", f"{each.cell}: {each.cell_state or 'not known yet'}" if each.cell else NONE),
        *([fact("was in", ", ".join(each.left))] if each.left else []),
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
    return Section("Offers of the cells", tuple(lines), f"{counted(rows, 'cell')}, best first")


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
        text = f"starts {start}{late}, costs {cost}, total {weighed}"
        lines += [Line((("    " + line, ""),)) for line in wrap(text, width - 4)]
    return [*lines, *(Line((("    " + line, "warn" if row.why_not else "dim"),)) for line in wrap(told, width - 4))]


def nowhere(problem: str, remedy: str, width: int) -> list[Section]:
    """Section shown while there is no fleet."""
    told = [text_line(line, "dim") for text in (problem, remedy) for line in wrap(printable(text), width)]
    example = text_line("muster fleet serve --file fleet.yaml", "accent")
    return [Section("No fleet", (*told, Line(), example), "docs/fleet.md")]
