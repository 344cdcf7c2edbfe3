"""Each cause is found within fifteen cell minutes, and what looks like it and is fine stays quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as do
from engine.model.specs import (
    BudgetSpec,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    TaskGroup,
    WorkloadSpec,
)
from recommender.findings.cell_reading import CellReader
from recommender.findings.kinds import KINDS, detected, table_lines
from recommender.findings.suggestions import Suggestion

MINUTE, HOUR = 60_000, 3_600_000
BOX = Resources(cpu_milli=16_000, memory_mib=65_536)


def cell() -> CellSpec:
    return CellSpec(
        pools=(
            PoolSpec(name="p", capacity=BOX, price_microusd_hour=1_000_000),
            PoolSpec(name="grow", capacity=BOX, scaling=ScalingSpec(most=2), price_microusd_hour=1_000_000),
            PoolSpec(name="spot", capacity=BOX, spot=True, price_microusd_hour=300_000),
        ),
        nodes=(
            *(NodeSpec(id=f"n{i}", pool="p", labels={"disk": "nvme"}) for i in range(4)),
            *(NodeSpec(id=f"s{i}", pool="spot") for i in range(6)),
        ),
        queues=(
            QueueSpec(name="org"),
            QueueSpec(name="a", parent="org", nominal={"cpu_milli": 16_000}, borrowing_limit={"cpu_milli": 0}),
            QueueSpec(name="b", parent="org", nominal={"cpu_milli": 48_000}),
            QueueSpec(name="open"),
        ),
        priority_classes=(PriorityClassSpec(name="low", value=1), PriorityClassSpec(name="normal", value=5)),
    )


def begun() -> Engine:
    """A cell that has been there for some hours, with a tenant that is known to it."""
    engine = Engine.open(None, cell=cell())
    submit(engine, "old", 1, minutes=1)
    engine.advance(engine.now_ms + 4 * HOUR)
    return engine


def submit(
    engine: Engine, stem: str, count: int, *, queue: str = "open", tenant: str = "ops", cpus: int = 16,
    minutes: int = 600, pools: tuple[str, ...] = ("p",), tasks: int = 1, **more: Any,
) -> None:  # fmt: skip
    labels = more.pop("labels", {})
    group = TaskGroup(
        count=tasks, request=Resources(cpu_milli=cpus * 1000, memory_mib=1024), pools=pools, node_labels=labels
    )
    run_ms = minutes * MINUTE
    specs = tuple(
        WorkloadSpec(id=f"{stem}-{i}", name=f"{stem}-{i}", queue=queue, tenant=tenant, groups=(group,),
                     estimate_ms=run_ms, simulated_runtime_ms=run_ms, **more)
        for i in range(count)
    )  # fmt: skip
    engine.command(do.Submit(workloads=specs))


def found(engine: Engine, minutes: int = 15, reader: CellReader | None = None) -> list[Suggestion]:
    engine.advance(engine.now_ms + minutes * MINUTE)
    return detected((reader or CellReader()).read(engine))


def kinds(engine: Engine, minutes: int = 15) -> list[str]:
    return [each.kind for each in found(engine, minutes)]


def test_nothing_is_found_in_a_cell_that_is_well() -> None:
    engine = begun()
    submit(engine, "w", 3)
    assert found(engine) == []


@pytest.mark.parametrize("command", [do.Drain, do.Cordon])
def test_nodes_out_of_service_while_work_waits_that_fits_them(command: type[do.Drain]) -> None:
    engine = begun()
    engine.command(command(ids=("n0", "n1")))
    submit(engine, "w", 9)
    [one] = found(engine)
    assert (one.kind, one.action, one.targets) == ("forgotten_cordons", "uncordon", ("n0", "n1"))
    fork = engine.fork()
    fork.command(do.Uncordon(ids=one.targets))
    fork.settle()
    assert fork.overview().states["queued"] < engine.overview().states["queued"], "the fork bears it out"


def test_nodes_out_of_service_that_help_nobody_are_left_alone() -> None:
    engine = begun()
    engine.command(do.Drain(ids=("n0", "s0")))
    submit(engine, "w", 3)
    assert found(engine) == [], "nothing waits"
    submit(engine, "q", 3, queue="a", pools=("p", "spot"), cpus=12)
    assert "forgotten_cordons" not in kinds(engine), "what waits, waits for quota"


def test_a_reservation_that_nobody_uses_while_others_wait() -> None:
    engine = begun()
    now = engine.now_ms
    spec = ReservationSpec(name="r", nodes=("n0", "n1"), queues=("b",), start_ms=now + 1, end_ms=now + 9 * HOUR)
    engine.command(do.Reserve(reservation=spec))
    submit(engine, "w", 6)
    [one] = found(engine)
    assert (one.kind, one.targets) == ("stale_reservation", ("r",))
    submit(engine, "mine", 1, queue="b")
    assert found(engine) == [], "its owner has come"


def test_a_new_tenant_that_floods_the_line_is_held_and_not_given_more() -> None:
    engine = begun()
    submit(engine, "flood", 60, tenant="newcorp")
    submit(engine, "mine", 3)
    one = next(each for each in found(engine) if each.kind == "runaway_tenant")
    assert (one.action, one.about) == ("hold", "newcorp")
    assert set(one.targets) <= {f"flood-{i}" for i in range(60)}


def test_a_batch_that_is_as_usual_or_in_nobodys_way_is_no_flood() -> None:
    engine = begun()
    submit(engine, "flood", 60, tenant="newcorp")
    assert "runaway_tenant" not in kinds(engine), "nobody else waits"
    usual = Engine.open(None, cell=cell())
    submit(usual, "yesterday", 60, tenant="batch", minutes=1)
    usual.advance(usual.now_ms + 20 * HOUR)
    submit(usual, "today", 60, tenant="batch")
    submit(usual, "mine", 3)
    assert "runaway_tenant" not in kinds(usual), "it did so yesterday"


def test_quota_that_is_idle_beside_waiting_work() -> None:
    engine = begun()
    submit(engine, "w", 3, queue="a")
    [one] = found(engine)
    assert (one.kind, one.targets, one.parameters) == ("quota_beside_idle", ("a",), ("--borrowing-limit", "cpu=32"))
    assert "b (48 CPU)" in one.finding


def test_quota_that_its_neighbour_uses_is_not_idle() -> None:
    engine = begun()
    submit(engine, "theirs", 3, queue="b")
    submit(engine, "w", 3, queue="a")
    assert found(engine) == []
    submit(engine, "more", 2, queue="b")
    assert found(engine) == [], "the neighbour waits itself"


def test_a_gang_that_can_never_fit_any_more() -> None:
    engine = begun()
    submit(engine, "block", 4, minutes=40)
    submit(engine, "gang", 1, tasks=4)
    engine.command(do.Drain(ids=("n3",)))
    assert "never_fits" not in kinds(engine), "it fits once the cell is empty"
    engine.command(do.RemoveNodes(ids=("n3",)))
    one = next(each for each in found(engine, 5) if each.kind == "never_fits")
    assert (one.action, one.targets) == ("notify", ("gang-0",))


def test_work_that_waits_for_a_label_which_nodes_with_room_lost() -> None:
    engine = begun()
    engine.command(do.Drain(ids=("n0", "n1", "n2", "n3")))
    submit(engine, "w", 1, labels={"disk": ("nvme",)}, pools=())
    assert "mislabelled_pool" not in kinds(engine), "nodes have it, and are out of service"
    engine.command(do.RemoveNodes(ids=("n0", "n1", "n2", "n3")))
    one = next(each for each in found(engine, 5) if each.kind == "mislabelled_pool")
    assert "disk=nvme" in one.finding


def test_a_pool_that_should_grow_and_is_not_let() -> None:
    engine = begun()
    submit(engine, "w", 2, pools=("grow",))
    assert found(engine) == [], "it grows"
    submit(engine, "more", 2, pools=("grow",))
    one = next(each for each in found(engine) if each.kind == "autoscaler_stuck")
    assert (one.action, one.targets, one.parameters) == ("set_scaling", ("grow",), ("--most", "4"))
    engine.command(do.SetAutoscaling(changes={"enabled": False}))
    one = next(each for each in found(engine) if each.kind == "autoscaler_stuck")
    assert one.action == "set_autoscaling"


def test_a_node_that_is_lost_again_and_again() -> None:
    engine = begun()
    for node, times in (("n0", 2), ("n1", 1)):
        for _ in range(times):
            engine.command(do.FailNodes(ids=(node,)))
            engine.advance(engine.now_ms + MINUTE)
            engine.command(do.RestoreNodes(ids=(node,)))
            engine.advance(engine.now_ms + MINUTE)
    assert [(each.kind, each.action, each.targets) for each in found(engine, 1)] == [("failing_node", "drain", ("n0",))]


def test_a_retry_storm_and_a_few_failures() -> None:
    engine = begun()
    submit(engine, "flaky", 2, cpus=1, minutes=2, retries=2, simulated_failures=1, backoff_ms=20_000)
    submit(engine, "good", 20, cpus=1, minutes=2)
    assert found(engine) == []
    submit(engine, "bad", 6, cpus=1, minutes=2, retries=6, simulated_failures=7, backoff_ms=20_000)
    assert "retry_storm" in kinds(engine)


def test_a_spot_pool_that_is_taken_back() -> None:
    engine = begun()
    engine.command(do.Interrupt(ids=("s0",), notice_ms=600_000))
    assert found(engine, 1) == []
    engine.command(do.Interrupt(ids=("s1", "s2", "s3"), notice_ms=600_000))
    assert kinds(engine, 1) == ["spot_leaving"]


def test_a_budget_that_is_about_to_hold_work() -> None:
    engine = begun()
    submit(engine, "w", 4)
    engine.advance(engine.now_ms + 10 * MINUTE)
    spec = BudgetSpec(name="x", scope="tenant", of="ops", limit_microusd=4_000_000, window_ms=240 * HOUR, action="hold")
    for quiet in ({"action": "warn"}, {"limit_microusd": 10**10}):
        engine.command(do.SetBudgets(budgets=(msgspec.structs.replace(spec, **quiet),)))
        assert found(engine, 1) == []
    engine.command(do.SetBudgets(budgets=(spec,)))
    [one] = found(engine, 1)
    assert (one.kind, one.action, one.targets) == ("budget_holds", "set_budget", ("x",))


def test_a_price_that_does_not_fit() -> None:
    engine, reader = begun(), CellReader()
    assert found(engine, 1, reader) == []
    engine.command(do.SetPrice(pool="p", price_microusd_hour=1_200_000))
    assert found(engine, 1, reader) == []
    engine.command(do.SetPrice(pool="p", price_microusd_hour=10_000_000))
    assert [each.about for each in found(engine, 1, reader) if each.kind == "mispriced_pool"][:1] == ["p"]


def test_every_kind_is_declared_with_what_can_be_done() -> None:
    assert all(row.finds and row.remedies for row in KINDS.values())


def test_the_table_of_the_manual_is_made_of_the_declarations() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "findings.md").read_text()
    assert "\n".join(table_lines()) in manual
