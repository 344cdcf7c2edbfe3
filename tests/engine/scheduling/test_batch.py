"""Many workloads at once: whether things happen one by one or together cannot be seen afterwards."""

from __future__ import annotations

import dataclasses
import random
from array import array
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest
from cells import CLASSES, small_cell, submit, workload
from effort import examples
from hypothesis import given, settings
from random_cells import HOUR, SOME, Life, Player, differences, lives

from engine.control import Engine
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import MusterError
from engine.model.specs import (
    CellSpec,
    Dependency,
    PriorityClassSpec,
    QueueSpec,
    Settings,
    WorkloadSpec,
    WorkloadState,
)
from engine.model.what_if_edits import parse_all
from engine.scheduling import backfill
from engine.scheduling.cycle_memory import Binder
from engine.state.run_times import HistoricRunTimes
from engine.twin.forks import Report
from engine.twin.rehearsals import Conditions, RehearsalSample, decode, rehearse

CELL = small_cell(gpu_nodes=4, quota={"gpu_milli": 24_000})


def journalled(engine: Engine) -> list[ev.AnyEvent]:
    """Every event that the engine records from now on."""
    events: list[ev.AnyEvent] = []
    record = engine._record

    def also(event: ev.AnyEvent) -> None:
        events.append(event)
        record(event)

    engine._record = also  # type: ignore[method-assign]
    return events


@settings(SOME, max_examples=examples(60))
@given(lives())
def test_batches_leave_what_single_steps_leave(life: Life) -> None:
    """The player's engine does everything one by one, and is watched; this one does what it can at once."""
    player = Player(dataclasses.replace(life, operations=()))
    together = Engine.open(None, seed=life.seed, cell=life.cell, faults=life.faults)
    together.command(cmd.SetPolicy(policy=life.policy))
    for operation in life.operations:
        done = len(player.commands)
        player.do(operation)
        for step in player.commands[done:]:
            if isinstance(step, int):
                together.advance(step)
            else:
                together.commands(step)
        off = differences(player.engine.state, together.state)
        assert not off, f"{operation} together leaves something else in {off}"
        assert player.engine.changes(0, 10_000) == together.changes(0, 10_000)
        assert list(player.engine.scheduler.memory.decisions) == list(together.scheduler.memory.decisions)


@pytest.mark.parametrize("seed", range(8))
def test_a_promise_is_the_same_found_in_columns_and_by_walking_over_what_ends(seed: int) -> None:
    """Its time, the room beside it, and what each node will have by then, for every kind of work that waits."""
    rng = random.Random(seed)
    engine = Engine.open(None, cell=small_cell(gpu_nodes=16))
    for batch in range(6):
        specs = [
            workload(
                f"w{batch}-{i}", queue="b", count=rng.choice((1, 1, 1, 2, 5)), cpu=rng.choice((1000, 8000, 60_000)),
                gpu=rng.choice((0, 250, 500, 1000, 8000)), run=3 * HOUR, estimate=rng.randrange(10, 120) * 60_000,
            )
            for i in range(40)
        ]  # fmt: skip
        engine.command(submit(*specs))
        engine.advance(engine.now_ms + 5 * 60_000)
    state, times = engine.state, set()
    heads = [group.rows[group.front] for group in state.pending.groups.values()]
    for row in heads:
        with mock.patch.object(backfill, "MANY", 10**9):
            walked = backfill.PromisedStart(state, row)
        with mock.patch.object(backfill, "MANY", 4):
            found = backfill.PromisedStart(state, row)
        assert (found.start_ms, found._spare) == (walked.start_ms, walked._spare)
        for node in range(len(state.capacity.node_ids)):
            one, other = found._node_ahead(node), walked._node_ahead(node)
            if any(state.capacity.usable(node, shape) for shape in found.workload_class.shapes):
                assert (one.cpu, one.memory, one.devices, one.cut) == (
                    other.cpu,
                    other.memory,
                    other.devices,
                    other.cut,
                )
        times.add((found.start_ms, *found._spare))
    assert len(times) > 2, "hardly anything is promised a time of its own"


def busy(most_at_once: int, journal: Path | None = None) -> tuple[Engine, list[ev.AnyEvent]]:
    """Hundreds of single tasks in two queues that must wait for room, for quota and for each other."""
    engine = Engine.open(journal, cell=CELL)
    events = journalled(engine)
    engine.scheduler.binder.max_at_once = most_at_once
    for batch in range(4):
        specs = [
            workload(f"w{batch}-{i}", gpu=(1000, 2000, 250, 0)[i % 4], run=(i % 7 + 1) * 600_000, estimate=HOUR)
            for i in range(120)
        ]
        engine.command(submit(*specs))
        engine.advance(engine.now_ms + 20 * 60_000)
    return engine, events


@pytest.mark.parametrize("seed", range(4))
def test_gangs_that_start_and_end_together_leave_what_single_steps_leave(seed: int) -> None:
    """On nodes that they share: some with parts of devices, some waited for."""
    engines: list[Engine] = []
    recorded: list[list[ev.AnyEvent]] = []
    for most_at_once in (512, 1):
        rng, engine = (
            random.Random(seed),
            Engine.open(None, cell=small_cell(gpu_nodes=80, quota={"gpu_milli": 1_000_000})),
        )
        recorded.append(journalled(engine))
        engine.scheduler.binder.max_at_once = most_at_once
        for batch in range(4):
            specs = [
                msgspec.structs.replace(
                    workload(
                        f"w{batch}-{i}", count=rng.choice((1, 2, 5, 9)), gpu=rng.choice((0, 250, 1000, 2000, 8000)),
                        run=rng.randrange(1, 9) * 300_000, estimate=HOUR,
                    ),
                    after=(Dependency(id=f"w{batch}-{i - 1}"),) if i and rng.random() < 0.1 else (),
                )
                for i in range(60)
            ]  # fmt: skip
            engine.command(submit(*specs))
            engine.cycle_every_ms = 20 * 60_000
            engine.advance(engine.now_ms + 40 * 60_000)
        engines.append(engine)
    together, single = engines
    assert not differences(together.state, single.state)
    w = together.state.workloads
    gangs = [
        sum(w.class_at(row).tasks > 1 for row in array("i", event.rows))
        for event in recorded[0]
        if isinstance(event, ev.FinishedMany)
    ]
    assert max(gangs) >= 16, "hardly any gangs end together"


def test_batches_happen_at_all_and_the_journal_gives_the_same_state(tmp_path: Path) -> None:
    (together, events), (single, singles) = busy(512, tmp_path / "journal.db"), busy(1)
    assert {ev.SubmittedMany, ev.PlacedMany, ev.StartedMany, ev.FinishedMany} <= {type(event) for event in events}
    assert not {ev.PlacedMany, ev.StartedMany, ev.FinishedMany} & {type(event) for event in singles}
    assert len(events) < len(singles) / 3
    assert not differences(together.state, single.state)
    digest = together.state.digest()
    together.close()
    for use_snapshot in (True, False):
        again = Engine.open(tmp_path / "journal.db", use_snapshot=use_snapshot)
        assert again.state.digest() == digest
        again._journal.close()
    replayed = Engine.open(None, cell=CELL).state
    for event in ev.decode(ev.encode(singles)):
        replayed.apply(event)
    assert not differences(single.state, replayed)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "easy-sjbf", "conservative"])
def test_a_cycle_that_is_interrupted_after_each_candidate_decides_the_same(policy: cmd.Policy) -> None:
    """Work of two priorities, some of which is stopped for other work; all that it is asked in between is to go on."""

    def lived(engine: Engine) -> dict[str, tuple[object, ...]]:
        engine.command(cmd.SetPolicy(policy=policy))
        for batch in range(4):
            specs = [
                workload(
                    f"w{batch}-{i}", queue="ab"[i % 2], priority=("normal", "high")[i % 5 == 0], count=i % 3 + 1,
                    gpu=(1000, 2000, 250, 0)[i % 4], run=(i % 7 + 1) * 600_000, estimate=HOUR,
                )
                for i in range(60)
            ]  # fmt: skip
            engine.command(submit(*specs))
            until_ms = engine.now_ms + 20 * 60_000
            while engine.now_ms < until_ms or engine.is_interrupted:
                engine.advance(until_ms)
        w = engine.state.workloads
        return {each: (w.state[row], w.started[row], w.attempts[row]) for each, row in w.row_of.items()}

    whole, interrupted, seen = Engine.open(None, cell=CELL), Engine.open(None, cell=CELL), []
    interrupted.enough = lambda: bool(seen.append(interrupted.is_interrupted)) or True
    assert lived(interrupted) == lived(whole)
    assert any(seen), "it was never asked in the middle of a cycle"


PLENTY = dict.fromkeys(("cpu_milli", "memory_mib", "gpu_milli"), 2**40)
ROOMY = msgspec.structs.replace(
    small_cell(gpu_nodes=12),
    queues=(
        QueueSpec(name="root", nominal=PLENTY),
        QueueSpec(name="a", parent="root", nominal=PLENTY, lending_limit={"gpu_milli": 4000}),
        QueueSpec(name="sub", parent="root"),
        QueueSpec(name="b", parent="sub", nominal={**PLENTY, "gpu_milli": 12_000}, weight=3),
        QueueSpec(name="other", nominal=PLENTY, order="fair"),
    ),
    priority_classes=(
        *CLASSES,
        PriorityClassSpec(name="same", value=500),
        PriorityClassSpec(name="ahead", value=1, band=500),
    ),
)


def roomy(half_life_ms: int) -> CellSpec:
    return msgspec.structs.replace(ROOMY, settings=Settings(fair_half_life_ms=half_life_ms))


def crowd(rng: random.Random, turn: int) -> list[WorkloadSpec]:
    """Single tasks, a few of which fail first, or wait for one that was there before."""
    return [
        msgspec.structs.replace(
            workload(
                f"w{turn}-{i}",
                queue=rng.choice(["a", "a", "b"] if rng.random() < 0.999 else ["other"]),
                gpu=rng.choice([0, 0, 250, 1000]),
                run=rng.choice([0, rng.randrange(1, 60) * 1000 + rng.randrange(60)]),
                estimate=rng.choice([30_000, 90_000]),
                priority=rng.choice([c.name for c in ROOMY.priority_classes]) if turn % 2 else "normal",
                tenant=rng.choice(["", "t1", "t2"]),
            ),
            simulated_failures=int(rng.random() < 0.01),
            after=(Dependency(id=f"w{turn - 1}-{i}"),) if turn and rng.random() < 0.002 else (),
        )
        for i in range(200 if turn == 9 else rng.choice([30, 60]))
    ]


@pytest.mark.parametrize(("seed", "half_life_ms"), [(1, 0), (2, 60_000), (3, 500), (4, HOUR)])
def test_crowds_that_fit_start_and_end_as_they_would_one_by_one(seed: int, half_life_ms: int) -> None:
    """They come and go, mostly within quota and with room for all, sometimes not."""
    rng = random.Random(seed)
    together, single = (Engine.open(None, seed=seed, cell=roomy(half_life_ms)) for _ in range(2))
    single.scheduler.binder.max_at_once = 1
    together.cycle_every_ms = single.cycle_every_ms = rng.choice([0, 100, 5000])
    events = journalled(together)
    a, b = together.state, single.state
    for turn in range(14):
        stopped = cmd.Cancel(ids=tuple(f"w{turn}-{i}" for i in range(0, 30, 3)))
        steps = [submit(*crowd(rng, turn)), *([stopped] if turn % 3 == 0 else []), rng.choice([700, 9000, 30_000])]
        for step in steps:
            for engine in (together, single):
                engine.advance(engine.now_ms + step) if isinstance(step, int) else engine.commands([step])
            assert not differences(a, b)
            assert list(together.scheduler.memory.decisions) == list(single.scheduler.memory.decisions)
        assert together.changes(0, 20_000) == single.changes(0, 20_000)
        assert a.workloads_of_queue == b.workloads_of_queue
        assert a.tenant_use == b.tenant_use
        current = [{entry for entry in s.ends if s.ends_at(entry[1], entry[0])} for s in (a, b)]
        assert current[0] == current[1]
    sizes = [event.versions for event in events if isinstance(event, ev.PlacedMany)]
    assert sum(size >= 30 for size in sizes) > 5, "hardly anything came at once"
    replayed = Engine.open(None, cell=roomy(half_life_ms)).state
    for event in ev.decode(ev.encode(events)):
        replayed.apply(event)
    assert not differences(a, replayed)


@pytest.mark.parametrize("half_life_ms", [0, 700, HOUR])
def test_quota_given_back_together_is_as_if_it_was_in_turn(half_life_ms: int) -> None:
    rng = random.Random(half_life_ms)
    one, other = (Engine.open(None, cell=roomy(half_life_ms)).state.queues for _ in range(2))
    for _ in range(20):
        size, at_ms = 50, one.accrued_at[0] + 1000
        queues = np.array([rng.choice([1, 3, 4]) for _ in range(size)], np.int32)
        asked = np.array([[rng.choice([0, 1000]) for _ in range(4)] for _ in range(size)], np.int64)
        times = np.sort(np.array([at_ms + rng.randrange(200) for _ in range(size)], np.int64))
        for tree in (one, other):
            for queue, request in zip(queues.tolist(), asked.tolist(), strict=True):
                tree.charge(queue, tree.total_charge(tuple(request)), at_ms)
        one.give_back_many(queues, asked, times)
        for queue, request, when in zip(queues.tolist(), asked.tolist(), times.tolist(), strict=True):
            other.give_back(queue, other.total_charge(tuple(request)), when)
        assert one.dump() == other.dump()
        assert one.drawn == other.drawn


def test_a_submission_that_is_wrong_anywhere_is_refused_whole_with_the_place() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2))
    before = engine.state.digest()
    good = [workload(f"w{i}", gpu=1000) for i in range(50)]
    wrong = {
        "no queue 'nowhere'": msgspec.structs.replace(good[7], queue="nowhere"),
        "w3": msgspec.structs.replace(good[7], id="w3"),
        "nobody": msgspec.structs.replace(good[7], priority_class="nobody"),
        "could run": workload("w7", gpu=64_000),
        "spaced out": msgspec.structs.replace(good[7], id="spaced out"),
        "two\\nlines": msgspec.structs.replace(good[7], id="two\nlines"),
        "estimate": msgspec.structs.replace(good[7], estimate_ms=-1),
    }
    for told, spec in wrong.items():
        (answer,) = engine.commands([submit(*good[:7], spec, *good[8:])])
        assert isinstance(answer, MusterError), told
        assert told in str(answer), str(answer)
        assert engine.state.digest() == before


@pytest.mark.parametrize("traced", [False, True])
def test_a_rehearsal_measures_the_same_in_batches_and_one_by_one(monkeypatch: pytest.MonkeyPatch, traced: bool) -> None:
    samples: list[RehearsalSample] = []
    for most in (512, 1):
        monkeypatch.setattr(Binder, "max_at_once", most)
        engine, _ = busy(most)
        w = engine.state.workloads
        waiting = [name for name, state in zip(w.ids, w.state, strict=True) if state == WorkloadState.QUEUED][5]
        frames: list[bytes] = []
        under = Conditions(seed=1, horizon_ms=12 * HOUR, focus=(waiting,), until="started" if traced else "horizon")
        report: Report = frames.append
        rehearse(engine, parse_all(["drain g0"]) if not traced else (), under, HistoricRunTimes(engine.state), report)
        found = decode(frames[-1])
        assert isinstance(found, RehearsalSample)
        samples.append(msgspec.structs.replace(found, cpu_s=0.0))
    assert dict(samples[0].figures)["started", "cell", ""] > 0
    assert samples[0] == samples[1]
    assert samples[0].focus[0].started_ms > 0
    assert samples[0].focus[0].freed_by or not traced
