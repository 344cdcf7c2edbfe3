"""Capacity ahead of demand: what is noted of demand, what people set for later, and nodes that are there in time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from engine.control import Engine
from engine.elasticity.capacity_ahead import Foresight
from engine.model.commands import SetAutoscaling, SetScaling, SetTargets, Submit
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.spec_parts import PRESETS
from engine.model.specs import NodeState, QueueSpec
from engine.state.cell_state import State
from engine.state.demand import Series
from tests.support.growing_cells import HOUR, MINUTE, cell, job, started, there
from tests.support.invariants import check_state

DAY = 24 * HOUR


class Says:
    """A forecaster that knows what it is told; and what it was asked."""

    def __init__(self, *answers: float) -> None:
        self.answers = answers
        self.asked: list[tuple[int, int]] = []

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        self.asked.append((len(past), lead))
        return [self.answers[lead - 1]] * len(permilles)


def ready(engine: Engine) -> int:
    c = engine.state.capacity
    return sum(state == NodeState.READY for state in c.state)


# -- what is noted ----------------------------------------------------------------------------------------------------


def test_the_most_of_each_hour_is_noted_in_nodes() -> None:
    engine = started(cell(2), job("a", 4000), job("b", 3000))
    engine.advance(30 * MINUTE)
    engine.command(Submit(workloads=(job("wide", 5000, tasks=6, run=MINUTE),)))
    engine.advance(2 * HOUR - MINUTE)
    # "a" fills half a node and "b" half of another; six nodes wait for, then run, the gang.
    assert engine.state.sizing.demand == {0: [7, 1]}
    assert engine.state.sizing.last_hour == {0: 1}


def test_work_without_quota_and_held_work_is_no_demand() -> None:
    """Quota for 16 CPUs, of which nine want 8 each."""
    spec = QueueSpec(name="a", nominal={"cpu_milli": 16_000})
    engine = started(cell(0, queues=(spec,)))
    engine.command(Submit(workloads=(job("held", 8000, held=True),)))
    engine.advance(30_000)
    assert engine.state.sizing.demand == {0: [0]}
    engine.command(Submit(workloads=tuple(job(f"w{i}", 8000) for i in range(9))))
    engine.advance(60_000)
    assert engine.state.sizing.demand == {0: [2]}


def test_hours_of_which_nothing_is_known_count_as_the_one_before() -> None:
    state = State()
    for hour, nodes in ((5, 3), (5, 4), (9, 1)):
        state.sizing.note_demand(0, hour, nodes)
    past, following = state.sizing.past(0, 9 * HOUR + 1)
    assert (past.tolist(), following) == ([4, 4, 4, 4], 9)
    past, following = state.sizing.past(0, 12 * HOUR)
    assert (past.tolist(), following) == ([4, 4, 4, 4, 1], 10)


def test_what_is_noted_survives_a_restart(tmp_path: object) -> None:
    path = f"{tmp_path}/cell.db"
    engine = started(cell(2), job("a", 8000), path=path)  # type: ignore[arg-type]
    engine.command(SetTargets(pool="p", targets=((5 * HOUR, 3), (2 * HOUR, 4))))
    engine.advance(90 * MINUTE)
    digest, sizing = engine.state.digest(), engine.state.sizing.dump()
    engine.close()
    for use_snapshot in (True, False):
        again = Engine.open(path, use_snapshot=use_snapshot)
        assert (again.state.digest(), again.state.sizing.dump()) == (digest, sizing)
        assert again.state.sizing.targets == {0: [(2 * HOUR, 4), (5 * HOUR, 3)]}
        again.close()


# -- what a pool should have ------------------------------------------------------------------------------------------


def test_a_pool_should_have_the_most_of_what_is_set_foretold_and_its_least() -> None:
    engine = started(cell(0, least=2, most=9, predict_permille=900))
    engine.command(SetTargets(pool="p", targets=((HOUR, 5), (3 * HOUR, 0))))
    state = engine.state
    state.sizing.note_demand(0, 0, 1)
    for at_ms, said, wanted in (
        (0, 0.0, 2), (HOUR - 3 * MINUTE, 0.0, 2), (HOUR - 150_000, 0.0, 5), (2 * HOUR, 6.2, 7), (2 * HOUR, 40.0, 9),
        (3 * HOUR, 3.0, 3),
    ):  # fmt: skip
        assert Foresight(state, Says(*[said] * 9)).wanted(at_ms) == {0: wanted}, at_ms


def test_the_forecast_is_of_this_hour_and_of_that_in_which_a_new_node_is_ready() -> None:
    engine = started(cell(0, most=99, predict_permille=900))
    for hour in range(30):
        engine.state.sizing.note_demand(0, hour, 1)
    says = Says(3, 8)
    foresight = Foresight(engine.state, says)
    assert foresight.wanted(29 * HOUR) == {0: 3}
    assert foresight.wanted(30 * HOUR - 150_001) == {0: 3}
    assert foresight.wanted(30 * HOUR - 150_000) == {0: 8}
    assert says.asked == [(29, 1), (29, 2)]
    # Within the hour it is not asked again: what is over does not change.
    assert foresight.wanted(30 * HOUR - MINUTE) == {0: 8}
    assert len(says.asked) == 2


def test_targets_are_there_in_time_and_kept_until_the_next() -> None:
    engine = started(cell(0))
    engine.command(SetTargets(pool="p", targets=((2 * HOUR, 6), (4 * HOUR, 1))))
    engine.advance(2 * HOUR - 5 * MINUTE)
    assert there(engine) == []
    engine.advance(2 * HOUR + MINUTE)
    assert ready(engine) == 6
    engine.advance(4 * HOUR - 1)
    assert ready(engine) == 6
    engine.advance(4 * HOUR + 30 * MINUTE)
    assert ready(engine) == 1
    orders = len(engine.state.orders.pool)
    engine.advance(DAY)
    assert (ready(engine), len(engine.state.orders.pool)) == (1, orders)
    check_state(engine.state)


@pytest.mark.parametrize("permille", [0, 900])
def test_nodes_are_there_before_the_hour_that_always_needs_them(permille: int) -> None:
    """Ten jobs of a node each at eight in the morning, every day, for two hours."""
    engine = started(cell(0, predict_permille=permille, scan_every_ms=5 * MINUTE))
    waits = []
    for day in range(6):
        eight = day * DAY + 8 * HOUR
        engine.advance(eight)
        engine.command(Submit(workloads=tuple(job(f"d{day}-{i}", 8000, run=2 * HOUR) for i in range(10))))
        engine.advance(eight + 30 * MINUTE)
        placed = [engine.workload(f"d{day}-{i}").started_ms for i in range(10)]
        waits.append(max(at - eight for at in placed if at is not None))
        assert None not in placed
        engine.advance(eight + 12 * HOUR)
        # Of the first days it knows too little to let go what a day asked for.
        assert ready(engine) == 0 or (permille and day < 3)
    assert waits[0] > MINUTE
    assert max(waits[3:]) == 0 if permille else min(waits) > MINUTE
    check_state(engine.state)


# -- what people set --------------------------------------------------------------------------------------------------


def test_the_size_of_a_pool_is_set_while_it_runs() -> None:
    engine = started(cell(3, most=5))
    engine.command(SetScaling(pool="p", least=4, most=6, headroom=1, priority=7))
    scaling = engine.state.capacity.pools[0].scaling
    assert scaling is not None
    assert (scaling.least, scaling.most, scaling.headroom, scaling.priority) == (4, 6, 1, 7)
    engine.advance(10 * MINUTE)
    assert ready(engine) == 4
    engine.command(SetScaling(pool="p", least=0, headroom=0))
    engine.advance(HOUR)
    assert ready(engine) == 0
    version = engine.version
    engine.command(SetScaling(pool="p", least=0))
    assert engine.version == version


def test_a_pool_can_be_made_to_grow() -> None:
    engine = started(cell(1, fixed=1))
    with pytest.raises(SpecError, match="most"):
        engine.command(SetScaling(pool="fixed", least=1))
    engine.command(SetScaling(pool="fixed", most=3, least=2))
    engine.advance(10 * MINUTE)
    assert sum(name.startswith("f") for name in there(engine)) == 2


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (SetScaling(pool="nowhere", least=1), NotFoundError, "no pool 'nowhere'"),
        (SetScaling(pool="p", least=30), SpecError, "more than most"),
        (SetScaling(pool="p", headroom=-1), SpecError, "headroom"),
        (SetTargets(pool="p", targets=((0, 30),)), SpecError, "above the pool's maximum"),
        (SetTargets(pool="p", targets=((0, 3), (0, 4))), SpecError, "given twice"),
        (SetTargets(pool="p", targets=((-5, 3),)), SpecError, "targets"),
        (SetTargets(pool="fixed", targets=((0, 3),)), RefusedError, "is not autoscaled"),
        (SetAutoscaling(preset="fast"), SpecError, "no 'fast'"),
        (SetAutoscaling(changes={"scan": 5}), SpecError, "not a setting"),
        (SetAutoscaling(changes={"scan_every_ms": "x"}), SpecError, "changes"),  # type: ignore[dict-item]
        (SetAutoscaling(changes={"scan_every_ms": 5}), SpecError, "scan_every_ms"),
        (SetAutoscaling(changes={"expanders": ("price", "price")}), SpecError, "twice"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    command: SetScaling | SetTargets | SetAutoscaling, error: type[Exception], said: str
) -> None:
    engine = started(cell(1))
    before = engine.state.digest()
    with pytest.raises(error, match=said):
        engine.command(command)
    assert engine.state.digest() == before


def test_presets_and_single_settings_are_set_while_it_runs() -> None:
    engine = started(cell(1))
    engine.command(SetAutoscaling(preset="ca"))
    assert engine.state.settings.autoscaling == PRESETS["ca"]
    engine.command(SetAutoscaling(changes={"enabled": False, "expanders": ("price",), "most_nodes": 9}))
    expected = msgspec.structs.replace(PRESETS["ca"], enabled=False, expanders=("price",), most_nodes=9)
    assert engine.state.settings.autoscaling == expected
    engine.advance(DAY)
    assert there(engine) == ["n0"]
