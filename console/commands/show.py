"""The commands that look: `muster overview`, `get`, `why`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from console.client.attach import connect
from console.forms.filters import FilterError, ViewLine, parse_columns, parse_sort, parse_view
from console.text.guarded_streams import inert_json
from console.text.plain_tables import (
    OVERVIEW_LATE,
    facts,
    overview_lines,
    page_table,
)
from console.text.terminal_text import LONGEST, printable
from engine.model.errors import NotFoundError, SpecError
from engine.model.list_queries import COLUMNS, DEFAULT_COLUMNS, Kind, Page, Query, Term
from engine.model.quantities import counted, usd

if TYPE_CHECKING:
    from console.client.protocol import Client, Health
    from engine.external.mirror_report import Mirrored
    from engine.model.details import NodeDetail
    from engine.model.reports import BudgetLine


WHY = (
    "version", "now_ms", "id", "state", "since_ms", "queue", "position", "reasons", "waits_for", "promised_start_ms",
)  # fmt: skip
"""Fields of a workload that `muster why --json` gives."""
WIDTH = 78
"""Cells of the sections of a page in the shell, without the indent."""
WINDOW = 10_000
"""Rows asked for at a time; the engine gives no more in one answer."""


def overview(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        view = client.overview()
        health = client.health()
        budgets = () if arguments.json else client.budgets().budgets
    if arguments.json:
        write_json(view)
        return
    write_lines(overview_lines(view))
    write_lines(budget_line(budgets))
    write_lines(pending_lines(health))
    if health.approval == "solo":
        write_lines(["approval  solo: one person approves everything, no two-person rule"])
    if health.takeover_ms:
        write_lines([f"standby   took over after {health.takeover_ms / 1000:.1f} s without a writer"])
    if health.audit_error:
        write_lines([f"audit     {printable(health.audit_error)}"])
    if health.mirror_error:
        write_lines([f"mirror    {printable(health.mirror_error)}"])


def budget_line(budgets: Sequence[BudgetLine]) -> list[str]:
    """Spending rate of the worst budgets, and their forecast at the end of the window. At most a line."""

    def course(line: BudgetLine) -> int:
        return line.forecast_microusd * 100 // max(1, line.spec.limit_microusd)

    worst = sorted(budgets, key=course, reverse=True)
    told = [
        f"{printable(line.spec.name)} {line.spent_microusd * 100 // max(1, line.spec.limit_microusd)}% spent, "
        f"{course(line):,}% by the end of the window at {usd(line.rate_microusd_hour)}/h"
        for line in worst[:OVERVIEW_LATE]
    ]
    more = f"; {len(worst) - OVERVIEW_LATE} more: muster budget list" if len(worst) > OVERVIEW_LATE else ""
    return [f"budgets   {'; '.join(told)}{more}"] if told else []


def pending_lines(health: Health) -> list[str]:
    """Proposals that wait for votes or got stuck; empty without any."""
    lines = []
    if health.incidents:
        lines.append(f"incidents {counted(health.incidents, 'incident')} open: muster incident list")
    if health.awaiting:
        lines.append(f"votes     {counted(health.awaiting, 'proposal')} waiting for votes: muster proposal list")
    if health.stuck:
        lines.append(f"stuck     {counted(health.stuck, 'plan')} started, not finished: muster proposal list")
    return lines


def get(arguments: argparse.Namespace) -> None:
    kind: Kind = arguments.kind
    if arguments.columns == "help":
        write_lines(facts([(column.name, column.help) for column in COLUMNS[kind]]))
        return
    arguments.json = arguments.json or arguments.output == "json"
    if arguments.id and _is_page(arguments):
        _get_one(arguments)
        return
    key = "id" if kind in ("workloads", "nodes", "orders") else "name"
    view = _view(kind, arguments)
    where = (Term(key, "=", arguments.id),) if arguments.id else view.terms
    query = Query(kind=kind, columns=view.columns or (), where=where, sort=view.sort or ())
    if arguments.output == "csv":
        _stream_csv(arguments, query)
        return
    with closing(connect(arguments)) as client:
        page = _all_rows(client, query, arguments.limit)
    if arguments.id and not page.rows:
        raise NotFoundError(f"there is no {kind.removesuffix('s')} '{arguments.id}'", f"See `muster get {kind}`")
    if arguments.json:
        write_json(_page_object(page))
        return
    write_lines(page_table(kind, page))
    if len(page.rows) < page.matched:
        print(f"{len(page.rows):,} of {page.matched:,} shown; --limit 0 shows all", file=sys.stderr)


def _is_page(arguments: argparse.Namespace) -> bool:
    """True where one thing is shown as on its page. Columns, CSV and JSON of a queue are of its row in the list."""
    if arguments.kind == "queues":
        return not (arguments.json or arguments.columns or arguments.output == "csv")
    return arguments.kind in ("workloads", "nodes") and arguments.output != "csv"


def why(arguments: argparse.Namespace) -> None:
    from console.views.external_scheduler import job_section
    from console.views.sections import Section, section_lines, text_line
    from console.views.workload import run_time_section, status_sections

    with closing(connect(arguments)) as client:
        view = client.workload(arguments.id)
        likely = client.estimate(arguments.id)
        unblocking = client.unblocking(arguments.id) if view.reasons else None
        starts = client.start_forecast(arguments.id) if view.reasons else None
        job = mirrored(client, arguments.id)
    if arguments.json:
        shown = {name: getattr(view, name) for name in WHY}
        write_json({**shown, "forecast": starts, "unblocking": unblocking, "estimate": likely, "mirrored": job})
        return
    state, *reasons = status_sections(view, WIDTH, unblocking, starts)
    sections = [
        state._replace(title=printable(view.id)),
        *([] if job is None else [job_section(job, WIDTH, starts)]),
        *(reasons or [Section("Why it waits", (text_line("it is not waiting"),))]),
        run_time_section(likely, WIDTH),
    ]
    write_lines(section_lines(sections))
    if view.state == "queued":
        write_lines(["", f"when it starts: muster eta {printable(view.id)}"])


def mirrored(client: Client, workload_id: str) -> Mirrored | None:
    """The other scheduler's view of the workload; None where Muster decides, or it is not known there."""
    try:
        return client.mirrored(workload_id)
    except NotFoundError:
        return None


def write_json(value: Any) -> None:
    """Write one JSON value and a line end to standard output. Control characters are JSON escapes."""
    sys.stdout.write(inert_json(msgspec.json.encode(value).decode()) + "\n")


def write_text(text: str) -> None:
    """Write text of `console.text.plain_tables`, which cannot act on a terminal."""
    write_lines(text.splitlines())


def write_lines(lines: Iterable[str]) -> None:
    """Lines on standard output. Each stays one line, and does nothing to a terminal, whoever wrote what is in it."""
    sys.stdout.writelines(f"{_line(line)}\n" for line in lines)


def at_terminal() -> bool:
    """True where somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def tell_lines(lines: Iterable[str]) -> None:
    """Write lines to standard error, guarded in the same way."""
    sys.stderr.writelines(f"{_line(line)}\n" for line in lines)


def _line(text: str) -> str:
    """A safe line of any length, such as a script or a list of ids."""
    part = LONGEST // 10  # an escape takes up to ten characters
    return "".join(printable(text[at : at + part]) for at in range(0, len(text), part))


def which_engine(arguments: argparse.Namespace) -> list[str]:
    """The flags that named the engine of this command, for another command that shall reach the same."""
    named = ((f"--{flag}", getattr(arguments, flag)) for flag in ("cell", "connect"))
    return [word for flag, value in named if value for word in (flag, value)]


def _get_one(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        if arguments.kind == "nodes":
            node = client.node(arguments.id)
            write_json(node) if arguments.json else write_lines(_node_lines(node))
        elif arguments.kind == "queues":
            write_lines(_queue_lines(client, arguments.id))
        elif arguments.json:
            write_json(client.workload(arguments.id))
        else:
            write_lines(_workload_lines(client, arguments.id))


def _node_lines(node: NodeDetail) -> list[str]:
    from console.views.nodes import node_columns
    from console.views.sections import section_lines

    left, right = node_columns(node, WIDTH, None)
    return [printable(node.id), "", *section_lines([*left, *right])]


def _queue_lines(client: Client, name: str) -> list[str]:
    from console.views.queues import queue_columns, queue_page
    from console.views.sections import section_lines

    left, right = queue_columns(queue_page(client, name, client.fairness()), WIDTH)
    return [printable(name), "", *section_lines([*left, *right])]


def _workload_lines(client: Client, workload_id: str) -> list[str]:
    from console.views.sections import section_lines
    from console.views.workload import ask_gpu_use, workload_sections

    view, likely = client.workload(workload_id), client.estimate(workload_id)
    starts = client.start_forecast(workload_id) if view.reasons else None
    use = ask_gpu_use(client, view)
    title = f"{printable(view.id)}  {printable(view.name)}".rstrip()
    return [title, "", *section_lines(workload_sections(view, likely, WIDTH, starts, use))]


def _all_rows(client: Client, query: Query, limit: int) -> Page:
    """Up to `limit` rows (0: all), window after window."""
    page = client.query(msgspec.structs.replace(query, limit=min(limit or WINDOW, WINDOW)))
    while page.rows and len(page.rows) < min(limit or page.matched, page.matched):
        left = (limit or page.matched) - len(page.rows)
        more = client.query(msgspec.structs.replace(query, offset=len(page.rows), limit=min(left, WINDOW)))
        if not more.rows:
            break
        page = msgspec.structs.replace(more, rows=[*page.rows, *more.rows])
    return page


def _stream_csv(arguments: argparse.Namespace, query: Query) -> None:
    """Window after window, so that a million rows take no more memory than one."""
    from console.text.plain_tables import csv_text, plain, title

    known = {column.name: column for column in COLUMNS[query.kind]}
    columns = [known[name] for name in query.columns]
    limit, written = arguments.limit, 0
    with closing(connect(arguments)) as client:
        while True:
            wanted = min(limit - written, WINDOW) if limit else WINDOW
            page = client.query(msgspec.structs.replace(query, offset=written, limit=wanted))
            if arguments.id and not page.rows:
                raise NotFoundError(
                    f"there is no {query.kind.removesuffix('s')} '{arguments.id}'", f"See `muster get {query.kind}`"
                )
            if not written:
                write_text(csv_text([[title(column) for column in columns]]))
            write_text(
                csv_text([[plain(c, value) for c, value in zip(columns, row, strict=True)] for row in page.rows])
            )
            written += len(page.rows)
            if not page.rows or written >= (limit or page.matched) or written >= page.matched:
                break
    if written < page.matched:
        print(f"{written:,} of {page.matched:,} written; --limit 0 writes all", file=sys.stderr)


def page_of(client: Client, kind: Kind, filter: str, limit: int) -> dict[str, Any]:
    """Rows of a list as `muster get --json` gives them. Raises SpecError for a filter that cannot be read."""
    view = parse_view(kind, filter)
    query = Query(
        kind=kind, columns=view.columns or DEFAULT_COLUMNS[kind], where=view.terms, sort=view.sort or (), limit=limit
    )
    return _page_object(client.query(query))


def _page_object(page: Page) -> dict[str, Any]:
    items = [dict(zip(page.columns, row, strict=True)) for row in page.rows]
    return {
        "version": page.version, "at_ms": page.at_ms, "matched": page.matched, "total": page.total, "items": items
    }  # fmt: skip


def _view(kind: Kind, arguments: argparse.Namespace) -> ViewLine:
    """Filter, order and columns, as the console reads them. What a flag says stands before what is in the filter."""
    told = parse_view(kind, arguments.filter)
    try:
        where = "columns"
        columns = parse_columns(kind, arguments.columns) if arguments.columns else told.columns
        where = "sort"
        sort = parse_sort(kind, arguments.sort) if arguments.sort else told.sort
    except FilterError as error:
        raise SpecError(where, error.short, error.remedy) from None
    return replace(told, columns=columns or DEFAULT_COLUMNS[kind], sort=sort or ())
