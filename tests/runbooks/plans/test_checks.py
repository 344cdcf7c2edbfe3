"""Checks: read quickly, three-valued, and those that say nothing are told from the text alone."""

from __future__ import annotations

import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model.commands import Cordon, SetBudgets
from engine.model.errors import SpecError
from engine.model.specs import BudgetSpec
from runbooks.plans.check_readings import READINGS, evaluate
from runbooks.plans.checks import (
    MEANINGS,
    OPERATORS,
    Check,
    CheckName,
    allowed,
    check_well_formed,
    domain,
    holds,
    vacuous,
    within,
    words,
)
from tests.support.cells import small_cell, submit, workload


def check(name: str, op: str, value: int | str, of: str = "x", **more: int) -> Check:
    of = "" if MEANINGS[name].of == "cell" else of  # type: ignore[index]
    return Check(check=name, of=of, op=op, value=value, **more)  # type: ignore[arg-type]


@pytest.fixture
def engine() -> Engine:
    engine = Engine.open(None, cell=small_cell())
    engine.advance(60_000)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, tenant="t", run=10**7, estimate=10**7) for i in range(5))))
    engine.advance(engine.now_ms + 90_000)
    return engine


def test_every_check_has_a_meaning_and_a_reading() -> None:
    assert set(MEANINGS) == set(READINGS) == set(get_args(CheckName))


@pytest.mark.parametrize(
    ("name", "of", "found"),
    [
        ("node_state", "g1", "ready"), ("node_workloads", "g1", 1), ("node_free_gpus", "g1", 0),
        ("node_losses_day", "g1", 0), ("node_stragglers", "g1", 0),
        ("workload_state", "w4", "queued"), ("workload_reason", "w4", "InsufficientCapacity"),
        ("workload_wait_s", "w4", 90), ("workload_run_s", "w0", 90), ("workload_run_s", "w4", 0),
        ("pool_free_gpus", "gpu", 0), ("pool_nodes", "gpu", 4), ("pool_ready", "gpu", 3), ("pool_booting", "gpu", 0),
        ("pool_suspect", "gpu", 0), ("pool_down", "gpu", 0), ("pool_ending", "gpu", 0), ("pool_wanted", "gpu", 0),
        ("pool_short", "gpu", 1), ("pool_target", "gpu", 0), ("pool_most", "gpu", None),
        ("queue_mode", "a", "open"), ("queue_waiting", "a", 1), ("queue_running", "a", 4),
        ("queue_oldest_wait_s", "a", 90), ("queue_oldest_wait_s", "b", 0), ("queue_gpus", "a", 32),
        ("queue_gpu_quota", "a", None), ("queue_gpus_borrowed", "a", 0),
        ("tenant_running", "t", 4), ("tenant_waiting", "t", 1), ("tenant_gpus", "t", 32),
        ("zone_ready", "z0", 5), ("zone_lost", "z0", 0),
        ("cell_waiting", "", 1), ("cell_wait_p95_s", "", 0), ("cell_policy", "", "easy"),
        ("cell_fragmentation_permille", "", 0), ("cell_cost_microusd_hour", "", 82_000_000), ("cell_suspect", "", 0),
        ("reservation_state", "r", "not made"), ("budget_spent_permille", "b", 200),
        ("budget_forecast_permille", "b", None),
    ],
)  # fmt: skip
def test_it_reads_what_is(engine: Engine, name: CheckName, of: str, found: int | str | None) -> None:
    engine.command(Cordon(ids=("g0",)))
    if name.startswith("budget"):
        spec = BudgetSpec(name="b", scope="tenant", of="t", limit_microusd=10_000_000)
        engine.command(SetBudgets(budgets=(spec,)))
        spent = engine.budgets().budgets[0]
        limit = spent.spec.limit_microusd
        found = spent.spent_microusd * 1000 // limit if "spent" in name else spent.forecast_microusd * 1000 // limit
    assert READINGS[name](engine, of) == found


def test_a_fork_is_read_as_the_cell_is(engine: Engine) -> None:
    fork = engine.fork()
    fork.command(Cordon(ids=("g0",)))
    cordoned = check("node_state", "==", "cordoned", "g0")
    assert evaluate(fork, cordoned).verdict == "success"
    assert evaluate(engine, cordoned).verdict == "failure"
    assert evaluate(engine, cordoned).found == "node g0 is ready; wanted == cordoned"


def test_what_is_not_there_fails_and_what_is_not_known_is_inconclusive(engine: Engine) -> None:
    for name, meaning in MEANINGS.items():
        value: int | str = meaning.labels[0] if meaning.labels else 1
        if meaning.of not in ("cell", "reservation"):
            finding = evaluate(engine, check(name, "==", value, "nowhere"))
            assert (finding.verdict, finding.found) == ("failure", f"there is no {meaning.of} nowhere")
    unlimited = evaluate(engine, check("queue_gpu_quota", "<=", 64, "a"))
    assert unlimited.verdict == "inconclusive"
    assert "not known" in unlimited.found


def test_a_verification_waits_for_its_time_and_no_longer(engine: Engine) -> None:
    wanted = check("node_workloads", "==", 0, "g0", within_ms=60_000)
    assert evaluate(engine, wanted).verdict == "failure"
    assert evaluate(engine, wanted, waited_ms=0).verdict == "inconclusive"
    assert evaluate(engine, wanted, waited_ms=59_999).verdict == "inconclusive"
    assert evaluate(engine, wanted, waited_ms=60_000).verdict == "failure"


def test_a_tolerance_grants_a_part_of_the_value(engine: Engine) -> None:
    assert evaluate(engine, check("queue_gpus", ">=", 40, "a")).verdict == "failure"
    assert evaluate(engine, check("queue_gpus", ">=", 40, "a", tolerance_permille=200)).verdict == "success"
    assert evaluate(engine, check("queue_gpus", ">=", 40, "a", tolerance_permille=199)).verdict == "failure"
    assert evaluate(engine, check("queue_gpus", "==", 30, "a", tolerance_permille=100)).verdict == "success"


@pytest.mark.parametrize(
    ("name", "op", "value", "tolerance", "why"),
    [
        ("pool_free_gpus", ">=", 0, 0, "always"), ("pool_free_gpus", ">", -1, 0, "always"),
        ("pool_free_gpus", "!=", -5, 0, "always"), ("pool_free_gpus", "<", 0, 0, "never"),
        ("pool_free_gpus", "<=", 10**9, 0, "always"), ("node_workloads", "<=", 1_000_000, 0, "always"),
        ("node_free_gpus", ">", 64, 0, "never"), ("cell_fragmentation_permille", "<=", 1000, 0, "always"),
        ("cell_fragmentation_permille", ">", 1000, 0, "never"), ("cell_waiting", "==", -1, 0, "never"),
        ("node_state", "!=", "banana", 0, "always"), ("node_state", "==", "Ready", 0, "never"),
        ("cell_policy", "==", "rl", 0, "never"), ("cell_fragmentation_permille", "<=", 700, 500, "always"),
        ("pool_free_gpus", ">=", 1, 0, ""), ("pool_free_gpus", ">=", 1, 500, ""), ("node_state", "==", "ready", 0, ""),
        ("node_state", "!=", "down", 0, ""), ("cell_fragmentation_permille", "<", 1000, 0, ""),
        ("node_workloads", "==", 0, 0, ""),
    ],
)  # fmt: skip
def test_a_check_that_says_nothing_is_told(name: str, op: str, value: int | str, tolerance: int, why: str) -> None:
    assert vacuous(check(name, op, value, tolerance_permille=tolerance)).partition(" ")[0] == why


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (check("node_state", "<", "ready"), "op"), (check("node_state", "==", 1), "value"),
        (check("node_workloads", "==", "many"), "value"), (check("node_workloads", "==", 1, ""), "of"),
        (Check(check="cell_waiting", of="x", op="==", value=1), "of"),
        (check("node_state", "==", "ready", tolerance_permille=10), "tolerance"),
        (check("node_workloads", "!=", 1, tolerance_permille=10), "tolerance"),
        (check("node_workloads", "==", 1, tolerance_permille=501), "tolerance"),
        (check("node_workloads", "==", 1, within_ms=-1), "within"),
        (check("node_workloads", "==", 1, within_ms=10**12), "within"),
    ],
)  # fmt: skip
def test_a_comparison_that_there_is_not_is_refused(engine: Engine, wrong: Check, where: str) -> None:
    with pytest.raises(SpecError, match=where):
        check_well_formed(wrong, "check")
    with pytest.raises(SpecError, match=where):
        evaluate(engine, wrong)


NUMBERS = sorted(name for name, meaning in MEANINGS.items() if not meaning.labels)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NUMBERS),
    op=st.sampled_from(OPERATORS),
    value=st.integers(-2000, 20_000_000) | st.integers(-20, 1100),
    tolerance=st.integers(0, 500),
    reading=st.integers(0, 1000),
)
def test_vacuous_is_what_no_reading_of_the_domain_can_change(
    name: str, op: str, value: int, tolerance: int, reading: int
) -> None:
    asked = check(name, op, value, tolerance_permille=0 if op == "!=" else tolerance)
    meaning = MEANINGS[asked.check]
    reading = meaning.least + reading * (meaning.most - meaning.least) // 1000
    part = allowed(asked)
    assert holds(asked, reading) == within(((reading, reading),), part)
    ends = {meaning.least, meaning.most, reading, *(value + d for d in (-1, 0, 1))}
    seen = {holds(asked, one) for one in ends if meaning.least <= one <= meaning.most}
    if vacuous(asked):
        assert len(seen) == 1
    if within(domain(asked.check), part):
        assert vacuous(asked).startswith("always")


def test_words_say_what_is_asked() -> None:
    assert words(check("node_state", "==", "cordoned", "n1")) == "node n1 is cordoned"
    assert words(check("node_state", "!=", "down", "n1")) == "node n1 is not down"
    assert words(check("pool_free_gpus", ">=", 8, "h")) == "pool h has >= 8 free GPUs on nodes that take work"


def test_a_check_takes_microseconds_to_milliseconds_whatever_the_cell() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2000, cpu_nodes=0))
    engine.advance(1000)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, tenant="t", run=10**7) for i in range(2500))))
    asked = [
        check(name, "==", meaning.labels[0] if meaning.labels else 1, {
            "node": "g7", "workload": "w2400", "pool": "gpu", "queue": "a", "tenant": "t", "zone": "z0",
        }.get(meaning.of, "x"))
        for name, meaning in MEANINGS.items()
    ]  # fmt: skip
    for one in asked:
        evaluate(engine, one)
    begun = time.process_time()
    for one in asked:
        evaluate(engine, one)
    assert (time.process_time() - begun) / len(asked) < 0.01
