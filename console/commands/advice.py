"""Commands of the twin and the recommender: `whatif`, `eta`, `recommend`, and of other nouns.

None of them changes the cell. A run of the twin goes on in the engine's process while the command waits; an interrupt
stops it. Progress goes to standard error, to terminals only.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from console.client.attach import connect
from console.commands.show import which_engine, write_json, write_lines
from console.text.guarded_streams import write_over
from console.text.plain_tables import table
from console.text.terminal_text import NONE, cut, duration, mebibytes, milli, printable, wrap
from console.views.forecast import forecast_lines
from console.views.sections import section_lines
from console.views.suggestions import recommendation_lines, shell_line, suggestion_sections
from console.views.what_if import dry_run_lines, eta_lines, forecast_facts, outlook_lines, runs, score_lines, start
from engine.model.errors import RefusedError, SpecError, of_code
from engine.model.quantities import duration_ms, usd
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
from recommender.estimates.queries import ForecastRequest, SizingRequest

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.specs import WorkloadSpec
    from engine.model.twin_queries import Ask, RunStatus
    from recommender.estimates.queries import PlacementAdvice, PlacementOption, SizedKind, SizingReport, UseEstimate
    from recommender.findings.suggestions import Recommendation


WAIT_S = 10.0
"""Longest wait of one question for news of a run."""


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
    """Print the start of a workload, or the accuracy of such estimates."""
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
        raise RefusedError("the run was stopped before it finished", "Try again")
    return status.answer


def _tell_progress(status: RunStatus | None) -> None:
    """Write progress over the last such line; None removes it."""
    if not sys.stderr.isatty():
        return
    write_over("" if status is None else f"{_so_far(status)}running ahead … {status.progress_permille / 10:.0f}%")


def _so_far(status: RunStatus) -> str:
    """The start of a workload as far as it is known; empty for other questions."""
    answer = status.answer
    if not isinstance(answer, StartEstimate):
        return ""
    if answer.seeds:
        return f"starts {start(answer.start, answer.at_ms, answer.horizon_ms)} by {runs(answer.seeds)}; "
    told = dict(forecast_facts(answer.forecast, answer.at_ms)).get("starts", "")
    return f"starts {told}; " if told else ""


def ahead(arguments: argparse.Namespace) -> dict[str, Any]:
    """Horizon, seeds and arrivals of a run, as far as they were given. Raises SpecError naming the flag."""
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
        raise SpecError("--horizon", f"{text[:40]!a} is not within {most} days", "Write it like 24h")
    return value


def _workloads_of(name: str, client: Client) -> tuple[WorkloadSpec, ...]:
    """Workloads of `submit FILE` in an edit."""
    from console.forms.fields import clock_of
    from console.forms.work_files import read_workloads

    return read_workloads(name, clock_of(client))


PATIENCE_S = 0.5
"""For a try on the twin that is under way, unless --wait says to see its end."""
LOOK_S = 0.1


def recommend(arguments: argparse.Namespace) -> None:
    """List recommendations, or explain one; with --reject, set one aside."""
    if arguments.id:
        _explain(arguments)
        return
    with closing(connect(arguments)) as client:
        if arguments.reject:
            rejected = client.reject_recommendation(arguments.reject, arguments.reason)
            if arguments.json:
                write_json(rejected)
            else:
                write_lines([rejected.suggestion.id])
                print(printable(rejected.note), file=sys.stderr)
            return
        view = client.recommendations()
    if arguments.json:
        write_json(view)
        return
    write_lines(recommendation_lines(view, which_engine(arguments), every=arguments.all))


def _explain(arguments: argparse.Namespace) -> None:
    """Print a recommendation with evidence, alternatives, and before and after on the twin."""
    with closing(connect(arguments)) as client:
        found = tried(client, arguments.id, None if arguments.wait else PATIENCE_S)
    write_json(found) if arguments.json else write_lines(explanation_lines(found, which_engine(arguments)))
    if found.simulated.state in ("waiting", "running"):
        print("it is running on the twin: try again in a moment, or add --wait", file=sys.stderr)


def explanation_lines(found: Recommendation, which_engine: Sequence[str]) -> list[str]:
    """The recommendation as on its page, and the commands that propose it and that try it again."""
    lines = section_lines(suggestion_sections(found, WIDTH))
    if found.command:
        lines += ["", f"propose it: {shell_line(found, which_engine)}"]
    edits = found.simulated.edits
    lines += [f"try it: muster whatif --edit {shlex.quote(printable(edit))}" for edit in edits]
    return lines


def tried(client: Client, rec_id: str, patience_s: float | None) -> Recommendation:
    """The recommendation once it has been tried, or when patience ends; None: never."""
    until = None if patience_s is None else time.monotonic() + patience_s
    found = client.recommendation(rec_id)
    while found.simulated.state in ("waiting", "running") and (until is None or time.monotonic() < until):
        time.sleep(LOOK_S)
        found = client.recommendation(rec_id)
    return found


def forecast(arguments: argparse.Namespace) -> None:
    """Demand of the hours ahead, hour by hour, with the members of the blend and how past forecasts have held."""
    wanted = ForecastRequest(subject=arguments.subject, metric=arguments.metric, hours=arguments.hours)
    with closing(connect(arguments)) as client:
        view = client.forecast(wanted)
    write_json(view) if arguments.json else write_lines(forecast_lines(view))


WIDTH = 80
KIND = 18
"""Cells of a kind's name."""
POOL = 18
MAX_KINDS = 8
"""Kinds shown without --all: a screen."""


def size(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        report = client.sizing(SizingRequest(workload_id=arguments.id or ""))
    if arguments.json:
        write_json(report)
        return
    write_lines(size_lines(report, every=arguments.all))
    for text in report.unknown:
        print(f"muster: {printable(text)}", file=sys.stderr)


def size_lines(report: SizingReport, *, every: bool = False) -> list[str]:
    """Two lines for each kind: CPU and memory of one task, and what all that run now would save."""
    expected = [] if report.estimate is None else [*wrap(estimate_text(report.estimate), WIDTH), ""]
    if not report.kinds:
        return [*expected, "no usage data yet: agents report it, or the simulation does"]
    most = len(report.kinds) if every else MAX_KINDS
    rows = [row for kind in report.kinds[:most] for row in kind_rows(kind)]
    titles = ("KIND, ONE TASK", "", "ASKED", "P50", "P95", "BETTER", "SAVES", "$/H", "SEEN")
    lines = table(titles, rows, (False, False, *(True,) * 7))
    if len(report.kinds) > most:
        lines.append(f"and {len(report.kinds) - most} more kinds with smaller savings: --all lists them")
    cpu = sum(max(kind.saved_cpu_milli, 0) for kind in report.kinds)
    memory = sum(max(kind.saved_memory_mib, 0) for kind in report.kinds)
    saved = sum(max(kind.saved_microusd_hour, 0) for kind in report.kinds)
    unsure = sum(kind.confidence < 1 for kind in report.kinds)
    text = (
        f"running work could give up {milli(cpu)} CPU and {mebibytes(memory)}, {usd(saved)} an hour. "
        f"SEEN: 1 is a day of samples or ten runs; {unsure} of {len(report.kinds)} kinds have less and get no advice. "
        + (
            "New work is resized automatically."
            if report.rightsizing == "initial"
            else "Nothing is resized automatically."
        )
    )
    return [*expected, *lines, "", *wrap(text, WIDTH)]


def estimate_text(use: UseEstimate) -> str:
    """Expected use of one task."""
    grounds = {
        "kind": f"{use.runs:,} runs of its kind",
        "tenant": f"what part of its requests its tenant's work used, {use.runs:,} runs",
        "all": f"what part of their requests all work used, {use.runs:,} runs",
    }
    if use.basis == "request":
        return "one task is assumed to use its request: no similar run has been measured"
    parts = [
        f"{name} p10 {show(part.p10)} .. p50 {show(part.p50)} .. p90 {show(part.p90)}"
        for name, part, show in (("CPU", use.cpu_milli, cores), ("memory", use.memory_mib, gibibytes))
    ]
    return f"peak use of one task: {', '.join(parts)} ({grounds[use.basis]})"


def running_text(tasks: int) -> str:
    if not tasks:
        return "none running"
    return f"{tasks:,} tasks running" if tasks > 1 else "1 task running"


def kind_rows(kind: SizedKind) -> list[list[str]]:
    cpu, memory = kind.cpu, kind.memory
    died = f"{kind.bumped} died" if kind.bumped else ""
    return [
        [
            cut(printable(kind.kind), KIND), "cpu", known(cpu.asked, cores), known(cpu.p50, cores),
            known(cpu.p95, cores), known(cpu.recommended, cores), cores(kind.saved_cpu_milli) if kind.tasks else NONE,
            usd(kind.saved_microusd_hour) if kind.tasks else NONE, f"{min(kind.confidence, 99.0):.1f}",
        ],
        [
            f"  {running_text(kind.tasks)}", "mem", known(memory.asked, gibibytes),
            known(memory.p50, gibibytes), known(memory.p95, gibibytes), known(memory.recommended, gibibytes),
            gibibytes(kind.saved_memory_mib) if kind.tasks else NONE, "", died,
        ],
    ]  # fmt: skip


def known(value: int, show: Callable[[int], str]) -> str:
    return show(value) if value else NONE


def cores(milli_cpu: int) -> str:
    """Short, as in "9.72"."""
    return f"{milli_cpu / 1000:.3g}"


def gibibytes(mib: int) -> str:
    """Short, as in "19.5G"."""
    return f"{mib / 1024:.1f}G"


def advise(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        advice = client.advice_on(arguments.id)
    if arguments.json:
        write_json(advice)
        return
    write_lines(advice_lines(advice))
    for text in advice.unknown:
        print(f"muster: {printable(text)}", file=sys.stderr)


def advice_lines(advice: PlacementAdvice) -> list[str]:
    """The options, cheapest finished job first, and what each rests on."""
    lines = wrap(printable(advice.said), WIDTH)
    if not advice.options:
        return lines
    rows = [option_row(option) for option in advice.options]
    titles = ("POOL", "$/H", "LASTS", "JOB P10", "P50", "P90", "TAKEN", "RUNS", "")
    lines += ["", *table(titles, rows, (False, *(True,) * 7, False))]
    doubts = [
        line
        for option in advice.options
        for line in wrap(f"{printable(option.pool)}: {'; '.join(map(printable, option.thin))}", WIDTH)
        if option.thin
    ]
    kind = f"similar jobs: {printable(advice.kind)}, {advice.runs:,} finished" if advice.kind else ""
    return [*lines, *(["", kind] if kind else []), *(["", *doubts] if doubts else [])]


def option_row(option: PlacementOption) -> list[str]:
    cost: Sequence[str] = (NONE, NONE, NONE)
    if option.cost_microusd is not None:
        cost = [usd(each) for each in (option.cost_microusd.p10, option.cost_microusd.p50, option.cost_microusd.p90)]
    odds = NONE if option.interruption_ppm is None else percent(option.interruption_ppm)
    notes = [*(["spot"] if option.spot else []), *([] if option.allowed else ["differs from the request"])]
    return [
        cut(printable(option.pool), POOL),
        usd(option.rate_microusd_hour),
        NONE if option.run_ms is None else duration(option.run_ms.p50),
        *cost,
        odds,
        f"{option.runs:,}" + ("" if option.basis != "other work" else f"+{option.compared}"),
        ", ".join(notes),
    ]


def percent(ppm: int) -> str:
    """Parts per million as percent. A share above nothing never reads 0%."""
    return "<1%" if 0 < ppm < 10_000 else f"{ppm / 10_000:.0f}%"
