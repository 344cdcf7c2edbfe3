"""Findings become typed suggestions with evidence; thin evidence is called thin; nothing is invented."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import Cordon, Submit
from engine.model.details import NodeDetail
from engine.model.errors import SpecError
from engine.model.list_queries import Page, Query, Term
from engine.model.overviews import Overview
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec
from recommender.findings import live_findings
from recommender.findings.live_findings import CORDONED_MS, FRAGMENTED_WAIT_MS, QuantileCoverage, RunTimeOpinion
from recommender.findings.suggestions import Advice, Suggestion

HOUR = 3_600_000
NOW = 100 * HOUR


def page(columns: tuple[str, ...], *rows: list[Any], matched: int | None = None) -> Page:
    return Page(
        version=7,
        at_ms=NOW,
        columns=columns,
        rows=list(rows),
        matched=len(rows) if matched is None else matched,
        total=len(rows),
    )


def overview(queued: int = 0) -> Overview:
    return Overview(
        version=7,
        now_ms=NOW,
        cell="c",
        policy="easy",
        states={"queued": queued},
        capacity={},
        used={},
        pools=(),
        blocked=(),
        oldest_wait_ms=0,
        oldest_waiting="",
        wait_p50_ms=0,
        wait_p95_ms=0,
        started_last_hour=0,
        finished_last_hour=0,
        history=(),
    )


def waiting(*rows: list[Any], matched: int | None = None) -> Page:
    return page(("id", "state", "queue", "reason", "wait"), *rows, matched=matched)


def running(*rows: list[Any], matched: int | None = None) -> Page:
    columns = ("id", "name", "state", "tenant", "queue", "tasks", "gpu", "run", "estimate")
    return page(columns, *rows, matched=matched)


def node(
    id_: str, state: str = "cordoned", for_ms: int = 2 * HOUR, work: tuple[tuple[str, int], ...] = ()
) -> NodeDetail:
    return NodeDetail(
        version=7,
        now_ms=NOW,
        id=id_,
        state=state,
        since_ms=NOW - for_ms,
        pool="p",
        zone="",
        block="",
        rack="",
        gpu_model="",
        capacity={"gpu_milli": 8000, "cpu_milli": 64_000},
        free={},
        devices=(),
        workloads=work,
    )


LIKES = {"r1": RunTimeOpinion(p90_ms=HOUR, samples=50, level="tenant and name")}
SCORED = QuantileCoverage(scored=200, p90_coverage_permille=900)


LATE = ["w1", "queued", "a", "Fragmented", FRAGMENTED_WAIT_MS + 1]


# -- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        ["w1", "queued", "a", "Fragmented", FRAGMENTED_WAIT_MS],
        ["w1", "queued", "a", "InsufficientCapacity", 9 * HOUR],
        ["w1", "running", "a", "Fragmented", 9 * HOUR],
    ],
)
def test_other_waits_are_no_finding(row: list[Any]) -> None:
    assert live_findings.fragmented_gangs(overview(), waiting(row)) == []


def test_a_partial_page_is_said_to_be_one() -> None:
    late = waiting(LATE, ["w2", "queued", "a", "Fragmented", 9 * HOUR], matched=500)
    [found] = live_findings.fragmented_gangs(overview(), late)
    assert found.evidence[0].value == "9.0 h"
    assert any("2 of 500" in line for line in found.thin)


# -- cordons ----------------------------------------------------------------------------------------------------------


def test_forgotten_cordons_suggest_uncordon() -> None:
    [found] = live_findings.forgotten_cordons(overview(queued=12), [node("n1"), node("n2", for_ms=3 * HOUR)])
    assert (found.action, found.targets) == ("uncordon", ("n1", "n2"))
    values = {item.metric: item.value for item in found.evidence}
    assert values["minimum time cordoned"] == "2.0 h"
    assert values["capacity out of service"] == "16 GPU"
    assert values["workloads queued"] == "12"
    assert "healthy is not known" in found.thin[0]


@pytest.mark.parametrize(
    "kept",
    [
        node("n", for_ms=CORDONED_MS),
        node("n", work=(("w", 1),)),
        node("n", state="down"),
        node("n", state="draining"),
        node("n", state="ready"),
    ],
)
def test_recent_busy_or_unhealthy_nodes_are_left_alone(kept: NodeDetail) -> None:
    assert live_findings.forgotten_cordons(overview(), [kept]) == []


# -- overruns ---------------------------------------------------------------------------------------------------------


def run(run_ms: int, estimate_ms: int = 0, state: str = "running") -> list[Any]:
    return ["r1", "train-99", state, "ml", "a", 1, 1000, run_ms if state == "running" else None, estimate_ms]


def test_a_run_far_past_its_likes_notifies() -> None:
    [found], unknown = live_findings.overruns(running(run(2 * HOUR + 1)), LIKES, SCORED)
    assert (found.action, found.targets, unknown, found.thin) == ("notify", ("r1",), (), ())
    assert "tenant and name" in found.evidence[1].metric
    assert found.evidence[1].rows == 50
    assert "2.0 h" in found.counterfactual
    assert found.skill is not None
    assert found.skill.scored == 200


def test_late_runs_of_one_kind_are_one_finding() -> None:
    late = [[f"r{n}", f"train-{n}", "running", "ml", "a", 1, 1000, (3 + n) * HOUR, 0] for n in range(3)]
    other = ["s1", "serve-1", "running", "ml", "a", 1, 1000, 3 * HOUR, 0]
    likes = dict.fromkeys(("r0", "r1", "r2", "s1"), LIKES["r1"])
    found, unknown = live_findings.overruns(running(*late, other), likes, SCORED)
    assert [each.targets for each in found] == [("r2", "r1", "r0"), ("s1",)]
    assert found[0].finding.startswith("3 of ml/train: r2 has run 5.0 h")
    # Over by one, two and three hours on a GPU each.
    assert found[0].benefit.at_risk_gpu_milli_h == 6000
    assert unknown == ()
    [one], _ = live_findings.overruns(running(late[0]), likes, SCORED)
    assert one.id == found[0].id


def test_runs_that_share_only_tenant_and_size_are_no_measure() -> None:
    far = {"r1": msgspec.structs.replace(LIKES["r1"], level="tenant and size")}
    found, [unknown] = live_findings.overruns(running(run(9 * HOUR)), far, SCORED)
    assert found == []
    assert unknown.startswith("1 of 1 running workloads have too few similar finished jobs")


def test_few_likes_say_nothing_while_the_owner_asked_for_longer() -> None:
    few = {"r1": msgspec.structs.replace(LIKES["r1"], samples=live_findings.MIN_LIKES - 1)}
    found, [unknown] = live_findings.overruns(running(run(3 * HOUR, 9 * HOUR)), few, SCORED)
    assert found == []
    assert unknown.startswith("1 of 1 running workloads are past 2 x")
    assert live_findings.overruns(running(run(3 * HOUR, 2 * HOUR)), few, SCORED)[0] != []


def test_a_run_within_bounds_is_no_finding() -> None:
    found, _ = live_findings.overruns(running(run(2 * HOUR)), LIKES, SCORED)
    assert found == []


def test_without_likes_it_says_so_instead_of_guessing() -> None:
    found, [unknown] = live_findings.overruns(running(run(900 * HOUR), run(0, state="queued")), {}, None)
    assert found == []
    assert unknown.startswith("1 of 1 running workloads")


def test_weak_comparisons_are_marked_thin() -> None:
    [found], _ = live_findings.overruns(
        running(run(3 * HOUR, 9 * HOUR)), LIKES, QuantileCoverage(scored=3, p90_coverage_permille=900)
    )
    text = " ".join(found.thin)
    assert "requested time, 9.0 h" in text
    assert "have been scored" in text


def test_a_badly_calibrated_model_is_marked_thin() -> None:
    off = QuantileCoverage(scored=200, p90_coverage_permille=610)
    [found], _ = live_findings.overruns(running(run(9 * HOUR)), LIKES, off)
    assert any("the estimates are off" in line for line in found.thin)


# -- all together -----------------------------------------------------------------------------------------------------


def advice() -> Advice:
    return live_findings.advise(
        overview(queued=1),
        waiting=waiting(LATE),
        cordoned=[node("n1")],
        running=running(run(9 * HOUR), matched=40),
        likely=LIKES,
        covered=SCORED,
    )


def test_advice_gathers_all_findings() -> None:
    found = advice()
    assert [s.action for s in found.suggestions] == ["consolidate", "uncordon", "notify"]
    assert found.version == 7
    assert found.unknown == ("checked 1 of 40 workloads",)


def test_pages_of_a_real_engine_have_what_is_needed() -> None:
    quota = {"gpu_milli": 8000}
    cell = CellSpec(
        pools=(PoolSpec(name="p", capacity=Resources(cpu_milli=64_000, gpu_milli=8000)),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(3)),
        queues=(
            QueueSpec(name="org"),
            QueueSpec(name="a", parent="org", nominal=quota, borrowing_limit={"gpu_milli": 0}),
            QueueSpec(name="b", parent="org", nominal=quota),
        ),
    )
    engine = Engine.open(None, cell=cell)
    group = TaskGroup(request=Resources(gpu_milli=8000))
    engine.command(Cordon(ids=("n2",)))
    engine.command(
        Submit(
            workloads=tuple(WorkloadSpec(id=i, queue="a", groups=(group,), simulated_runtime_ms=9 * HOUR) for i in "xy")
        )
    )
    engine.advance(engine.now_ms + 2 * HOUR)
    work = ("id", "name", "state", "tenant", "queue", "tasks", "gpu", "run", "estimate", "reason", "wait")
    found = live_findings.advise(
        engine.overview(),
        waiting=engine.query(Query(kind="workloads", columns=work, where=(Term("state", "=", "queued"),))),
        cordoned=[engine.node("n2")],
        running=engine.query(Query(kind="workloads", columns=work, where=(Term("state", "=", "running"),))),
        likely={},
        covered=None,
    )
    assert [(s.action, s.targets) for s in found.suggestions] == [("uncordon", ("n2",))]
    assert len(found.unknown) == 1


def test_nothing_found_nothing_said() -> None:
    found = live_findings.advise(overview(), waiting=waiting(), cordoned=[], running=running(), likely={}, covered=None)
    assert (found.suggestions, found.unknown) == ((), ())


@pytest.mark.parametrize("found", advice().suggestions, ids=lambda s: s.finding[:20])
def test_every_suggestion_is_complete(found: Suggestion) -> None:
    assert found.targets
    assert found.evidence
    assert all(item.rows >= 1 and item.metric and item.window and item.value for item in found.evidence)
    assert found.counterfactual.startswith("Not suggested if")
    assert found.alternatives[-1].startswith("No action")


def test_a_page_without_a_needed_column_is_an_error() -> None:
    with pytest.raises(SpecError, match="reason, wait"):
        live_findings.fragmented_gangs(overview(), page(("id", "queue", "state")))
