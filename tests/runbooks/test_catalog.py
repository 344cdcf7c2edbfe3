"""The catalogue: closed, tiers only rise, every row reads and reverses sensibly."""

from __future__ import annotations

from typing import get_args

import pytest

from engine.commands import Cancel, SetPolicy
from engine.errors import SpecError
from engine.model import NodeState, WorkloadState
from runbooks import catalog
from runbooks.catalog import CATALOG, TIERS, Target, find
from runbooks.plan import ActionName, Plan

WORKLOAD_STATES = {state.label for state in WorkloadState}
NODE_STATES = {state.label for state in NodeState}


def target(id_: str = "x", state: str = "queued", **facts: object) -> Target:
    return Target(id=id_, state=state, **facts)  # type: ignore[arg-type]


def plan(action: str, *targets: str) -> Plan:
    return Plan(action=action, targets=targets)  # type: ignore[arg-type]


def test_catalogue_is_exactly_what_a_plan_may_name() -> None:
    assert set(CATALOG) == set(get_args(ActionName))


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.name)
def test_rows_name_states_that_exist(row: catalog.Action) -> None:
    known = {"workload": WORKLOAD_STATES, "node": NODE_STATES, "policy": set()}[row.kind]
    assert row.states <= known


@pytest.mark.parametrize("name", ["run_shell", "kubectl", "", "CANCEL", "drain\x1b[2J"])
def test_unknown_action_is_refused_and_shown_safely(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        find(name)
    assert "\x1b" not in str(caught.value)
    assert "drain" in caught.value.remedy


def test_plan_becomes_one_typed_command() -> None:
    assert catalog.command(plan("cancel", "a", "b")) == Cancel(ids=("a", "b"))
    assert catalog.command(plan("set_policy", "easy")) == SetPolicy(policy="easy")


@pytest.mark.parametrize("names", [("random",), ("easy", "fcfs"), ()])
def test_set_policy_takes_one_known_policy(names: tuple[str, ...]) -> None:
    with pytest.raises(SpecError):
        catalog.command(plan("set_policy", *names))


@pytest.mark.parametrize(
    ("action", "targets", "tier"),
    [
        ("hold", (target(),), "T1"),
        ("release", (target(state="held"),), "T1"),
        ("requeue", (target(state="running"),), "T2"),
        ("cancel", (target(),), "T2"),
        ("cancel", (target(), target("y", "placed")), "T3"),
        ("cancel", (target(state="running"),), "T3"),
        ("cancel", (target(state="queued", worked_ms=1),), "T3"),
        ("set_policy", (target("easy", "fcfs"),), "T1"),
    ],
)
def test_tiers_of_workload_actions(action: str, targets: tuple[Target, ...], tier: str) -> None:
    assert catalog.tier(find(action), targets, {}) == tier


@pytest.mark.parametrize(
    ("action", "taken", "tier"),
    [("cordon", 1, "T1"), ("cordon", 2, "T1"), ("cordon", 3, "T2"), ("drain", 2, "T2"), ("drain", 3, "T3")],
)
def test_taking_a_large_share_of_a_pool_raises_the_tier(action: str, taken: int, tier: str) -> None:
    targets = tuple(target(f"n{i}", "ready", pool="p") for i in range(taken))
    assert catalog.tier(find(action), targets, {"p": 20, "q": 1000}) == tier


def test_one_node_is_never_a_large_share() -> None:
    assert catalog.tier(find("drain"), (target("n", "ready", pool="p"),), {"p": 1}) == "T2"


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.name)
def test_no_state_lowers_a_tier(row: catalog.Action) -> None:
    for state in row.states or {"fcfs"}:
        many = tuple(target(f"x{i}", state, pool="p", unsaved_ms=1, worked_ms=1) for i in range(5))
        assert TIERS.index(catalog.tier(row, many, {"p": 5})) >= TIERS.index(row.tier)


@pytest.mark.parametrize(
    ("wanted", "title"),
    [
        (plan("drain", "n1", "n2"), "Drain 2 nodes"),
        (plan("cancel", "wl-17"), "Cancel workload wl-17"),
        (plan("set_policy", "easy"), "Set policy to easy"),
    ],
)
def test_titles(wanted: Plan, title: str) -> None:
    assert catalog.title(wanted) == title


def test_inverse_names_what_undoes_it() -> None:
    assert catalog.inverse(plan("hold", "a"), (target(),)) == "Release a"
    assert catalog.inverse(plan("cordon", "a", "b"), (target(state="ready"),)) == "Uncordon the same 2 nodes"
    assert catalog.inverse(plan("set_policy", "easy"), (target("easy", "fcfs"),)) == "Set policy to fcfs"
    assert catalog.inverse(plan("cancel", "a"), (target(),)).startswith("Cannot be undone")
    assert catalog.inverse(plan("requeue", "a"), (target(),)).startswith("Cannot be undone")


def test_step_of_running_work_says_what_is_lost() -> None:
    running = target("wl-17", "running", gpu_milli=64_000, unsaved_ms=11_520_000, worked_ms=18_000_000)
    assert catalog.step(find("requeue"), running, {}) == "requeue wl-17 (running, 64 GPU, 3.2 h of work lost)"
    assert catalog.step(find("cancel"), running, {}) == "cancel wl-17 (running, 64 GPU, 5.0 h of work lost)"


def test_step_of_queued_work_promises_no_loss() -> None:
    assert catalog.step(find("cancel"), target("a", cpu_milli=500), {}) == "cancel a (queued, 0.5 CPU)"


def test_step_of_a_drain_names_the_work_it_stops() -> None:
    node = target("n1", "ready", work=("a", "b"))
    work = {
        "a": target("a", "running", gpu_milli=8_000, unsaved_ms=3_600_000),
        "b": target("b", "running", gpu_milli=250, unsaved_ms=0),
    }
    expected = "drain n1 (ready, requeues a, b, 8.25 GPU, 8.0 GPU-h lost)"
    assert catalog.step(find("drain"), node, work) == expected
    assert catalog.step(find("drain"), target("n2", "ready"), {}) == "drain n2 (ready, no work there)"
    assert catalog.step(find("cordon"), node, {}) == "cordon n1 (ready, leaves 2 workloads running)"


@pytest.mark.parametrize(
    ("action", "before", "now", "verified"),
    [
        ("cancel", target(state="running"), target(state="cancelled"), True),
        ("cancel", target(state="running"), target(state="running"), False),
        ("hold", target(), target(state="held"), True),
        ("hold", target(), target(state="running"), False),
        ("release", target(state="held"), target(state="running"), True),
        ("release", target(state="held"), target(state="held"), False),
        ("requeue", target(state="running", attempts=1), target(state="queued", attempts=1), True),
        ("requeue", target(state="running", attempts=1), target(state="running", attempts=2), True),
        ("requeue", target(state="running", attempts=1), target(state="running", attempts=1), False),
        ("cordon", target(state="ready"), target(state="cordoned"), True),
        ("cordon", target(state="ready"), target(state="ready"), False),
        ("uncordon", target(state="cordoned"), target(state="ready"), True),
        ("drain", target(state="ready"), target(state="draining"), True),
        ("drain", target(state="ready"), target(state="draining", work=("a",)), False),
        ("drain", target(state="ready"), target(state="ready"), False),
        ("set_policy", target("easy", "fcfs"), target("easy", "easy"), True),
        ("set_policy", target("easy", "fcfs"), target("easy", "fcfs"), False),
    ],
)
def test_reading_back_can_fail(action: str, before: Target, now: Target, verified: bool) -> None:
    text = catalog.check(find(action), before, now)
    assert text.startswith("verified: " if verified else "NOT verified: ")


def test_amounts_as_people_write_them() -> None:
    assert [catalog.whole(n) for n in (0, 250, 1000, 10_000, 130_000_000)] == ["0", "0.25", "1", "10", "130,000"]
    assert catalog.listed(("a", "b", "c"), most=2) == "a, b and 1 more"
