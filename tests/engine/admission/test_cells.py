"""Where a submission goes among cells, and whose turn it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission.fleet_routing import (
    CellClock,
    CellFacts,
    CellLink,
    CellOffer,
    Dataset,
    FleetSpec,
    Routing,
    RoutingTerms,
    TenantShare,
    Transfer,
    WaitingSubmission,
    as_of_cell,
    asked_of,
    check_fleet,
    decide,
    fair_order,
    offer_of,
    over_quota,
    share_ppm,
    terms_of,
)
from engine.model.errors import SpecError
from engine.model.specs import ArraySpec
from engine.model.twin_queries import Attempt, Options, OptionTrial, Placing
from tests.support.cells import workload
from tests.support.effort import examples

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
USD = 1_000_000
EAST = CellLink(name="east", connect="e", residency=("us",), queues={"research": "ml"})
WEST = CellLink(name="west", connect="w", residency=("eu",))
IMAGES = Dataset(name="images", cells=("east",), size_mib=1024 * 1024, elsewhere="read")
PATIENTS = Dataset(name="patients", cells=("west",))
FLEET = FleetSpec(
    cells=(EAST, WEST),
    tenants=(
        TenantShare(name="acme", weight=2, quota={"gpu_milli": 16_000}),
        TenantShare(name="clinic", residency=("eu",)),
        TenantShare(name="local", home="east"),
    ),
    datasets=(IMAGES, PATIENTS),
    transfer=Transfer(microusd_gib=20_000, mib_s=1024),
)
NOW = CellOffer(p50_ms=0, p90_ms=0, cost_microusd=10 * USD)


def cells(east: int = 0, west: int = 0, down: str = "") -> list[CellFacts]:
    """Both with 100 devices, of which so many are used; one may be down."""
    return [
        CellFacts(
            link=link,
            why_not="down: gone" if link.name == down else "",
            capacity={"gpu_milli": 100_000},
            used={"gpu_milli": 1000 * used},
        )
        for link, used in ((EAST, east), (WEST, west))
    ]


def terms(tenant: str = "", waited_ms: int = 0, cells: tuple[str, ...] = (), **tags: str) -> RoutingTerms:
    spec = msgspec.structs.replace(workload("x", gpu=8000, cpu=0, tenant=tenant), tags=tags)
    return terms_of(spec, FLEET, cells, waited_ms)


def test_of_two_that_start_at_once_the_cheaper_one_gets_it_and_says_why() -> None:
    found = decide(terms(), cells(), {"east": NOW, "west": CellOffer(p50_ms=0, cost_microusd=8 * USD)}, FLEET)
    assert (found.cell, found.why) == ("west", "starts at once; $2.00 less in cost and waiting than east")
    assert [row.score_microusd for row in found.rows] == [8 * USD, 10 * USD]


def test_an_hour_of_waiting_is_weighed_against_money() -> None:
    offers = {"east": CellOffer(p50_ms=6 * MINUTE_MS, cost_microusd=8 * USD), "west": NOW}
    assert decide(terms(), cells(), offers, FLEET).cell == "east"
    dear = msgspec.structs.replace(FLEET, routing=Routing(hour_microusd=100 * USD))
    assert decide(terms(), cells(), offers, dear).cell == "west"


def test_a_full_cell_is_passed_over_for_one_that_starts_it_soon_too() -> None:
    offers = {"east": CellOffer(p50_ms=0, cost_microusd=1 * USD), "west": NOW}
    found = decide(terms(), cells(east=91), offers, FLEET)
    assert (found.cell, found.why) == ("west", "starts at once; east is 91% used")
    later = {**offers, "west": CellOffer(p50_ms=HOUR_MS, cost_microusd=10 * USD)}
    assert decide(terms(), cells(east=91), later, FLEET).cell == "east"


def test_a_cell_that_is_down_or_silent_is_routed_around() -> None:
    found = decide(terms(), cells(down="east"), {"west": NOW}, FLEET)
    assert (found.cell, found.rows[1].why_not) == ("west", "down: gone")
    assert decide(terms(), cells(), {"west": NOW}, FLEET).rows[1].why_not == "it did not answer within 4 s"


def test_home_is_preferred_while_it_has_room() -> None:
    cheap = {"east": NOW, "west": CellOffer(p50_ms=0, cost_microusd=1 * USD)}
    assert decide(terms("local"), cells(), cheap, FLEET).cell == "east"
    assert decide(terms("local"), cells(east=95), cheap, FLEET).cell == "west"


def test_residency_of_the_work_and_of_its_tenant_is_never_broken() -> None:
    offers = {"east": NOW, "west": CellOffer(p50_ms=9 * HOUR_MS, cost_microusd=99 * USD)}
    assert decide(terms(residency="eu", waited_ms=HOUR_MS), cells(), offers, FLEET).cell == "west"
    assert decide(terms("clinic", waited_ms=HOUR_MS), cells(), offers, FLEET).cell == "west"
    found = decide(terms("clinic", residency="us"), cells(), offers, FLEET)
    assert (found.cell, found.never) == ("", True)
    assert decide(terms(residency="ch, us"), cells(), offers, FLEET).cell == "east"


def test_data_that_is_elsewhere_costs_or_forbids() -> None:
    offers = {"east": CellOffer(p50_ms=0, cost_microusd=25 * USD), "west": NOW}
    found = decide(terms(dataset="images"), cells(), offers, FLEET)
    row = next(row for row in found.rows if row.cell == "west")
    assert (row.data_microusd, row.data_ms) == (20_480_000, 1_024_000)
    assert found.cell == "east"
    assert decide(terms(dataset="patients"), cells(), offers, FLEET).cell == "west"
    assert decide(terms(dataset="patients", cells=("east",)), cells(), offers, FLEET).never
    with pytest.raises(SpecError, match="there is no 'nothing'"):
        terms(dataset="nothing")


def test_what_starts_nowhere_soon_is_kept_for_a_while_and_then_queued_where_it_is_best() -> None:
    offers = {
        "east": CellOffer(p50_ms=2 * HOUR_MS, cost_microusd=USD),
        "west": CellOffer(p50_ms=HOUR_MS, cost_microusd=USD),
    }
    kept = decide(terms(), cells(), offers, FLEET)
    assert (kept.cell, kept.waits) == ("", "room")
    assert decide(terms(waited_ms=5 * MINUTE_MS), cells(), offers, FLEET).cell == "west"


def test_a_refusal_of_every_cell_is_for_good_but_not_while_one_is_down() -> None:
    no = CellOffer(refused="there is no queue 'x'")
    assert decide(terms(), cells(), {"east": no, "west": no}, FLEET).never
    found = decide(terms(), cells(down="west"), {"east": no}, FLEET)
    assert (found.never, found.waits) == (False, "cells")


def test_without_a_twins_answer_free_capacity_decides() -> None:
    silent = CellOffer(silent="too many runs")
    found = decide(terms(), cells(east=99, west=10), {"east": silent, "west": silent}, FLEET)
    assert (found.cell, found.rows[0].start_p50_ms) == ("west", 0)
    assert "free capacity alone" in found.rows[0].note


def test_what_is_guessed_comes_after_what_a_twin_has_tried() -> None:
    found = decide(terms(), cells(), {"east": CellOffer(silent="busy"), "west": NOW}, FLEET)
    assert (found.cell, found.rows[1].guessed) == ("west", True)
    assert found.why == "starts at once; of east only its free capacity is known"


def test_no_price_is_not_a_low_one() -> None:
    offers = {"east": CellOffer(p50_ms=MINUTE_MS), "west": NOW}
    found = decide(terms(), cells(), offers, FLEET)
    assert (found.cell, [row.score_microusd for row in found.rows]) == ("west", [0, 5 * USD // 60])


def test_a_quota_counts_what_is_held_in_all_cells() -> None:
    asks = terms("acme")
    assert over_quota(asks, {"gpu_milli": 8000}) == ""
    assert over_quota(asks, {"gpu_milli": 8001}).startswith("acme has 8.001 GPU of 16 GPU in all cells")
    assert over_quota(terms("other"), {"gpu_milli": 10**9}) == ""


def test_all_members_of_an_array_are_asked_for() -> None:
    spec = msgspec.structs.replace(workload("x", count=2, gpu=1000, cpu=0), array=ArraySpec(first=1, last=9, step=2))
    assert asked_of(spec) == {"gpu_milli": 10_000}


def test_a_cell_gets_its_own_names_and_the_times_of_its_clock() -> None:
    spec = msgspec.structs.replace(workload("x", queue="research"), not_before_ms=1_000_000, deadline_ms=2_000_000)
    same = as_of_cell(spec, EAST, "f", CellClock(wall_ms=500_000, cell_ms=503_000, speed=1.0))
    assert (same.queue, same.tags, same.not_before_ms) == ("ml", {"fleet": "f"}, 1_000_000)
    fast = as_of_cell(spec, WEST, "f", CellClock(wall_ms=500_000, cell_ms=9_000_000, speed=10.0))
    assert (fast.queue, fast.not_before_ms, fast.deadline_ms) == ("research", 14_000_000, 24_000_000)


def test_what_a_twin_found_is_told_in_wall_time_with_its_cost() -> None:
    attempts = tuple(
        Attempt(
            started_ms=started, ended_ms=None, run_ms=0, cost_microusd=0, stops=0, covered_ms=0,
            placed=(Placing("gpu", 2, 40 * USD),) if started is not None else (),
        )
        for started in (1_000_000, 1_600_000, 2_200_000, None)
    )  # fmt: skip
    trial = OptionTrial(id="x", reason="no room", arrivals=True, attempts=attempts)
    answer = Options(version=1, at_ms=1_000_000, horizon_ms=1, seeds=4, until="started", arrivals=True, trials=(trial,))
    found = offer_of(answer, 0, HOUR_MS // 2, speed=10.0)
    assert (found.p50_ms, found.p90_ms, found.runs, found.cost_microusd) == (60_000, None, 4, 20 * USD)
    more = msgspec.structs.replace(trial, attempts=(*attempts[:3], attempts[2], attempts[2]))
    found = offer_of(msgspec.structs.replace(answer, trials=(more,)), 0, HOUR_MS // 2, speed=10.0)
    assert (found.p50_ms, found.p90_ms, found.runs) == (120_000, 120_000, 5)
    hopeless = msgspec.structs.replace(answer, trials=(msgspec.structs.replace(trial, attempts=attempts[3:]),))
    found = offer_of(hopeless, 0, HOUR_MS, 1.0)
    assert (found.p50_ms, found.cost_microusd) == (None, None)


def test_turns_go_to_the_tenant_that_holds_least_of_the_fleet_by_its_weight() -> None:
    waiting = [WaitingSubmission(f"{tenant}{i}", tenant, {"gpu_milli": 10_000}, i) for tenant in "ab" for i in range(3)]
    order = fair_order(waiting, {"a": {"gpu_milli": 20_000}}, {"gpu_milli": 100_000}, {"a": 2})
    assert order == ["b0", "a0", "b1", "a1", "a2", "b2"]


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=30),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 100)),
)
def test_everybody_has_a_turn_and_within_a_tenant_the_oldest_goes_first(
    rows: list[tuple[str, int]], held: dict[str, int]
) -> None:
    waiting = [WaitingSubmission(f"{i}", tenant, {"gpu_milli": gpus}, i) for i, (tenant, gpus) in enumerate(rows)]
    holds = {tenant: {"gpu_milli": gpus} for tenant, gpus in held.items()}
    order = fair_order(waiting, holds, {"gpu_milli": 100}, {})
    assert sorted(order, key=int) == [each.id for each in waiting]
    sums = {tenant: holds.get(tenant, {}).get("gpu_milli", 0) for tenant in "abc"}
    left = {tenant: [each for each in waiting if each.tenant == tenant] for tenant in "abc"}
    for name in order:
        tenant, gpus = rows[int(name)]
        assert left[tenant].pop(0).id == name
        assert all(sums[tenant] <= sums[other] for other, rest in left.items() if rest and other != tenant)
        sums[tenant] += gpus


OFFERS = st.builds(
    CellOffer,
    p50_ms=st.none() | st.integers(0, 10**8),
    cost_microusd=st.none() | st.integers(0, 10**9),
    refused=st.sampled_from(["", "no"]),
    silent=st.sampled_from(["", "busy"]),
)


@settings(max_examples=examples(150))
@given(
    st.dictionaries(st.sampled_from(["east", "west"]), OFFERS), st.integers(0, 100), st.integers(0, 100),
    st.sampled_from(["", "east", "west"]), st.sampled_from(["", "acme", "clinic", "local"]), st.integers(0, 10**6),
    st.sampled_from([{}, {"residency": "eu"}, {"dataset": "patients"}, {"dataset": "images"}]),
)  # fmt: skip
def test_nothing_goes_where_it_may_not(
    offers: dict[str, CellOffer], east: int, west: int, down: str, tenant: str, waited: int, tags: dict[str, str]
) -> None:
    asks = terms(tenant, waited, **tags)
    facts = cells(east, west, down)
    found = decide(asks, facts, offers, FLEET)
    assert sorted(row.cell for row in found.rows) == ["east", "west"]
    if not found.cell:
        return
    row = found.rows[0]
    assert (row.cell, row.why_not) == (found.cell, "")
    assert found.cell != down
    assert found.cell in offers
    assert not offers[found.cell].refused
    if tenant == "clinic" or tags.get("residency") == "eu" or tags.get("dataset") == "patients":
        assert found.cell == "west"


def test_shares_are_of_the_dominant_resource() -> None:
    assert (
        share_ppm({"gpu_milli": 10, "cpu_milli": 5}, {"gpu_milli": 100, "cpu_milli": 20, "disk_mib": 0}, 2) == 125_000
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cells": ()}, "cells: is empty"),
        ({"cells": (EAST, EAST)}, "'east' is given twice"),
        ({"tenants": (TenantShare(name="a", home="mars"),)}, "there is no cell 'mars'"),
        ({"tenants": (TenantShare(name="a", weight=0),)}, "weight: 0 is below 1"),
        ({"tenants": (TenantShare(name="a", quota={"tpu": 1}),)}, "tpu: is not a resource"),
        ({"datasets": (Dataset(name="d", cells=("mars",)),)}, "there is no cell 'mars'"),
        ({"routing": Routing(crowded_permille=1001)}, "crowded_permille: 100.1% is above 100%"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_by_name(change: dict[str, object], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        check_fleet(msgspec.structs.replace(FLEET, **change))
