"""The week on machines that are taken back: prices, the bound, and checkpoints as often as Young and Daly say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cells import CLASSES

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.specs import (
    Autoscaling,
    CellSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.scenarios.spot_week import (
    HOUR_MS,
    MINUTE_MS,
    Bound,
    Market,
    SpotJob,
    ZonePrices,
    assumed_market,
    jobs,
    live,
    ran_and_stops,
    read_market,
    stock_curve,
)

REAL = Path(__file__).parents[4] / "shared" / "data" / "spot_ec2_2015"
PRICES = ZonePrices(zone="z", at_ms=(-HOUR_MS, HOUR_MS, 3 * HOUR_MS), microusd_hour=(100, 400, 50), mean_before=100)


def test_a_machine_costs_the_integral_of_the_price_over_its_life() -> None:
    assert PRICES.cost(0, 4 * HOUR_MS) == 100 + 800 + 50
    assert PRICES.cost(HOUR_MS // 2, HOUR_MS + HOUR_MS // 4) == 150
    assert PRICES.cost(5 * HOUR_MS, 5 * HOUR_MS) == 0


def test_while_the_price_is_above_on_demand_there_are_no_machines() -> None:
    assert PRICES.above(200) == [(HOUR_MS, 3 * HOUR_MS)]
    assert PRICES.above(400) == []
    assert stock_curve([(10, 20), (20, 30), (40, 50)]) == (
        (0, 500), (9, 500), (10, 0), (19, 0), (20, 0), (29, 0), (30, 500), (39, 500), (40, 0), (49, 0), (50, 500),
    )  # fmt: skip


def test_the_bound_buys_the_cheapest_minutes_before_the_deadline() -> None:
    market = Market(source="", on_demand=200, zones=(PRICES,))
    job = SpotJob(id="a", arrives_ms=0, work_ms=90 * MINUTE_MS, tasks=2, deadline_ms=4 * HOUR_MS)
    microusd_each = 60 * (50 // 60) + 30 * (100 // 60)
    assert Bound(market).cost(job) == 2 * microusd_each
    certain = SpotJob(id="b", arrives_ms=0, work_ms=HOUR_MS, tasks=1, deadline_ms=4 * HOUR_MS, certain=True)
    assert Bound(market).cost(certain) == 200


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(("timestamp,spot_price_usd_per_hour", *lines)) + "\n")
    return str(path)


def test_a_market_is_read_from_series_of_one_type(tmp_path: Path) -> None:
    days = [f"2015-03-{day:02}" for day in range(1, 32)] + [f"2015-04-{day:02}" for day in range(1, 31)]
    cheap = write(tmp_path / "z1-r3.large.csv", *(f"{day} 00:00:00+00:00,0.02" for day in days))
    dear = write(
        tmp_path / "z2-r3.large.csv", *(f"{day} 12:00:00+00:00,{0.3 if day[-1] == '3' else 0.03}" for day in days)
    )
    market = read_market([cheap, dear], 0)
    assert market.on_demand == 175_000
    assert "2015-03-09" in market.source, "the first Monday that both know the day before"
    assert [zone.zone for zone in market.zones] == ["z1", "z2"]
    assert market.zones[1].mean_before == 30_000, "prices at which nothing is to be had do not count"
    assert market.zones[1].above(market.on_demand)[0] == (
        4 * 24 * HOUR_MS + 12 * HOUR_MS,
        5 * 24 * HOUR_MS + 12 * HOUR_MS,
    )
    assert read_market([cheap, dear], 1).source != market.source


@pytest.mark.parametrize(
    ("name", "lines", "what"),
    [
        ("a-x9.huge", ("2015-03-01 00:00:00+00:00,1",), "on-demand price is known"),
        ("a-r3.large", ("yesterday,1",), "line 2"),
        ("a-r3.large", ("2015-03-01 00:00:00+00:00,cheap",), "line 2"),
        ("a-r3.large", ("2015-03-02 00:00:00+00:00,1", "2015-03-01 00:00:00+00:00,1"), "early to late"),
        ("a-r3.large", ("2015-03-01 00:00:00+00:00,1", "2015-03-02 00:00:00+00:00,-1"), "early to late"),
        ("a-r3.large", ("2015-03-01 00:00:00+00:00,1", "2015-03-02 00:00:00+00:00,1"), "whole calendar week"),
    ],
)
def test_series_that_are_of_no_use_are_refused(tmp_path: Path, name: str, lines: tuple[str, ...], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        read_market([write(tmp_path / f"{name}.csv", *lines)], 0)


def test_the_same_seed_gives_the_same_work() -> None:
    assert jobs(3, 0.2) == jobs(3, 0.2)
    assert jobs(3, 0.2) != jobs(4, 0.2)
    assert all(job.deadline_ms >= job.arrives_ms + job.work_ms for job in jobs(1))


@pytest.mark.slow
def test_policies_keep_their_word_and_none_beats_the_bound() -> None:
    market = assumed_market()
    if REAL.is_dir():
        market = read_market([str(REAL / f"us-east-1{zone}-Linux-r3.large.csv.gz") for zone in "ab"], 0)
    work = jobs(2, 0.2)
    bound = sum(map(Bound(market).cost, work))
    found = {policy: live(market, work, policy, 2) for policy in ("on-demand only", "mixed", "spot first")}
    for outcome in found.values():
        assert outcome.cost_microusd > bound
        assert outcome.in_time == outcome.finished == len(work)
    assert found["on-demand only"].machines_taken == 0
    assert found["spot first"].cost_microusd < found["on-demand only"].cost_microusd // 2
    assert live(market, work, "mixed", 2).cost_microusd == found["mixed"].cost_microusd


# -- how often to write checkpoints -----------------------------------------------------------------------------------

CHECKPOINT_MS = 6 * MINUTE_MS
MTBF_H = 5


def goodput(every_ms: int) -> float:
    """Useful part of the time that tasks run, when each writes a checkpoint after so much work."""
    taken = round(1000 * (1 - math.exp(-1 / MTBF_H)))
    pool = PoolSpec(
        name="p",
        capacity=Resources(cpu_milli=1000),
        spot=True,
        scaling=ScalingSpec(most=100, boot_ms=(1, 1), taken_permille_hour=taken, notice_ms=0),
    )
    settings = Settings(
        autoscaling=Autoscaling(scan_every_ms=5 * MINUTE_MS, scale_up_after_ms=0, scale_down_below_permille=0)
    )
    cell = CellSpec(pools=(pool,), queues=(QueueSpec(name="q"),), priority_classes=CLASSES, settings=settings)
    engine = Engine.open(None, seed=1, cell=cell)
    work_ms = 16 * HOUR_MS
    step_ms = every_ms + CHECKPOINT_MS
    run_ms = work_ms // every_ms * step_ms
    task = TaskGroup(request=Resources(cpu_milli=1000))
    many = tuple(
        WorkloadSpec(id=f"w{i}", queue="q", groups=(task,), simulated_runtime_ms=run_ms, checkpoint_interval_ms=step_ms)
        for i in range(24)
    )
    engine.command(cmd.Submit(workloads=many))
    w = engine.state.workloads
    while any(state != WorkloadState.FINISHED for state in w.state):
        engine.advance(engine.now_ms + HOUR_MS)
    return len(many) * work_ms / sum(ran_and_stops(w, row)[0] for row in range(len(many)))


def test_checkpoints_far_too_often_or_too_seldom_cost_goodput() -> None:
    assert goodput(HOUR_MS // 8) < goodput(HOUR_MS) > goodput(8 * HOUR_MS)


@pytest.mark.slow
def test_goodput_is_best_near_the_interval_of_young_and_daly() -> None:
    best_h = math.sqrt(2 * CHECKPOINT_MS / HOUR_MS * MTBF_H)
    assert best_h == 1
    found = {hours: goodput(round(hours * HOUR_MS)) for hours in (0.125, 0.25, 0.5, 1, 2, 4, 8)}
    best = max(found, key=found.__getitem__)
    assert 0.5 <= best / best_h <= 2, found
