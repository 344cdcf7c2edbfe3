"""The catalogue: closed, tiers only rise, every row reads and reverses sensibly."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.commands import Cancel, ChangeQueue, DrainQueues, Reserve, SetPolicy
from engine.model.errors import SpecError
from engine.model.quantities import shortlist, whole
from engine.model.reports import PoolSize
from engine.model.specs import (
    BurstSpec,
    FlavorQuota,
    NodeState,
    QueueMode,
    QueueSpec,
    ReservationSpec,
    ScalingSpec,
    WorkloadState,
)
from runbooks.actions import catalogue, wording
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.declaration import POLICIES, Action, tier_and_why
from runbooks.plans import amounts
from runbooks.plans.amounts import differences, kept
from runbooks.plans.typed_plan import TIERS, Act, ActionName, Canary, Note, QueueChange, ScalingChange, Target

WORKLOAD_STATES = {state.label for state in WorkloadState}
STATES: dict[str, set[str]] = {
    "workload": WORKLOAD_STATES,
    "node": {state.label for state in NodeState},
    "queue": {mode.label for mode in QueueMode},
    "reservation": {"made", "not made"},
    "policy": set(),
    "pool": {"priced"},
    "budget": {"set", "not set"},
    "scaling": {"growing", "fixed", "set"},
    "canary": {mode.label for mode in QueueMode} | set(POLICIES),
    "channel": {"known"},
    "review": {"known"},
}
WAS = QueueSpec(name="q", parent="root", nominal={"gpu_milli": 32_000, "memory_mib": 1024}, weight=2)
TO = QueueSpec(name="q", parent="root", nominal={"gpu_milli": 24_000, "memory_mib": 1024}, order="fair")
LESS = QueueChange(was=WAS, to=TO)
MAINTENANCE = ReservationSpec(name="r", nodes=("n1", "n2"), start_ms=1_772_366_400_000, end_ms=1_772_370_000_000)


def plan(action: str, *targets: str, **specs: object) -> Act:
    return Act(action=action, targets=targets, **specs)  # type: ignore[arg-type]


def steps(wanted: Act, *targets: Target, work: dict[str, Target] | None = None) -> list[str]:
    return wording.steps(wanted, targets, work or {})


def tier_of(action: str, targets: tuple[Target, ...], pool_nodes: dict[str, int], running: int) -> str:
    act = plan(action, *(target.id for target in targets))
    return tier_and_why(find(action), act, targets, pool_nodes, running)[0]


def target(id_: str = "x", state: str = "queued", **facts: object) -> Target:
    return Target(id=id_, state=state, **facts)  # type: ignore[arg-type]


def test_catalogue_is_exactly_what_an_act_may_name() -> None:
    assert set(CATALOG) == set(get_args(ActionName))


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.name)
def test_rows_name_states_that_exist(row: Action) -> None:
    assert set(row.states) <= STATES[row.kind]


@pytest.mark.parametrize("name", ["run_shell", "kubectl", "", "CANCEL", "drain\x1b[2J"])
def test_unknown_action_is_refused_and_shown_safely(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        find(name)
    assert "\x1b" not in str(caught.value)
    assert "drain" in caught.value.remedy


def test_plan_becomes_one_typed_command() -> None:
    assert catalogue.command(plan("cancel", "a", "b")) == Cancel(ids=("a", "b"))
    assert catalogue.command(plan("set_policy", "easy")) == SetPolicy(policy="easy")


@pytest.mark.parametrize("policy", ["fcfs", "easy", "easy-sjbf", "conservative"])
def test_every_policy_can_be_set(policy: str) -> None:
    assert catalogue.command(plan("set_policy", policy)) == SetPolicy(policy=policy)  # type: ignore[arg-type]


def test_plans_with_specs_become_the_command_that_has_them() -> None:
    change = plan("set_quota", "q", queue=QueueChange(was=WAS, to=TO, over="evict"))
    assert catalogue.command(change) == ChangeQueue(queue=TO, over="evict")
    assert catalogue.command(plan("reserve", "r", reservation=MAINTENANCE)) == Reserve(reservation=MAINTENANCE)
    assert catalogue.command(plan("drain_queue", "q", "p")) == DrainQueues(names=("q", "p"))


@pytest.mark.parametrize(
    "wrong",
    [
        plan("set_quota", "q"),
        plan("set_quota", "p", queue=LESS),
        plan("set_quota", "q", "p", queue=LESS),
        plan("set_quota", "q", queue=QueueChange(was=QueueSpec(name="p"), to=TO)),
        plan("hold_queue", "q", queue=LESS),
        plan("reserve", "r"),
        plan("reserve", "other", reservation=MAINTENANCE),
        plan("unreserve", "r", reservation=MAINTENANCE),
        plan("cancel", "q", queue=LESS),
    ],
)
def test_a_spec_belongs_to_the_target_and_to_its_action(wrong: Act) -> None:
    with pytest.raises(SpecError):
        catalogue.command(wrong)


@pytest.mark.parametrize("names", [("random",), ("easy", "fcfs"), ()])
def test_set_policy_takes_one_known_policy(names: tuple[str, ...]) -> None:
    with pytest.raises(SpecError):
        catalogue.command(plan("set_policy", *names))


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
        ("suspend", (target(), target("y", "waiting")), "T1"),
        ("suspend", (target(), target("y", "running")), "T2"),
        ("resume", (target(state="suspended"),), "T1"),
        ("hold_queue", (target("q", "open"),), "T1"),
        ("open_queue", (target("q", "draining"),), "T1"),
        ("drain_queue", (target("q", "open", work=("a",)),), "T2"),
        ("set_quota", (target("q", "open", queue=WAS),), "T1"),
        ("set_quota", (target("q", "open", queue=WAS, work=("a",)),), "T2"),
        ("reserve", (target("r", "not made"),), "T1"),
        ("unreserve", (target("r", "made"),), "T1"),
        ("set_policy", (target("easy", "fcfs"),), "T1"),
    ],
)
def test_tiers_of_workload_actions(action: str, targets: tuple[Target, ...], tier: str) -> None:
    assert tier_of(action, targets, {}, 100) == tier


@pytest.mark.parametrize(("action", "tier"), [("drain_queue", "T3"), ("set_quota", "T3")])
def test_stopping_a_large_share_of_all_that_runs_raises_the_tier(action: str, tier: str) -> None:
    queues = (target("q", "open", work=("a", "b")), target("p", "open", work=("b", "c")))
    assert tier_of(action, queues, {}, 29) == tier
    assert tier_of(action, queues, {}, 30) == "T2"


@pytest.mark.parametrize(
    ("action", "taken", "tier"),
    [("cordon", 1, "T1"), ("cordon", 2, "T1"), ("cordon", 3, "T2"), ("drain", 2, "T2"), ("drain", 3, "T3")],
)
def test_taking_a_large_share_of_a_pool_raises_the_tier(action: str, taken: int, tier: str) -> None:
    targets = tuple(target(f"n{i}", "ready", pool="p") for i in range(taken))
    assert tier_of(action, targets, {"p": 20, "q": 1000}, 0) == tier


def test_one_node_is_never_a_large_share() -> None:
    assert tier_of("drain", (target("n", "ready", pool="p"),), {"p": 1}, 0) == "T2"


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.name)
def test_no_state_lowers_a_tier(row: Action) -> None:
    for state in row.states or {"fcfs"}:
        many = tuple(target(f"x{i}", state, pool="p", unsaved_ms=1, worked_ms=1) for i in range(5))
        assert TIERS.index(tier_of(row.name, many, {"p": 5}, 5)) >= TIERS.index(row.tier)


STATES_OF = {
    "workload": sorted(WORKLOAD_STATES),
    "node": sorted(STATES["node"]),
    "queue": sorted(STATES["queue"]),
    "canary": sorted(STATES["canary"]),
    "policy": sorted(POLICIES),
    **{kind: sorted(STATES[kind]) for kind in ("reservation", "pool", "budget", "scaling", "channel", "review")},
}


@st.composite
def situations(draw: st.DrawFn) -> tuple[str, list[Target]]:
    """An action, and targets of its kind in whatever state."""
    row = draw(st.sampled_from(list(CATALOG.values())))
    targets = []
    for i in range(draw(st.integers(1, 14))):
        size = PoolSize(
            pool="p", scaling=ScalingSpec(least=draw(st.integers(0, 9)), most=20), ready=draw(st.integers(0, 9)),
            booting=0, other=0, ordered=draw(st.integers(0, 3)), asked=0, wanted=0,
        )  # fmt: skip
        targets.append(
            target(
                f"x{i}", draw(st.sampled_from(STATES_OF[row.kind])), pool=draw(st.sampled_from("pq")),
                worked_ms=draw(st.integers(0, 1)), work=tuple(draw(st.lists(st.sampled_from("abcdefg"), max_size=3))),
                keeps=((f"n{i}", "p", 0),) if row.name == "reserve" else (),
                size=size if row.kind == "scaling" else None,
            )
        )  # fmt: skip
    return row.name, targets


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(situations(), st.integers(0, 40), st.integers(0, 40))
def test_a_tier_only_rises(situation: tuple[str, list[Target]], nodes: int, running: int) -> None:
    """Above the action's own, and with every target more; and it says why."""
    action, targets = situation
    act = plan(
        action, "p", nodes=nodes if action == "scale_pool" else None,
        scaling=ScalingChange(least=0, most=nodes, targets=((1, nodes),)) if action.startswith("set_") else None,
    )  # fmt: skip
    before = TIERS.index(find(action).tier)
    for count in range(1, len(targets) + 1):
        tier, why = tier_and_why(find(action), act, tuple(targets[:count]), {"p": nodes, "q": nodes}, running)
        assert TIERS.index(tier) >= before
        assert (tier == find(action).tier) == (not why) or find(action).tier == "T3"
        before = TIERS.index(tier)


@pytest.mark.parametrize(
    ("action", "count", "running", "tier"),
    [("requeue", 10, 12, "T2"), ("requeue", 11, 12, "T3"), ("preempt", 11, 110, "T2"), ("preempt", 11, 109, "T3")],
)
def test_stopping_many_workloads_by_name_raises_the_tier(action: str, count: int, running: int, tier: str) -> None:
    assert tier_of(action, tuple(target(f"w{i}", "running") for i in range(count)), {}, running) == tier


def test_keeping_a_large_share_of_a_pool_for_some_raises_the_tier() -> None:
    few, many = (target("r", "not made", keeps=tuple((f"n{i}", "p", 0) for i in range(n))) for n in (2, 3))
    assert [tier_of("reserve", (kept,), {"p": 20}, 0) for kept in (few, many)] == ["T1", "T2"]


@pytest.mark.parametrize(
    ("nodes", "tier"), [(10, "T1"), (9, "T1"), (8, "T2"), (20, "T1"), (21, "T2"), (12, "T1")]
)  # fmt: skip
def test_scaling_a_pool_far_either_way_raises_the_tier(nodes: int, tier: str) -> None:
    size = PoolSize(
        pool="p", scaling=ScalingSpec(most=99), ready=10, booting=0, other=0, ordered=0, asked=0, wanted=0
    )  # fmt: skip
    shown = (target("p", "growing", size=size),)
    act = plan("scale_pool", "p", nodes=nodes)
    assert tier_and_why(find("scale_pool"), act, shown, {"p": 10}, 0)[0] == tier


@pytest.mark.parametrize("action", ["set_priority", "move", "set_policy", "canary", "set_quota"])
def test_making_others_give_way_raises_the_tier(action: str) -> None:
    assert tier_of(action, (target(work=("v",)),), {}, 100) == "T2"
    assert tier_of(action, (target(),), {}, 100) == "T1"


@pytest.mark.parametrize(
    ("wanted", "title"),
    [
        (plan("drain", "n1", "n2"), "Drain 2 nodes"),
        (plan("cancel", "wl-17"), "Cancel workload wl-17"),
        (plan("set_policy", "easy"), "Set policy to easy"),
        (plan("set_quota", "q", queue=LESS), "Set quota of queue q"),
        (plan("drain_queue", "q", "p"), "Drain 2 queues"),
        (plan("unreserve", "r"), "Remove reservation r"),
        (plan("preempt", "a", "b"), "Preempt 2 workloads"),
        (plan("move", "a", to="q"), "Move workload a to queue q"),
        (plan("set_priority", "a", "b", to="high"), "Set the priority of 2 workloads to high"),
        (plan("scale_pool", "p", nodes=1), "Scale pool p to 1 node"),
        (
            plan("canary", "q", "r", canary=Canary(order="fair", window_ms=5_400_000)),
            "Try order fair on 2 queues for 1h 30m",
        ),
        (plan("canary", "cell", canary=Canary(policy="fcfs", window_ms=60_000)), "Try policy fcfs for 1m"),
        (plan("notify", "ops", "dev", note=Note(text="x")), "Notify ops, dev"),
        (plan("open_review", "P-3", note=Note(text="x")), "Open a review of P-3"),
    ],
)
def test_titles(wanted: Act, title: str) -> None:
    assert wording.title(wanted) == title


def test_inverse_names_what_undoes_it() -> None:
    assert wording.inverse(plan("hold", "a"), (target(),)) == "Release a"
    assert (
        wording.inverse(plan("cordon", "a", "b"), (target("a", "ready"), target("b", "ready")))
        == "Uncordon the same 2 nodes"
    )
    assert wording.inverse(plan("set_policy", "easy"), (target("easy", "fcfs"),)) == "Set policy to fcfs"
    assert wording.inverse(plan("cancel", "a"), (target(),)).startswith("Cannot be undone")
    assert wording.inverse(plan("requeue", "a"), (target(),)).startswith("Cannot be undone")
    assert wording.inverse(plan("drain_queue", "q"), (target("q", "open"),)).startswith("Open q;")
    back = wording.inverse(plan("set_quota", "q", queue=LESS), (target("q", "open", queue=WAS),))
    assert back == "Set quota of q back to nominal gpu 32 GPU, weight 2, order best_effort"
    back = wording.inverse(plan("unreserve", "r"), (target("r", "made", reservation=MAINTENANCE),))
    assert back.startswith("Reserve r: 2 nodes (n1, n2) from 2026-03-01 12:00:00 UTC to")


def test_step_of_running_work_says_what_is_lost() -> None:
    running = target("wl-17", "running", gpu_milli=64_000, unsaved_ms=11_520_000, worked_ms=18_000_000)
    assert steps(plan("requeue", "wl-17"), running) == ["requeue wl-17 (running, 64 GPU, 3.2 h of work lost)"]
    assert steps(plan("suspend", "wl-17"), running) == ["suspend wl-17 (running, 64 GPU, 3.2 h of work lost)"]
    assert steps(plan("cancel", "wl-17"), running) == ["cancel wl-17 (running, 64 GPU, 5.0 h of work lost)"]


def test_step_of_queued_work_promises_no_loss() -> None:
    assert steps(plan("cancel", "a"), target("a", cpu_milli=500)) == ["cancel a (queued, 0.5 CPU)"]


def test_step_of_a_drain_names_the_work_it_stops() -> None:
    node = target("n1", "ready", work=("a", "b"))
    work = {
        "a": target("a", "running", gpu_milli=8_000, unsaved_ms=3_600_000),
        "b": target("b", "running", gpu_milli=250, unsaved_ms=0),
    }
    expected = ["drain n1 (ready, requeues a, b, 8.25 GPU, 8.0 GPU-h lost)"]
    assert steps(plan("drain", "n1"), node, work=work) == expected
    assert steps(plan("drain", "n2"), target("n2", "ready")) == ["drain n2 (ready, no work there)"]
    assert steps(plan("cordon", "n1"), node) == ["cordon n1 (ready, leaves 2 workloads running)"]


def test_steps_on_queues_name_every_change_and_every_workload_that_is_stopped() -> None:
    work = {"a": target("a", "running", gpu_milli=8_000, unsaved_ms=3_600_000)}
    loser = "requeue a (running, 8 GPU, 1.0 h of work lost)"
    change = plan("set_quota", "q", queue=LESS)
    assert steps(change, target("q", "open", queue=WAS, work=("a",)), work=work) == [
        "q: nominal gpu 32 GPU -> 24 GPU", "q: weight 2 -> 1", "q: order best_effort -> fair", loser,
    ]  # fmt: skip
    assert steps(plan("drain_queue", "q", "p"), target("q", "open", work=("a",)), target("p", "held"), work=work) == [
        "drain-queue q (open, requeues 1 workload, 8.0 GPU-h lost)", "drain-queue p (held)", loser,
    ]  # fmt: skip


def test_steps_on_reservations_say_what_is_kept_for_whom() -> None:
    said = "2 nodes (n1, n2) from 2026-03-01 12:00:00 UTC to 2026-03-01 13:00:00 UTC for work that names it"
    assert steps(plan("reserve", "r", reservation=MAINTENANCE), target("r", "not made")) == [f"reserve r: {said}"]
    made = target("r", "made", reservation=MAINTENANCE)
    assert steps(plan("unreserve", "r"), made) == [f"unreserve r: {said}"]
    shared = ReservationSpec(name="r", nodes=("n1",), start_ms=0, end_ms=1, queues=("q", "p"))
    assert kept(shared).endswith("for q, p")


def test_differences_of_queues_name_every_field() -> None:
    rich = QueueSpec(
        name="q", parent="root", nominal={"gpu_milli": 1}, borrowing_limit={"gpu_milli": 500},
        lending_limit={"memory_mib": 1}, flavors=(FlavorQuota(pool="h100", nominal={"gpu_milli": 8000}),), weight=3,
        order="strict_fifo", burst=BurstSpec(limit={"gpu_milli": 9000}, window_ms=5_400_000), reclaim="never",
        min_runtime_ms=90_000, disruptions=2, disruption_window_ms=1500,
    )  # fmt: skip
    assert [tuple(difference) for difference in differences(QueueSpec(name="q", parent="root"), rich)] == [
        ("weight", "1", "3"),
        ("order", "best_effort", "strict_fifo"),
        ("reclaim", "any", "never"),
        ("minimum run time", "0s", "1m 30s"),
        ("disruptions", "no limit", "2"),
        ("disruption window", "1h", "1s 500ms"),
        ("nominal gpu", "not set", "0.001 GPU"),
        ("borrowing limit gpu", "not set", "0.5 GPU"),
        ("lending limit memory", "not set", "0.0009765625 GiB memory"),
        ("pools", "not set", "h100"),
        ("h100: nominal gpu", "not set", "8 GPU"),
        ("burst gpu", "not set", "9 GPU"),
        ("burst window", "not set", "1h 30m"),
        ("burst cool-down", "not set", "1h"),
    ]
    assert differences(rich, rich) == []


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
        ("interrupt", target(state="ready"), target(state="draining", work=("a",)), True),
        ("interrupt", target(state="ready"), target(state="ready"), False),
        ("suspend", target(state="running"), target(state="suspended"), True),
        ("suspend", target(state="running"), target(state="running"), False),
        ("resume", target(state="suspended"), target(state="queued"), True),
        ("resume", target(state="suspended"), target(state="suspended"), False),
        ("hold_queue", target(state="open"), target(state="held"), True),
        ("hold_queue", target(state="open"), target(state="open"), False),
        ("drain_queue", target(state="open", work=("a",)), target(state="draining"), True),
        ("drain_queue", target(state="open", work=("a",)), target(state="draining", work=("a",)), False),
        ("open_queue", target(state="held"), target(state="open"), True),
        ("open_queue", target(state="held"), target(state="held"), False),
        ("set_quota", target(state="open", queue=WAS), target(state="open", queue=TO), True),
        ("set_quota", target(state="open", queue=WAS), target(state="open", queue=WAS), False),
        ("reserve", target(state="not made"), target(state="made"), True),
        ("reserve", target(state="not made"), target(state="not made"), False),
        ("unreserve", target(state="made"), target(state="not made"), True),
        ("unreserve", target(state="made"), target(state="made"), False),
        ("set_policy", target("easy", "fcfs"), target("easy", "easy"), True),
        ("set_policy", target("easy", "fcfs"), target("easy", "fcfs"), False),
    ],
)
def test_reading_back_can_fail(action: str, before: Target, now: Target, verified: bool) -> None:
    act = plan(action, before.id, **({"queue": LESS} if action == "set_quota" else {}))
    if action == "reserve":
        now = msgspec.structs.replace(now, reservation=MAINTENANCE if now.state == "made" else None)
        act = plan(action, before.id, reservation=MAINTENANCE)
    text = wording.check(act, before, now)
    assert text.startswith("verified: " if verified else "NOT verified: ")


def test_amounts_as_people_write_them() -> None:
    assert [whole(n) for n in (0, 250, 1000, 10_000, 130_000_000)] == ["0", "0.25", "1", "10", "130,000"]
    assert shortlist(("a", "b", "c"), most=2) == "a, b and 1 more"
    assert [amounts.span(ms) for ms in (0, 1_500, 5_400_000, 90_000_000)] == ["0s", "1s 500ms", "1h 30m", "25h"]
    assert amounts.amount("memory_mib", 1536) == "1.5 GiB memory"
