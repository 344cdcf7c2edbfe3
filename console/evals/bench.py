"""The command `muster bench`: a published run through the engine, beside its published figures.

Runs of Kueue's loads, GKE at 65,000 and 130,000 nodes, Clemson's spot machines, a week on spot machines, and a day
with a pool that grows ahead of demand. `engine.scenarios` has the loads; reports for people and JSON are made here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from console.commands.show import write_json, write_lines
from console.evals.engine_runs import machine, machine_fact
from console.text.plain_tables import facts, table
from console.text.terminal_text import printable, wrap
from engine.control import Engine
from engine.model.errors import MusterError, SpecError
from engine.scenarios.clemson import (
    BOOT_MS,
    HEAD_CALLS_PER_S,
    LEAD_MS,
    MARKS,
    PEAK,
    SHOWN,
    SOURCE,
    TAKEN_PERMILLE_HOUR,
    Ramp,
    bench,
)
from engine.scenarios.gke import SCENARIOS as GKE_SCENARIOS
from engine.scenarios.gke import GkeScenario, PhaseTimes, ScenarioPhase, ScenarioRun, Training, cell, phases
from engine.scenarios.gke import run as run_phases
from engine.scenarios.kueue import COMMIT, COMMIT_DATE, SCENARIOS, KueueResult, KueueScenario
from engine.scenarios.kueue import bench as bench_kueue
from engine.scenarios.live_scenarios import BOOTS_MS, ON_TIME_MS, PEAK_NODES, SizingResult, play, sizings
from engine.scenarios.spot_week import BOOT_MS as SPOT_BOOT_MS
from engine.scenarios.spot_week import NOTICE_MS, SpotWeekResult, assumed_market, read_market
from engine.scenarios.spot_week import bench as bench_spot_week
from engine.traces.demand_series import (
    BEST_KNOWN,
    COMPARED,
    LEADS,
    QUANTILES,
    REACTIVE,
    Load,
    SeriesScore,
    chosen_quantile,
    forecast_rule,
    generated,
    geometric_means,
    read,
    score,
)


def run(arguments: argparse.Namespace) -> None:
    if arguments.scenario == "list":
        write_json(_catalog()) if arguments.json else write_lines(_catalog_lines())
    elif arguments.scenario == "clemson":
        run_clemson(arguments)
    elif arguments.scenario == "predictive-day":
        run_predictive_day(arguments)
    elif arguments.scenario == "spot-week":
        run_spot_week(arguments)
    elif arguments.scenario in GKE_SCENARIOS:
        run_gke(arguments)
    else:
        run_kueue(arguments)


def _catalog() -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "queues": scenario.cohorts * scenario.queues,
            "workloads": scenario.workloads,
            "capacity_bound_ms": scenario.capacity_bound_ms,
        }
        for name, scenario in SCENARIOS.items()
    ] + [
        {"name": "clemson", "machines": PEAK, "marks": MARKS},
        {"name": "predictive-day"},
        {"name": "spot-week"},
        *({"name": name, "nodes": scenario.nodes} for name, scenario in GKE_SCENARIOS.items()),
    ]


def _catalog_lines() -> list[str]:
    rows = [
        [name, f"{s.workloads:,} workloads in {s.cohorts * s.queues:,} queues, none done before "
         f"{s.capacity_bound_ms / 1000:,.1f} s"]
        for name, s in SCENARIOS.items()
    ]  # fmt: skip
    rows.append(["clemson", f"{PEAK:,} spot machines in six regions, and the work on them"])
    rows.append(["predictive-day", "series of demand by the hour, met by rules and by a pool that grows ahead"])
    rows.append(["spot-week", "a week of jobs with deadlines on interruptible machines, under four policies"])
    rows += [[name, f"{scenario.nodes:,} nodes: {scenario.load}"] for name, scenario in GKE_SCENARIOS.items()]
    return table(("NAME", "LOAD"), rows, (False, False))


def run_clemson(arguments: argparse.Namespace) -> None:
    print(f"ordering {PEAK:,} machines in virtual time", file=sys.stderr)
    result = bench(seed=arguments.seed)
    if arguments.json:
        assumed = {
            "head_calls_per_s": HEAD_CALLS_PER_S,
            "boot_median_p95_ms": BOOT_MS,
            "taken_permille_hour": TAKEN_PERMILLE_HOUR,
            "stock_before_published_ms": LEAD_MS,
        }
        write_json(
            {"shows": SHOWN, "scenario": "clemson", "seed": arguments.seed, "result": msgspec.to_builtins(result),
             "assumed": assumed, "published": {"source": SOURCE}, "machine": machine()}
        )  # fmt: skip
        return
    ramp = result.ramp
    pairs = [
        ("shows", SHOWN),
        ("scenario", f"clemson, seed {arguments.seed}: {PEAK:,} spot machines of 16 vCPU"),
        ("machines", f"{ramp.peak_machines:,} at the peak; {ramp.taken:,} reclaimed meanwhile"),
        ("requests", f"{ramp.requests:,}, {ramp.over_quota:,} over the quota, {ramp.out_of_stock:,} out of stock"),
        ("connections", f"{ramp.calls_lost:,} lost; the head node takes {HEAD_CALLS_PER_S} in a second"),
        ("tasks", f"{result.tasks_started:,} started, {result.tasks_finished:,} finished, "
         f"{result.tasks_restarted:,} started over"),
        ("busy", f"{result.busy_permille / 10:.1f}% of the connected machines' time"),
        ("wall time", f"{result.wall_ms / 1000:,.1f} s with the engine"),
        machine_fact(),
    ]  # fmt: skip
    lines = [*facts(pairs), "", "vCPU connected, and when", *_marks(ramp), ""]
    compared = {
        "six projects": ramp,
        "one project": result.one_project,
        "six, all stock at once": result.plenty,
        "one, all stock at once": result.plenty_one_project,
    }
    lines += [*_comparison(compared), ""]
    lines += [
        "The bound is what quotas and stock allow if machines needed no time to boot.",
        "Assumed, as it was not published: when stock was to be had (the published",
        f"run's own marks, {LEAD_MS // 60_000} min before it reached them), boots of {BOOT_MS[0] // 1000} s (p95 "
        f"{BOOT_MS[1] // 1000} s), {TAKEN_PERMILLE_HOUR / 10:g}% of",
        "the machines reclaimed in an hour, and the head node's limit. Muster's",
        "figures are of one process in virtual time: no cloud, network or batch system.",
    ]
    write_lines(lines)


def _marks(ramp: Ramp) -> list[str]:
    rows = [
        [f"{mark.vcpus:,}", _minutes(mark.published_ms), _minutes(mark.reached_ms), _minutes(mark.bound_ms)]
        for mark in ramp.marks
    ]
    return table(("VCPU", "PUBLISHED", "MUSTER", "BOUND"), rows, (True, True, True, True))


def _comparison(ramps: dict[str, Ramp]) -> list[str]:
    """Ramps with one and several projects: quotas of requests bound how fast machines come and, with unlimited
    stock, go."""
    rows = [
        [name, f"{ramp.requests_per_100_s:,}", _minutes(ramp.marks[-1].reached_ms), f"{ramp.calls_lost:,}",
         _minutes(ramp.release_ms), f"{ramp.release_machine_hours:,}"]
        for name, ramp in ramps.items()
    ]  # fmt: skip
    titles = ("", "QUOTA", "2.13 M VCPU", "LOST", "RELEASED IN", "IDLE MACHINE-H")
    return table(titles, rows, (False, True, True, True, True, True))


def _minutes(ms: int | None) -> str:
    return "never" if ms is None else f"{ms / 60_000:,.1f} min"


RIGHT = (False, *(True,) * 6)
NOT_IN_IT = "Muster's are of one process that decides: no API server, kubelet or network, and nothing boots"


def run_gke(arguments: argparse.Namespace) -> None:
    scenario = GKE_SCENARIOS[arguments.scenario]
    nodes = arguments.nodes or scenario.nodes
    load = phases(arguments.scenario, nodes, arguments.seed, arguments.training)
    where = "with a journal on disk" if arguments.durable else "in memory"
    print(f"running {len(load)} phases on {nodes:,} nodes, {printable(where)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        journal = Path(folder) / "journal.db" if arguments.durable else None
        result, read_back_s = gke_bench(nodes, load, journal, arguments.seed)
    if arguments.json:
        write_json(_report(arguments, scenario, result, read_back_s))
    else:
        write_lines(_report_lines(arguments, scenario, result, read_back_s))


def gke_bench(
    nodes: int, load: list[ScenarioPhase], journal: Path | None, seed: int
) -> tuple[ScenarioRun, float | None]:
    """The run, and the seconds it took to read the whole journal back into the same state; None without a journal.
    Raises MusterError where a phase failed its checks or the state that was read differs."""
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
        raise MusterError("the journal was read back into another state", "This is a bug in Muster")
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
        "machine": machine(),
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
        machine_fact(),
    ]  # fmt: skip
    lost_min = max(phase.lost_ms for phase in result.phases) / 60_000
    lines = [*facts(pairs), "", *_starts(result), "", *_preemptions(result), ""]
    size = "" if result.nodes == scenario.nodes else f" at {scenario.nodes:,} nodes"
    told = (
        "SECONDS are of wall time in the engine's calls, from the first of a phase until the last task had started; "
        "P99 is from submission to start. In cell time single tasks arrive 1,000 to the second, and waited "
        f"{_waits(result)} at most. No workload lost more than {lost_min:.1f} min of work: what it had done since its "
        f"last checkpoint. {scenario.also}Published{size}, end to end on a cluster, as quoted where the page was not "
        f"available; {NOT_IN_IT}."
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


KUEUE_COLUMNS_RIGHT = (False, *(True,) * 8)
"""Numeric columns of the table of admissions."""


def run_kueue(arguments: argparse.Namespace) -> None:
    scenario = SCENARIOS[arguments.scenario]
    print(f"running {scenario.workloads:,} workloads in virtual time", file=sys.stderr)
    result = bench_kueue(scenario, estimates=arguments.estimates, seed=arguments.seed)
    if arguments.json:
        write_json(_kueue_report(arguments, scenario, result))
    else:
        write_lines(_kueue_report_lines(arguments, scenario, result))


def _kueue_report(arguments: argparse.Namespace, scenario: KueueScenario, result: KueueResult) -> dict[str, object]:
    return {
        "scenario": arguments.scenario,
        "estimates": arguments.estimates,
        "seed": arguments.seed,
        "capacity_bound_ms": scenario.capacity_bound_ms,
        "arrival_bound_ms": scenario.arrival_bound_ms,
        "result": result,
        "published": {
            "config": scenario.config,
            "commit": COMMIT,
            "date": COMMIT_DATE,
            "wall_ms": scenario.published_wall_ms,
            "used_permille": scenario.published_usage_permille,
            "final_admission_mean_ms": {mix.name: mix.published_ms for mix in scenario.mix},
        },
        "machine": machine(),
    }


def _kueue_report_lines(arguments: argparse.Namespace, scenario: KueueScenario, result: KueueResult) -> list[str]:
    each = scenario.workloads // (scenario.cohorts * scenario.queues)
    bound_ms = scenario.capacity_bound_ms
    ratio = result.makespan_ms / bound_ms
    lost = f"{result.lost_unit_ms // 1000:,} unit-seconds ({result.lost_unit_ms / scenario.work_unit_ms:.1%}) of work"
    pairs = [
        ("scenario", f"{arguments.scenario}, estimates {arguments.estimates}, seed {arguments.seed}"),
        ("load", f"{scenario.cohorts} cohorts x {scenario.queues} queues x {each} workloads = {result.workloads:,}"),
        ("makespan", f"{_wall_s(result.makespan_ms)} of virtual time, {ratio:.3f} x the capacity bound"),
        (
            "bound",
            f"{_wall_s(bound_ms)} by capacity, {_wall_s(scenario.arrival_bound_ms)} with the arrivals",
        ),
        ("utilisation", f"{result.used_permille / 10:.1f}%"),
        ("preemptions", f"{result.preemptions:,}, which lost {lost}"),
        ("withdrawn", f"{result.withdrawn:,} placements, before an executor saw them"),
        ("decisions", f"{result.starts:,} starts, {result.preemptions:,} preemptions in {result.cycles:,} cycles"),
        ("wall time", f"{_wall_s(result.wall_ms)}, {result.decisions_per_s:,} decisions/s"),
        machine_fact(),
    ]
    return [*facts(pairs), "", *_admission_table(scenario, result), "", *_published_lines(scenario)]


def _admission_table(scenario: KueueScenario, result: KueueResult) -> list[str]:
    """Times from submission to first and final admission, beside Kueue's mean."""
    titles = ("SECONDS", "FIRST", "P95", "MAX", "FINAL", "P95", "MAX", "PREEMPTED", "KUEUE")
    rows = []
    for mix, met in zip(scenario.mix, result.classes, strict=True):
        times = [
            f"{ms / 1000:,.2f}"
            for spread in (met.first_admission, met.final_admission)
            for ms in (spread.mean_ms, spread.p95_ms, spread.max_ms)
        ]
        size = f"{mix.name} {mix.units} x {mix.runtime_ms / 1000:g}"
        rows.append([size, *times, f"{met.preemptions:,}", f"{mix.published_ms / 1000:,.2f}"])
    return [
        "mean, p95 and longest time to the first and to the final admission",
        *table(titles, rows, KUEUE_COLUMNS_RIGHT),
    ]


def _published_lines(scenario: KueueScenario) -> list[str]:
    """Kueue's figures, and why they are not to be compared one to one."""
    usage = f"{scenario.published_usage_permille / 10:.1f}%"
    return [
        f"Kueue: means recorded for configs/{scenario.config} in {COMMIT} of {COMMIT_DATE}:",
        f"{_wall_s(scenario.published_wall_ms)} of wall time, {usage} usage; final admission in the last column.",
        "Measured end to end on other hardware, with an API server, a client held to",
        "50 requests/s and arrivals in real time. Muster's figures are of one process in",
        "virtual time: no API server, admission webhook, kubelet or network is in them.",
    ]


def _wall_s(ms: int) -> str:
    return f"{ms / 1000:,.1f} s"


USUALLY_PLAYED = ("itp2021_cluster04_gpus_in_use", "generated_cpu-96c-spot")
NAME_WIDTH = 32
Means = dict[str, float | None]


def run_predictive_day(arguments: argparse.Namespace) -> None:
    """Raises SpecError for a folder without series, or an unknown series."""
    if arguments.data is None:
        print("no --data: generating demand of an AI cell", file=sys.stderr)
    loads = generated(arguments.seed) if arguments.data is None else read(arguments.data)
    played = _to_play(loads, arguments.series)
    print(f"foretelling {len(loads)} series, then playing {printable(played.name)}", file=sys.stderr)
    scores = [score(load, lead) for lead in LEADS for load in loads]
    permille = chosen_quantile(scores)
    runs = [play(played, sizing, boot_ms, arguments.seed) for boot_ms in BOOTS_MS for sizing in sizings(permille)]
    if arguments.json:
        write_json(_predictive_day_report(arguments, loads, scores, permille, played, runs))
    else:
        write_lines(_lines(arguments, scores, permille, played, runs))


def _to_play(loads: list[Load], name: str) -> Load:
    by_name = {load.name: load for load in loads}
    if name and name not in by_name:
        raise SpecError("--series", f"there is no '{name[:64]}'", f"Series: {', '.join(by_name)}")
    usual = next((known for known in USUALLY_PLAYED if known in by_name), loads[0].name)
    return by_name[name or usual]


def _groups(scores: list[SeriesScore]) -> dict[str, list[SeriesScore]]:
    """Groups of series that geometric means are taken over."""
    compared = [each for each in scores if each.series in COMPARED]
    return {"all": scores} | ({"compared": compared} if compared else {})


def _predictive_day_report(
    arguments: argparse.Namespace, loads: list[Load], scores: list[SeriesScore], permille: int, played: Load,
    runs: list[SizingResult],
) -> dict[str, object]:  # fmt: skip
    return {
        "scenario": "predictive-day",
        "seed": arguments.seed,
        "data": "generated" if arguments.data is None else "given",
        "series": [load.name for load in loads],
        "scores": msgspec.to_builtins(scores),
        "geometric_means": {
            name: {str(lead): _means(group, lead) for lead in LEADS} for name, group in _groups(scores).items()
        },
        "best_known": {str(lead): mean for lead, mean in BEST_KNOWN.items()},
        "chosen_permille": permille,
        "played": {
            "series": played.name,
            "hours": runs[0].hours,
            "peak_nodes": PEAK_NODES,
            "on_time_ms": ON_TIME_MS,
            "sizings": msgspec.to_builtins(runs),
        },
        "machine": machine(),
    }


def _means(scores: list[SeriesScore], lead: int) -> dict[str, Means]:
    mine = [each for each in scores if each.lead_h == lead]
    return {
        "test": geometric_means(mine, lambda each: each.over_percent),
        "before": geometric_means(mine, lambda each: each.train_over_percent),
    }


def _lines(
    arguments: argparse.Namespace, scores: list[SeriesScore], permille: int, played: Load, runs: list[SizingResult]
) -> list[str]:
    pairs = [
        ("series", "generated" if arguments.data is None else f"{len(scores) // len(LEADS)} given"),
        ("quantile", f"{permille / 1000:g}, which provides least on the parts before the tests"),
        machine_fact(),
    ]
    lines = [*facts(pairs), "", "Unit-hours above demand, % of those demanded, when 1 % is unmet"]
    for lead in LEADS:
        lines += ["", f"decided {lead} h before", *_table([s for s in scores if s.lead_h == lead], permille)]
    for name, group in _groups(scores).items():
        what = "over all series on which every rule can" if name == "all" else f"over the {len(COMPARED)} compared"
        lines += ["", f"geometric means {what}", *_means_table(group, compared=name == "compared")]
    return lines + _played_lines(played, runs)


def _table(scores: list[SeriesScore], permille: int) -> list[str]:
    rules = (*REACTIVE, forecast_rule(permille))
    rows = [[each.series[:NAME_WIDTH], *(_percent(each.over_percent[rule]) for rule in rules)] for each in scores]
    titles = ("SERIES", "LAST", "MAX 24H", "YESTER", "PEAK", "FORECAST")
    return table(titles, rows, (False, *(True,) * len(rules)))


def _means_table(scores: list[SeriesScore], *, compared: bool) -> list[str]:
    rows = []
    for rule in (*REACTIVE, *(forecast_rule(permille) for permille in QUANTILES)):
        found = [_means(scores, lead) for lead in LEADS]
        rows.append([
            rule,
            *(_percent(each["test"].get(rule)) for each in found),
            *(_percent(each["before"].get(rule)) if rule not in REACTIVE else "" for each in found),
        ])  # fmt: skip
    if compared:
        rows.append(["best known (boosted trees)", *(_percent(BEST_KNOWN[lead]) for lead in LEADS), "", ""])
    titles = ("RULE", *(f"{lead} H" for lead in LEADS), *(f"BEFORE {lead} H" for lead in LEADS))
    return table(titles, rows, (False, True, True, True, True))


def _played_lines(played: Load, runs: list[SizingResult]) -> list[str]:
    titles = ("POOL", "USD", "ABOVE", "WAITING", "LATE", "P95 S", "MAX S", "ORDERS")
    lines = [
        "",
        f"{runs[0].hours} h of {played.name} through the engine:",
        f"{runs[0].tasks:,} tasks of one node each, at most {PEAK_NODES} nodes before",
    ]
    for boot_ms in BOOTS_MS:
        rows = [
            [r.sizing, f"{r.cost_microusd / 1e6:,.0f}", f"{r.over_percent:.1f}%", f"{r.waited_percent:.2f}%",
             f"{r.late_permille / 10:.1f}%", f"{r.wait_p95_ms / 1000:,.0f}", f"{r.wait_max_ms / 1000:,.0f}",
             f"{r.orders:,}"]
            for r in runs if r.boot_ms == boot_ms
        ]  # fmt: skip
        median, p95 = (ms // 60_000 for ms in boot_ms)
        lines += ["", f"nodes that boot in {median} min (p95 {p95} min)", *table(titles, rows, (False, *(True,) * 7))]
    return [
        *lines,
        "",
        "ABOVE: node-hours paid above those demanded; WAITING: node-hours that demand",
        f"waited, both in % of those demanded; LATE: waited more than {ON_TIME_MS // 1000} s. One process,",
        "virtual time, a simulated provider: no cloud is in it.",
    ]


def _percent(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def run_spot_week(arguments: argparse.Namespace) -> None:
    market = read_market(arguments.prices, arguments.seed - 1) if arguments.prices else assumed_market()
    print("a week of work under four policies in virtual time", file=sys.stderr)
    result = bench_spot_week(market, seed=arguments.seed)
    if arguments.json:
        write_json(
            {
                "scenario": "spot-week",
                "seed": arguments.seed,
                "result": msgspec.to_builtins(result),
                "machine": machine(),
            }
        )
    else:
        write_lines(_spot_week_lines(arguments.seed, result))


def _spot_week_lines(seed: int, result: SpotWeekResult) -> list[str]:
    prices, _, taken = result.source.partition("; ")
    pairs = [
        ("scenario", f"spot-week, seed {seed}: {result.policies[0].jobs:,} jobs with deadlines"),
        ("prices", prices),
        ("taken", taken),
        ("wall time", f"{sum(each.wall_ms for each in result.policies) / 1000:,.1f} s"),
        machine_fact(),
    ]
    costs = [
        [each.policy, _usd(each.cost_microusd), _usd(each.cost_per_finished_microusd, 4),
         f"{each.in_time / each.jobs:.1%}", f"{each.goodput_permille / 10:.1f}%", f"{each.machine_hours:,}"]
        for each in result.policies
    ]  # fmt: skip
    costs.append(["bound", _usd(result.bound_microusd), _usd(result.bound_per_job_microusd, 4), "100.0%", "", ""])
    numbers = ("lost_hours", "idle_hours", "machines_taken", "stops", "turned")
    hours = [[each.policy, *(f"{getattr(each, name):,}" for name in numbers)] for each in result.policies]
    right = (False, *(True,) * 5)
    return [
        *facts(pairs),
        "",
        *table(("", "USD", "USD/JOB DONE", "IN TIME", "GOODPUT", "MACHINE-H"), costs, right),
        "",
        *table(("", "LOST H", "IDLE H", "MACHINES TAKEN", "JOBS STOPPED", "TURNED"), hours, right),
        "",
        "mixed takes any machine to be had, the cheapest first; spot first waits for spot",
        "machines until the deadline's slack runs out, then turns to on-demand ones. Jobs",
        "that must not be on spot machines never are. Goodput: useful time of finished",
        "jobs in the time that machines were paid for. The bound knows all prices: each",
        "job by itself buys the cheapest minutes before its deadline, moves at no cost,",
        "and nothing boots or idles.",
        f"Machines boot in {SPOT_BOOT_MS[0] // 1000} s (p95 {SPOT_BOOT_MS[1] // 1000} s) and end {NOTICE_MS // 1000} s "
        "after the "
        "notice. Simulated",
        "in one process: no cloud, network or batch system.",
    ]


def _usd(microusd: int, digits: int = 2) -> str:
    return f"{microusd / 1e6:,.{digits}f}"
