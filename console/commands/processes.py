"""Commands of work on this machine: `muster run`, `muster logs` and `muster workload processes`."""

from __future__ import annotations

import argparse
import base64
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from console.client.attach import connect
from console.commands.show import tell_lines, write_json, write_lines
from console.forms.filters import parse_filter
from console.text.guarded_streams import exact_output
from console.text.terminal_text import printable
from console.views.workload import LogLines, as_left, task_line
from engine.executors.task_files import MAX_BYTES, OutputPart, OutputRequest
from engine.model.details import WorkloadDetail
from engine.model.errors import NotFoundError, SpecError
from engine.model.list_queries import Query
from engine.model.quantities import memory_mib

if TYPE_CHECKING:
    from console.client.protocol import Client


TAKEN_ALONG = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables of the caller's environment that the program gets, so that it is found as here. More with --env."""
OVER = ("finished", "failed", "cancelled")
WAIT_S = 20.0
FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Submit it; with --follow show what it writes, and end with its exit code."""
    from console.forms.documents import LocatedDocument
    from console.forms.fields import clock_of
    from console.forms.work_files import placed, workloads_of
    from engine.model.commands import Submit

    document = LocatedDocument("command line", _workload(arguments), {})
    with closing(connect(arguments)) as client, placed(document):
        receipt = client.command(Submit(workloads=workloads_of(document, clock_of(client))))
        name = receipt.changed[0]
        if not arguments.follow:
            write_lines(printable(each) for each in receipt.changed)
            print(f"see it with: muster logs -f {printable(name)}", file=sys.stderr)
            return 0
        if len(receipt.changed) > 1:
            raise SpecError("--follow", "an array has one output per workload", f"See one with: muster logs -f {name}")
        return _followed(client, name)


def _workload(arguments: argparse.Namespace) -> dict[str, Any]:
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not words:
        raise SpecError("run", "names no command", "Write it like: muster run --cpus 2 -- python3 train.py")
    env = {name: os.environ[name] for name in TAKEN_ALONG if name in os.environ} | dict(map(_variable, arguments.env))
    values: dict[str, Any] = {
        "id": arguments.id or _made_up_id(words),
        "name": " ".join(words)[:200],
        "queue": arguments.queue,
        "tasks": arguments.tasks,
        "request": {"cpu": arguments.cpus, "memory": arguments.memory, "gpu": arguments.gpus},
        "run": {
            "argv": words,
            "env": env,
            "cwd": str(Path(arguments.cwd).expanduser().absolute()) if arguments.cwd else os.getcwd(),
            "grace": arguments.grace,
        },
        "retries": arguments.retries,
    }
    optional = ("array", "after", "estimate", "max_runtime", "priority", "rerun")
    return values | {name: getattr(arguments, name) for name in optional if getattr(arguments, name)}


def _variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, or `NAME` for the value it has here."""
    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        raise SpecError("--env", f"{name[:40]!a} is not set here", "Give it a value: NAME=VALUE")
    return name, value if equals else os.environ[name]


def _made_up_id(words: list[str]) -> str:
    """By the script that is run, if there is one, else by the program."""
    script = next((word for word in words[1:3] if re.search(r"\.(py|sh|pl|R|jl)$", word)), words[0])
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem)[:40].strip("-._") or "job"
    return f"{stem}-{secrets.token_hex(3)}"


def _followed(client: Client, name: str) -> int:
    """Until it has ended for good, attempt by attempt. Its exit code, or 1 where it has none."""
    from engine.executors.task_files import OutputRequest

    shown = 0
    while True:
        view = _moved_on(client, name, shown)
        if view.attempts > shown and view.started_ms is not None:
            shown = view.attempts
            try:
                follow(client, OutputRequest(id=name, attempt=shown, offset=0, most=1 << 20), go_on=True)
            except NotFoundError:
                continue
        if view.state in OVER:
            return _exit_code(view)


def _moved_on(client: Client, name: str, shown: int) -> WorkloadDetail:
    """As it stands once it has begun another attempt, or ended."""
    told = ""
    while True:
        view = client.workload(name)
        if view.state in OVER or (view.attempts > shown and view.started_ms is not None):
            return view
        if view.reasons and view.reasons[0].text != told:
            told = view.reasons[0].text
            print(f"muster: waiting: {printable(told)}", file=sys.stderr, flush=True)
        client.changes(view.version, WAIT_S, limit=1)


def _exit_code(view: WorkloadDetail) -> int:
    if view.state == "finished":
        return 0
    print(f"muster: {printable(view.id)} is {printable(view.state)}", file=sys.stderr)
    for item in reversed(view.history):
        code = re.search(r"with code (\d+)", item.detail) if item.what == "exited" else None
        if code is not None:
            return int(code[1]) or FAILED
    return FAILED


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
            _tell(f"{part.offset - at:,} bytes not kept")
        elif part.offset < at:
            _tell("the file was started over")
        elif at < 0 and part.offset > 0 and request.offset == 0:
            _tell(f"the first {part.offset:,} bytes not kept")
        at = part.offset + len(part.data)
        if lines is None:
            raw.write(part.data)
            raw.flush()
        else:
            write_lines(lines.take(part.data))
            sys.stdout.flush()
        if part.over and part.dropped_bytes:
            _tell(f"{part.dropped_bytes:,} bytes lost: the disk was full")
    if lines is not None and lines.rest:
        write_lines([as_left(lines.rest)])


def stretches(client: Client, request: OutputRequest, *, follow: bool) -> Iterator[OutputPart]:
    """Parts of the output, one after the other up to the present; `follow`: up to the end."""
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
        write_lines(["nothing is running on this machine"])
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
