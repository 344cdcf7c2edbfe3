"""`muster logs` and `muster processes`: what runs on this machine for a workload, and what it writes."""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from console.cli.show import tell_lines, write_json, write_lines
from console.forms.filters import parse_filter
from console.processes.attach import connect
from console.text.guarded_streams import exact_output
from console.text.log_lines import LogLines, as_left
from console.text.terminal_text import printable
from console.views.work.processes import task_line
from engine.executors.process_queries import MAX_BYTES, OutputPart, OutputRequest
from engine.model.errors import SpecError
from engine.model.quantity_parsing import memory_mib
from engine.model.queries import Query

if TYPE_CHECKING:
    from console.client.protocol import Client

WAIT_S = 20.0
"""Of one question for more."""
HOLDING = "state:placed,running"
MAX_LISTED = 1_000
"""Workloads whose processes are listed at once."""


def logs(arguments: argparse.Namespace) -> None:
    """Raw bytes into a pipe or a file; on a terminal nothing that could act on it."""
    request = OutputRequest(
        id=arguments.id, task=arguments.task, attempt=arguments.attempt, most=MAX_BYTES,
        offset=0 if arguments.all else -_bytes_of(arguments.tail),
    )  # fmt: skip
    with closing(connect(arguments)) as client:
        if arguments.json:
            for part in stretches(client, request, follow=arguments.follow):
                told = msgspec.to_builtins(part) | {"data": base64.b64encode(part.data).decode()}
                write_json(told)
            return
        follow(client, request, go_on=arguments.follow)


def follow(client: Client, request: OutputRequest, *, go_on: bool) -> None:
    """Write it to standard output; `go_on`: until there is no more to come."""
    lines = LogLines() if sys.stdout.isatty() else None
    raw = exact_output().buffer
    at = -1
    for part in stretches(client, request, follow=go_on):
        if at >= 0 and part.offset > at:
            _tell(f"{part.offset - at:,} bytes are not kept")
        elif at < 0 and part.offset > 0 and request.offset == 0:
            _tell(f"the first {part.offset:,} bytes are not kept")
        at = part.offset + len(part.data)
        if lines is None:
            raw.write(part.data)
            raw.flush()
        else:
            write_lines(lines.take(part.data))
            sys.stdout.flush()
        if part.over and part.dropped_bytes:
            _tell(f"{part.dropped_bytes:,} bytes were never kept: the disk was full")
    if lines is not None and lines.rest:
        write_lines([as_left(lines.rest)])


def stretches(client: Client, request: OutputRequest, *, follow: bool) -> Iterator[OutputPart]:
    """One after the other up to what is there; `follow`: up to the end."""
    wait_s = 0.0
    while True:
        part = client.output(request, wait_s)
        if part.data:
            yield part
        at = part.offset + len(part.data)
        if part.over and at >= part.end:
            if not part.data:
                yield part
            return
        if at >= part.end and not follow:
            return
        wait_s = WAIT_S if follow else 0.0
        request = msgspec.structs.replace(request, offset=max(at, 0), attempt=part.attempt, task=part.task)


def processes(arguments: argparse.Namespace) -> None:
    if arguments.id is None:
        _all_processes(arguments)
        return
    with closing(connect(arguments)) as client:
        report = client.processes(arguments.id)
    if arguments.json:
        write_json(report)
        return
    if not report.attempts:
        write_lines([printable(report.why_none)])
    for attempt in report.attempts:
        write_lines([f"attempt {attempt.attempt}", *(f"  {line}" for line in map(task_line, attempt.tasks))])
        if attempt.tasks_total > len(attempt.tasks):
            write_lines([f"  … and {attempt.tasks_total - len(attempt.tasks):,} more"])


def _all_processes(arguments: argparse.Namespace) -> None:
    """The last attempt of everything that holds part of this machine."""
    with closing(connect(arguments)) as client:
        where = parse_filter("workloads", HOLDING)
        page = client.query(Query(kind="workloads", columns=("id",), where=where, limit=MAX_LISTED))
        reports = [report for (name, *_) in page.rows if (report := client.processes(name)).attempts]
    if arguments.json:
        write_json(reports)
        return
    if not reports:
        write_lines(["nothing runs on this machine"])
    for report in reports:
        last = report.attempts[0]
        write_lines([printable(report.id), *(f"  {line}" for line in map(task_line, last.tasks))])
    if page.matched > len(page.rows):
        write_lines([f"… and {page.matched - len(page.rows):,} more workloads: muster get workloads"])


def _bytes_of(text: str) -> int:
    """`64KiB` or `1000`; mebibytes are the smallest that other sizes are told in."""
    plain = text.strip()
    if plain.isdecimal():
        return int(plain)
    if plain.endswith("KiB") and plain[:-3].isdecimal():
        return int(plain[:-3]) << 10
    try:
        return memory_mib(plain) << 20
    except ValueError as error:
        raise SpecError("--tail", str(error), "Give bytes, or a size such as 64KiB or 10MiB") from None


def _tell(text: str) -> None:
    tell_lines([f"muster: {text}"])
