"""The way back of each action, and what is not one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.model.reports import PoolSize
from engine.model.spec_parts import PRESETS
from engine.model.specs import BudgetSpec, QueueSpec, ReservationSpec, ScalingSpec
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.wording import inverse_of, why_not_inverse
from runbooks.plans.typed_plan import Act, Canary, MoneyChange, QueueChange, RequestChange, ScalingChange, Target

WAS = QueueSpec(name="q", parent="root", nominal={"gpu_milli": 32_000}, order="best_effort")
TO = QueueSpec(name="q", parent="root", nominal={"gpu_milli": 24_000}, order="fair")
KEPT = ReservationSpec(name="r", nodes=("n1",), start_ms=1, end_ms=2)
SPENT = BudgetSpec(name="b", scope="queue", of="q", limit_microusd=1, window_ms=3_600_000, action="warn")


def act(action: Any, *targets: str, **fields: Any) -> Act:
    return Act(action=action, targets=targets, **fields)


def shown(*states: str, **facts: Any) -> tuple[Target, ...]:
    """n1, n2, … in these states."""
    return tuple(Target(id=f"n{i + 1}", state=state, **facts) for i, state in enumerate(states))


def pool(**facts: Any) -> tuple[Target, ...]:
    facts = {"scaling": ScalingSpec(least=1, most=9), "ready": 3, "set_for": ()} | facts
    size = PoolSize(pool="p", booting=0, other=1, ordered=2, asked=0, wanted=0, **facts)
    return (Target(id="p", state="growing", size=size),)


@pytest.mark.parametrize(
    ("done", "before", "back"),
    [
        (
            act("drain", "n1", "n2", "n3"), shown("ready", "cordoned", "ready"),
            [act("uncordon", "n1", "n3"), act("cordon", "n2")],
        ),
        (act("drain", "n1"), shown("draining", work=("a",)), []),
        (act("uncordon", "n1", "n2"), shown("cordoned", "draining"), [act("cordon", "n1"), act("drain", "n2")]),
        (act("uncordon", "n1"), shown("draining", work=("a",)), [act("cordon", "n1")]),
        (act("cordon", "n1", "n2"), shown("ready", "draining"), [act("uncordon", "n1"), act("drain", "n2")]),
        (act("cordon", "n1"), shown("draining", work=("a",)), []),
        (act("drain_queue", "n1", "n2"), shown("open", "held"), [act("open_queue", "n1"), act("hold_queue", "n2")]),
        (act("open_queue", "n1", "n2"), shown("held", "draining"), [act("hold_queue", "n1"), act("drain_queue", "n2")]),
        (act("hold_queue", "n1", "n2"), shown("draining", "open"), [act("open_queue", "n2"), act("drain_queue", "n1")]),
        (act("hold", "n1"), shown("waiting"), [act("release", "n1")]),
        (act("suspend", "n1"), shown("running"), [act("resume", "n1")]),
        (act("reserve", "r", reservation=KEPT), shown("not made"), [act("unreserve", "r")]),
        (act("set_policy", "easy"), (Target(id="easy", state="fcfs"),), [act("set_policy", "fcfs")]),
        (
            act("set_quota", "q", queue=QueueChange(was=WAS, to=TO, over="evict")),
            (Target(id="q", state="open", queue=WAS, work=("a",)),),
            [act("set_quota", "q", queue=QueueChange(was=TO, to=WAS, over="keep"))],
        ),
        (
            act("unreserve", "r"),
            (Target(id="r", state="made", reservation=KEPT),),
            [act("reserve", "r", reservation=KEPT)],
        ),
        (
            act("move", "n1", "n2", "n3", to="c"),
            (*shown("queued", was="a"), Target(id="n2", state="held", was="b"), Target(id="n3", state="held", was="a")),
            [act("move", "n1", "n3", to="a"), act("move", "n2", to="b")],
        ),
        (
            act("set_budget", "b", money=MoneyChange(budget=SPENT)),
            (Target(id="b", state="not set"),),
            [act("remove_budget", "b")],
        ),
        (
            act("remove_budget", "b"),
            (Target(id="b", state="set", budget=SPENT),),
            [act("set_budget", "b", money=MoneyChange(budget=SPENT))],
        ),
        (
            act("resize", "n1", "n2", resize=RequestChange(request={"cpu_milli": 1})),
            shown("queued", "running", asks=(("main", {"cpu_milli": 4, "gpu_milli": 8}),)),
            [act("resize", "n1", "n2", resize=RequestChange(request={"cpu_milli": 4}))],
        ),
        (
            act("set_scaling", "p", scaling=ScalingChange(most=20)),
            pool(),
            [act("set_scaling", "p", scaling=ScalingChange(most=9))],
        ),
        (act("set_scaling", "p", scaling=ScalingChange(most=20)), pool(scaling=None), []),
        (
            act("scale_pool", "p", nodes=9),
            pool(set_for=((5, 6),)),
            [
                act("scale_pool", "p", nodes=6),
                act("set_targets", "p", scaling=ScalingChange(targets=((5, 6),))),
            ],
        ),
        (
            act(
                "set_autoscaling", "autoscaler",
                scaling=ScalingChange(settings={"enabled": False, "most_in_batch": 7}),
            ),
            (Target(id="autoscaler", state="set", autoscaling=PRESETS["seed"]),),
            [
                act(
                    "set_autoscaling",
                    "autoscaler",
                    scaling=ScalingChange(
                        settings={"enabled": True, "most_in_batch": PRESETS["seed"].most_in_batch},
                    ),
                )
            ],
        ),
        (
            act("canary", "cell", canary=Canary(policy="fcfs", window_ms=60_000)),
            (Target(id="cell", state="easy"),),
            [act("set_policy", "easy")],
        ),
        (
            act("canary", "q", canary=Canary(order="fair", window_ms=60_000)),
            (Target(id="q", state="open", queue=WAS),),
            [
                act(
                    "set_quota", "q",
                    queue=QueueChange(was=msgspec.structs.replace(WAS, order="fair"), to=WAS, over="keep"),
                )
            ],
        ),
    ],
)  # fmt: skip
def test_the_way_back_restores_what_was_shown(done: Act, before: tuple[Target, ...], back: list[Act]) -> None:
    assert list(inverse_of(done, before)) == back
    assert why_not_inverse(done, before, tuple(back)) == ""


@pytest.mark.parametrize("action", sorted(row.name for row in CATALOG.values() if row.back is None))
def test_what_cannot_be_taken_back_has_no_way_back_and_takes_none(action: Any) -> None:
    done, before = act(action, "n1"), shown("running")
    assert inverse_of(done, before) == ()
    assert why_not_inverse(done, before, ()) == ""
    assert "cannot be rolled back" in why_not_inverse(done, before, (act("uncordon", "n1"),))
    assert CATALOG[action].inverse.startswith("Cannot be undone")


def test_every_other_action_says_how_it_is_taken_back() -> None:
    for row in CATALOG.values():
        assert (row.back is None) == row.inverse.startswith("Cannot be undone")


def test_a_rollback_may_be_split_and_need_not_keep_the_order_of_targets() -> None:
    done, before = act("drain", "n1", "n2"), shown("ready", "ready")
    assert why_not_inverse(done, before, (act("uncordon", "n2"), act("uncordon", "n1"))) == ""
    assert why_not_inverse(done, before, (act("uncordon", "n2", "n1"),)) == ""


QUOTA = act("set_quota", "q", queue=QueueChange(was=WAS, to=TO))
QUEUE = (Target(id="q", state="open", queue=WAS),)
SIZED = act("set_scaling", "p", scaling=ScalingChange(most=20, headroom=2))


def back_to(spec: QueueSpec, over: Any = "keep", was: QueueSpec = TO) -> Act:
    return act("set_quota", "q", queue=QueueChange(was=was, to=spec, over=over))


@pytest.mark.parametrize(
    ("done", "before", "rollback", "why"),
    [
        (act("drain", "n1", "n2"), shown("ready", "ready"), [act("uncordon", "n1")], "it does not roll back n2"),
        (act("drain", "n1"), shown("ready"), [act("uncordon", "n1", "n9")], "uncordon n9 is not part of the rollback"),
        (
            act("drain", "n1", "n2"), shown("ready", "cordoned"), [act("uncordon", "n1", "n2")],
            "uncordon n2 does not roll back drain: cordon does",
        ),
        (act("drain", "n1"), shown("ready"), [act("cordon", "n1")], "cordon n1 does not roll back drain: uncordon"),
        (
            act("drain", "n1"), shown("ready"), [act("uncordon", "n1"), act("drain", "n1")],
            "uncordon then drain n1 does not roll back drain",
        ),
        (act("drain", "n1"), shown("ready"), [], "it does not roll back n1"),
        (act("hold", "n1"), shown("queued"), [act("cancel", "n1")], "cancel n1 does not roll back hold"),
        (act("suspend", "n1"), shown("running"), [act("resume", "n1", to="b")], "resume n1 sets a value other than"),
        (QUOTA, QUEUE, [back_to(TO)], "sets a value other than the one it had"),
        (QUOTA, QUEUE, [back_to(msgspec.structs.replace(WAS, weight=9))], "sets a value other than"),
        (QUOTA, QUEUE, [back_to(WAS, over="evict")], "sets a value other than"),
        (QUOTA, QUEUE, [back_to(WAS, was=WAS)], "sets a value other than"),
        (SIZED, pool(), [act("set_scaling", "p", scaling=ScalingChange(most=9))], "sets a value other than"),
        (SIZED, pool(), [act("set_scaling", "p", scaling=ScalingChange(most=9, headroom=1))], "a value other than"),
        (
            act("scale_pool", "p", nodes=9), pool(),
            [act("set_targets", "p", scaling=ScalingChange()), act("scale_pool", "p", nodes=6)],
            "set_targets then scale_pool p does not roll back scale_pool: scale_pool then set_targets does",
        ),
        (
            act("set_autoscaling", "autoscaler", scaling=ScalingChange(settings={"enabled": False})),
            (Target(id="autoscaler", state="set", autoscaling=PRESETS["seed"]),),
            [act("set_autoscaling", "autoscaler", scaling=ScalingChange(settings={"rm": 1}))],
            "it cannot run",
        ),
        (act("set_policy", "easy"), (Target(id="easy", state="fcfs"),), [act("set_policy", "easy")], "not part"),
    ],
)  # fmt: skip
def test_what_is_not_the_inverse_is_named(done: Act, before: tuple[Target, ...], rollback: list[Act], why: str) -> None:
    assert why in why_not_inverse(done, before, tuple(rollback))


def test_the_same_settings_may_be_written_otherwise() -> None:
    """What counts is what is in force afterwards."""
    wordy = act("set_scaling", "p", scaling=ScalingChange(least=1, most=9, headroom=0))
    assert why_not_inverse(SIZED, pool(), (wordy,)) == ""
    assert why_not_inverse(QUOTA, QUEUE, (back_to(WAS, over="refuse"),)) == ""
    resized = act("resize", "n1", resize=RequestChange(request={"cpu_milli": 1}))
    asks = shown("queued", asks=(("main", {"cpu_milli": 4}),))
    said = act("resize", "n1", resize=RequestChange(group="main", request={"cpu_milli": 4}, evidence="as it was"))
    assert why_not_inverse(resized, asks, (said,)) == ""
