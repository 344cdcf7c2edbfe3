"""Requests against use: histograms that forget, what is recommended, and silence where little is known."""

from __future__ import annotations

import numpy as np
import pytest

from engine.model.specs import PoolSpec, Resources, TaskGroup, WorkloadSpec
from engine.state.ledger import share
from recommender.estimates.request_sizing import (
    DAY_MS,
    HALF_LIFE_MS,
    DecayingHistogram,
    Sizer,
    TaskGroupUse,
    UsageModel,
    recommended,
    round_cpu,
    round_memory,
    sized,
    sizing_findings,
)
from recommender.history.metrics import RunRecord

MINUTE = 60_000
POOL = PoolSpec(name="general", capacity=Resources(cpu_milli=64_000, memory_mib=262_144), price_microusd_hour=3_200_000)
GPU_POOL = PoolSpec(
    name="t4", capacity=Resources(cpu_milli=64_000, memory_mib=262_144, gpu_milli=8_000), gpu_model="T4",
    price_microusd_hour=3_200_000,
)  # fmt: skip


def ended(number: int = 0, **changes: object) -> RunRecord:
    base = {
        "id": f"w{number}", "tenant": "acme", "name": f"train-{number}", "tasks": 2, "cpu_milli": 16_000,
        "memory_mib": 65_536, "submitted_ms": 0, "started_ms": 0, "ended_ms": (number + 1) * MINUTE,
        "outcome": "finished", "peak_cpu_milli": 2_000, "peak_memory_mib": 6_000,
    }  # fmt: skip
    return RunRecord(**{**base, **changes})  # type: ignore[arg-type]


def of_runs(count: int, **changes: object) -> UsageModel:
    model = UsageModel()
    model.ended(ended(number, **changes) for number in range(count))
    return model


def running(tasks: int = 10, **changes: object) -> TaskGroupUse:
    base = TaskGroupUse(
        kind="acme/train", ids=("a", "b"), tasks=tasks, cpu_milli=8_000, memory_mib=32_768, gpu_milli=0,
        pool=POOL,
    )  # fmt: skip
    return TaskGroupUse(**{**{name: getattr(base, name) for name in base.__struct_fields__}, **changes})


def test_half_of_the_weight_is_gone_after_a_half_life() -> None:
    histogram = DecayingHistogram(10, 1e6, HALF_LIFE_MS)
    histogram.add([100.0] * 3, [0] * 3)
    histogram.add([1_000.0] * 2, [HALF_LIFE_MS] * 2)
    assert histogram.quantile(0.4) == pytest.approx(100, rel=0.05)
    assert histogram.quantile(0.5) == pytest.approx(1_000, rel=0.05)
    histogram.add([100.0], [1_000 * HALF_LIFE_MS])
    assert histogram.quantile(0.5) == pytest.approx(100, rel=0.05)
    assert DecayingHistogram(10, 1e6, HALF_LIFE_MS).quantile(0.9) == 0


def test_a_target_is_the_percentile_with_a_margin_rounded_up() -> None:
    """800 milli become 1,000, and 2 GiB become 3 GiB."""
    model = UsageModel()
    at = np.arange(2_000) * MINUTE
    model.sample("acme/train", at, np.full(2_000, 800.0), np.full(2_000, 2_048.0))
    assert recommended(model.kinds["acme/train"]) == (1_000, 3_072)
    assert (round_cpu(1), round_memory(1)) == (25, 250)


def test_a_daily_peak_of_memory_decides_though_most_minutes_are_low() -> None:
    model = UsageModel()
    at = np.arange(5 * 1_440) * MINUTE
    memory = np.where(at % DAY_MS == 0, 8_000.0, 500.0)
    model.sample("acme/train", at, np.full(len(at), 100.0), memory)
    assert recommended(model.kinds["acme/train"])[1] >= 8_000 * 1.15


def test_a_run_that_died_of_its_memory_counts_with_more() -> None:
    fine = of_runs(12, peak_memory_mib=32_768, outcome="finished")
    died = of_runs(12, peak_memory_mib=32_768, outcome="failed")
    assert died.kinds["acme/train"].bumped == 12
    assert recommended(died.kinds["acme/train"])[1] > 1.15 * recommended(fine.kinds["acme/train"])[1]


def test_use_before_a_start_is_told_by_the_nearest_likes() -> None:
    model = of_runs(20)
    own = model.estimate("acme", "train-99", 8_000, 32_768)
    assert own.basis == "kind"
    assert own.cpu_milli.p50 == pytest.approx(2_000, rel=0.05)
    tenant = model.estimate("acme", "other-1", 4_000, 32_768)
    assert tenant.basis == "tenant"
    assert tenant.cpu_milli.p90 == pytest.approx(1_000, rel=0.06)
    assert model.estimate("zeta", "other-1", 4_000, 32_768).basis == "all"
    nothing = UsageModel().estimate("zeta", "other-1", 4_000, 32_768)
    assert nothing.basis == "request"
    assert nothing.memory_mib.p90 == 32_768


def test_the_next_run_is_within_its_range_as_often_as_promised() -> None:
    draw = np.random.default_rng(2)
    model, within = UsageModel(), []
    for number in range(400):
        used = round(float(draw.lognormal(7, 0.5)))
        if number >= 50:
            likely = model.estimate("acme", "train-1", 8_000, 32_768).cpu_milli
            within.append(likely.p10 <= used <= likely.p90)
        model.ended([ended(number, peak_cpu_milli=used)])
    assert 0.74 <= float(np.mean(within)) <= 0.88


def test_savings_are_those_of_what_runs_and_gpus_hide_them() -> None:
    (kind,) = sized(of_runs(20), [running(tasks=10)])
    assert kind.saved_cpu_milli == 10 * (8_000 - kind.cpu.recommended) > 50_000
    before, after = (share(POOL, milli, mib, 0) for milli, mib in ((8_000, 32_768), (2_400, kind.memory.recommended)))
    assert kind.saved_microusd_hour == round(10 * 3_200_000 * (before - after)) > 0
    (with_gpus,) = sized(of_runs(20), [running(gpu_milli=1_000, pool=GPU_POOL)])
    assert with_gpus.saved_cpu_milli == kind.saved_cpu_milli
    assert with_gpus.saved_microusd_hour < kind.saved_microusd_hour / 2


def test_waste_is_found_once_enough_is_known() -> None:
    for runs, findings in ((3, 0), (20, 1)):
        kinds = sized(of_runs(runs), [running()])
        assert len(sizing_findings(kinds, [running()])) == findings
    (found,) = sizing_findings(kinds, [running()])
    assert (found.action, found.about, found.targets) == ("resize", "acme/train", ("a", "b"))
    assert found.parameters[0] == "--request"
    assert found.parameters[1].startswith("cpu=")
    assert found.cost_delta_microusd_hour is not None
    assert found.cost_delta_microusd_hour < 0
    assert (
        sizing_findings(sized(of_runs(20, peak_cpu_milli=7_500, peak_memory_mib=30_000), [running()]), [running()])
        == []
    )


def test_what_cannot_be_stopped_is_not_to_be_resized() -> None:
    running_only = [running(ids=()), running(ids=("small",), cpu_milli=2_400, memory_mib=6_000, tasks=1)]
    (found,) = sizing_findings(sized(of_runs(40), running_only), running_only)
    assert (found.action, found.targets, found.parameters) == ("notify", ("acme/train",), ())


def test_use_above_the_request_is_found_as_a_risk() -> None:
    kinds = sized(of_runs(20, peak_memory_mib=40_000), [running()])
    (found,) = sizing_findings(kinds, [running()])
    assert found.kind == "short_of_memory"
    assert found.parameters == (
        "--request",
        f"memory={kinds[0].memory.recommended}MiB",
    )


def test_no_such_risk_is_told_of_work_that_is_held_to_its_request_or_of_several_sizes() -> None:
    for those in ([running(guaranteed=True)], [running(), running(memory_mib=40_960)]):
        found = sizing_findings(sized(of_runs(20, peak_memory_mib=40_000), those), those)
        assert "short_of_memory" not in [each.kind for each in found]


def test_the_engine_is_told_only_what_is_sure_and_of_one_group() -> None:
    spec = WorkloadSpec(
        id="w", name="train-7", tenant="acme", queue="q",
        groups=(TaskGroup(count=2, request=Resources(cpu_milli=8_000, memory_mib=32_768)),),
    )  # fmt: skip
    sizer = Sizer()
    sizer.tell(of_runs(5))
    assert sizer.recommend(spec) == ()
    sizer.tell(of_runs(20))
    (size,) = sizer.recommend(spec)
    assert (size.group, size.cpu_milli) == (spec.groups[0].name, 2_400)
    assert "20 runs" in size.evidence
    two = WorkloadSpec(
        id="w",
        name="train-7",
        tenant="acme",
        queue="q",
        groups=(spec.groups[0], TaskGroup(name="b", count=1, request=spec.groups[0].request)),
    )
    assert sizer.recommend(two) == ()
