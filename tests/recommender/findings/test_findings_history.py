"""Findings in what was measured over time: against what is usual, thin while no week was seen, silent when all is
well."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recommender.findings.history_findings import (
    HourlySeries,
    PoolNow,
    ReservationNow,
    idle_pools,
    interruptions,
    pools_ahead,
    runaways,
    stale_reservations,
)
from recommender.findings.suggestions import ModelSkill, Suggestion

HOUR = 3_600_000
NOW = 1_000 * HOUR
NAN = float("nan")
POOL = PoolNow(
    name="p", nodes=10, least=6, most=30, wanted=0, boot_ms=HOUR, price_microusd_hour=2_000_000, node_gpu_milli=8_000,
    node_cpu_milli=64_000,
)  # fmt: skip


def series(*hours: float) -> HourlySeries:
    return HourlySeries(subject="p", hours=hours)


def complete(found: Suggestion) -> None:
    assert found.kind
    assert found.evidence
    assert all(item.rows >= 1 and item.metric and item.window and item.value for item in found.evidence)
    assert found.counterfactual.startswith("Not suggested")
    assert found.alternatives[-1].startswith("No action")


# -- pools ahead ------------------------------------------------------------------------------------------------------


def ahead(p90: list[float], **pool: Any) -> list[Suggestion]:
    skill = ModelSkill(model="demand forecast", measure="held", value="812 of 1,000", scored=200)
    of = msgspec.structs.replace(POOL, **pool)
    return pools_ahead([of], {"p": p90}, NOW, NOW, {"p": skill}, {"p": ()})


def test_a_pool_is_sized_for_what_comes_when_an_order_is_ready() -> None:
    [found] = ahead([99.0, 11.2, 13.5, 12.0, 99.0])
    complete(found)
    assert (found.action, found.targets) == ("set_targets", ("p",))
    assert found.parameters == ("1970-02-11T17:00=14", "1970-02-11T20:00=0")
    assert found.cost_delta_microusd_hour == 4 * 2_000_000
    assert found.skill is not None
    assert found.benefit.waiting_gpu_milli_h == 4 * 8_000


@pytest.mark.parametrize(
    ("p90", "pool"),
    [
        ([99.0, 10.0, 9.0, 8.0], {}),
        ([99.0, 12.0, 9.0, 8.0], {"wanted": 12}),
        ([99.0, 12.0, 9.0, 8.0], {"least": None}),
        ([99.0, 12.0, 9.0, 8.0], {"most": 10}),
        ([99.0], {}),
        ([], {}),
    ],
)
def test_enough_or_fixed_or_unknown_is_no_finding(p90: list[float], pool: dict[str, Any]) -> None:
    assert ahead(p90, **pool) == []


# -- idle pools -------------------------------------------------------------------------------------------------------


def test_nodes_that_no_hour_needed_let_the_least_size_go_down() -> None:
    [found] = idle_pools([POOL], {"p": series(*[16_000.0] * 200, 24_000.0)})
    complete(found)
    assert (found.action, found.parameters, found.thin) == ("set_scaling", ("--least", "3"), ())
    assert found.cost_delta_microusd_hour == -3 * 2_000_000
    assert found.expected is not None
    assert (found.expected.was, found.expected.to) == (10.0, 7.0)


def test_a_pool_of_fixed_size_is_for_people_and_a_short_history_is_thin() -> None:
    [found] = idle_pools([msgspec.structs.replace(POOL, least=None)], {"p": series(*[16_000.0] * 30)})
    complete(found)
    assert (found.action, found.cost_delta_microusd_hour) == ("notify", -8 * 2_000_000)
    assert "only 30 hours" in found.thin[0]


@pytest.mark.parametrize(
    "hours",
    [[16_000.0] * 23, [NAN] * 100, [16_000.0] * 99 + [80_000.0], []],
    ids=["short", "gaps", "once needed", "none"],
)
def test_a_pool_that_was_needed_once_or_is_not_known_is_left(hours: list[float]) -> None:
    assert idle_pools([POOL], {"p": series(*hours)}) == []


def test_without_a_price_or_with_a_least_that_is_needed_nothing_is_saved() -> None:
    used = {"p": series(*[48_000.0] * 100)}
    assert idle_pools([POOL], used) == []
    assert idle_pools([msgspec.structs.replace(POOL, price_microusd_hour=0, least=None)], used) == []


# -- spot -------------------------------------------------------------------------------------------------------------


def test_many_nodes_taken_back_are_told_beside_the_usual() -> None:
    spot = msgspec.structs.replace(POOL, spot=True)
    [found] = interruptions([spot], {"p": series(*[0.05] * 168, *[0.25] * 24)})
    complete(found)
    assert found.evidence[0].baseline == "1.2 on a usual day"
    assert interruptions([POOL], {"p": series(*[0.25] * 24)}) == [], "not spot"
    assert interruptions([spot], {"p": series(*[0.25] * 200)}) == [], "as usual"
    assert interruptions([spot], {"p": series(*[0.1] * 24)}) == [], "few"


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_a_tenant_far_over_its_usual_is_told_only_while_others_wait() -> None:
    grown = series(*[10_000.0, 12_000.0] * 50, 50_000.0, 55_000.0, 60_000.0)
    [found] = runaways([grown], 100_000, 30_000)
    complete(found)
    assert found.evidence[0].value == "50"
    assert runaways([grown], 100_000, 0) == []
    assert runaways([grown], 1_000_000, 30_000) == [], "a small part of the cell"
    assert runaways([series(*[50_000.0] * 100)], 100_000, 30_000) == [], "as usual"
    assert runaways([series(*[NAN] * 100, 50_000.0)], 100_000, 30_000) == [], "nothing usual is known"


# -- reservations -----------------------------------------------------------------------------------------------------


def test_a_reservation_with_nothing_on_it_is_given_back() -> None:
    kept = ReservationNow(
        name="r", nodes=4, busy=0, gpu_milli=32_000, cpu_milli=1, since_ms=NOW - 2 * HOUR, end_ms=NOW + 10 * HOUR
    )
    [found] = stale_reservations([kept], NOW, 16_000)
    complete(found)
    assert (found.action, found.targets) == ("unreserve", ("r",))
    assert found.benefit.waiting_gpu_milli_h == 160_000
    for change in ({"busy": 1}, {"since_ms": NOW - HOUR}, {"end_ms": NOW + HOUR}):
        assert stale_reservations([msgspec.structs.replace(kept, **change)], NOW, 16_000) == []
