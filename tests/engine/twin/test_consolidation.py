"""Consolidation: plans that were worked out by hand, who is never moved, and that a plan does what it says."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import AddPriorityClasses, Cancel, ChangeQueue, Cordon, Migrate, Move, Reserve, Submit
from engine.model.consolidation_queries import Consolidation, ConsolidationPlan, ConsolidationRequest
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import CellSpec, PriorityClassSpec, QueueSpec, ReservationSpec, TopologyRequest, WorkloadSpec
from engine.scheduling.migration import RESTART_MS
from engine.state.cell_state import State
from engine.twin.consolidation import plan
from engine.twin.counterfactuals import verified
from tests.support.cells import small_cell, submit, workload

MINUTE = 60_000
HOUR = 60 * MINUTE
STONE = PriorityClassSpec(name="stone", value=500, preemptible=False)


def job(name: str, gpu: int, **more: object) -> WorkloadSpec:
    """Of so many whole GPUs, for ten hours, with a checkpoint every ten minutes unless something else is said."""
    given = {"cpu": 1000 * gpu, "estimate": 10 * HOUR, "run": 10 * HOUR, "checkpoint": 10 * MINUTE} | more
    return workload(name, gpu=1000 * gpu, **given)  # type: ignore[arg-type]


def big(name: str = "big", **more: object) -> WorkloadSpec:
    return job(name, 8, **({"estimate": 5 * HOUR, "run": 5 * HOUR} | more))


def halves(nodes: int = 2, cell: CellSpec | None = None, **more: object) -> Engine:
    """A job of 4 GPU on each node, `h0`, `h1`, …, that has run for 15 minutes. The other half of each node is free."""
    engine = Engine.open(None, cell=cell or small_cell(gpu_nodes=nodes, cpu_nodes=0))
    engine.command(AddPriorityClasses(priority_classes=(STONE,)))
    for i in range(nodes):
        engine.command(submit(job(f"h{i}", 4, **more), job(f"gone{i}", 4)))
    engine.advance(15 * MINUTE)
    engine.command(Cancel(ids=tuple(f"gone{i}" for i in range(nodes))))
    return engine


def asked(engine: Engine, **wanted: object) -> Consolidation:
    """The engine's answer, which changes nothing."""
    before = engine.state.digest()
    answer = plan(engine, ConsolidationRequest(**wanted))  # type: ignore[arg-type]
    assert engine.state.digest() == before
    return answer


def found(engine: Engine, **wanted: object) -> ConsolidationPlan:
    answer = asked(engine, **wanted)
    assert answer.found is not None, answer.why
    return answer.found


def nodes_of(engine: Engine, name: str) -> Counter[str]:
    tasks: Counter[str] = Counter()
    for place in engine.workload(name).placement:
        tasks[place.node] += place.tasks
    return tasks


def carried_out(engine: Engine, made: ConsolidationPlan) -> None:
    engine.command(Migrate(moves=tuple(Move(id=move.id, nodes=move.nodes) for move in made.moves)))


# -- worked out by hand -----------------------------------------------------------------------------------------------


def test_one_half_is_moved_beside_the_other() -> None:
    engine = halves()
    engine.command(submit(big()))
    assert engine.workload("big").reasons[0].token == "Fragmented"
    made = found(engine)
    # Both lose five minutes; the younger one is moved.
    [move] = made.moves
    assert (move.id, [p.node for p in move.was], [p.node for p in move.to]) == ("h1", ["g1"], ["g0"])
    assert (move.lost_ms, move.pause_ms) == (5 * MINUTE, RESTART_MS)
    assert (made.unit, made.lost_s, made.restart_s) == ("gpu", 4 * 300, 4 * 60)
    # It would have waited 9 h 45 min for the first of them to end, and takes 5 h of 8 GPU.
    [start] = made.unblocks
    assert (start.id, start.waits_ms, start.gains_ms) == ("big", 9 * HOUR + 45 * MINUTE, 5 * HOUR)
    assert made.gained_s == 8 * 5 * 3600
    # Shares of the cell: 8 of 16 GPU for 5 h, against 4 of 16 for 6 min.
    assert made.ratio_permille == 2 * 5 * 60 * 1000 // 6
    # Before, one task of three could use nothing of what is free; afterwards nothing is free.
    assert (made.fragmentation_before_ppm, made.fragmentation_after_ppm) == (333_333, 0)


def test_the_cheaper_of_two_is_moved() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2, cpu_nodes=0))
    engine.command(submit(job("saves", 4), job("x", 4), job("loses-all", 4, checkpoint=0), job("y", 4)))
    engine.advance(15 * MINUTE)
    engine.command(Cancel(ids=("x", "y")))
    engine.command(submit(big()))
    assert [move.id for move in found(engine, unblock="big").moves] == ["saves"]


def test_a_plan_is_carried_out_as_it_says() -> None:
    engine = halves(4)
    engine.command(submit(big(), big("big-2")))
    made = found(engine, unblock="big")
    carried_out(engine, made)
    assert engine.workload("big").state == "running"
    for move in made.moves:
        assert nodes_of(engine, move.id) == Counter({place.node: place.tasks for place in move.to})
        assert engine.workload(move.id).state == "running"
    # Nobody else was stopped.
    moved = {move.id for move in made.moves}
    assert [engine.workload(f"h{i}").attempts for i in range(4)] == [1 + (f"h{i}" in moved) for i in range(4)]


def test_a_gang_moves_whole() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=3, cpu_nodes=0))
    engine.command(submit(job("x", 4), job("pair", 4, count=2), job("wall", 8)))
    engine.advance(15 * MINUTE)
    engine.command(Cancel(ids=("x",)))
    engine.command(submit(big()))
    assert nodes_of(engine, "pair") == {"g0": 1, "g1": 1}
    made = found(engine, unblock="big")
    assert [move.id for move in made.moves] == ["pair"]
    carried_out(engine, made)
    assert list(nodes_of(engine, "pair").values()) == [2]
    assert engine.workload("big").state == "running"


def test_nodes_are_emptied_on_demand() -> None:
    engine = halves(4)
    made = found(engine, free_nodes=2, pool="gpu")
    assert len(made.moves) == 2
    assert len(made.frees) == 2
    assert made.unblocks == ()
    carried_out(engine, made)
    assert [engine.node(name).workloads for name in made.frees] == [(), ()]
    assert asked(engine, free_nodes=2, pool="gpu").why == "2 empty nodes of pool gpu are already there"


def test_an_elastic_gang_may_come_out_smaller() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2, cpu_nodes=0))
    elastic = msgspec.structs.replace(job("e", 2, count=3), elastic=True)
    group = msgspec.structs.replace(elastic.groups[0], min_count=1)
    engine.command(submit(job("x", 5), msgspec.structs.replace(elastic, groups=(group,))))
    engine.advance(15 * MINUTE)
    assert nodes_of(engine, "e") == {"g0": 1, "g1": 2}
    engine.command(submit(big()))
    [move] = found(engine, unblock="big").moves
    assert ([place.tasks for place in move.was], [place.tasks for place in move.to]) == ([1, 2], [1])


def test_a_gang_that_must_be_in_one_rack_gets_one() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=4, cpu_nodes=0))
    engine.command(submit(job("a", 4), job("x", 4), job("y", 8), job("b", 4)))
    engine.advance(15 * MINUTE)
    engine.command(Cancel(ids=("x", "y")))
    close = msgspec.structs.replace(big(count=2), topology=TopologyRequest(required="rack"))
    engine.command(submit(close))
    # Two nodes are empty, g1 and g3, each in a rack with one that is half used.
    assert (nodes_of(engine, "a"), nodes_of(engine, "b")) == ({"g0": 1}, {"g2": 1})
    assert engine.workload("big").reasons[0].token == "NoDomainFits"
    made = found(engine)
    assert len(made.moves) == 1
    carried_out(engine, made)
    assert len({place.rack for place in engine.workload("big").placement}) == 1


# -- who is never moved -----------------------------------------------------------------------------------------------


def blocked(**more: object) -> Engine:
    engine = halves(**more)  # type: ignore[arg-type]
    engine.command(submit(big()))
    return engine


def test_what_is_not_preemptible_stays() -> None:
    answer = asked(blocked(priority="stone"), unblock="big")
    assert answer.found is None
    assert "2 not preemptible" in answer.why


def test_what_is_younger_than_the_minimum_runtime_of_its_queue_stays() -> None:
    engine = blocked()
    spec = engine.queue("a").spec
    engine.command(ChangeQueue(queue=msgspec.structs.replace(spec, min_runtime_ms=HOUR)))
    answer = asked(engine, unblock="big")
    assert answer.found is None
    assert "2 younger than the minimum runtime of its queue" in answer.why
    engine.advance(2 * HOUR)
    assert len(found(engine, unblock="big").moves) == 1


def test_a_queue_is_disrupted_no_more_than_it_allows() -> None:
    engine = halves(4)
    spec = engine.queue("a").spec
    engine.command(ChangeQueue(queue=msgspec.structs.replace(spec, disruptions=1)))
    engine.command(submit(big(), big("big-2")))
    two = asked(engine, free_nodes=2, pool="gpu")
    assert two.found is None
    carried_out(engine, found(engine, unblock="big"))
    # A move counts as a disruption.
    answer = asked(engine, unblock="big-2")
    assert answer.found is None
    assert "may not be disrupted any more" in answer.why
    engine.advance(engine.now_ms + 2 * HOUR)
    assert found(engine, unblock="big-2").moves


def test_what_ends_in_a_moment_stays() -> None:
    engine = blocked(estimate=15 * MINUTE + 30_000)
    answer = asked(engine, unblock="big")
    assert answer.found is None
    assert "2 at its end in a moment" in answer.why


def test_no_more_gangs_than_allowed_are_moved() -> None:
    engine = halves(4)
    assert asked(engine, free_nodes=2, pool="gpu", max_moves=1).found is None
    assert len(found(engine, free_nodes=2, pool="gpu", max_moves=2).moves) == 2


# -- why not ----------------------------------------------------------------------------------------------------------


def test_too_little_is_free_whatever_is_moved() -> None:
    engine = halves()
    engine.command(submit(job("x", 3), big()))
    told = "too little is free: 1 task of 8 CPU + 8 GPU is wanted; unfragmented there is room for 0"
    assert asked(engine, unblock="big").why == told


def test_moves_do_not_help_against_quota() -> None:
    engine = halves(cell=small_cell(gpu_nodes=2, cpu_nodes=0, quota={"gpu_milli": 16_000}))
    engine.command(submit(big()))
    spec = engine.queue("a").spec
    engine.command(ChangeQueue(queue=msgspec.structs.replace(spec, nominal={"gpu_milli": 10_000}), over="keep"))
    assert "lacks quota" in asked(engine, unblock="big").why


def test_what_goes_first_would_take_the_room() -> None:
    engine = halves()
    engine.command(submit(big("first", priority="high"), big()))
    assert asked(engine, unblock="big").why == "others that go first would take the room: first"
    assert [start.id for start in found(engine).unblocks] == ["first"]


def test_what_does_not_wait_is_said_so() -> None:
    engine = halves()
    assert asked(engine, unblock="h0").why == "h0 is running: it is not waiting for capacity"
    assert asked(engine).why == "nothing waits because of fragmentation"
    with pytest.raises(NotFoundError, match="nobody"):
        plan(engine, ConsolidationRequest(unblock="nobody"))


@pytest.mark.parametrize(
    "wrong",
    [{"free_nodes": 1}, {"pool": "gpu"}, {"free_nodes": 3, "pool": "gpu"}, {"max_moves": -1},
     {"unblock": "h0", "free_nodes": 1, "pool": "gpu"}, {"least_ratio_permille": -1}],
)  # fmt: skip
def test_requests_that_cannot_be_meant_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        plan(halves(), ConsolidationRequest(**wrong))  # type: ignore[arg-type]


def test_a_plan_that_costs_more_than_it_brings_is_shown_and_not_worth_it() -> None:
    engine = halves(checkpoint=0)
    engine.advance(9 * HOUR + 50 * MINUTE)
    engine.command(submit(big(estimate=30 * MINUTE, run=30 * MINUTE)))
    answer = asked(engine, unblock="big")
    assert answer.found is not None
    assert not answer.found.worth_it
    # 8 GPU for ten minutes, against 4 GPU for almost ten hours.
    assert answer.found.ratio_permille < 100
    assert "and the minimum is 0.50" in answer.why
    assert found(engine, unblock="big", least_ratio_permille=0).worth_it


# -- always -----------------------------------------------------------------------------------------------------------


def random_cell(rng: random.Random) -> Engine:
    """Some nodes with holes, work of all sizes, some of it young, unmovable or elastic, and some that waits."""
    base = small_cell(gpu_nodes=rng.choice([4, 8, 12]), cpu_nodes=1)
    tight = QueueSpec(name="tight", disruptions=rng.choice([-1, 0, 1]), min_runtime_ms=rng.choice([0, 40 * MINUTE]))
    queues, classes = (*base.queues, tight), (*base.priority_classes, STONE)
    engine = Engine.open(None, cell=msgspec.structs.replace(base, queues=queues, priority_classes=classes))
    for start in range(0, 40, 10):
        engine.command(Submit(workloads=tuple(random_gang(rng, f"w{start + i}") for i in range(10))))
        engine.advance(engine.now_ms + rng.randrange(30) * MINUTE)
        running = [f"w{i}" for i in range(start + 10) if engine.workload(f"w{i}").state == "running"]
        engine.command(Cancel(ids=tuple(rng.sample(running, max(len(running) // 3, 1)))))
    if rng.random() < 0.3:
        engine.command(Cordon(ids=("g0",)))
    if rng.random() < 0.3:
        start_ms = engine.now_ms + HOUR
        kept = ReservationSpec(name="kept", nodes=("g1",), start_ms=start_ms, end_ms=start_ms + HOUR)
        engine.command(Reserve(reservation=kept))
    return engine


def random_gang(rng: random.Random, name: str) -> WorkloadSpec:
    gang = workload(
        name, gpu=rng.choice([300, 500, 1000, 1000, 2000, 3000, 4000, 8000]), cpu=2000,
        count=rng.choice([1, 1, 1, 2, 3]), queue=rng.choice(["a", "b", "tight"]),
        priority=rng.choice(["low", "normal", "high", "stone"]), checkpoint=rng.choice([0, 7 * MINUTE]),
        estimate=rng.choice([0, HOUR, 9 * HOUR]), run=20 * HOUR,
    )  # fmt: skip
    if rng.random() < 0.2:
        group = msgspec.structs.replace(gang.groups[0], min_count=1)
        gang = msgspec.structs.replace(gang, groups=(group,), elastic=True)
    return gang


def bound(state: State) -> dict[str, int]:
    w = state.workloads
    return {w.ids[row]: w.attempts[row] for row in range(len(w.ids)) if state.is_bound(row)}


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_does_what_it_says_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    engine = random_cell(rng)
    waiting = [row for group in engine.state.pending.groups.values() for row in group.rows[group.front :]]
    requests = [ConsolidationRequest(least_ratio_permille=0)]
    requests += [ConsolidationRequest(unblock=engine.state.workloads.ids[row]) for row in sorted(waiting)[:4]]
    requests += [ConsolidationRequest(free_nodes=rng.choice([1, 2]), pool="gpu", max_moves=rng.choice([0, 2, 5]))]
    for request in requests:
        answer = plan(engine, request)
        assert (answer.found is None or not answer.found.worth_it) == bool(answer.why)
        if answer.found is None:
            continue
        check_carried_out(engine, request, answer.found)


def check_carried_out(engine: Engine, request: ConsolidationRequest, made: ConsolidationPlan) -> None:
    fork = engine.fork()
    fork.settle()
    state, w = fork.state, fork.state.workloads
    assert made.moves
    assert len(made.moves) <= (request.max_moves or len(made.moves))
    per_queue: Counter[str] = Counter()
    for move in made.moves:
        row = w.row(move.id)
        spec = state.queues.specs[w.queue[row]]
        assert w.priority_classes[w.priority[row]].preemptible
        assert fork.now_ms - w.started[row] >= spec.min_runtime_ms
        per_queue[spec.name] += 1
        assert spec.disruptions < 0 or per_queue[spec.name] <= spec.disruptions
        assert nodes_of(fork, move.id) == Counter({place.node: place.tasks for place in move.was})
        had, has = (sum(place.tasks for place in places) for places in (move.was, move.to))
        assert has == had or (w.elastic[row] and 0 < has < had)
    before = bound(state)
    carried_out(fork, made)
    after = bound(fork.state)
    moved = {move.id for move in made.moves}
    for name, attempts in before.items():
        assert after[name] == attempts + (name in moved)
    assert {start.id for start in made.unblocks} == after.keys() - before.keys()
    assert not request.unblock or request.unblock in after
    for move in made.moves:
        assert nodes_of(fork, move.id) == Counter({place.node: place.tasks for place in move.to})
    if request.free_nodes:
        assert all(not set(made.frees).intersection(place.node for place in move.to) for move in made.moves)


def test_the_same_cell_gives_the_same_plan_after_a_restart() -> None:
    engine = halves(4)
    engine.command(submit(big(), big("big-2")))
    state = State()
    state.load(engine.state.dump())
    again = Engine(state)
    assert plan(again, ConsolidationRequest()).found == found(engine)


def test_a_move_that_does_not_fit_any_more_is_refused_whole() -> None:
    engine = halves(4)
    engine.command(submit(big()))
    made = found(engine, unblock="big")
    [to] = made.moves[0].nodes
    engine.command(Cordon(ids=(to,)))
    before = engine.state.digest()
    with pytest.raises(RefusedError):
        carried_out(engine, made)
    assert engine.state.digest() == before


def test_why_a_fragmented_gang_waits_says_what_moving_would_do() -> None:
    engine = halves()
    engine.command(submit(big()))
    answer = verified(engine, "big")
    assert answer.found is not None
    assert (answer.found.kind, answer.found.text) == ("consolidate", "h1 is moved to g0")
    [edit] = answer.found.edits
    assert (edit["do"], [move["id"] for move in edit["moves"]]) == ("migrate", ["h1"])
