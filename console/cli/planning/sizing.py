"""The commands `muster size` (what work asks for against what it uses) and `muster advise` (where it would do best)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import table
from console.text.terminal_text import NONE, cut, duration, mebibytes, milli, money, printable, wrap
from recommender.runtimes.sizing_queries import SizingRequest

if TYPE_CHECKING:
    from recommender.runtimes.placement_queries import PlacementAdvice, PlacementOption
    from recommender.runtimes.sizing_queries import SizedKind, SizingReport, UseEstimate

WIDTH = 80
KIND = 18
"""Cells of a kind's name."""
POOL = 18
MAX_KINDS = 8
"""Shown where not all is asked for: a screen."""


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
        return [*expected, "nothing is known yet of what work uses: it is reported by agents, or simulated"]
    most = len(report.kinds) if every else MAX_KINDS
    rows = [row for kind in report.kinds[:most] for row in kind_rows(kind)]
    titles = ("KIND, ONE TASK", "", "ASKED", "P50", "P95", "BETTER", "SAVES", "$/H", "SEEN")
    lines = table(titles, rows, (False, False, *(True,) * 7))
    if len(report.kinds) > most:
        lines.append(f"and {len(report.kinds) - most} more kinds that save less: --all shows them")
    cpu = sum(max(kind.saved_cpu_milli, 0) for kind in report.kinds)
    memory = sum(max(kind.saved_memory_mib, 0) for kind in report.kinds)
    saved = sum(max(kind.saved_microusd_hour, 0) for kind in report.kinds)
    unsure = sum(kind.confidence < 1 for kind in report.kinds)
    text = (
        f"what runs now could do with {milli(cpu)} CPU and {mebibytes(memory)} less, {money(saved)} an hour. "
        f"SEEN: 1 is a day of samples or ten runs; {unsure} of {len(report.kinds)} kinds have less and are left alone. "
        + (
            "New work gets what is better by itself."
            if report.rightsizing == "initial"
            else "Nothing is resized by itself."
        )
    )
    return [*expected, *lines, "", *wrap(text, WIDTH)]


def estimate_text(use: UseEstimate) -> str:
    """What one task will use."""
    grounds = {
        "kind": f"{use.runs:,} runs of its kind",
        "tenant": f"what part of its requests its tenant's work used, {use.runs:,} runs",
        "all": f"what part of their requests all work used, {use.runs:,} runs",
    }
    if use.basis == "request":
        return "one task is taken to use what it asks for: nothing like it has ended whose use was measured"
    parts = [
        f"{name} p10 {show(part.p10)} .. p50 {show(part.p50)} .. p90 {show(part.p90)}"
        for name, part, show in (("CPU", use.cpu_milli, cores), ("memory", use.memory_mib, gibibytes))
    ]
    return f"at its peak one task will use {', '.join(parts)} ({grounds[use.basis]})"


def running_text(tasks: int) -> str:
    if not tasks:
        return "none runs"
    return f"{tasks:,} tasks run" if tasks > 1 else "1 task runs"


def kind_rows(kind: SizedKind) -> list[list[str]]:
    cpu, memory = kind.cpu, kind.memory
    died = f"{kind.bumped} died" if kind.bumped else ""
    return [
        [
            cut(printable(kind.kind), KIND), "cpu", known(cpu.asked, cores), known(cpu.p50, cores),
            known(cpu.p95, cores), known(cpu.recommended, cores), cores(kind.saved_cpu_milli) if kind.tasks else NONE,
            money(kind.saved_microusd_hour) if kind.tasks else NONE, f"{min(kind.confidence, 99.0):.1f}",
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
    kind = f"work like it: {printable(advice.kind)}, {advice.runs:,} finished" if advice.kind else ""
    return [*lines, *(["", kind] if kind else []), *(["", *doubts] if doubts else [])]


def option_row(option: PlacementOption) -> list[str]:
    cost: Sequence[str] = (NONE, NONE, NONE)
    if option.cost_microusd is not None:
        cost = [money(each) for each in (option.cost_microusd.p10, option.cost_microusd.p50, option.cost_microusd.p90)]
    odds = NONE if option.interruption_ppm is None else percent(option.interruption_ppm)
    notes = [*(["spot"] if option.spot else []), *([] if option.allowed else ["not as it asks"])]
    return [
        cut(printable(option.pool), POOL),
        money(option.rate_microusd_hour),
        NONE if option.run_ms is None else duration(option.run_ms.p50),
        *cost,
        odds,
        f"{option.runs:,}" + ("" if option.basis != "other work" else f"+{option.compared}"),
        ", ".join(notes),
    ]


def percent(ppm: int) -> str:
    """What is not nothing never reads 0 %."""
    return "<1%" if 0 < ppm < 10_000 else f"{ppm / 10_000:.0f}%"
