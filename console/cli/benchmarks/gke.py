"""What `muster bench gke-65k` and `gke-130k` print."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from console.text.terminal_text import printable, wrap
from engine.control import Engine
from engine.model.errors import MusterError
from engine.scenarios.gke_phases import SCENARIOS, GkeScenario, ScenarioPhase, Training, cell, phases
from engine.scenarios.gke_run import PhaseTimes, ScenarioRun
from engine.scenarios.gke_run import run as run_phases

RIGHT = (False, *(True,) * 6)
NOT_IN_IT = "Muster's are of one process that decides: no API server, kubelet or network, and nothing boots"


def run(arguments: argparse.Namespace) -> None:
    scenario = SCENARIOS[arguments.scenario]
    nodes = arguments.nodes or scenario.nodes
    load = phases(arguments.scenario, nodes, arguments.seed, arguments.training)
    where = "with a journal on disk" if arguments.durable else "in memory"
    print(f"running {len(load)} phases on {nodes:,} nodes, {printable(where)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        journal = Path(folder) / "journal.db" if arguments.durable else None
        result, read_back_s = bench(nodes, load, journal, arguments.seed)
    if arguments.json:
        write_json(_report(arguments, scenario, result, read_back_s))
    else:
        write_lines(_report_lines(arguments, scenario, result, read_back_s))


def bench(nodes: int, load: list[ScenarioPhase], journal: Path | None, seed: int) -> tuple[ScenarioRun, float | None]:
    """The run, and how long it took to read all of the journal back into the same state, in seconds; None without one.
    Raises MusterError where something was amiss in a phase or the state that was read is another."""
    begun = time.perf_counter()
    engine = Engine.open(journal, seed=seed, cell=cell(nodes))
    defined_ms = (time.perf_counter() - begun) * 1000
    try:
        result = run_phases(engine, load, defined_ms)
        digest = engine.state.digest()
    finally:
        engine.close()
    if journal is None:
        return result, None
    begun = time.perf_counter()
    again = Engine.open(journal, use_snapshot=False)
    took_s = time.perf_counter() - begun
    same = again.state.digest() == digest
    again.close()
    if not same:
        raise MusterError("the journal was read back into another state", "This is a defect of Muster")
    return result, took_s


def _report(
    arguments: argparse.Namespace, scenario: GkeScenario, result: ScenarioRun, read_back_s: float | None
) -> dict[str, object]:
    return {
        "scenario": arguments.scenario,
        "seed": arguments.seed,
        "training": arguments.training,
        "durable": arguments.durable,
        "result": result,
        "read_back_ms": None if read_back_s is None else round(read_back_s * 1000),
        "published": {"source": scenario.source, "nodes": scenario.nodes},
        "not_in_it": NOT_IN_IT,
        "machine": {"python": platform.python_version(), "cores": os.cpu_count()},
    }


def _report_lines(
    arguments: argparse.Namespace, scenario: GkeScenario, result: ScenarioRun, read_back_s: float | None
) -> list[str]:
    most = max(phase.objects for phase in result.phases)
    journal = (
        "in memory"
        if read_back_s is None
        else f"on disk; all of it read back into the same state in {read_back_s:,.1f} s"
    )
    cut: dict[Training, str] = {"jobsets": "in 8 gangs", "one": "in one gang", "singles": "in tasks of their own"}
    training = f", training {cut[arguments.training]}" if arguments.scenario == "gke-130k" else ""
    pairs = [
        ("scenario", f"{arguments.scenario}, {result.nodes:,} nodes, seed {arguments.seed}{training}"),
        ("decisions", f"{_seconds(result.decisions_ms)} s in the engine, "
         f"{_seconds(result.decisions_cpu_ms)} s of it on a core; {result.events:,} events"),
        ("journal", journal),
        ("checked", f"{result.checks} times: counts, whole gangs, capacity, quota, work kept"),
        ("objects", f"{most:,} at the most: nodes, live workloads, placed tasks"),
        ("wall time", f"{result.wall_ms / 1000:,.1f} s; {result.define_ms / 1000:,.1f} s of it to define the cell"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]  # fmt: skip
    lost_min = max(phase.lost_ms for phase in result.phases) / 60_000
    lines = [*facts(pairs), "", *_starts(result), "", *_preemptions(result), ""]
    size = "" if result.nodes == scenario.nodes else f" at {scenario.nodes:,} nodes"
    told = (
        "SECONDS are of wall time in the engine's calls, from the first of a phase until the last task had started; "
        "P99 is from submission to start. In cell time single tasks arrive 1,000 to the second, and waited "
        f"{_waits(result)} at most. No workload lost more than {lost_min:.1f} min of work: what it had done since its "
        f"last checkpoint. {scenario.also}Published{size}, end to end on a cluster, as quoted where the page was not "
        f"at hand; {NOT_IN_IT}."
    )
    return [*lines, *wrap(told, 80), scenario.source]


def _waits(result: ScenarioRun) -> str:
    return f"{max(phase.waited_max_ms for phase in result.phases) / 1000:g} s"


def _starts(result: ScenarioRun) -> list[str]:
    titles = ("PHASE", "TASKS", "SECONDS", "MEAN/S", "PEAK/S", "P99 S", "PUBLISHED")
    return table(titles, [_start_row(phase) for phase in result.phases], RIGHT)


def _start_row(phase: PhaseTimes) -> list[str]:
    if not phase.tasks:
        return [phase.name, "", _seconds(phase.wall_ms), "", "", "", ""]
    rates = [f"{phase.tasks_per_s:,}", f"{phase.peak_tasks_per_s:,}", _seconds(phase.startup_p99_ms)]
    return [phase.name, f"{phase.tasks:,}", _seconds(phase.wall_ms), *rates, _published(phase)]


def _published(phase: PhaseTimes) -> str:
    said = phase.published
    if said is None:
        return ""
    if said.startup_p99_ms is not None:
        return f"p99 ~{said.startup_p99_ms / 1000:g} s"
    if said.ms is None:
        return ""
    return f"{'under ' if said.at_most else ''}{said.ms / 1000:g} s"


def _preemptions(result: ScenarioRun) -> list[str]:
    titles = ("PREEMPTED", "TASKS", "WORKLOADS", "SECONDS", "TASKS/S", "PUBLISHED")
    rows = []
    for phase in result.phases:
        if phase.preempted:
            said = phase.published
            published = ""
            if said is not None and said.preempted is not None and said.preemption_ms is not None:
                published = f"{said.preempted:,} in {said.preemption_ms / 1000:g} s"
            counts = [f"{phase.preempted:,}", f"{phase.preempted_workloads:,}", _seconds(phase.preemption_ms)]
            rows.append([phase.name, *counts, f"{phase.preempted_per_s:,}", published])
    return table(titles, rows, RIGHT[:6])


def _seconds(ms: float) -> str:
    return f"{ms / 1000:,.2f}"
