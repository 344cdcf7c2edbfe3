"""The list of queues as a tree: every queue below its cohort, cohorts foldable, quota as a bar. No Textual in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from console.text.terminal_text import permille, printable
from console.views.lists import SHARE, ListView, Window, share_of
from console.views.quota_bars import bar, quota_parts

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.views.lists import Span
    from engine.model.queries import Page

MOST = 10_000
"""Queues of a tree; the engine gives no more rows at once."""
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
        return _told(view, view.window(page, offset), page, ["" for _ in page.rows])
    name, parent = page.columns.index("name"), page.columns.index("parent")
    cohorts.update({row[name]: row[parent] or "" for row in page.rows})
    order = in_order(page, folded)
    shown, whole = order[offset : offset + limit], _with_quota_below(page)
    window = view.window(structs.replace(page, rows=[page.rows[at] for at, _ in shown]), offset)
    sums = structs.replace(page, rows=[whole[at] for at, _ in shown])
    return _told(view, window, sums, [before for _, before in shown])._replace(matched=len(order))


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


def _told(view: ListView, window: Window, page: Page, before: Sequence[str]) -> Window:
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
