"""What work would cost: exact against the ledger, reproducible from what is told, honest about what is not known."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.spec_parts import Autoscaling
from engine.model.specs import NodeSpec, PoolSpec, Resources, ScalingSpec
from engine.model.twin_queries import Attempt, Options, OptionTrial, Placing
from recommender.estimates.queries import Offer, QuoteRequest, RunTime
from recommender.estimates.quotes import (
    NEVER,
    QuoteCandidate,
    as_if_free,
    charged,
    interrupted,
    likely_of,
    listed,
    plan,
    priced,
    quantiles,
)
from tests.support.cells import small_cell, submit, workload

HOUR, MINUTE = 3_600_000, 60_000


def cell(*pools: PoolSpec, nodes: int = 4) -> Engine:
    """The small cell with more pools."""
    base = small_cell(gpu_nodes=nodes)
    more = tuple(NodeSpec(id=f"{pool.name}-{i}", pool=pool.name) for pool in pools for i in range(nodes))
    made = msgspec.structs.replace(
        base, pools=(*base.pools, *pools), nodes=(*base.nodes, *more),
        settings=msgspec.structs.replace(base.settings, autoscaling=Autoscaling(enabled=False)),
    )  # fmt: skip
    engine = Engine.open(None, cell=made)
    engine.advance(HOUR)
    return engine


def gpu_pool(name: str, **more: object) -> PoolSpec:
    given = {"capacity": Resources(cpu_milli=96_001, memory_mib=777_777, gpu_milli=8000), "gpu_model": "H100"} | more
    return PoolSpec(name=name, **given)  # type: ignore[arg-type]


def asked(engine: Engine, **more: object) -> tuple[QuoteCandidate, ...]:
    request = QuoteRequest(**({"nodes": 2, "gpus": 8, "model": "H100", "run_ms": 6 * HOUR} | more))  # type: ignore[arg-type]
    return plan(engine.state, request, engine.now_ms).candidates


def known(run_ms: int) -> RunTime:
    return RunTime(
        p10_ms=run_ms, p50_ms=run_ms, p90_ms=run_ms, told=True, samples=0, level="", p90_coverage_permille=None
    )


def learnt(p10_ms: int, p50_ms: int, p90_ms: int) -> RunTime:
    return RunTime(
        p10_ms=p10_ms, p50_ms=p50_ms, p90_ms=p90_ms, told=False, samples=40, level="all", p90_coverage_permille=900
    )


# -- exact ------------------------------------------------------------------------------------------------------------


def test_a_quote_is_what_the_ledger_charges_to_the_last_millionth() -> None:
    draw = Random(7)
    for _ in range(12):
        price = draw.randrange(1, 10**9)
        engine = cell(gpu_pool("odd", price_microusd_hour=price))
        run_ms, nodes, gpus = draw.randrange(1, 100 * HOUR), draw.randint(1, 4), draw.randint(1, 8)
        memory = draw.choice([None, draw.randrange(1, 777_777)])
        found = [
            one for one in asked(engine, nodes=nodes, gpus=gpus, run_ms=run_ms, memory_mib=memory) if one.pool == "odd"
        ]
        spec = msgspec.structs.replace(found[0].spec, simulated_runtime_ms=run_ms)
        engine.command(cmd.Submit(workloads=(spec,)))
        begun_ms = engine.workload(spec.id).started_ms
        engine.advance(engine.now_ms + 101 * HOUR)
        row = engine.state.workloads.row_of[spec.id]
        assert engine.workload(spec.id).ended_ms - begun_ms == run_ms  # type: ignore[operator]
        assert as_if_free(found[0], known(run_ms)).cost_microusd.least == engine.state.ledger.cost_of(
            row, engine.now_ms
        )


def test_whole_nodes_cost_their_list_price_to_the_cent() -> None:
    engine = cell(gpu_pool("p5", price_microusd_hour=55_040_000), nodes=64)
    (one,) = (each for each in asked(engine, nodes=64) if each.pool == "p5")
    assert charged(one.rate_microusd_hour, 6 * HOUR) == 64 * 6 * 55_040_000
    assert one.spec.groups[0].request == Resources(cpu_milli=96_001, memory_mib=777_777, gpu_milli=8000)


def test_a_list_price_is_nodes_times_price_times_hours() -> None:
    offer = Offer(
        machine_type="p5.48xlarge", region="us-east-1", spot=False, price_microusd_hour=55_040_000, source="x"
    )
    found = listed(offer, 64, "H100", 1000, known(6 * HOUR))
    assert found.cost_microusd.most == 64 * 6 * 55_040_000
    assert found.currency == "USD"
    assert found.chance_permille is None
    # When such machines have booted is assumed, not measured.
    assert found.start_ms.least is not None
    assert 1000 < found.start_ms.least == found.start_ms.most
    assert (found.start_ms.runs, found.start_ms.p10, found.start_ms.p50, found.start_ms.p90) == (0, None, None, None)


# -- quantiles --------------------------------------------------------------------------------------------------------


def test_likely_run_times_have_the_quantiles_they_were_made_of() -> None:
    likely = likely_of(learnt(HOUR, 2 * HOUR, 7 * HOUR))
    assert len(likely) == 9
    assert [abs(likely[at] - ms) <= 1 for at, ms in ((0, HOUR), (4, 2 * HOUR), (8, 7 * HOUR))] == [True] * 3
    assert list(likely) == sorted(likely)
    assert likely_of(known(HOUR)) == (HOUR,)


def test_a_quantile_that_lies_among_what_never_happened_is_not_told() -> None:
    found = quantiles([5, 5, NEVER, NEVER, NEVER])
    assert (found.runs, found.least, found.p10, found.p50, found.p90, found.most) == (5, 5, 5, None, None, None)


@pytest.mark.parametrize("runs", range(1, 5))
def test_no_quantile_is_made_of_fewer_than_five_runs(runs: int) -> None:
    found = quantiles([7 * run for run in range(runs)])
    assert (found.p10, found.p50, found.p90) == (None, None, None)
    assert (found.runs, found.least, found.most) == (runs, 0, 7 * (runs - 1))
    assert quantiles([7] * 5).p50 == 7


def tried(engine: Engine, starts: list[int | None], covered_ms: int, **more: object) -> Options:
    attempts = tuple(
        Attempt(
            started_ms=None if wait is None else engine.now_ms + wait, ended_ms=None, run_ms=HOUR, cost_microusd=0,
            placed=() if wait is None else (Placing("gpu", 2, 40_000_000),), stops=0, covered_ms=covered_ms,
        )
        for wait in starts
    )  # fmt: skip
    trial = OptionTrial(id="quote-0-", reason="", arrivals=False, attempts=attempts)
    return Options(
        version=1, at_ms=engine.now_ms, horizon_ms=24 * HOUR, seeds=len(starts), until="started", arrivals=True,
        trials=(trial,), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_did_not_start_as_far_as_was_looked_is_not_called_never() -> None:
    engine = cell()
    (candidate,) = asked(engine)
    options = tried(engine, [0, 3 * HOUR, None, 3 * HOUR, 3 * HOUR], covered_ms=2 * HOUR)
    found = priced(candidate, options.trials[0], options, known(HOUR))
    # Whether the third run starts before the three hours of others is not known.
    assert (found.start_ms.p10, found.start_ms.p50, found.start_ms.p90) == (engine.now_ms, None, None)
    assert (found.started, found.chance_permille, found.looked_ms) == (1, 200, 2 * HOUR)
    assert any("new arrivals are ignored" in note for note in found.notes)


def test_cost_and_duration_follow_from_rate_and_run_time() -> None:
    engine = cell()
    (candidate,) = asked(engine)
    options = tried(engine, [0, 0], covered_ms=0)
    found = priced(candidate, options.trials[0], options, learnt(HOUR, 2 * HOUR, 5 * HOUR))
    assert found.rate_microusd_hour == candidate.rate_microusd_hour == 40_000_000
    times, costs = found.duration_ms, found.cost_microusd
    assert (times.runs, times.p10, times.p50, times.p90) == (40, HOUR, 2 * HOUR, 5 * HOUR)
    pairs = ((times.p10, costs.p10), (times.p50, costs.p50), (times.p90, costs.p90))
    assert all(cost == found.rate_microusd_hour * ms // HOUR for ms, cost in pairs)  # type: ignore[operator]
    # A run time that is told is no distribution, and neither is one of a handful of runs.
    for run in (known(HOUR), msgspec.structs.replace(learnt(HOUR, 2 * HOUR, 5 * HOUR), samples=4)):
        alone = priced(candidate, options.trials[0], options, run)
        assert alone.cost_microusd.p50 is None
        assert alone.cost_microusd.least == alone.cost_microusd.most == 40_000_000 * run.p50_ms // HOUR


# -- interruptions ----------------------------------------------------------------------------------------------------


def test_lives_with_interruptions_last_as_long_as_renewal_theory_says() -> None:
    # Work of W that begins anew at each interruption takes (e^(hW) - 1) / h in the mean (Ross, Introduction to
    # Probability Models, renewal arguments).
    lives = interrupted([2 * HOUR], 500_000, 0, 0)
    mean_h = sum(lasts for lasts, _ in lives) / len(lives) / HOUR
    assert mean_h == pytest.approx((math.exp(0.5 * 2) - 1) / 0.5, rel=0.15)
    kept = interrupted([2 * HOUR], 500_000, 10 * MINUTE, 0)
    assert sum(lasts for lasts, _ in kept) < sum(lasts for lasts, _ in lives)
    waiting = interrupted([2 * HOUR], 500_000, 0, HOUR)
    assert [held for _, held in waiting] == [held for _, held in lives]
    assert sum(lasts for lasts, _ in waiting) > sum(lasts for lasts, _ in lives)


def test_work_that_hardly_ever_ends_on_spot_says_so() -> None:
    spot = gpu_pool(
        "cheap", price_microusd_hour=9_000_000, spot=True,
        scaling=ScalingSpec(most=4, taken_permille_hour=900),
    )  # fmt: skip
    engine = cell(spot)
    (candidate,) = asked(engine, nodes=4, spot=True, run_ms=24 * HOUR)
    assert candidate.hazard_told
    found = as_if_free(candidate, known(24 * HOUR))
    assert (found.duration_ms.p50, found.cost_microusd.p50, found.interruption_permille) == (None, None, 1000)
    assert "as the pool says" in found.interruption_basis


def test_the_odds_of_an_interruption_are_those_of_all_machines_together() -> None:
    engine = cell(gpu_pool("cheap", spot=True, scaling=ScalingSpec(most=4, taken_permille_hour=100)))
    (candidate,) = asked(engine, nodes=3, spot=True)
    assert as_if_free(candidate, known(2 * HOUR)).interruption_permille == round((1 - 0.9 ** (3 * 2)) * 1000)
    untold = cell(gpu_pool("cheap", spot=True))
    (candidate,) = asked(untold, nodes=3, spot=True)
    assert as_if_free(candidate, known(2 * HOUR)).interruption_permille is None


def test_work_on_demand_is_stopped_as_often_as_its_like_was_for_the_time_it_runs() -> None:
    engine = cell()
    (candidate,) = asked(engine)
    assert as_if_free(candidate, known(HOUR)).interruption_permille is None
    engine.command(submit(*[workload(f"w{i}", run=HOUR // 60, estimate=HOUR) for i in range(60)]))
    engine.command(cmd.Requeue(ids=tuple(f"w{i}" for i in range(3))))
    engine.advance(engine.now_ms + HOUR)
    (candidate,) = asked(engine)
    assert (candidate.past.finished, candidate.past.stops, candidate.past.ran_ms) == (60, 3, HOUR)
    brief, long = (as_if_free(candidate, known(ms)) for ms in (HOUR // 60, 1000 * HOUR))
    # Three stops in an hour of run time: nearly never in a minute, certainly in a thousand hours.
    assert brief.interruption_permille == round(1000 * (1 - math.exp(-3 / 60)))
    assert (long.interruption_permille, long.interruption_over_ms) == (1000, 1000 * HOUR)
    assert (
        "3 stops of 60 of its priority that finished within a day, 1 h in all, at that rate" in long.interruption_basis
    )
    assert "extrapolated: none ran longer than 0.0167 h" in long.interruption_basis
    assert "extrapolated" not in brief.interruption_basis


def test_what_was_never_stopped_in_an_hour_says_nothing_of_a_thousand() -> None:
    engine = cell()
    engine.command(submit(*[workload(f"w{i}", run=HOUR // 60) for i in range(60)]))
    engine.advance(engine.now_ms + HOUR)
    (candidate,) = asked(engine)
    assert as_if_free(candidate, known(HOUR // 2)).interruption_permille == 0
    long = as_if_free(candidate, known(1000 * HOUR))
    assert long.interruption_permille is None
    assert "too little to tell of 1,000 h" in long.interruption_basis


def test_odds_of_spot_machines_from_a_short_watch_say_that_they_are_extrapolated() -> None:
    engine = cell(gpu_pool("cheap", spot=True, price_microusd_hour=9_000_000))
    (candidate,) = asked(engine, nodes=2, spot=True)
    # One of the pool's machines was taken in the 10 hours that they were watched.
    candidate = msgspec.structs.replace(candidate, hazard_ppm_hour=100_000, watched_ms=10 * HOUR)
    found = as_if_free(candidate, known(1000 * HOUR))
    assert found.interruption_permille == 1000
    assert "extrapolated: 2,000 h of machines from 10 h that were watched" in found.interruption_basis
    assert "extrapolated" not in as_if_free(candidate, known(4 * HOUR)).interruption_basis


def test_runs_that_did_not_reach_its_end_tell_neither_odds_nor_duration() -> None:
    engine = cell()
    (candidate,) = asked(engine)
    options = msgspec.structs.replace(tried(engine, [0] * 8, covered_ms=7 * 24 * HOUR), until="ended")
    found = priced(candidate, options.trials[0], options, known(1000 * HOUR))
    # None was stopped in the week that was run ahead; it runs for six.
    assert found.interruption_permille is None
    assert (found.duration_ms.least, found.duration_ms.runs) == (1000 * HOUR, 0)
    assert any("no run reached its end" in note for note in found.notes)


# -- what is asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"nodes": 0}, "nodes"),
        ({"gpus": 16}, "the largest node of H100 has 8"),
        ({"gpus": 99}, "99 on each node are requested, and the largest node of H100 has 8 (pool gpu)"),
        ({"model": "H1000"}, "Did you mean H100"),
        ({"model": "tpu"}, "There are: H100"),
        ({"gpus": 0}, "is a model of GPUs"),
        ({"start_ms": 1}, "past"),
        ({"spot": True}, "The cell has no spot pool"),
        ({"queue": "aa"}, "Did you mean a"),
        ({"queue": "root"}, "takes no workloads"),
        ({"priority_class": "vip"}, "there is no 'vip'"),
        ({"nodes": 5}, "larger than the cell"),
        ({"run_ms": -1}, "run_ms"),
    ],
)
def test_what_cannot_be_is_named(more: dict[str, object], said: str) -> None:
    engine = cell()
    with pytest.raises(SpecError) as caught:
        asked(engine, **more)
    assert said in f"{caught.value} {caught.value.remedy}"


def test_pools_of_the_model_come_first_and_others_are_marked() -> None:
    engine = cell(
        gpu_pool("dear", price_microusd_hour=30_000_000), gpu_pool("old", gpu_model="A100", price_microusd_hour=9),
        gpu_pool("taken", spot=True),
    )  # fmt: skip
    found = asked(engine)
    assert [(one.pool, one.kind, one.spot) for one in found] == [
        ("gpu", "now", False), ("dear", "now", False), ("taken", "now", True), ("old", "pool", False),
    ]  # fmt: skip
    assert "other GPUs" in found[3].notes[0]
    later = asked(engine, start_ms=engine.now_ms + HOUR)
    assert [one.kind for one in later][:4] == ["later", "later", "later", "now"]
    assert later[0].spec.not_before_ms == engine.now_ms + HOUR


def test_a_pool_that_is_too_small_is_told_and_left_out() -> None:
    engine = cell(gpu_pool("large"), nodes=4)
    base = plan(engine.state, QuoteRequest(nodes=4, gpus=8, model="H100"), engine.now_ms)
    assert base.warnings == ()
    offer = Offer(machine_type="x", region="", spot=False, price_microusd_hour=1, source="list")
    more = plan(engine.state, QuoteRequest(nodes=5, gpus=8, model="H100", offers=(offer,)), engine.now_ms)
    assert more.candidates == ()
    assert any("has 4 nodes at most, and 5 are requested" in warning for warning in more.warnings)
