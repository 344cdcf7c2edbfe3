"""The watch over nodes: silent, suspect, lost, back; repaired, given back, kept out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from engine.control import Engine
from engine.executors.agent_reports import MAX_STRANGERS, SampleOf
from engine.model import events as ev
from engine.model.commands import (
    AddNodes,
    Cordon,
    FailNodes,
    RemoveNodes,
    RestoreNodes,
    SetSettings,
    Submit,
    Uncordon,
)
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import CellSpec, HealthSettings, NodeSpec, NodeState, PoolSpec, ScalingSpec, Settings
from tests.support.cells import small_cell, submit, workload
from tests.support.elastic_cells import elastic, pool, work
from tests.support.elastic_cells import submit as order_work
from tests.support.invariants import check_state

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


def cell(nodes: int, *, scaling: ScalingSpec | None = None, **health) -> CellSpec:
    """So many nodes of 8 GPUs, g0 and so on."""
    spec = small_cell(gpu_nodes=nodes, cpu_nodes=0)
    pools = tuple(msgspec.structs.replace(pool, scaling=scaling) for pool in spec.pools)
    return msgspec.structs.replace(spec, pools=pools, settings=Settings(health=HealthSettings(**health)))


class Relay:
    """Agents of some nodes, which call every ten seconds as long as they are `alive`."""

    def __init__(self, engine: Engine, nodes: Sequence[str]) -> None:
        self.engine = engine
        self.alive = set(nodes)
        self.number = 0
        self.register(nodes)

    def register(self, nodes: Sequence[str]) -> None:
        found = self.engine.agents.register(nodes)
        self.tokens = dict(zip(found.nodes, zip(found.rows, found.epochs, strict=True), strict=True))

    def call(self):
        self.number += 1
        columns = np.array([self.tokens[name] for name in sorted(self.alive)]).reshape(-1, 2)
        return self.engine.agents.beat(columns[:, 0], columns[:, 1], np.full(len(columns), self.number))

    def run(self, milliseconds: int) -> None:
        """Let time pass, and those that are alive call."""
        until = self.engine.now_ms + milliseconds
        while self.engine.now_ms < until:
            if self.engine.now_ms % (10 * SECOND) == 0:
                self.call()
            self.engine.advance(self.engine.now_ms + SECOND)


def states(engine: Engine) -> dict[str, str]:
    capacity = engine.state.capacity
    return {name: NodeState(capacity.state[row]).label for name, row in capacity.row_of.items()}


def began(nodes: int = 4, **more) -> tuple[Engine, Relay]:
    engine = Engine.open(None, cell=cell(nodes, **more))
    return engine, Relay(engine, [f"g{i}" for i in range(nodes)])


def changes(engine: Engine, after: int = 0) -> list[tuple[str, str]]:
    return [(change.what, change.subject) for change in engine.changes(after).items]


def test_forty_seconds_of_silence_make_a_node_suspect_and_its_work_goes_on() -> None:
    engine, relay = began(2)
    engine.command(submit(workload("w", count=2, gpu=8000, run=HOUR, estimate=HOUR)))
    relay.run(30 * SECOND)
    relay.alive.discard("g1")
    relay.run(29 * SECOND)
    assert states(engine) == {"g0": "ready", "g1": "ready"}
    relay.run(SECOND)
    assert states(engine) == {"g0": "ready", "g1": "suspect"}
    assert engine.workload("w").state == "running"
    assert engine.overview().suspect == 1


def test_a_suspect_takes_no_new_work() -> None:
    engine, relay = began(2)
    relay.alive.discard("g1")
    relay.run(40 * SECOND)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=HOUR, estimate=HOUR) for i in range(2))))
    assert [engine.workload(f"w{i}").state for i in range(2)] == ["running", "queued"]
    relay.alive.add("g1")
    relay.run(10 * SECOND)
    assert engine.workload("w1").state == "running"


def test_after_the_grace_it_is_lost_once_and_its_work_waits_with_its_checkpoint() -> None:
    engine, _ = began(1)
    engine.command(submit(workload("w", gpu=8000, run=HOUR, estimate=HOUR, checkpoint=25 * SECOND)))
    engine.advance(60 * SECOND - 1)
    assert states(engine) == {"g0": "suspect"}
    engine.advance(HOUR)
    assert states(engine) == {"g0": "down"}
    assert [change for change in changes(engine) if change[0] in ("suspect", "down", "requeued")] == [
        ("suspect", "g0"), ("down", "g0"), ("requeued", "w"),
    ]  # fmt: skip
    assert engine.state.workloads.kept[0] == 50 * SECOND
    check_state(engine.state)


@pytest.mark.parametrize("lost", [False, True])
def test_a_node_comes_back_as_it_was(lost: bool) -> None:
    engine, relay = began(2)
    engine.command(Cordon(ids=("g0",)))
    relay.alive.clear()
    engine.advance(70 * SECOND if lost else 50 * SECOND)
    assert set(states(engine).values()) == {"down" if lost else "suspect"}
    relay.alive |= {"g0", "g1"}
    relay.run(SECOND)
    assert states(engine) == {"g0": "cordoned", "g1": "ready"}


def test_nodes_that_never_called_are_not_watched() -> None:
    engine = Engine.open(None, cell=cell(3))
    Relay(engine, ["g0"])
    engine.advance(HOUR)
    assert states(engine) == {"g0": "down", "g1": "ready", "g2": "ready"}
    assert engine.overview().watched == 1


def test_heartbeats_are_not_in_the_journal_only_that_the_node_is_watched(tmp_path) -> None:
    engine = Engine.open(tmp_path / "j.db", cell=cell(50))
    version = engine.version
    relay = Relay(engine, [f"g{i}" for i in range(50)])
    assert engine.version - version == 1
    relay.run(HOUR)
    relay.register([f"g{i}" for i in range(50)])
    assert engine.version - version == 1
    assert engine.agents.renewed == 50 * 360
    engine.close()


def test_after_a_restart_every_watched_node_has_its_time_anew(tmp_path) -> None:
    path = tmp_path / "j.db"
    engine = Engine.open(path, cell=cell(3))
    relay = Relay(engine, ["g0", "g1"])
    relay.alive = {"g0"}
    relay.run(50 * SECOND)
    assert states(engine) == {"g0": "ready", "g1": "suspect", "g2": "ready"}
    at_ms = engine.state.now_ms
    engine.close()
    engine = Engine.open(path)
    relay.engine = engine
    assert relay.call().refused.tolist() == [0], "an old token is not known any more"
    engine.advance(at_ms + 39 * SECOND)
    assert states(engine) == {"g0": "ready", "g1": "suspect", "g2": "ready"}
    Relay(engine, ["g0"])
    engine.advance(at_ms + 61 * SECOND)
    assert states(engine) == {"g0": "ready", "g1": "down", "g2": "ready"}
    engine.close()


def test_a_fork_hears_nobody_and_suspects_nobody() -> None:
    engine, relay = began(3)
    relay.alive = {"g0", "g1"}
    relay.run(45 * SECOND)
    fork = engine.fork()
    fork.advance(fork.now_ms + HOUR)
    assert states(fork) == {"g0": "ready", "g1": "ready", "g2": "down"}
    assert states(engine) == {"g0": "ready", "g1": "ready", "g2": "suspect"}


def test_when_many_fall_silent_at_once_few_are_declared_lost() -> None:
    engine, relay = began(200)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=HOUR, estimate=HOUR) for i in range(200))))
    gone = {f"g{i}" for i in range(80)}
    relay.alive -= gone
    relay.run(60 * SECOND)
    view = engine.overview()
    assert view.mass_suspicion
    # One percent in any ten seconds, of 200.
    assert (view.suspect, list(states(engine).values()).count("down")) == (78, 2)
    relay.run(20 * SECOND)
    assert list(states(engine).values()).count("down") == 6
    report = engine.agents.report()
    assert (report.mass_suspicion, report.suspect) == (True, 74)
    relay.alive |= gone
    relay.run(20 * SECOND)
    assert set(states(engine).values()) == {"ready"}
    relay.run(MINUTE)
    w = engine.state.workloads
    assert w.state_counts[3] == 200, "nothing was lost"
    assert sum(attempts > 1 for attempts in w.attempts) == 6
    check_state(engine.state)


def test_a_mass_loss_is_declared_in_the_end_and_one_of_few_at_once() -> None:
    engine, relay = began(100)
    relay.alive -= {f"g{i}" for i in range(40)}
    relay.run(60 * SECOND)
    assert list(states(engine).values()).count("down") == 1
    relay.run(10 * MINUTE)
    assert list(states(engine).values()).count("down") == 40
    few, other = began(100)
    other.alive -= {f"g{i}" for i in range(5)}
    other.run(60 * SECOND)
    assert list(states(few).values()).count("down") == 5


def test_in_a_small_cell_one_silent_node_is_no_mass() -> None:
    engine, relay = began(3)
    relay.alive.discard("g2")
    relay.run(60 * SECOND)
    assert states(engine)["g2"] == "down"
    assert not engine.overview().mass_suspicion


def test_clocks_off_by_an_hour_are_reported_and_nothing_else() -> None:
    engine, relay = began(3)
    for number in range(1, 31):
        rows, epochs = np.array(list(relay.tokens.values())).T
        engine.agents.beat(rows, epochs, np.full(3, number), np.array([HOUR, -HOUR, 4000]))
        engine.advance(engine.now_ms + 10 * SECOND)
    assert set(states(engine).values()) == {"ready"}
    report = engine.agents.report()
    assert report.skewed == (("g0", HOUR), ("g1", -HOUR))


def test_agents_of_nodes_that_nobody_ordered_are_counted_named_and_refused() -> None:
    engine = Engine.open(None, cell=cell(1))
    version = engine.version
    for i in range(3 * MAX_STRANGERS):
        found = engine.agents.register([f"stranger-{i}"] * 2)
        assert found.refused == (f"stranger-{i}",)
        assert not found.rows
    report = engine.agents.report()
    assert report.stranger_calls == 3 * MAX_STRANGERS
    assert len(report.strangers) == MAX_STRANGERS
    assert report.watched == 0
    assert engine.version == version


def test_the_token_of_a_node_that_was_removed_or_replaced_is_refused() -> None:
    engine, relay = began(2)
    engine.command(RemoveNodes(ids=("g0",)))
    assert relay.call().refused.tolist() == [0]
    engine.command(AddNodes(nodes=(NodeSpec(id="g0", pool="gpu"),)))
    assert relay.call().refused.tolist() == [0]
    assert engine.agents.register(["g0"]).rows == (2,)
    engine.advance(HOUR)
    assert states(engine) == {"g0": "down", "g1": "down"}


def test_a_node_that_was_reported_lost_does_not_return_by_calling() -> None:
    engine, relay = began(2)
    engine.command(FailNodes(ids=("g0",)))
    relay.run(5 * MINUTE)
    assert states(engine) == {"g0": "down", "g1": "ready"}
    engine.command(RestoreNodes(ids=("g0",)))
    relay.run(5 * MINUTE)
    assert states(engine) == {"g0": "ready", "g1": "ready"}


def test_a_silent_node_that_people_touch_is_watched_again() -> None:
    engine, relay = began(2)
    relay.alive.discard("g0")
    relay.run(45 * SECOND)
    with pytest.raises(RefusedError, match="is suspect"):
        engine.command(Uncordon(ids=("g0",)))
    engine.command(Cordon(ids=("g0",)))
    assert states(engine)["g0"] == "cordoned"
    relay.run(2 * MINUTE)
    assert states(engine)["g0"] == "down"
    relay.alive.add("g0")
    relay.run(10 * SECOND)
    assert states(engine)["g0"] == "cordoned"
    engine.command(FailNodes(ids=("g0",)))
    engine.command(RestoreNodes(ids=("g0",)))
    relay.alive.discard("g0")
    relay.run(2 * MINUTE)
    assert states(engine)["g0"] == "down"


def test_a_node_whose_agent_left_is_not_watched_any_more() -> None:
    engine, relay = began(3)
    engine.command(Cordon(ids=("g0",)))
    relay.alive = {"g2"}
    relay.run(50 * SECOND)
    assert states(engine) == {"g0": "suspect", "g1": "suspect", "g2": "ready"}
    assert engine.agents.leave(["g0", "g1", "nobody"]).refused == ("nobody",)
    assert states(engine) == {"g0": "cordoned", "g1": "ready", "g2": "ready"}
    relay.alive = {"g0", "g1", "g2"}
    assert relay.call().refused.tolist() == [0, 1]
    engine.advance(engine.now_ms + HOUR)
    assert states(engine) == {"g0": "cordoned", "g1": "ready", "g2": "down"}
    assert engine.overview().watched == 1
    assert engine.agents.register(["g1"]).rows == (1,)
    engine.advance(engine.now_ms + HOUR)
    assert states(engine)["g1"] == "down"


def test_a_node_that_is_lost_again_and_again_comes_back_cordoned() -> None:
    engine, relay = began(3)
    for times in range(1, 4):
        relay.alive.discard("g0")
        relay.run(70 * SECOND)
        assert states(engine)["g0"] == "down"
        relay.alive.add("g0")
        relay.run(30 * SECOND)
        assert states(engine)["g0"] == ("ready" if times < 3 else "cordoned")
    assert engine.node("g0").note.startswith("flaps")
    assert engine.agents.report().flapping == (("g0", 3),)
    engine.command(Uncordon(ids=("g0",)))
    assert engine.node("g0").note == ""
    assert not engine.agents.report().flapping


def test_a_simulated_repair_brings_a_node_back() -> None:
    engine = Engine.open(None, cell=cell(2, repair_ms=(10 * MINUTE, 20 * MINUTE)))
    engine.command(FailNodes(ids=("g0",)))
    engine.advance(MINUTE)
    assert states(engine)["g0"] == "down"
    twin = engine.fork()
    engine.advance(2 * HOUR)
    twin.advance(2 * HOUR)
    assert states(engine)["g0"] == "ready"
    assert engine.state.digest() == twin.state.digest()
    assert not engine.state.failures.repairs


def test_a_node_whose_repairs_fail_needs_hands() -> None:
    engine = Engine.open(
        None, cell=cell(2, repair_ms=(10 * MINUTE, 20 * MINUTE), repair_fails_permille=1000, most_repairs=2)
    )
    engine.command(FailNodes(ids=("g0",)))
    engine.advance(10 * HOUR)
    assert states(engine)["g0"] == "down"
    assert engine.node("g0").note.startswith("needs hands")
    assert engine.agents.report().needs_hands == (("g0", 2),)
    assert changes(engine).count(("repair begun", "g0")) == 2
    assert engine.next_due() is None
    engine.command(RestoreNodes(ids=("g0",)))
    assert engine.node("g0").note == ""


def test_without_settings_a_node_stays_down_until_somebody_says_otherwise() -> None:
    engine = Engine.open(None, cell=cell(1))
    engine.command(FailNodes(ids=("g0",)))
    engine.advance(1000 * HOUR)
    assert states(engine)["g0"] == "down"


def test_a_node_of_an_elastic_pool_that_stays_down_is_given_back() -> None:
    engine = Engine.open(None, cell=cell(3, scaling=ScalingSpec(most=3), give_back_after_ms=5 * MINUTE))
    engine.command(FailNodes(ids=("g0", "g1")))
    engine.advance(4 * MINUTE)
    engine.command(RestoreNodes(ids=("g1",)))
    engine.advance(6 * MINUTE)
    assert "g0" not in states(engine)
    assert states(engine)["g1"] == "ready"
    check_state(engine.state)


def test_what_an_elastic_pool_lost_is_ordered_anew_and_the_lost_node_leaves() -> None:
    engine = elastic(pool("p", cpu=8, most=4))
    order_work(engine, *(work(f"w{i}", cpu=8, run=10 * HOUR) for i in range(3)))
    engine.advance(20 * MINUTE)
    assert [engine.workload(f"w{i}").state for i in range(3)] == ["running"] * 3
    first = sorted(states(engine))
    relay = Relay(engine, first)
    relay.alive.discard(first[0])
    relay.run(30 * MINUTE)
    assert [engine.workload(f"w{i}").state for i in range(3)] == ["running"] * 3
    now = states(engine)
    assert first[0] not in now
    assert set(first[1:]) < set(now)
    assert set(now.values()) == {"ready"}
    assert len(now) == 3
    check_state(engine.state)


def test_other_settings_hold_from_then_on() -> None:
    engine, _ = began(1)
    engine.command(SetSettings(settings=Settings(health=HealthSettings(suspect_after_ms=90 * SECOND, grace_ms=0))))
    engine.advance(89 * SECOND)
    assert states(engine) == {"g0": "ready"}
    engine.advance(90 * SECOND)
    assert states(engine) == {"g0": "down"}
    with pytest.raises(SpecError, match="suspect_after_ms"):
        engine.command(SetSettings(settings=Settings(health=HealthSettings(suspect_after_ms=15 * SECOND))))


def test_a_booting_node_is_ready_when_its_agent_calls() -> None:
    engine = Engine.open(None, cell=cell(1))
    engine.state.apply(ev.Ordered(0, "", 1, 10**9))
    engine.state.apply(ev.NodesGranted(0, (NodeSpec(id="new", pool="gpu"),)))
    assert states(engine)["new"] == "booting"
    engine.agents.register(["new"])
    assert states(engine)["new"] == "ready"


def test_stragglers_are_told_after_three_samples_and_nothing_is_done() -> None:
    engine, relay = began(5)
    engine.command(submit(workload("w", count=5, gpu=8000, run=HOUR, estimate=HOUR)))
    version = engine.version
    for sample in range(1, 4):
        assert not engine.agents.report().stragglers
        for task, name in enumerate(sorted(relay.tokens)):
            done = 20 * sample if name != "g2" else 12 * sample
            row, epoch = relay.tokens[name]
            assert engine.agents.status(row, epoch, sample, [SampleOf("w", task, done)]) == 1
            # A repetition is no sample.
            assert engine.agents.status(row, epoch, sample, [SampleOf("w", task, 0)]) == 0
    relay.run(MINUTE)
    (found,) = engine.agents.report().stragglers
    assert (found.node, found.workload, found.task, found.samples, found.members) == ("g2", "w", 2, 3, 5)
    assert found.done_permille * 10 == found.median_permille * 6
    assert engine.version == version
    for task, name in enumerate(sorted(relay.tokens)):
        engine.agents.status(*relay.tokens[name], 4, [SampleOf("w", task, 80 if name != "g2" else 60)])
    assert not engine.agents.report().stragglers


def test_progress_of_work_that_does_not_run_there_is_not_taken() -> None:
    engine, relay = began(2)
    engine.command(Submit(workloads=(workload("w", gpu=8000, run=HOUR, estimate=HOUR),)))
    row, epoch = relay.tokens["g1"]
    bad = [SampleOf("w", 0, 5), SampleOf("nobody", 0, 5)]
    assert engine.agents.status(row, epoch, 1, bad) == 0
    row, epoch = relay.tokens["g0"]
    assert engine.agents.status(row, epoch, 1, [SampleOf("w", 7, 5), SampleOf("w", 0, 2000), SampleOf("w", 0, 5)]) == 1
    assert engine.agents.status(row, epoch + 1, 2, [SampleOf("w", 0, 5)]) is None
    assert engine.agents.status(10**9, epoch, 2, [SampleOf("w", 0, 5)]) is None


def test_pools_without_agents_pay_nothing() -> None:
    spec = small_cell()
    assert all(isinstance(pool, PoolSpec) for pool in spec.pools)
    engine = Engine.open(None, cell=spec)
    assert engine.controllers[0].next_ms(0) is None
    engine.advance(1000 * HOUR)
    assert set(states(engine).values()) == {"ready"}
