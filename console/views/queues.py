"""Queues: the list as a tree of cohorts, and one queue as sections.

A queue's page has quota, borrowing, burst, objective, waiting and running work, and the last decisions of fairness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from console.actions.key_map import key_of
from console.forms.filters import quoted
from console.text.terminal_text import NONE, cut, duration, fit, milli, permille, printable, timestamp, wrap
from console.text.tones import state_look
from console.views.findings import burn_tone, times
from console.views.lists import SHARE, ListView, Window, share_of
from console.views.sections import (
    BORROWED,
    BURST,
    IDLE,
    LENT,
    USED,
    Line,
    Section,
    bar,
    fact,
    legend,
    quantity,
    quota_parts,
    text_line,
)
from engine.model.details import QueueDetail
from engine.model.list_queries import Page, Query, Term
from engine.model.quantities import counted
from engine.model.reports import BurstReport, DecisionReport, FairnessReport, VertexReport

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.views.lists import Span
    from engine.model.details import BurnWindow
    from engine.model.specs import FlavorQuota, QueueSpec


MAX_NAMED = 8
MAX_DECISIONS = 5
_RESOURCES = (("gpu_milli", "GPU"), ("cpu_milli", "CPU"), ("memory_mib", "memory"), ("disk_mib", "disk"))


MAX_WORK = 8
"""Workloads of each list."""
MAX_LEAVES = 200
_FACTS = (
    "name", "state", "queued", "held", "waiting", "running", "share", "past_share", "gpu_used", "gpu_nominal",
    "cpu_used", "cpu_nominal", "memory_used", "memory_nominal", "burst",
)  # fmt: skip


class QueuePageData(NamedTuple):
    """Data of the page of a queue."""

    detail: QueueDetail
    row: dict[str, Any]
    """Its row in the list of queues."""
    waiting: Page
    running: Page
    fairness: FairnessReport | None = None
    """Report on a slower interval."""

    @property
    def version(self) -> int:
        return self.detail.version

    @property
    def now_ms(self) -> int:
        return self.detail.now_ms


def queue_page(client: Client, name: str, fairness: FairnessReport | None = None) -> QueuePageData:
    """Ask for everything the page shows of a queue. Raises NotFoundError."""
    detail = client.queue(name)
    page = client.query(Query(kind="queues", columns=_FACTS, where=(Term("name", "=", name),), limit=1))
    row: dict[str, Any] = dict(zip(page.columns, page.rows[0], strict=True)) if page.rows else {}
    return QueuePageData(detail, row, _longest_waiting(client, detail), _largest_running(client, detail), fairness)


def _in_queue(detail: QueueDetail) -> tuple[Term, ...]:
    return tuple(Term("queue", "=", name) for name in detail.leaves[:MAX_LEAVES])


def _longest_waiting(client: Client, detail: QueueDetail) -> Page:
    columns = ("id", "wait", "reason", "gpu", "cpu")
    where = (Term("state", "=", "queued"), *_in_queue(detail))
    return client.query(Query(kind="workloads", columns=columns, where=where, sort=("-wait",), limit=MAX_WORK))


def _largest_running(client: Client, detail: QueueDetail) -> Page:
    where = (Term("state", "=", "running"), Term("state", "=", "placed"), *_in_queue(detail))
    columns = ("id", "run", "gpu", "cpu")
    return client.query(Query(kind="workloads", columns=columns, where=where, sort=("-gpu", "-cpu"), limit=MAX_WORK))


def queue_columns(known: QueuePageData, width: int) -> tuple[list[Section], list[Section]]:
    """Left: how it stands, its quota, who borrows from whom. Right: what waits and runs, and who went first."""
    vertex = _vertex(known)
    left = [_state(known, width), _quota(known, vertex, width)]
    if vertex is not None:
        left.append(_neighbours(known, vertex, width))
    right = [_waiting(known, width), _running(known, width)]
    if known.fairness is not None:
        right.append(_decisions(known.fairness, known.detail, width))
    return left, right


def _vertex(known: QueuePageData) -> VertexReport | None:
    queues = known.fairness.queues if known.fairness is not None else ()
    return next((vertex for vertex in queues if vertex.name == known.detail.name), None)


def _state(known: QueuePageData, width: int) -> Section:
    detail, spec, row = known.detail, known.detail.spec, known.row
    glyph, tone = state_look(detail.mode)
    counts = ", ".join(f"{row[name]:,} {name}" for name in ("queued", "held", "waiting", "running") if row.get(name))
    length = f"curve queue:{printable(detail.name)} length"
    lines = [Line(((f"{glyph} {printable(detail.mode)}", tone), (f"  {counts or 'no work'}", "")), length)]
    if detail.closed_by:
        closed = printable(detail.closed_by)
        lines.append(Line((("closed by  ", "warn"), (closed, "link")), f"queue {closed}"))
    if spec.parent:
        parent = printable(spec.parent)
        lines.append(Line((("cohort     ", "dim"), (cut(parent, width - 11), "link")), f"queue {parent}"))
    below = [name for name in detail.leaves if name != detail.name]
    for n, name in enumerate(below[:MAX_NAMED]):
        label = "children   " if not n else " " * 11
        lines.append(Line(((label, "dim"), (cut(printable(name), width - 11), "link")), f"queue {printable(name)}"))
    if len(below) > MAX_NAMED:
        lines.append(fact("", f"and {len(below) - MAX_NAMED:,} more", "dim"))
    lines += _told("order", f"{spec.order}, weight {spec.weight:,}, reclaims {spec.reclaim}", width)
    shares = f"{permille(row.get('share') or 0)} now, {permille(row.get('past_share') or 0)} before"
    lines += _told("share", f"{shares}; use above quota, by weight", width)
    lines += _objective(known, width)
    for name, excess in detail.over.items():
        over = f"{quantity(name.rpartition('/')[2], excess)} {_words(name)} over limit"
        lines += _told("over", over, width, "warn")
    return Section("Queue", tuple(lines))


def _told(label: str, text: str, width: int, tone: str = "") -> list[Line]:
    """A fact on as many lines as it takes."""
    return [fact("" if n else label, part, tone) for n, part in enumerate(wrap(text, max(12, width - 11)))]


def _objective(known: QueuePageData, width: int) -> list[Line]:
    spec, burn = known.detail.spec, known.detail.burn
    if burn is None:
        example = f"none; :set-quota {printable(known.detail.name)} --start-within 10m --objective 95%"
        return _told("objective", example, width, "dim")
    lines = _told(
        "objective", f"{spec.objective_permille / 10:g}% start within {duration(spec.start_within_ms)}", width
    )
    for label, window in (("burn 1 h", burn.hour), ("burn 6 h", burn.six_hours)):
        text, tone = _window(window)
        lines += _told(label, text, width, tone)
    return lines


def _window(window: BurnWindow) -> tuple[str, str]:
    if window.burn_permille is None:
        return "nothing started, nothing waits too long", "dim"
    late = f"{window.late:,} of {window.started:,} starts late, {window.waiting:,} already waiting too long"
    return f"×{times(window.burn_permille)} of the allowance: {late}", burn_tone(window.burn_permille)


# -- quota ------------------------------------------------------------------------------------------------------------


def _quota(known: QueuePageData, vertex: VertexReport | None, width: int) -> Section:
    spec, row = known.detail.spec, known.row
    lines: list[Line] = []
    for name, title in _RESOURCES:
        nominal, used = spec.nominal.get(name), (vertex.used if vertex else _used(row)).get(name, 0)
        limited = row.get(f"{name.partition('_')[0]}_nominal") is not None or nominal is not None
        if not limited and not used:
            continue
        amounts = _amounts(
            title, name, used, nominal if nominal is not None else (0 if limited else None), vertex, name, width
        )
        if name in ("gpu_milli", "cpu_milli"):
            curve = f"curve queue:{printable(known.detail.name)} {name.removesuffix('_milli')}"
            amounts[0] = amounts[0]._replace(link=curve)
        lines += amounts
        lines += _limits(spec, name, width)
    for flavor in spec.flavors:
        lines += _flavor(flavor, vertex, width)
    if not lines:
        lines = [text_line("no quota, nothing in use", "dim")]
    signs = (USED, BORROWED, BURST, LENT, IDLE)
    lines += [Line(tuple(legend(parts))) for parts in ((signs,) if width >= LEGEND else (signs[:3], signs[3:]))]
    lines += _burst(spec, vertex, width)
    return Section("Quota", tuple(lines), keys=":set-quota changes it")


def _used(row: dict[str, Any]) -> dict[str, int]:
    return {f"{name}_milli": row.get(f"{name}_used") or 0 for name in ("gpu", "cpu")} | {
        "memory_mib": row.get("memory_used") or 0
    }


def _amounts(
    title: str, name: str, used: int, nominal: int | None, vertex: VertexReport | None, key: str, width: int
) -> list[Line]:
    """A bar of what the queue uses beside its quota, and the numbers below it."""
    borrowed = lent = burst = 0
    if vertex is not None:
        borrowed, lent = vertex.borrowed.get(key, 0), vertex.lent.get(key, 0)
        burst = vertex.burst.excess.get(key, 0) if vertex.burst is not None else 0
    if nominal is None:
        return [fact(title, f"{quantity(name, used)}, no limit")]
    of = f"of {quantity(name, nominal)}"
    parts = ((BORROWED, borrowed - burst), (LENT, lent))
    more = [f"{quantity(name, amount)} {part.word}" for part, amount in parts if amount]
    if burst:
        more.append(f"{quantity(name, burst)} in a burst")
    told = ", ".join([f"{quantity(name, used)} {of}", *more])
    head = Line(((fit(title, 11), "dim"), *bar(quota_parts(used, nominal, borrowed, lent, burst), max(6, width - 11))))
    return [head, fact("", cut(told, width - 11))]


def _limits(spec: QueueSpec | FlavorQuota, name: str, width: int) -> list[Line]:
    """Borrowing and lending limits."""
    told = []
    if name in spec.borrowing_limit:
        told.append(f"may borrow {quantity(name, spec.borrowing_limit[name])}")
    if name in spec.lending_limit:
        told.append(f"lends at most {quantity(name, spec.lending_limit[name])}")
    return [fact("", cut(", ".join(told), width - 11), "dim")] if told else []


def _flavor(flavor: FlavorQuota, vertex: VertexReport | None, width: int) -> Iterator[Line]:
    """The quota of one pool."""
    pool = printable(flavor.pool)
    yield Line((("in pool ", "dim"), (cut(pool, width - 8), "link")), f"nodes pool:{quoted(pool)}")
    for name, title in _RESOURCES:
        if name in flavor.nominal:
            key = f"{flavor.pool}/{name}"
            used = vertex.used.get(key, 0) if vertex is not None else 0
            yield from _amounts(f"  {title}", name, used, flavor.nominal[name], vertex, key, width)
            yield from _limits(flavor, name, width)


def _burst(spec: QueueSpec, vertex: VertexReport | None, width: int) -> Iterator[Line]:
    if spec.burst is None:
        return
    limit = ", ".join(f"{quantity(name, most)} {_words(name)}" for name, most in spec.burst.limit.items())
    how_long = f"for {duration(spec.burst.window_ms)}, then a {duration(spec.burst.cooldown_ms)} cool-down"
    yield from _told("burst", f"up to {limit} {how_long}", width)
    if vertex is not None and vertex.burst is not None:
        text, tone = _burst_state(vertex.burst)
        yield from _told("", text, width, tone)


def _burst_state(burst: BurstReport) -> tuple[str, str]:
    if burst.state == "idle":
        return "not bursting", "dim"
    what = "bursting" if burst.state == "burst" else "cooling down; use above its limit is reclaimed first"
    return f"{what}, {duration(burst.ends_in_ms)} left", "warn"


def _words(name: str) -> str:
    """A resource, or `pool/resource`, as people say it."""
    pool, _, resource = name.rpartition("/")
    word = dict(_RESOURCES).get(resource, resource)
    return f"{word} of {printable(pool)}" if pool else word


# -- its neighbours ---------------------------------------------------------------------------------------------------


def _neighbours(known: QueuePageData, vertex: VertexReport, width: int) -> Section:
    """Borrowers and lenders of its cohort."""
    assert known.fairness is not None
    near = [each for each in known.fairness.queues if each.parent == vertex.parent and each.parent]
    lines: list[Line] = []
    for name, title in _RESOURCES:
        for each in sorted(near, key=lambda each: -each.borrowed.get(name, 0)):
            borrowed, lent = each.borrowed.get(name, 0), each.lent.get(name, 0)
            if not borrowed and not lent:
                continue
            burst = each.burst.excess.get(name, 0) if each.burst is not None else 0
            told = " and ".join(
                f"{verb} {quantity(name, amount)} {title}"
                for verb, amount in (("borrows", borrowed - burst), ("bursts by", burst), ("lends", lent)) if amount
            )  # fmt: skip
            room = max(8, width - len(told) - 3)
            here = each.name == vertex.name
            mark = BORROWED if borrowed else LENT
            spans = (
                (f"{mark.sign} ", mark.tone),
                (fit(printable(each.name), room), "strong" if here else "link"),
                (f" {told}", ""),
            )
            lines.append(Line(spans, "" if here else f"queue {printable(each.name)}"))
    if not vertex.parent:
        lines.append(text_line("no cohort to borrow from or lend to", "dim"))
    elif not lines:
        lines.append(text_line("nothing borrowed in its cohort", "dim"))
    main = next((name for name, _ in _RESOURCES if vertex.deserved.get(name)), "")
    note = f"deserves {quantity(main, vertex.deserved[main])} {_words(main)}" if main else ""
    return Section(f"In cohort {printable(vertex.parent)}" if vertex.parent else "Cohort", tuple(lines), note)


# -- its work ---------------------------------------------------------------------------------------------------------


def work_filter(detail: QueueDetail) -> str:
    """The filter on the workloads of this queue and those below it."""
    if detail.leaves == (detail.name,):
        return f"queue:{quoted(printable(detail.name))}"
    return f"queue:{','.join(quoted(printable(name)) for name in detail.leaves)}"


def _waiting(known: QueuePageData, width: int) -> Section:
    lines = [_waits(values, width) for values in _rows(known.waiting)]
    if not lines:
        lines = [text_line("nothing is waiting", "dim")]
    elif known.waiting.matched > len(lines):
        rest = f"all {known.waiting.matched:,} waiting"
        lines.append(Line(((rest, "link"),), f"workloads state:queued {work_filter(known.detail)} sort:-wait"))
    return Section(
        "Longest waits", tuple(lines), f"{known.waiting.matched:,} waiting", f"{key_of('curve')} plots the waits"
    )


def _waits(values: dict[str, Any], width: int) -> Line:
    wait = duration(values["wait"] or 0)
    size = milli(values["gpu"]) + " GPU" if values["gpu"] else milli(values["cpu"] or 0) + " CPU"
    reason = max(8, min(24, width // 3 - 1))
    name = max(8, width - reason - 9 - 11)
    spans = (
        (fit(printable(values["id"]), name), "link"),
        (fit(size, 11, right=True), "dim"),
        (f"{wait:>7}  ", ""),
        (fit(printable(values["reason"] or NONE), reason), ""),
    )
    return Line(spans, f"workload {printable(values['id'])}")


def _running(known: QueuePageData, width: int) -> Section:
    lines = [_runs(values, width) for values in _rows(known.running)]
    if not lines:
        lines = [text_line("nothing is running", "dim")]
    elif known.running.matched > len(lines):
        rest = f"all {known.running.matched:,} running"
        lines.append(Line(((rest, "link"),), f"workloads state:running,placed {work_filter(known.detail)}"))
    return Section("Largest running", tuple(lines), f"{known.running.matched:,} running")


def _runs(values: dict[str, Any], width: int) -> Line:
    size = milli(values["gpu"]) + " GPU" if values["gpu"] else milli(values["cpu"] or 0) + " CPU"
    name = max(8, width - 11 - 9)
    spans = (
        (fit(printable(values["id"]), name), "link"),
        (fit(size, 11, right=True), ""),
        (f"{duration(values['run'] or 0):>9}", "dim"),
    )
    return Line(spans, f"workload {printable(values['id'])}")


def _rows(page: Page) -> list[dict[str, Any]]:
    return [dict(zip(page.columns, row, strict=True)) for row in page.rows]


def _decisions(report: FairnessReport, detail: QueueDetail, width: int) -> Section:
    """The last starts that it won or lost."""
    ours = set(detail.leaves) | {detail.name}
    made = [each for each in report.decisions if each.queue in ours or each.next_queue in ours]
    lines = []
    for each in made[:MAX_DECISIONS]:
        first, *rest = wrap(decision_line(each).strip(), max(20, width - 2))
        won = each.queue in ours
        lines.append(Line((("+ " if won else "- ", "ok" if won else "warn"), (first, ""))))
        lines += [Line((("  " + part, "dim"),)) for part in rest]
    if not lines:
        lines = [text_line("no recent start by it or ahead of it", "dim")]
    more = len(made) - MAX_DECISIONS
    return Section("Recent starts, and why", tuple(lines), counted(more, "more start") if more > 0 else "")


# -- who went first, in words -----------------------------------------------------------------------------------------


def share(ppb: int) -> str:
    """Parts per billion as percent, with as many digits as tell small shares apart: "12.5%", "0.031%", "0%"."""
    percent = ppb / 10_000_000
    return f"{percent:.3g}%"


def decision_line(made: DecisionReport) -> str:
    first = f"{timestamp(made.at_ms, date=False)} {printable(made.workload)} of {printable(made.queue)}"
    if made.rule == "alone":
        return f"  {first}: nothing else could start"
    other = f"{printable(made.next_workload)} of {printable(made.next_queue)}"
    return f"  {first} before {other}: {_rule(made)}"


def _rule(made: DecisionReport) -> str:
    match made.rule:
        case "band":
            return f"higher band, {made.band:,} and {made.next_band:,}"
        case "waited":
            return "it has waited so long that shares no longer count"
        case "share":
            return f"smaller share, {_path(made.shares_ppb)} and {_path(made.next_shares_ppb)}"
        case "priority":
            return f"higher priority, {made.priority:,} and {made.next_priority:,}"
        case _:
            return "it is older"


def _path(shares: Sequence[int]) -> str:
    """Shares from the root of the tree down to the queue."""
    return " > ".join(map(share, shares))


MOST = 10_000
"""Queues of a tree; the engine gives no more rows at once."""
LEGEND = 46
"""Cells that the signs of a bar and their words take on one line."""
BAR = 14
_NEEDED = (
    "parent", "depth", "gpu_used", "gpu_nominal", "cpu_used", "cpu_nominal",
    "gpu_borrowed", "gpu_lent", "cpu_borrowed", "cpu_lent", "burst",
)  # fmt: skip
"""Columns that the bar and the tree are drawn from, beside those of the list."""


def fetch(
    connect: Callable[[], Client],
    view: ListView,
    folded: frozenset[str],
    cohorts: dict[str, str],
    offset: int,
    limit: int,
) -> Window:
    """Rows of the tree, or a flat list where it is filtered or sorted; `cohorts` is told what is in which. Blocks."""
    flat = bool(view.where or view.sort)
    query = view.query(offset, limit) if flat else view.query(0, MOST)
    page = connect().query(structs.replace(query, columns=tuple(dict.fromkeys((*query.columns, *_NEEDED)))))
    if flat:
        return _tree_row(view, view.window(page, offset), page, ["" for _ in page.rows])
    name, parent = page.columns.index("name"), page.columns.index("parent")
    cohorts.update({row[name]: row[parent] or "" for row in page.rows})
    order = in_order(page, folded)
    shown, whole = order[offset : offset + limit], _with_quota_below(page)
    window = view.window(structs.replace(page, rows=[page.rows[at] for at, _ in shown]), offset)
    sums = structs.replace(page, rows=[whole[at] for at, _ in shown])
    return _tree_row(view, window, sums, [before for _, before in shown])._replace(matched=len(order))


def in_order(page: Page, folded: frozenset[str]) -> list[tuple[int, str]]:
    """(row, what stands before its name) of every queue that is not folded away, each below its cohort."""
    name, parent = page.columns.index("name"), page.columns.index("parent")
    names = {row[name] for row in page.rows}
    children: dict[str, list[int]] = {}
    for at, row in enumerate(page.rows):
        children.setdefault(row[parent] if row[parent] in names else "", []).append(at)
    found: list[tuple[int, str]] = []
    # Taken out once each: what an engine says may lead back to itself.
    open_ = [(at, 0) for at in reversed(children.pop("", []))]
    while open_:
        at, depth = open_.pop()
        own = page.rows[at][name]
        below = children.pop(own, ())
        mark = "  " if not below else "▸ " if own in folded else "▾ "
        found.append((at, "  " * depth + mark))
        if own not in folded:
            open_ += [(child, depth + 1) for child in reversed(below)]
    return found


def _with_quota_below(page: Page) -> list[list[Any]]:
    """The rows, in which a cohort's quota is its own and that of all below it: its use is that of all below it too."""
    name, parent, depth = (page.columns.index(column) for column in ("name", "parent", "depth"))
    rows = {row[name]: list(row) for row in page.rows}
    for row in sorted(rows.values(), key=lambda row: -int(row[depth])):
        above = rows.get(row[parent])
        for column in ("gpu_nominal", "cpu_nominal"):
            at = page.columns.index(column)
            if above is not None and row[at] is not None:
                above[at] = (above[at] or 0) + row[at]
    return [rows[row[name]] for row in page.rows]


def _tree_row(view: ListView, window: Window, page: Page, before: Sequence[str]) -> Window:
    """The rows with the tree before their names and a bar of their quota."""
    index = {name: at for at, name in enumerate(page.columns)}
    columns = [column.name for column in view.columns]
    rows = []
    for row, values, mark in zip(window.rows, page.rows, before, strict=True):
        cells = list(row.cells)
        if "name" in columns:
            at = columns.index("name")
            cells[at] = (mark + printable(str(values[index["name"]])), cells[at][1])
        if SHARE.name in columns:
            cells[columns.index(SHARE.name)] = quota_cell(values, index)
        rows.append(row._replace(cells=tuple(cells)))
    return window._replace(rows=rows)


def quota_cell(values: Sequence[Any], index: dict[str, int]) -> Span:
    """Own use, borrowed, in a burst, lent and idle in one bar, of GPU or, where there is no quota of it, of CPU."""
    kind = "gpu" if values[index["gpu_nominal"]] or values[index["gpu_borrowed"]] else "cpu"
    used, nominal = values[index[f"{kind}_used"]] or 0, values[index[f"{kind}_nominal"]]
    borrowed, lent = values[index[f"{kind}_borrowed"]] or 0, values[index[f"{kind}_lent"]] or 0
    if nominal is None or not (nominal or used):
        return "no quota", "faint"
    burst = borrowed if values[index["burst"]] == "burst" else 0
    drawn = "".join(text for text, _ in bar(quota_parts(used, nominal, borrowed, lent, burst), BAR))
    share = share_of(values, index) if nominal else None
    told = f"{permille(share):>5}" if share is not None else " none"
    return f"{drawn}{told}", "warn" if burst else "info" if borrowed else "bar"
