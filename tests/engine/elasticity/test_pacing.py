"""Simulated clouds, and how fast machines are asked for."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from engine.elasticity.order_limits import Pacer
from engine.elasticity.providers import (
    CloudSpec,
    ProjectSpec,
    ProviderSignal,
    SimulatedCloud,
    ZoneSpec,
    stock_at,
)
from engine.model.errors import NotFoundError, SpecError
from engine.model.specs import HOUR_MS
from engine.scenarios import clemson

SECOND = 1000
PLENTY = ((0, 1_000_000),)


def cloud(*zones: ZoneSpec, quota: int = 1000, calls: int = 1000) -> CloudSpec:
    project = ProjectSpec(name="p", requests_per_100_s=quota, zones=zones)
    return CloudSpec(projects=(project,), head_calls_per_s=calls)


def zone(name: str = "a", stock: tuple[tuple[int, int], ...] = PLENTY, **more: object) -> ZoneSpec:
    return ZoneSpec(name=name, stock=stock, **more)


# -- what providers do ------------------------------------------------------------------------------------------------


def test_requests_over_the_quota_of_any_100_seconds_are_refused() -> None:
    simulated = SimulatedCloud(cloud(zone("a"), zone("b"), quota=100))
    assert len(simulated.request(0, 60, 0)) == 60
    assert len(simulated.request(1, 60, 50 * SECOND)) == 40, "zones of a project share its quota"
    assert len(simulated.request(0, 60, 99_999)) == 0
    assert len(simulated.request(0, 70, 100 * SECOND)) == 60, "those of the first second are past, the others are not"
    assert simulated.over_quota == 20 + 60 + 10


def test_what_a_zone_does_not_have_is_out_of_stock_and_comes_with_time() -> None:
    simulated = SimulatedCloud(cloud(zone(stock=((0, 0), (100 * SECOND, 50)), taken_permille_hour=0)))
    simulated.request(0, 30, 38 * SECOND)
    said = Counter(report.signal for report in simulated.take_reports(45 * SECOND))
    assert 19 <= said[ProviderSignal.GRANTED] <= 21
    assert said[ProviderSignal.GRANTED] + said[ProviderSignal.OUT_OF_STOCK] == 30
    assert stock_at(simulated.zones[0], -1) == 0
    assert [stock_at(simulated.zones[0], at_ms) for at_ms in (0, 50 * SECOND, HOUR_MS)] == [0, 25, 50]


def test_the_head_node_drops_the_calls_above_its_limit() -> None:
    simulated = SimulatedCloud(cloud(zone(boot_ms=(10_000, 10_001)), calls=7))
    simulated.request(0, 100, 0)
    reports = simulated.take_reports(60 * SECOND)
    taken = Counter(report.at_ms // SECOND for report in reports if report.signal == ProviderSignal.CALLED)
    assert max(taken.values()) == 7
    assert sum(taken.values()) + sum(report.signal == ProviderSignal.DROPPED for report in reports) == 100


def test_spot_machines_are_taken_at_the_rate_and_what_is_given_back_is_heard_of_no_more() -> None:
    simulated = SimulatedCloud(cloud(zone(taken_permille_hour=200), quota=20_000, calls=20_000))
    simulated.request(0, 10_000, 0)
    reports = simulated.take_reports(HOUR_MS)
    taken = [report for report in reports if report.signal == ProviderSignal.TAKEN]
    assert 0.18 < len(taken) / 10_000 < 0.21
    assert simulated.held[0] == 10_000 - len(taken)
    left = sorted({report.machine for report in reports} - {report.machine for report in taken})
    assert simulated.give_back(0, left, HOUR_MS) == len(left)
    assert simulated.held[0] == 0
    assert not simulated.take_reports(100 * HOUR_MS)
    with pytest.raises(NotFoundError, match="no machine 99999"):
        simulated.give_back(0, [99_999], 2 * HOUR_MS)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (cloud(zone(), quota=0), "projects[0].requests_per_100_s"),
        (cloud(zone(), calls=0), "head_calls_per_s"),
        (cloud(zone(), zone("a b")), "projects[0].zones[1].name"),
        (cloud(zone(taken_permille_hour=1000)), "projects[0].zones[0].taken_permille_hour"),
        (cloud(zone(boot_ms=(5, 4))), "projects[0].zones[0].boot_ms[1]"),
        (cloud(zone(stock=((5, 1), (4, 2)))), "projects[0].zones[0].stock[1][0]"),
        (cloud(zone(stock=((5, -1),))), "projects[0].zones[0].stock[0][1]"),
    ],
)
def test_a_cloud_that_makes_no_sense_is_refused_with_the_place(spec: CloudSpec, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        SimulatedCloud(spec)
    assert caught.value.where == where


# -- pacing -----------------------------------------------------------------------------------------------------------


def run(spec: CloudSpec, wanted: int, seconds: int, seed: int = 1) -> tuple[SimulatedCloud, Pacer, list[int]]:
    """(cloud, pacer, machines connected by second)"""
    simulated, pacer = SimulatedCloud(spec, seed), Pacer(spec, seed)
    connected, curve = 0, []
    for second in range(seconds):
        reports = simulated.take_reports(second * SECOND)
        pacer.take(reports)
        connected += sum(
            (report.signal == ProviderSignal.CALLED) - (report.signal == ProviderSignal.TAKEN) for report in reports
        )
        pacer.ask(wanted, simulated, second * SECOND)
        curve.append(connected)
    return simulated, pacer, curve


@pytest.mark.parametrize("boot_ms", [(1_000, 1_001), (20_000, 21_000), (45_000, 100_000), (60_000, 400_000)])
@pytest.mark.parametrize("calls", [10, 40, 300])
def test_no_call_is_lost_and_no_request_over_the_quota_however_machines_boot(
    boot_ms: tuple[int, int], calls: int
) -> None:
    zones = [zone(f"z{i}", boot_ms=boot_ms, taken_permille_hour=50) for i in range(6)]
    spec = cloud(*zones, quota=6000, calls=calls)
    simulated, pacer, curve = run(spec, 60 * calls, 1200)
    assert pacer.calls_lost == 0
    assert simulated.over_quota == 0
    assert curve[-1] >= 59 * calls, "and there are as many as were wanted, lost ones replaced"
    assert pacer.alive <= 60 * calls


def test_no_more_machines_than_wanted_and_none_asked_for_in_vain() -> None:
    simulated, pacer, curve = run(cloud(zone()), 137, 900)
    assert curve[-1] == max(curve) == 137
    assert (pacer.requests, pacer.out_of_stock, simulated.held[0]) == (137, 0, 137)


def test_stock_that_grows_is_found_within_two_minutes_and_without_storms() -> None:
    growing = ((0, 0), (30 * 60 * SECOND, 6_000))
    zones = [zone(f"z{i}", stock=growing) for i in range(3)]
    simulated, pacer, curve = run(cloud(*zones, quota=2000, calls=60), 20_000, 1800)
    for second in range(300, 1800, 60):
        there = sum(stock_at(each, (second - 120) * SECOND) for each in zones)
        assert curve[second] >= 0.99 * there, f"{curve[second]} of {there} machines after {second} s"
    assert simulated.over_quota == pacer.calls_lost == 0
    assert pacer.requests < 2 * curve[-1]


def test_machines_are_given_back_as_fast_as_the_quota_lets_them() -> None:
    spec = cloud(zone(), quota=100, calls=50)
    simulated, pacer, _ = run(spec, 100, 400)
    pacer.release(0, range(100))
    assert pacer.leaving == 100
    for second in range(400, 520):
        pacer.ask(0, simulated, second * SECOND)
    assert pacer.leaving == simulated.held[0] == pacer.alive == 0
    assert simulated.over_quota == 0


# -- the published run ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_published_marks_are_reached_no_later_and_not_before_the_bound() -> None:
    ramp = clemson.fleet_alone(clemson.cloud(), 100 * 60 * SECOND)
    assert ramp.calls_lost == ramp.over_quota == 0
    for mark in ramp.marks[:2]:
        assert mark.reached_ms is not None
        assert mark.bound_ms < mark.reached_ms <= mark.published_ms
    assert ramp.marks[2].reached_ms is None


@pytest.mark.thorough
def test_one_project_is_slower_where_there_is_stock_and_takes_hours_to_let_go() -> None:
    until_ms = 40 * 60 * SECOND
    six, one = (clemson.fleet_alone(clemson.cloud(*of, plenty=True), until_ms) for of in ((6, 6000), (1, 2000)))
    assert six.calls_lost == one.calls_lost == 0
    assert six.peak_machines > 2 * one.peak_machines
    assert one.release_ms / one.peak_machines > 10 * six.release_ms / six.peak_machines


def test_work_runs_on_the_machines_and_starts_over_when_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clemson, "AHEAD", 300)
    few = replace(clemson.cloud().projects[0].zones[0], stock=((0, 150),), taken_permille_hour=900)
    ran = clemson._Run(cloud(few), 1)
    ran.go(90 * 60 * SECOND)
    w = ran.engine.state.workloads
    assert ran.ramp(90 * 60 * SECOND).taken > 100
    assert len(ran.engine.state.capacity.row_of) == len(ran.connected)
    assert sum(w.attempts) > sum(attempts > 0 for attempts in w.attempts), "some were started over"
    assert ran.busy_ms > 0.95 * ran.connected_ms
