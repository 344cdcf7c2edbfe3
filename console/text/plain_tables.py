"""Plain text for pipes and incident notes: aligned tables, figures of the twin, and rows as CSV, TSV and JSON.

Foreign text passes `printable`. A figure is its median over the runs, with p10 and p90 where they differ. A change is
called better or worse only where p10 and p90 of the differences agree. Too few runs for quantiles give least and most,
and no verdict. CSV and TSV have units that a spreadsheet adds up (GPU, CPU, MiB, seconds, USD, percent) and times in
ISO 8601 UTC; JSON has the engine's own integers. Text that looks like a formula gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from console.text.terminal_text import (
    LONGEST,
    duration,
    mebibytes,
    milli,
    permille,
    printable,
    show,
    timestamp,
    visible,
)
from engine.model.list_queries import COLUMNS, Column, Kind
from engine.model.quantities import counted, usd

if TYPE_CHECKING:
    from collections.abc import Callable

    from console.client.protocol import RuntimeEstimate
    from engine.model.details import GroupDetail, ServiceDetail, TopologyDetail, Unblocking, WorkloadDetail
    from engine.model.list_queries import Page
    from engine.model.overviews import Overview, PoolOverview
    from engine.model.specs import Affinity
    from engine.model.twin_queries import Figure, Interval


OVERVIEW_POOLS = 3
OVERVIEW_REASONS = 4
OVERVIEW_LATE = 3


def page_table(kind: Kind, page: Page) -> list[str]:
    """A header line and one line per row. Ids come first and are never cut, so that they can be used again."""
    columns = {column.name: column for column in COLUMNS[kind]}
    shown = [columns[name] for name in page.columns]
    rows = [[show(column.unit, value) for column, value in zip(shown, row, strict=True)] for row in page.rows]
    return table([column.title for column in shown], rows, [column.unit != "text" for column in shown])


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Aligned columns, two spaces apart, without trailing blanks."""
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    return [
        "  ".join(
            _padded(text, width, to_right) for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (titles, *rows)
    ]


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """`name  value` lines, values aligned."""
    width = max(len(name) for name, _ in pairs)
    return [f"{name:<{width}}  {value}".rstrip() for name, value in pairs]


def overview_lines(view: Overview) -> list[str]:
    """The cell in at most 15 lines, fit to be pasted into an incident."""
    states = view.states
    pools = [_pool_line(pool) for pool in view.pools[:OVERVIEW_POOLS]]
    if len(view.pools) > OVERVIEW_POOLS:
        pools.append(f"  and {len(view.pools) - OVERVIEW_POOLS} more pools: muster get nodes")
    late = _late(view)
    blocked = [f"  {printable(token)}: {count:,}" for token, count in view.blocked[: OVERVIEW_REASONS - len(late)]]
    oldest = f"{duration(view.oldest_wait_ms)} ({printable(view.oldest_waiting)})" if view.oldest_waiting else "none"
    return [
        f"cell {printable(view.cell)} at {timestamp(view.now_ms)} UTC, version {view.version:,}, policy {view.policy}",
        f"nodes     {_nodes(view.pools)}{_suspects(view)}",
        *pools,
        f"in use    {_in_use(view)}{_fragmented(view)}",
        *(_cost(view) if view.cost_microusd_hour else ()),
        f"work      {_count(states, 'running', 'placed')} running, {_count(states, 'queued')} queued, "
        f"{_count(states, 'held')} held; last hour {view.started_last_hour:,} started, "
        f"{view.finished_last_hour:,} finished",
        f"waits     p50 {duration(view.wait_p50_ms)}, p95 {duration(view.wait_p95_ms)}; oldest waiting {oldest}",
        *late,
        *(["waiting for", *blocked] if blocked else []),
    ]


def _late(view: Overview) -> list[str]:
    """The objectives that are missed, the worst first: late starts of the last hour, of those allowed. At most a
    line."""
    burning = [(burn.hour.burn_permille or 0, burn.queue) for burn in view.burns]
    missed = sorted((each for each in burning if each[0] > 1000), reverse=True)
    told = ", ".join(f"{printable(queue)} ×{permille / 1000:.1f}" for permille, queue in missed[:OVERVIEW_LATE])
    more = f" and {len(missed) - OVERVIEW_LATE} more" if len(missed) > OVERVIEW_LATE else ""
    return (
        [f"late      {told}{more}: late starts of the last hour, against the objective's allowance"] if missed else []
    )


def terms(view: WorkloadDetail) -> list[tuple[str, str]]:
    """Label and text of each property that not every workload has: limits, retries, bonds, how it was allowed to start.
    Foreign text is as it came."""
    pairs = []
    if view.array:
        pairs.append(("array", view.array))
    if view.retries or view.failures:
        pairs.append(("retries", f"failed {view.failures:,} times, {view.retries:,} retries allowed"))
    if view.rerun:
        pairs.append(("rerun", view.rerun))
    if view.qos != "guaranteed":
        pairs.append(("qos", view.qos.replace("_", " ")))
    if view.service is not None:
        pairs.append(("service", _service(view.service, view.tasks_placed)))
    elif 0 < view.tasks_placed < view.tasks_total:
        pairs.append(("tasks", f"{view.tasks_placed:,} of {view.tasks_total:,} running"))
    pairs += [("near", f"in the {_level(bond.level)} of work with {_tags(bond)}") for bond in view.near]
    pairs += [("apart", f"not in the {_level(bond.level)} of work with {_tags(bond)}") for bond in view.apart]
    if view.data:
        pairs.append(("data", f"in {', '.join(view.data)}"))
    if view.topology is not None:
        pairs += _topology(view.topology)
    if view.flags:
        pairs.append(("started", _allowed(view)))
    if view.spending_approved:
        pairs.append(("budget", "spending approved"))
    if view.making_room_for:
        pairs.append(("stopping", f"writing a checkpoint to make room for {view.making_room_for}"))
    return pairs


def _service(service: ServiceDetail, there: int) -> str:
    busy = "unknown" if service.use_permille is None else permille(service.use_permille)
    return (
        f"{there:,} of {service.wanted:,} replicas wanted, {service.least:,} to {service.most:,}; "
        f"{busy} in use, target {permille(service.target_permille)}"
    )


def _level(name: str) -> str:
    return "NVLink domain" if name == "nvlink" else name


def _tags(bond: Affinity) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(bond.tags.items()))


def _topology(view: TopologyDetail) -> list[tuple[str, str]]:
    """Requested closeness of a workload, and its place in the network."""
    asked = [f"one {_level(view.required)} required"] if view.required else []
    asked += [f"one {_level(view.preferred)} preferred"] if view.preferred else []
    pairs = [("topology", ", ".join(asked))] if asked else []
    if view.within:
        spread = ", ".join(
            f"{count:,} {_level(level)}{'' if count == 1 else 's'}" for level, count in view.domains.items()
        )
        where = "across the cell" if view.within == "cell" else f"within one {_level(view.within)}"
        pairs.append(("network", f"{where}: {spread}; ring cost {view.ring_cost:,}"))
    return pairs


def _allowed(view: WorkloadDetail) -> str:
    """By which quota and rule it runs, and for how long a burst may last yet."""
    words = {"borrowed": "on borrowed quota", "burst": "in a burst", "backfilled": "by backfill"}
    text = ", ".join(words[flag] for flag in view.flags)
    if "burst" in view.flags:
        left = view.burst_ends_ms - view.now_ms if view.burst_ends_ms is not None else 0
        text += f"; the burst ends in {duration(left)}" if left > 0 else "; the burst is over, it may be preempted"
    return text


def unblocking_lines(answer: Unblocking) -> list[str]:
    """The change that lets it start, as tried on a fork; or that none was found, and the changes that were tried. Where
    others wait ahead for the same, also what starts the whole line up to it."""
    where = f"on a fork at v{answer.version:,}"
    if answer.found is not None:
        return [f"would start if: {printable(answer.found.text)} (verified {where})", *_line_up_to_it(answer, where)]
    if not answer.tried:
        return ["would start if: no single change to try"]
    tried = (f"  {printable(text)}" for text in answer.tried)
    return [f"would start if: not known; tried {where}", *tried, *_line_up_to_it(answer, where)]


def _line_up_to_it(answer: Unblocking, where: str) -> list[str]:
    """What starts those ahead of it too."""
    if not answer.ahead:
        return []
    ahead = f"{counted(answer.ahead, 'workload')} ahead of it {'waits' if answer.ahead == 1 else 'wait'} for the same"
    if answer.line is None:
        return [f"{ahead}: no change found that starts all {answer.ahead + 1:,}"]
    if answer.found is not None and answer.line.edits == answer.found.edits:
        return [f"{ahead}: the same change starts all {answer.ahead + 1:,}"]
    return [f"{ahead}: all {answer.ahead + 1:,} would start if: {printable(answer.line.text)} (verified {where})"]


def estimate_facts(likely: RuntimeEstimate) -> list[tuple[str, str]]:
    """Estimate of its whole run time and its reliability, as labels and values."""
    whole = f"{duration(likely.p50_ms)} (p50), {duration(likely.p10_ms)} to {duration(likely.p90_ms)} (p10 to p90)"
    so_far = (
        [("has run", f"{duration(likely.elapsed_ms)} when this was estimated")] if likely.elapsed_ms >= 1000 else []
    )
    return [("total", whole), *so_far, ("from", _rests_on(likely)), ("accuracy", _held(likely))]


def quantity(name: str, value: int) -> str:
    """A quantity of the resource vector with its unit: "8 GPU", "64 GiB memory"."""
    units = {"cpu_milli": "CPU", "gpu_milli": "GPU"}
    if name in units:
        return f"{milli(value)} {units[name]}"
    return f"{mebibytes(value)} {name.removesuffix('_mib')}"


def _padded(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _nodes(pools: Sequence[PoolOverview]) -> str:
    states = ("ready", "cordoned", "draining", "down", "booting")
    parts = [(state, sum(getattr(pool, state) for pool in pools)) for state in states]
    parts.append(("also ordered", sum(pool.ordered for pool in pools)))
    total = sum(pool.nodes for pool in pools)
    return f"{total:,}: " + ", ".join(f"{count:,} {state}" for state, count in parts if count or state == "ready")


def _suspects(view: Overview) -> str:
    if not view.suspect:
        return ""
    network = "; possibly the network: only a few are declared lost at a time" if view.mass_suspicion else ""
    return f", {view.suspect:,} suspect{network}"


def _pool_line(pool: PoolOverview) -> str:
    model = f" {printable(pool.gpu_model)}" if pool.gpu_model else ""
    scarce = "gpu_milli" if pool.capacity.get("gpu_milli") else "cpu_milli"
    return (
        f"  {printable(pool.name)}{model}: {pool.ready:,} of {pool.nodes:,} ready, "
        f"{_share(pool.used, pool.capacity, scarce)}"
    )


def _in_use(view: Overview) -> str:
    names = [name for name in ("gpu_milli", "cpu_milli", "memory_mib") if view.capacity.get(name)]
    return ", ".join(_share(view.used, view.capacity, name) for name in names) or "no capacity"


def _cost(view: Overview) -> Iterator[str]:
    idle = view.idle_microusd_hour * 1000 // view.cost_microusd_hour
    told = f"{usd(view.cost_microusd_hour)} an hour, {usd(view.idle_microusd_hour)} of it idle ({permille(idle)})"
    yield f"cost      {told}"


def _fragmented(view: Overview) -> str:
    ppm = view.fragmentation_ppm
    return f"; {permille(ppm // 1000)} of the free GPU fragmented" if ppm else ""


def _share(used: dict[str, int], capacity: dict[str, int], name: str) -> str:
    most = capacity.get(name, 0)
    part = permille(used.get(name, 0) * 1000 // most) if most else "0%"
    held = quantity(name, used.get(name, 0)).rsplit(" ", 1)[0]
    return f"{held} of {quantity(name, most)} ({part})"


def _count(states: dict[str, int], *names: str) -> str:
    return f"{sum(states.get(name, 0) for name in names):,}"


def conditions(group: GroupDetail) -> list[str]:
    """Conditions of a group on its nodes besides room, device model and pool."""
    found = [f"devices of {mebibytes(group.gpu_memory_mib)} or more"] if group.gpu_memory_mib else []
    for word, labels in (("label", group.node_labels), ("not label", group.avoid_labels)):
        found += [f"{word} {printable(_condition(key, values))}" for key, values in sorted(labels.items())]
    if group.capacity_type:
        found.append(f"{group.capacity_type} nodes")
    if group.tolerations:
        found.append(f"tolerates {', '.join(printable(toleration.label) for toleration in group.tolerations)}")
    if group.spread is not None:
        apart = f", at most {group.spread.max_skew:,} apart" if group.spread.max_skew > 1 else ""
        found.append(f"spread over {_level(group.spread.level)}s{apart}")
    return found


def _condition(key: str, values: Sequence[str]) -> str:
    return key if "*" in values else f"{key}={' or '.join(values)}"


def _rests_on(likely: RuntimeEstimate) -> str:
    like = likely.level not in ("", "all")
    near = f"{likely.samples:,} of the same {printable(likely.level)}" if like else "no similar jobs"
    if likely.basis == "request":
        return f"its requested time; finished runs: {near}"
    return f"{max(likely.learnt, likely.samples):,} finished runs, {near}"


def _held(likely: RuntimeEstimate) -> str:
    if likely.p90_coverage_permille is None:
        return "no such estimate scored yet"
    within = f", p50 within 2x in {permille(likely.within2x_permille)}" if likely.within2x_permille is not None else ""
    return f"p90 correct in {permille(likely.p90_coverage_permille)}{within} of {likely.scored:,} scored"


DEVICE_HOUR_MS = 3_600_000
WHOLE_DOLLARS_MICROUSD = 100_000_000
"""From here on cents tell nothing."""
UNCHANGED = "the same"


def amount(unit: str, value: int) -> str:
    """A figure for people, by its unit."""
    match unit:
        case "duration":
            return duration(value)
        case "permille":
            return f"{value / 10:.1f}%"
        case "money":
            return usd(value) if abs(value) < WHOLE_DOLLARS_MICROUSD else usd(value)[:-3]
        case "device_time":
            return f"{value / DEVICE_HOUR_MS:,.1f} dev-h"
        case _:
            return f"{value:,}"


def spread(unit: str, over: Interval) -> str:
    """The median, and p10 to p90 where they differ: `12m (8m..15m)`; of few runs the least and the most: `8m..15m`."""
    return _spread(over, lambda value: amount(unit, value))


def middle(unit: str, over: Interval) -> str:
    """The median alone; of few runs the least and the most."""
    return spread(unit, over) if over.p50 is None else amount(unit, over.p50)


def heads(figures: Sequence[Figure]) -> tuple[str, str, str, str]:
    """Titles above rows of figures: what they are, before, after, and what spread the change has."""
    if any(figure.change.p50 is None for figure in figures):
        return "LEAST..MOST", "BEFORE", "AFTER", "CHANGE"
    return "MEDIANS", "BEFORE", "AFTER", "CHANGE (P10..P90)"


def signed_spread(unit: str, over: Interval) -> str:
    """The spread of a change, with signs."""
    return _spread(over, lambda value: signed(unit, value))


def _spread(over: Interval, text: Callable[[int], str]) -> str:
    if over.p10 is None or over.p50 is None or over.p90 is None:
        return text(over.least) if over.least == over.most else f"{text(over.least)}..{text(over.most)}"
    return text(over.p50) if over.p10 == over.p90 else f"{text(over.p50)} ({text(over.p10)}..{text(over.p90)})"


def change(figure: Figure) -> tuple[str, str]:
    """The change in words, and the tone it deserves."""
    over = figure.change
    low, high = (over.least, over.most) if over.p10 is None or over.p90 is None else (over.p10, over.p90)
    if low == high == 0:
        return UNCHANGED, "dim"
    text = signed_spread(figure.unit, over)
    if not figure.better or over.p50 is None:
        return text, ""
    if low <= 0 <= high:
        return f"{text} unclear", "dim"
    better = (over.p50 < 0) == (figure.better == "lower")
    return (f"{text} better", "ok") if better else (f"{text} worse", "bad")


def signed(unit: str, value: int) -> str:
    return f"{'+' if value > 0 else ''}{amount(unit, value)}"


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a spreadsheet formula, in both widths."""
PART = LONGEST // 10  # an escape takes up to ten characters
_UNITS = {"memory": "mib", "disk": "mib", "duration": "s", "permille": "percent", "money": "usd"}
_SCALES = {"cpu": 1_000, "gpu": 1_000, "duration": 1_000, "permille": 10, "money": 1_000_000}


def pasteable(text: str) -> str:
    """Text of any length that does nothing to a terminal it is pasted into but stand there: only its own line ends and
    tabs stay, and none at the end."""
    lines = text.rstrip("\r\n").split("\n")
    return "\n".join("\t".join(harmless(cell) for cell in line.split("\t")) for line in lines)


def harmless(text: str) -> str:
    """A line of any length in which whatever could act on a terminal is an escape."""
    if len(text) <= PART:
        return visible(text)
    return "".join(visible(text[at : at + PART]) for at in range(0, len(text), PART))


def title(column: Column) -> str:
    """Name of a column with the unit its numbers are in: `wait_s`."""
    unit = _UNITS.get(column.unit)
    return f"{column.name}_{unit}" if unit else column.name


def plain(column: Column, value: Any) -> str:
    """A value for a spreadsheet; empty where it does not apply."""
    if value is None or value == "":
        return ""
    if not isinstance(value, int):
        return unformed(harmless(str(value)))
    if column.unit == "time":
        return iso(value)
    return decimal(value, _SCALES.get(column.unit, 1))


def unformed(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def decimal(value: int, scale: int) -> str:
    """`value / scale`, exactly: 250 of 1000 is 0.25."""
    if scale == 1:
        return str(value)
    whole, rest = divmod(abs(value), scale)
    digits = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' + digits if digits else ''}"


def iso(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return str(at_ms)


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Lines of CSV, each with its end."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def tsv_text(rows: Iterable[Sequence[str]]) -> str:
    """Lines between which there are line ends, cells between which there are tabs: none is within a cell."""
    return "\n".join("\t".join(row) for row in rows)


def json_text(value: Any) -> str:
    """A line of JSON, in ASCII."""
    return json.dumps(value, separators=(",", ":"))
