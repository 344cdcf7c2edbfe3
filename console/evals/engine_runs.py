"""Runs of an engine in this process (`muster replay`, `drill`, `pack`), and what reports of runs share.

Parts that reports of benchmarks and backtests share: the machine they ran on, and what of the input was left out.

Data goes to standard output with the report; what was mended or left out is narration, on standard error.

The commands `muster replay`, `pack`, `drill` and `backtest queueing`: traces and losses run through the engine.

`replay` runs a trace, for figures or live on the console. `pack` places a list of GPU pods onto nodes by the
published method, to compare policies. `drill` loses nodes of a large cell full of work. `backtest queueing` measures
what learnt run times are worth to a queue beside EASY backfill.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from console.commands.show import write_json, write_lines
from console.forms.settings import check_speed
from console.text.plain_tables import facts, table
from console.text.terminal_text import duration, printable, wrap
from engine.model.errors import MusterError, SpecError
from engine.scenarios.fault_drill import DOWN_MS, NODES, NOTICE_MS, Drill, bench
from engine.scenarios.fgd_packing import MAX_INFLATE, PackingResult, pack, read_nodes, read_pods
from engine.traces import replay as traces
from engine.traces.trace_reader import Problems
from recommender.backtests import run_times as backtest

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.specs import Policy


class MissingLearner(MusterError):
    """The learning package is not installed here."""


def require_learner() -> None:
    """Raises MissingLearner unless run times can be learnt here."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingLearner("scikit-learn is not installed, and run times are learnt with it", "pip install .")


def machine() -> dict[str, object]:
    """The machine of a run, for JSON."""
    return {"python": platform.python_version(), "cores": os.cpu_count()}


def machine_fact() -> tuple[str, str]:
    """The same as a labelled line."""
    return "machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"


def tell_mended(series: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print, for each series by name, what was mended in it."""
    for name, mended in series:
        for what in mended:
            print(f"muster: {printable(name)}: {printable(what)}", file=sys.stderr)


def tell_problems(problems: Problems, what: str) -> None:
    """Print how much of the input had a problem, and the first three. `what`: such as "lines could not be read"."""
    if problems.count:
        print(f"muster: {problems.count:,} {printable(what)}", file=sys.stderr)
        for problem in problems.first[:3]:
            print(f"  {printable(str(problem))}", file=sys.stderr)


LIVE_SPEED = 600.0
THROUGH = {"engine": "through the engine", "counting": "by counting free processors"}


class EmptyTrace(MusterError):
    """A trace was read and gave no job."""

    code = "trace"


def replay(arguments: argparse.Namespace) -> int:
    if arguments.live:
        return _live(arguments)
    if arguments.speed is not None:
        raise SpecError("--speed", "is for watching a replay", "Add --live")
    result = traces.replay(
        arguments.file, arguments.format, policy=arguments.policy, through=arguments.through, **_options(arguments)
    )
    if arguments.json:
        write_json(result)
    else:
        write_lines(_result_lines(result))
    _tell_problems(result.problems, result.first_problems)
    _refuse_empty(arguments, result.jobs)
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("nodes", "estimate", "arrivals", "strict", "node_file")
    return {name: getattr(arguments, name) for name in names}


def _result_lines(result: traces.ReplayResult) -> list[str]:
    return facts(
        [
            ("jobs", f"{result.jobs:,}"),
            ("average wait", f"{result.avg_wait_s:,.1f} s"),
            ("p95 wait", f"{result.p95_wait_s:,.1f} s"),
            ("average bounded slowdown", f"{result.avg_bounded_slowdown:,.2f}"),
            ("makespan", f"{result.makespan_s:,.0f} s"),
            ("utilisation", f"{result.utilisation:.1%}"),
            *((f"left out: {printable(why)}", f"{count:,}") for why, count in result.skipped.items()),
            ("simulated in", f"{result.wall_s:.2f} s, {THROUGH[result.through]}"),
        ]
    )


def _tell_problems(count: int, first: tuple[str, ...]) -> None:
    if not count:
        return
    print(f"{count:,} lines could not be read and were left out; --strict stops at the first", file=sys.stderr)
    for problem in first[:5]:
        print(f"  {printable(problem)}", file=sys.stderr)


def _refuse_empty(arguments: argparse.Namespace, jobs: int) -> None:
    """Raises EmptyTrace for a trace without a job that can run, which is most likely another format."""
    if not jobs:
        raise EmptyTrace(f"{arguments.file} has no job that could run", "Check --format and --nodes")


def _live(arguments: argparse.Namespace) -> int:
    """Show the trace as the load of an engine in this process. It is read before the screen opens, so that its
    errors come first."""
    from console.cli.start import refuse_without_terminal
    from console.tui.app import run

    refuse_without_terminal()
    speed = LIVE_SPEED if arguments.speed is None else arguments.speed
    check_speed(speed, "--speed")
    plan = traces.prepare(arguments.file, arguments.format, **_options(arguments))
    _tell_problems(plan.problems.count, tuple(map(str, plan.problems.first)))
    _refuse_empty(arguments, len(plan.jobs))
    opened = LiveReplay(plan, arguments.policy, speed)
    try:
        return run(opened.client, read_only=False, title=f"replay {arguments.file}")
    finally:
        opened.close()


class LiveReplay:
    """An engine in memory whose load is a trace. It is opened when the console asks for its client."""

    def __init__(self, plan: traces.ReplayPlan, policy: Policy, speed: float) -> None:
        from engine.loop import EngineLoop

        self._plan = plan
        self._policy = policy
        self._speed = speed
        self._loop: EngineLoop | None = None

    def client(self) -> Client:
        from console.service.advisor import Advisor
        from console.service.local_client import LocalClient
        from engine.control import Engine
        from engine.loop import EngineLoop
        from engine.model.commands import SetPolicy
        from runbooks.audit.log import Audit
        from runbooks.gate.approval_gate import Gate, wall_ms
        from runbooks.gate.approval_policy import SOLO
        from runbooks.gate.policy_versions import Policies

        engine = Engine.open(None, cell=self._plan.cell)
        engine.command(SetPolicy(policy=self._policy))
        if self._plan.jobs:
            engine.advance(self._plan.jobs[0].arrival_ms)
        self._loop = EngineLoop(engine, speed=self._speed, feed=traces.feed(self._plan, engine))
        audit = Audit(engine, wall_ms)
        gate = Gate(engine, Policies(engine, audit, wall_ms, default=SOLO), audit)
        self._loop.start()
        return LocalClient(self._loop, gate, Advisor(self._loop), name="replay")

    def close(self) -> None:
        if self._loop is not None:
            self._loop.stop()


def run(arguments: argparse.Namespace) -> None:
    """Pack, and print how much of the GPU is allocated when 100 % and 130 % of it have been asked for."""
    if not 0 < arguments.inflate <= MAX_INFLATE:
        raise SpecError("--inflate", f"{arguments.inflate:g} is not above 0 and at most {MAX_INFLATE}", "Give 1.3")
    nodes = read_nodes(arguments.nodes)
    pods = read_pods(arguments.pods, nodes)
    runs = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        began = time.perf_counter()
        packed = pack(nodes, pods, arguments.policy, seed=seed, inflate=arguments.inflate)
        runs.append(_run_report(packed, time.perf_counter() - began))
    report: dict[str, Any] = {
        "policy": arguments.policy,
        "seed": arguments.seed,
        "seeds": arguments.seeds,
        "inflate": arguments.inflate,
        "alloc_at_100": _mean(runs, "alloc_at_100", 2),
        "alloc_at_130": _mean(runs, "alloc_at_130", 2),
        "nodes": len(nodes.names),
        "gpus": nodes.gpu_milli // 1000,
        "pods": len(pods.shape),
        "arrived": _mean(runs, "arrived"),
        "placed": _mean(runs, "placed"),
        "pods_per_s": _mean(runs, "pods_per_s"),
        "models_nobody_has": pods.nowhere,
        "runs": runs,
    }
    write_json(report) if arguments.json else write_lines(report_lines(report))


def _run_report(packed: PackingResult, seconds: float) -> dict[str, Any]:
    return {
        "seed": packed.seed,
        "alloc_at_100": packed.alloc_at(100),
        "alloc_at_130": packed.alloc_at(130),
        "arrived": packed.arrived,
        "placed": packed.placed,
        "pods_per_s": round(packed.arrived / max(seconds, 1e-9)),
    }


def _mean(runs: list[dict[str, Any]], name: str, digits: int | None = None) -> float | None:
    """Over the seeds; None where one of them has none."""
    values = [run[name] for run in runs]
    return None if None in values else round(sum(values) / len(values), digits)


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    pairs = [
        ("policy", f"{report['policy']}, {_seeds(report)}, inflated to {report['inflate']:g} x the capacity"),
        ("nodes", f"{report['nodes']:,} with {report['gpus']:,} GPU"),
        ("pods", f"{report['placed']:,} of {report['arrived']:,} placed; the list has {report['pods']:,}"),
        *(
            (f"at {percent}%", _allocated(report[f"alloc_at_{percent}"], percent))
            for percent in (100, 130)
        ),
        ("speed", f"{report['pods_per_s']:,} pods/s, in one process: no API server, no kubelet"),
    ]  # fmt: skip
    if report["models_nobody_has"]:
        absent = ", ".join(map(printable, report["models_nobody_has"]))
        pairs.append(("note", f"no node has {absent}: pods that accept nothing else are dropped"))
    return [*facts(pairs), *_each_seed(report["runs"])]


def _each_seed(runs: list[dict[str, Any]]) -> list[str]:
    """A line for each seed, where there are several."""
    if len(runs) == 1:
        return []
    rows = [
        [str(run["seed"]), *("-" if run[at] is None else f"{run[at]:.2f}" for at in ("alloc_at_100", "alloc_at_130"))]
        for run in runs
    ]
    return ["", *table(("SEED", "AT 100%", "AT 130%"), rows, (True, True, True))]


def _seeds(report: dict[str, Any]) -> str:
    first, count = report["seed"], report["seeds"]
    return f"seed {first}" if count == 1 else f"mean of seeds {first} to {first + count - 1}"


def _allocated(share: float | None, percent: int) -> str:
    if share is None:
        return f"never reached: less than {percent}% of the GPU was asked for"
    return f"{share:.2f}% of the GPU allocated when {percent}% have been asked for"


LEAST, UNIT = 650, 650
"""Nodes."""


def run_drill(arguments: argparse.Namespace) -> None:
    nodes = arguments.nodes or NODES
    if nodes < LEAST or nodes % UNIT:
        raise SpecError("--nodes", f"{nodes:,} nodes cannot be divided as the load is", f"Give a multiple of {UNIT}")
    print(f"losing a rack, a zone and spot nodes of {nodes:,}", file=sys.stderr)
    result = bench(nodes, arguments.seed)
    if arguments.json:
        write_json({"drill": "gke-65k", "seed": arguments.seed, "result": result, "machine": machine()})
    else:
        write_lines(_lines(arguments, result))


def _lines(arguments: argparse.Namespace, result: Drill) -> list[str]:
    lost = result.lost_nodes
    waiting = ", ".join(f"{count:,} {reason}" for reason, count in result.waiting.items()) or "none"
    swapped = f"gangs that got others in their place and went on: {result.swapped:,}"
    pairs = [
        ("cell", f"{result.nodes:,} nodes, {result.tasks:,} tasks of {result.workloads:,} workloads"),
        ("lost", f"{lost['rack']:,} nodes of a rack, {lost['zone']:,} of a zone, {lost['spot']:,} spot elsewhere"),
        ("on them", f"{result.tasks_on_lost:,} tasks; {swapped}"),
        ("recovered", f"{duration(result.recovered_ms)} of cell time until the last that finds room ran again"),
        ("waiting", waiting),
        ("idle", f"{result.free_nodes:,} nodes, once all that could run did"),
        ("back", f"all ran {duration(result.back_ms)} of cell time after all came back, {duration(DOWN_MS)} later"),
        ("lost work", "no workload; each went on from its last checkpoint, and ended"),
        ("decisions", f"wall time: {result.fail_wall_ms / 1000:,.1f} s at the loss, "
         f"{result.spot_wall_ms / 1000:,.1f} s as spot went, {result.back_wall_ms / 1000:,.1f} s at the return"),
        ("in all", f"{result.decisions_ms / 1000:,.1f} s in the engine, "
         f"{result.decisions_cpu_ms / 1000:,.1f} s of it on a core"),
        ("checked", f"{result.checks} times: counts, whole gangs, capacity, quota, work kept"),
        machine_fact(),
    ]  # fmt: skip
    rows = [
        [each.priority, f"{each.on_lost_nodes:,}", f"{each.made_room:,}", f"{each.running_again:,}",
         f"{each.waiting:,}", duration(each.lost_ms)]
        for each in result.evicted
    ]  # fmt: skip
    titles = ("WORKLOADS", "ON LOST NODES", "MADE ROOM", "RUN AGAIN", "WAIT", "LOST AT MOST")
    told = (
        "Rack and zone go without a word, and that is known at once; how long silence lasts before a node counts as "
        f"lost comes on top. Spot nodes have {NOTICE_MS // 1000} s of notice, during which their work goes on. "
        "Muster's figures are of one process that decides: nothing boots, and tasks run when they are placed."
    )
    return [*facts(pairs), "", *table(titles, rows, (False, *(True,) * 5)), "", *wrap(told, 80)]


def queueing(arguments: argparse.Namespace) -> None:
    """Waits of a trace's jobs by policy; see `recommender.backtests.run_times` for the protocol."""
    require_learner()
    plan = backtest.read_queueing(arguments.file, arguments.format, nodes=arguments.nodes, arrivals=arguments.arrivals)
    scores = backtest.backtest_queueing(plan, arguments.format, every=arguments.every)
    if arguments.json:
        write_json(scores)
    else:
        rows = [
            [
                name,
                f"{s.avg_wait_s:,.0f} s",
                f"{s.p95_wait_s:,.0f} s",
                duration(round(s.max_wait_s * 1000)),
                f"{s.avg_bounded_slowdown:,.2f}",
            ]
            for name, s in scores.items()
        ]
        titles = ("POLICY", "AVERAGE WAIT", "P95 WAIT", "LONGEST", "BOUNDED SLOWDOWN")
        left_out = [(f"left out: {printable(why)}", f"{count:,}") for why, count in plan.problems.skipped.items()]
        write_lines([
            *table(titles, rows, (False, True, True, True, True)),
            "",
            *facts([(name, backtest.ROWS[name]) for name in scores]),
            "",
            *facts([("jobs", f"{len(plan.jobs):,}"), *left_out]),
        ])  # fmt: skip
    tell_problems(plan.problems, "lines could not be read")
