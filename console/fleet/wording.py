"""A fleet in words: its cells, its tenants, what waits, and why a submission went where it went. No Textual in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from console.fleet.queries import CellView, FleetSubmission, FleetView, TenantView
from console.text.plain_tables import facts, table
from console.text.terminal_text import NONE, duration, money, permille, printable, timestamp
from console.views.sections import quantity
from engine.fleet.routing_policy import CellRow, RoutingDecision
from engine.model.distributions import MIN_RUNS

NAMES = (("gpu_milli", "GPU"), ("cpu_milli", "CPU"), ("memory_mib", "memory"), ("disk_mib", "disk"))
UNNAMED = "(none)"
SHOWN_WAITING = 20


def status_lines(view: FleetView) -> list[str]:
    """The fleet for a terminal or an incident's notes."""
    up = sum(cell.state == "up" for cell in view.cells)
    head = f"fleet {printable(view.name)} at {timestamp(view.now_ms)} UTC: {up} of {len(view.cells)} cells up"
    lines = [head, *([f"! {printable(view.error)}"] if view.error else [])]
    lines += [*([f"kept in {printable(view.kept_in)}"] if view.kept_in else []), "", *cell_lines(view)]
    if view.tenants:
        lines += ["", *_tenant_lines(view.tenants)]
    told = ", ".join(f"{count:,} {state}" for state, count in view.counts.items()) or "nothing was submitted yet"
    lines += ["", f"submissions: {told}"]
    for each in view.waiting[:SHOWN_WAITING]:
        lines.append(f"  {printable(each.id)} waits {duration(view.now_ms - each.submitted_ms)}: {why_of(each)}")
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
    """The resource it is fullest of; its devices where nothing is used; empty where it has nothing."""
    there = [name for name, _ in NAMES[:3] if cell.capacity.get(name)]
    return max(there, key=lambda name: cell.used.get(name, 0) / cell.capacity[name], default="")


def used_words(cell: CellView) -> str:
    """Of what it is fullest of."""
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
    """Part of the fleet that a tenant holds of its dominant resource. (Turns go by it and the weight: `share_ppm`.)"""
    return min(1000, tenant.share_ppm * tenant.weight // 1000)


def amounts(held: Mapping[str, int]) -> str:
    """What is held, of every resource that is."""
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
    return printable(each.why) or ("not looked at yet" if each.state == "waiting" else "")


def submission_lines(each: FleetSubmission, now_ms: int) -> list[str]:
    """One submission, and the last decision with a row for every cell."""
    pairs = [
        ("id", printable(each.id)),
        ("state", f"{each.state} for {duration(max(0, now_ms - each.changed_ms))}"),
        ("cell", f"{printable(each.cell)}: {printable(each.cell_state) or 'not said yet'}" if each.cell else NONE),
        ("queue", printable(each.spec.queue)),
        ("tenant", printable(each.tenant) or UNNAMED),
        ("asks for", amounts(each.asked)),
        ("submitted", f"{timestamp(each.submitted_ms)} UTC by {printable(each.by)}"),
        ("why", why_of(each) or NONE),
    ]
    lines = facts(pairs)
    return [*lines, "", *decision_lines(each.decision)] if each.decision is not None else lines


def decision_lines(found: RoutingDecision) -> list[str]:
    """Where it goes and why, with every cell's figures or why not."""
    head = f"goes to {printable(found.cell)}: {printable(found.why)}" if found.cell else printable(found.why)
    rows = [row_words(row, chosen=row.cell == found.cell) for row in found.rows]
    if not rows:
        return [head]
    return [head, *table(ROW_TITLES, rows, (False, False, True, True, True, True, True, False))]


ROW_TITLES = ("", "CELL", "STARTS", "P90", "COST", "IN USE", "WEIGHED", "WHY NOT, OR WHAT IT RESTS ON")


def row_words(row: CellRow, *, chosen: bool) -> list[str]:
    mark = "→" if chosen else " "
    # Of a cell that was not asked nothing is known: 0% would look like room.
    used = NONE if row.why_not and not row.used_permille else permille(row.used_permille)
    if row.why_not:
        return [mark, printable(row.cell), NONE, NONE, NONE, used, NONE, printable(row.why_not)]
    cost = NONE if row.cost_microusd is None else money(row.cost_microusd + row.data_microusd)
    few = f"{row.runs} run{'s' if row.runs != 1 else ''}" if 0 < row.runs < MIN_RUNS else ""
    notes = [row.crowded and "over the mark", few, row.note, row.reason]
    told = "; ".join(printable(note) for note in notes if note)
    starts = (_start(row.start_p50_ms, row), _start(row.start_p90_ms, row) if row.runs >= MIN_RUNS else NONE)
    return [mark, printable(row.cell), *starts, cost, used, money(row.score_microusd), told]


def _start(delay_ms: int | None, row: CellRow) -> str:
    if delay_ms is None:
        return "later"
    if delay_ms + row.data_ms < 1000:
        return "now"
    return f"+{duration(delay_ms + row.data_ms)}"
