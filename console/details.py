"""View models of the pages that are not lists: overview, one workload, one node. No Textual in here.

A page is sections of lines. A line may carry a link: the command that the `:` bar would take to go there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from console.plain import beneath, conditions, layout, linked, terms, unblocking_lines
from console.query import quoted
from console.text import NONE, cut, duration, fit, mebibytes, milli, money, permille, printable, timestamp, wrap
from console.theme import STATES, state_look
from console.views import Span, meter
from engine.model import LEVELS, WorkloadState
from engine.query import GroupDetail, HistoryItem, NodeDetail, Overview, PoolOverview, Unblocking, WorkloadDetail

SLOW_WAIT_MS = 30 * 60_000
"""A wait above this is worth a line on the overview."""


class Line(NamedTuple):
    spans: tuple[Span, ...] = ()
    link: str = ""


class Section(NamedTuple):
    title: str
    lines: tuple[Line, ...]
    note: str = ""


def text_line(text: str, tone: str = "", link: str = "") -> Line:
    return Line(((printable(text), tone),), link)


# --- overview


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
        found.append(_finding("✗", "bad", f"{down:,} {_plural('node', down)} down", "nodes state:down", width))
    if view.suspect:
        network = ": the network?" if view.mass_suspicion else ""
        text = f"{view.suspect:,} {_plural('node', view.suspect)} suspect{network}"
        found.append(_finding("?", "warn", text, "nodes state:suspect", width))
    leaving = sum(pool.cordoned + pool.draining for pool in view.pools)
    if leaving:
        text = f"{leaving:,} {_plural('node', leaving)} cordoned or draining"
        found.append(_finding("◇", "warn", text, "nodes state:cordoned,draining", width))
    booting, ordered = sum(pool.booting for pool in view.pools), sum(pool.ordered for pool in view.pools)
    if booting or ordered:
        text = f"{booting:,} {_plural('node', booting)} booting, {ordered:,} ordered"
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
        text = f"{stuck:,} {_plural('plan', stuck)} begun, not done"
        found.append(_finding("!", "bad", text, "proposals", width))
    if awaiting:
        text = f"{awaiting:,} {_plural('proposal', awaiting)} to vote on"
        found.append(_finding("◌", "warn", text, "proposals", width))
    return found


def fleet(view: Overview, width: int) -> Section:
    lines = _capacities(view.capacity, view.used, width)
    if view.fragmentation_ppm:
        share = f"{permille(view.fragmentation_ppm // 1000)} of the free GPU is fragmented"
        lines.insert(1, Line(((" " * 8, ""), (cut(share, width - 8), "dim"))))
    if view.cost_microusd_hour:
        text = f"{money(view.cost_microusd_hour)}/h, {money(view.idle_microusd_hour)}/h idle"
        lines.append(Line(((fit("cost", 7) + " ", "dim"), (cut(text, width - 8), ""))))
    nodes, ready = sum(pool.nodes for pool in view.pools), sum(pool.ready for pool in view.pools)
    return Section("Fleet", tuple(lines), f"{ready:,}/{nodes:,} nodes ready · {printable(view.policy)}")


_RESOURCES = (("gpu_milli", "GPU"), ("cpu_milli", "CPU"), ("memory_mib", "memory"), ("disk_mib", "disk"))


def _capacities(capacity: dict[str, int], used: dict[str, int], width: int) -> list[Line]:
    """A bar for each resource there is, all of one length."""
    there = [(name, title) for name, title in _RESOURCES if capacity.get(name)]
    amounts = [f"{quantity(name, used.get(name, 0))} / {quantity(name, capacity[name])}" for name, _ in there]
    longest = max((len(amount) for amount in amounts), default=0)
    bar = max(4, width - 7 - 6 - longest)
    lines = []
    for (name, title), amount in zip(there, amounts, strict=True):
        share = used.get(name, 0) * 1000 // capacity[name]
        tone = "bar" if share < 950 else "warn"
        spans = ((fit(title, 7), "dim"), (meter(share, bar), tone), (f" {permille(share):>4} ", ""))
        lines.append(Line((*spans, (f"{amount:>{longest}}", "dim"))))
    return lines


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


def length(count: int, most: int, width: int) -> str:
    """A line as long as a count is large, for comparing counts below each other."""
    return "━" * max(1 if count else 0, count * width // max(1, most)) if width > 0 else ""


_EIGHTHS = " ▁▂▃▄▅▆▇█"


def shrink(values: Sequence[int], width: int) -> list[int]:
    """At most `width` values: means of neighbours, so that the whole span stays in view."""
    if len(values) <= width or width < 2:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [sum(values[a:b]) // (b - a) for a, b in pairwise(edges)]


def graph(values: Sequence[int], height: int, top: int) -> list[str]:
    """Columns of block characters, `height` lines high, the highest line first."""
    levels = [min(height * 8, max(0, -(-value * height * 8 // top))) for value in values]
    return ["".join(_EIGHTHS[min(8, max(0, level - 8 * row))] for level in levels) for row in range(height - 1, -1, -1)]


# --- one workload


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
        lines.append(_fact("position", f"{view.position:,} in {printable(view.queue)}"))
    if view.earliest_start_ms is not None:
        away = duration(max(0, view.earliest_start_ms - view.now_ms))
        lines.append(_fact("earliest", f"in {away}, {timestamp(view.earliest_start_ms)} UTC"))
    elif view.reasons:
        lines.append(_fact("earliest", "unknown", "dim"))
    lines.append(_fact("submitted", f"{timestamp(view.submitted_ms)} UTC"))
    if view.promised_start_ms is not None:
        lines.append(_fact("promised", f"{timestamp(view.promised_start_ms)} UTC"))
    if view.started_ms is not None:
        ran = (view.ended_ms if view.ended_ms is not None else view.now_ms) - view.started_ms
        lines.append(
            _fact(
                "started", f"{timestamp(view.started_ms)} UTC, {'ran' if view.ended_ms else 'running'} {duration(ran)}"
            )
        )
    if view.ended_ms is not None:
        lines.append(_fact("ended", f"{timestamp(view.ended_ms)} UTC"))
    return Section("State", tuple(lines), f"{view.attempts} {_plural('start', view.attempts)}")


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
        _fact("name", view.name or NONE),
        Line(
            (("queue      ", "dim"), (printable(view.queue), "link")),
            f"workloads queue:{quoted(printable(view.queue))}",
        ),
        _fact("priority", f"{view.priority_class} ({view.priority})"),
        _fact("tenant", " / ".join(part for part in (view.tenant, view.team) if part) or NONE),
        _fact("estimate", duration(view.estimate_ms) if view.estimate_ms else "unknown"),
    ]
    if view.checkpoint_interval_ms:
        kept = f", {duration(view.kept_ms)} of work kept" if view.kept_ms else ""
        lines.append(_fact("checkpoint", f"every {duration(view.checkpoint_interval_ms)}{kept}"))
    lines += [_fact(name, text) for name, text in terms(view)]
    if view.tags:
        lines.append(_fact("tags", " ".join(f"{key}={value}" for key, value in sorted(view.tags.items()))))
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
        ranks = f" {_plural('rank', place.tasks)} {_ranges(range(place.rank, place.rank + place.tasks))}"
        spans = (
            (fit(printable(place.node), node_width), "link"),
            (f"  {place.tasks:>4} × {printable(place.group)}", ""),
            ((ranks if asked_close else "") + devices, "dim"),
            (f"  {printable(place.rack)}" if place.rack else "", "dim"),
        )
        lines.append(Line(spans, f"node {printable(place.node)}"))
    if view.placement_total > len(view.placement):
        lines.append(text_line(f"… and {view.placement_total - len(view.placement):,} nodes more", "dim"))
    return Section("Where it runs", tuple(lines), f"{view.placement_total:,} {_plural('node', view.placement_total)}")


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


# --- one node


def node_columns(view: NodeDetail, width: int) -> tuple[list[Section], list[Section]]:
    """Left: state, capacity, devices. Right: what is bound here."""
    return [_node_state(view, width), _node_capacity(view, width), *_devices(view, width)], [_node_work(view, width)]


MOST_LABELS = 6
"""Labels, and taints, of a node that are shown."""
MOST_OF_A_NAME = 40
"""Cells of the name of one place among several."""


def _node_state(view: NodeDetail, width: int) -> Section:
    glyph, tone = state_look(view.state)
    since = f"for {duration(view.now_ms - view.since_ms)}, since {timestamp(view.since_ms)} UTC"
    lines = [
        Line(((f"{glyph} {printable(view.state)}", tone), (f"  {since}", "dim"))),
        *([_fact("kept out", cut(view.note, width - 11), "warn")] if view.note else []),
        *([_fact("ends", f"in {duration(view.ends_ms - view.now_ms)}: taken back", "warn")] if view.ends_ms else []),
        Line((("pool       ", "dim"), (printable(view.pool), "link")), f"nodes pool:{quoted(printable(view.pool))}"),
        *_places(view, width),
    ]
    if view.rack:
        rack = printable(view.rack)
        lines.append(Line((("rack       ", "dim"), (rack, "link")), f"nodes rack:{quoted(rack)}"))
    lines += [_fact("label", printable(f"{key}={value}")) for key, value in sorted(view.labels.items())[:MOST_LABELS]]
    lines += [_fact("taint", printable(taint)) for taint in view.taints[:MOST_LABELS]]
    return Section("State", tuple(lines))


def _places(view: NodeDetail, width: int) -> list[Line]:
    """Where it is in the network, widest level first."""
    named = [(level, getattr(view, level)) for level in LEVELS[:-1]]
    text = " › ".join(f"{level} {cut(printable(name), MOST_OF_A_NAME)}" for level, name in named if name) or NONE
    return [_fact("" if n else "topology", part) for n, part in enumerate(wrap(text, max(12, width - 11)))]


def _node_capacity(view: NodeDetail, width: int) -> Section:
    used = {name: total - view.free.get(name, 0) for name, total in view.capacity.items()}
    return Section("Allocated", (*_capacities(view.capacity, used, width), *_beneath(view)))


def _beneath(view: NodeDetail) -> list[Line]:
    """What there really is, and what is known to be in use of it."""
    return [_fact(title, text) for title, text in beneath(view)]


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
        lines += [_fact("" if n else "MIG", part, "dim") for n, part in
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
            ((fit(printable(name), max(12, width - 14)), "link"), (f"{count:>6,} {_plural('task', count)}", "")),
            f"workload {printable(name)}",
        )
        for name, count in view.workloads
    )
    return Section("Work here", lines, f"{len(view.workloads):,} {_plural('workload', len(view.workloads))}")


def quantity(name: str, value: int) -> str:
    """A quantity of the resource vector with its unit; large ones without fractions."""
    if not name.endswith("_milli"):
        return mebibytes(value)
    return milli(value) if value < 100_000 else milli(round(value, -3))


def _fact(label: str, text: str, tone: str = "") -> Line:
    return Line(((fit(label, 11), "dim"), (printable(text), tone)))


def _finding(glyph: str, tone: str, text: str, link: str, width: int) -> Line:
    return Line(((f"{glyph} ", tone), (fit(text, max(10, width - 4)), ""), ("↵", "dim")), link)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
