"""The overview as sections: is it fine, and if not, what now. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence

from console.charts import graph, length, shrink
from console.details import Line, Section, fact_bars, plural, text_line
from console.query import quoted
from console.text import cut, duration, fit, money, permille, printable
from console.theme import state_look
from console.views import meter
from engine.model import WorkloadState
from engine.query import Overview, PoolOverview

SLOW_WAIT_MS = 30 * 60_000
"""A wait above this is worth a line on the overview."""


def overview_columns(
    view: Overview, width: int, awaiting: int = 0, stuck: int = 0
) -> tuple[list[Section], list[Section]]:
    """Left: is it fine, the fleet. Right: the work, and why it waits. `width` is that of one column; `awaiting`:
    proposals that wait for votes; `stuck`: plans that were begun and do not go on."""
    left = [
        Section("Now", tuple(findings(view, width) + proposed(awaiting, stuck, width))),
        fleet(view, width),
        pools(view.pools, width),
    ]
    right = [work(view, width), blocked(view, width), trend(view, width)]
    return left, right


def findings(view: Overview, width: int) -> list[Line]:
    """Is it fine? If not, what, and where to look."""
    if not view.pools:
        return [
            Line((("! ", "warn"), ("this cell has no nodes yet", ""))),
            Line((("  muster define cell.yaml", "dim"),)),
            Line((("  or look at a busy one: muster --demo", "dim"),)),
        ]
    found: list[Line] = []
    down = sum(pool.down for pool in view.pools)
    if down:
        found.append(_finding("✗", "bad", f"{down:,} {plural('node', down)} down", "nodes state:down", width))
    if view.suspect:
        network = ": the network?" if view.mass_suspicion else ""
        text = f"{view.suspect:,} {plural('node', view.suspect)} suspect{network}"
        found.append(_finding("?", "warn", text, "nodes state:suspect", width))
    leaving = sum(pool.cordoned + pool.draining for pool in view.pools)
    if leaving:
        text = f"{leaving:,} {plural('node', leaving)} cordoned or draining"
        found.append(_finding("◇", "warn", text, "nodes state:cordoned,draining", width))
    booting, ordered = sum(pool.booting for pool in view.pools), sum(pool.ordered for pool in view.pools)
    if booting or ordered:
        text = f"{booting:,} {plural('node', booting)} booting, {ordered:,} ordered"
        found.append(_finding("◔", "info", text, "nodes state:booting", width))
    if view.wait_p95_ms > SLOW_WAIT_MS:
        text = f"wait p95 is {duration(view.wait_p95_ms)}"
        found.append(_finding("!", "warn", text, "workloads state:queued sort:-wait", width))
    if view.oldest_wait_ms > SLOW_WAIT_MS:
        oldest = printable(view.oldest_waiting)
        text = f"{oldest} waits {duration(view.oldest_wait_ms)}"
        found.append(_finding("!", "warn", text, f"workload {oldest}", width))
    failed = view.states.get("failed", 0)
    if failed:
        found.append(_finding("✗", "bad", f"{failed:,} failed", "workloads state:failed", width))
    if not found:
        found.append(Line((("● ", "ok"), ("all nodes up, nothing waits long", ""))))
    return found


def proposed(awaiting: int, stuck: int, width: int) -> list[Line]:
    """What waits for people."""
    found = []
    if stuck:
        text = f"{stuck:,} {plural('plan', stuck)} begun, not done"
        found.append(_finding("!", "bad", text, "proposals", width))
    if awaiting:
        text = f"{awaiting:,} {plural('proposal', awaiting)} to vote on"
        found.append(_finding("◌", "warn", text, "proposals", width))
    return found


def fleet(view: Overview, width: int) -> Section:
    lines = fact_bars(view.capacity, view.used, width)
    if view.fragmentation_ppm:
        share = f"{permille(view.fragmentation_ppm // 1000)} of the free GPU is fragmented"
        lines.insert(1, Line(((" " * 8, ""), (cut(share, width - 8), "dim"))))
    if view.cost_microusd_hour:
        text = f"{money(view.cost_microusd_hour)}/h, {money(view.idle_microusd_hour)}/h idle"
        lines.append(Line(((fit("cost", 7) + " ", "dim"), (cut(text, width - 8), ""))))
    nodes, ready = sum(pool.nodes for pool in view.pools), sum(pool.ready for pool in view.pools)
    return Section("Fleet", tuple(lines), f"{ready:,}/{nodes:,} nodes ready · {printable(view.policy)}")


def pools(items: Sequence[PoolOverview], width: int) -> Section:
    longest = max((len(pool.name) for pool in items), default=0)
    name_width = min(longest, max(8, width - 26))
    return Section("Pools", tuple(_pool(pool, name_width, width) for pool in items), "nodes ready")


def _pool(pool: PoolOverview, name_width: int, width: int) -> Line:
    scarce = "gpu_milli" if pool.capacity.get("gpu_milli") else "cpu_milli"
    share = pool.used.get(scarce, 0) * 1000 // max(1, pool.capacity.get(scarce, 0))
    count = f"{pool.ready:,}/{pool.nodes:,}" if pool.ready != pool.nodes else f"{pool.nodes:,}"
    bar = max(4, width - name_width - 2 - 5 - 1 - 11)
    tone = "bad" if pool.down else "warn" if pool.ready != pool.nodes else "dim"
    spans = (
        (fit(printable(pool.name), name_width) + "  ", ""),
        (meter(share, bar), "bar"),
        (f" {permille(share):>4}", ""),
        (f"{count:>11}", tone),
    )
    return Line(spans, f"nodes pool:{quoted(printable(pool.name))}")


def work(view: Overview, width: int) -> Section:
    states = [state.label for state in WorkloadState if view.states.get(state.label)]
    most = max((view.states[state] for state in states), default=1)
    lines = [_counted(state, view.states[state], most, width) for state in states]
    if not lines:
        lines = [text_line("no work yet; submit some with `muster submit`", "dim")]
    lines.append(Line())
    if view.oldest_waiting:
        spans = (
            ("oldest     ", "dim"),
            (duration(view.oldest_wait_ms), ""),
            (f"  {printable(view.oldest_waiting)}", "link"),
        )
        lines.append(Line(spans, f"workload {printable(view.oldest_waiting)}"))
    waits = f"p50 {duration(view.wait_p50_ms)} · p95 {duration(view.wait_p95_ms)}"
    lines.append(Line((("waits      ", "dim"), (waits, ""))))
    hour = f"{view.started_last_hour:,} started · {view.finished_last_hour:,} finished"
    lines.append(Line((("last hour  ", "dim"), (hour, ""))))
    return Section("Work", tuple(lines), f"{sum(view.states.values()):,} in all")


def _counted(state: str, count: int, most: int, width: int) -> Line:
    glyph, tone = state_look(state)
    bar = max(0, width - 24)
    spans = (
        (f"{glyph} ", tone),
        (fit(state, 10), ""),
        (f"{count:>11,} ", ""),
        (length(count, most, bar), "faint"),
    )
    return Line(spans, f"workloads state:{state}")


def blocked(view: Overview, width: int) -> Section:
    if not view.blocked:
        return Section("Why work waits", (text_line("nothing waits", "dim"),))
    most = view.blocked[0][1]
    name_width = min(22, max(12, width - 11))
    lines = []
    for token, count in view.blocked[:8]:
        token = printable(token)
        bar = length(count, most, width - name_width - 10)
        spans = ((fit(token, name_width), ""), (f"{count:>9,} ", ""), (bar, "faint"))
        lines.append(Line(spans, f"workloads state:queued,held reason:{quoted(token)}"))
    return Section("Why work waits", tuple(lines))


def trend(view: Overview, width: int) -> Section:
    """Use and queue over time, newest at the right."""
    # A cell takes its first sample before its clock is set.
    samples = [sample for sample in view.history if sample[0] > 0]
    if len(samples) < 2:
        return Section("Trend", (text_line("not enough history yet", "dim"),))
    use = shrink([share for _, share, _ in samples], width - 8)
    queued = shrink([count for _, _, count in samples], width - 8)
    label = "GPU use" if view.capacity.get("gpu_milli") else "CPU use"
    span = duration(samples[-1][0] - samples[0][0])
    lines = [Line(((fit(label, 8), "dim"), (line, "bar"))) for line in graph(use, 2, 1000)]
    lines += [Line(((fit("queued", 8), "dim"), (line, "warn"))) for line in graph(queued, 2, max(1, *queued))]
    lines[1] = Line(((fit(permille(samples[-1][1]), 8), ""), lines[1].spans[1]))
    lines[3] = Line(((fit(f"{samples[-1][2]:,}", 8), ""), lines[3].spans[1]))
    return Section("Trend", tuple(lines), f"last {span}")


def _finding(glyph: str, tone: str, text: str, link: str, width: int) -> Line:
    return Line(((f"{glyph} ", tone), (fit(text, max(10, width - 4)), ""), ("↵", "dim")), link)
