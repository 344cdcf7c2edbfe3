"""The commands that ask the twin: `muster whatif`, `muster eta`, and `muster submit --dry-run`. Nothing is changed.

The run goes on in the engine's place; here it is waited for. Progress goes to standard error, and only to a terminal;
an interrupt stops the run.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.guarded_streams import write_over
from console.views.advice.what_if import dry_run_lines, eta_lines, outlook_lines, score_lines
from engine.model.errors import RefusedError, SpecError, of_code
from engine.model.quantity_parsing import duration_ms
from engine.model.twin_queries import (
    MAX_HORIZON_MS,
    MAX_SEEDS,
    Answer,
    AskRun,
    AskStart,
    DryRun,
    Outlook,
    StartEstimate,
    WhatIf,
)
from engine.model.what_if_edits import parse_all

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.specs import WorkloadSpec
    from engine.model.twin_queries import Ask, RunStatus

WAIT_S = 10.0
"""Longest wait for news of a run at a time."""


def whatif(arguments: argparse.Namespace) -> None:
    """Run ahead with and without the edits, and show both."""
    with closing(connect(arguments)) as client:
        ask = WhatIf(
            edits=parse_all(arguments.edit, lambda name: _workloads_of(name, client)),
            watch=tuple(arguments.watch),
            **ahead(arguments),
        )
        answer = ended(client, ask, quiet=arguments.json)
    assert isinstance(answer, Outlook)
    write_json(answer) if arguments.json else write_lines(outlook_lines(answer))


def eta(arguments: argparse.Namespace) -> None:
    """When a workload starts; or how well such estimates have held."""
    if arguments.score == bool(arguments.id):
        raise SpecError("", "give the id of a workload, or --score", "See `muster eta --help`")
    with closing(connect(arguments)) as client:
        if arguments.score:
            report = client.scores()
            write_json(report) if arguments.json else write_lines(score_lines(report))
            return
        answer = ended(client, AskStart(id=arguments.id, **ahead(arguments)), quiet=arguments.json)
    assert isinstance(answer, StartEstimate)
    write_json(answer) if arguments.json else write_lines(eta_lines(answer))


def dry_run(arguments: argparse.Namespace, client: Client, workloads: tuple[WorkloadSpec, ...]) -> None:
    """Would they run: now, when, who would make room, at what cost."""
    answer = ended(client, AskRun(workloads=workloads), quiet=arguments.json)
    assert isinstance(answer, DryRun)
    write_json(answer) if arguments.json else write_lines(dry_run_lines(answer))


def ended(client: Client, ask: Ask, *, quiet: bool) -> Answer:
    """The answer of the twin, waited for. Raises the error it failed with; RefusedError when somebody stopped it."""
    status = client.ask(ask)
    try:
        while status.state == "running":
            if not quiet:
                _tell_progress(status)
            status = client.run(status.id, after=status.serial, wait_s=WAIT_S)
    except KeyboardInterrupt:
        client.cancel_run(status.id)
        raise
    finally:
        if not quiet:
            _tell_progress(None)
    if status.error is not None:
        raise of_code(status.error.code, status.error.problem, status.error.remedy)
    if status.answer is None or status.state != "done":
        raise RefusedError("the run was stopped before it was done", "Ask again")
    return status.answer


def _tell_progress(status: RunStatus | None) -> None:
    """One line that is written over; None takes it away."""
    if not sys.stderr.isatty():
        return
    text = "" if status is None else f"running ahead … {status.progress_permille / 10:.0f}%"
    write_over(text)


def ahead(arguments: argparse.Namespace) -> dict[str, Any]:
    """How far, how often and with what to run ahead, as far as it was said. Raises SpecError naming the flag."""
    given = {"seed": arguments.seed, "arrivals": arguments.arrivals, "horizon_ms": horizon_ms(arguments.horizon)}
    if arguments.seeds is None:
        return given
    if arguments.seeds > MAX_SEEDS:
        raise SpecError("--seeds", f"{arguments.seeds} is more than {MAX_SEEDS}", "Fewer seeds are quicker")
    return given | {"seeds": arguments.seeds}


def horizon_ms(text: str) -> int:
    """Raises SpecError naming the flag."""
    try:
        value = duration_ms(text)
    except ValueError as error:
        raise SpecError("--horizon", str(error)) from None
    if not 0 < value <= MAX_HORIZON_MS:
        most = MAX_HORIZON_MS // 86_400_000
        raise SpecError("--horizon", f"{text[:40]!a} is not within {most} days", "Write for example 24h")
    return value


def _workloads_of(name: str, client: Client) -> tuple[WorkloadSpec, ...]:
    """What `submit FILE` in an edit adds."""
    from console.forms.datetimes import clock_of
    from console.forms.work_files import read_workloads

    return read_workloads(name, clock_of(client))
