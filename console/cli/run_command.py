"""`muster run -- COMMAND`: a command line as a workload of this machine."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.cli.show import write_lines
from console.processes.attach import connect
from console.text.terminal_text import printable
from engine.model.errors import NotFoundError, SpecError
from engine.model.queries import WorkloadDetail

if TYPE_CHECKING:
    from console.client.protocol import Client

TAKEN_ALONG = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Of the caller's environment, so that the same program is found as here. More with --env."""
OVER = ("finished", "failed", "cancelled")
WAIT_S = 20.0
FAILED = 1


def run(arguments: argparse.Namespace) -> int:
    """Submit it; with --follow show what it writes, and end with its exit code."""
    from console.forms.datetimes import clock_of
    from console.forms.documents import LocatedDocument
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
            raise SpecError("--follow", "an array has many outputs", f"See one with: muster logs -f {name}")
        return _followed(client, name)


def _workload(arguments: argparse.Namespace) -> dict[str, Any]:
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not words:
        raise SpecError("run", "names no command", "Write for example: muster run --cpus 2 -- python3 train.py")
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
    optional = ("array", "after", "estimate", "max_runtime", "priority")
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
    from console.cli.logs import follow
    from engine.executors.process_queries import OutputRequest

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
            print(f"muster: waits: {printable(told)}", file=sys.stderr, flush=True)
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
