"""The difference of two times against what was written down at both, and event by event between them."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from effort import examples
from hypothesis import given, settings
from random_cells import SOME, Life, Player, lives

from engine.control import Engine
from engine.journal.past_states import PastState
from engine.model import events as ev
from engine.model.commands import ChangeQueue, Cordon, Define
from engine.model.errors import NotFoundError
from engine.model.past_queries import CellDifference, DifferenceRequest
from engine.model.specs import WorkloadState
from engine.past.differences import DifferenceFold
from engine.reads.recent_activity import _singles
from tests.support.cells import small_cell, submit, workload

MINUTE_MS = 60_000
START_MS = 1_776_000_000_000
COUNTED = {ev.Started: "started", ev.Finished: "finished", ev.Failed: "failed", ev.Cancelled: "cancelled",
           ev.Evicted: "evicted"}  # fmt: skip


class Page(NamedTuple):
    """What was seen of a cell at one time."""

    version: int
    rules: dict[str, dict[str, Any]]
    queued: Counter[str]
    bound: Counter[str]


def page_of(engine: Engine) -> Page:
    state = engine.state
    w, queues = state.workloads, state.queues
    at = [(queues.specs[w.queue[row]].name, WorkloadState(w.state[row])) for row in range(len(w.ids))]
    pools = {
        pool.name: (pool, sum(state.capacity.pool[node] == row for node in state.capacity.row_of.values()))
        for row, pool in enumerate(state.capacity.pools)
    }
    rules = {
        "queue": {spec.name: (spec, queues.mode[row]) for row, spec in enumerate(queues.specs)},
        "pool": pools,
        "policy": {"": state.policy},
        "reservation": {each.spec.name: each.spec for each in state.bookings.reservations},
    }
    return Page(
        state.version, rules, Counter(queue for queue, each in at if each == WorkloadState.QUEUED),
        Counter(queue for queue, each in at if each in (WorkloadState.PLACED, WorkloadState.RUNNING)),
    )  # fmt: skip


def difference(engine: Engine, since_ms: int, until_ms: int, **filters: Any) -> CellDifference:
    assert engine.place is not None
    past, fold = PastState(engine.place), DifferenceFold()
    past.seek(since_ms)
    fold.begin(past.state, since_ms)
    past.go_on(until_ms, fold.note)
    past.close()
    fold.finish(until_ms)
    return fold.answer(DifferenceRequest(since_ms=since_ms, until_ms=until_ms, **filters))


@settings(SOME, max_examples=examples(20))
@given(lives(durable=True))
def test_the_difference_is_that_of_the_two_states_and_of_every_event_between(life: Life) -> None:
    pages: dict[int, Page] = {}
    happened: list[tuple[int, ev.AnyEvent]] = []
    note = Engine._record

    def noted(engine: Engine, event: ev.AnyEvent) -> None:
        note(engine, event)
        if engine._journal is not None:
            pages[engine.state.now_ms] = page_of(engine)
            happened.extend((at, each) for _, at, each in _singles(engine.version, engine.state.now_ms, event))

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_record", noted)
        player = Player(life, folder)
        player.play()
        player.engine._journal.close()
        rng, times = random.Random(life.seed), sorted(pages)
        for _ in range(4):
            since_ms, until_ms = sorted((rng.choice(times), rng.choice(times)))
            found = difference(player.engine, since_ms, until_ms)
            before, after = pages[since_ms], pages[until_ms]
            assert (found.since_version, found.until_version) == (before.version, after.version)
            expected = Counter(COUNTED.get(type(event)) for at, event in happened if since_ms < at <= until_ms)
            for what in COUNTED.values():
                told = [getattr(queue, what) for queue in found.queues]
                assert sum(told) == expected[what], what
            for queue in found.queues:
                ends = (before.queued, after.queued, before.bound, after.bound)
                told = [queue.queued_before, queue.queued_after, queue.running_before, queue.running_after]
                assert told == [end[queue.queue] for end in ends]
            for kind, specs in before.rules.items():
                names = specs.keys() | after.rules[kind].keys()
                others = {name for name in names if specs.get(name) != after.rules[kind].get(name)}
                assert {rule.subject for rule in found.rules if rule.kind == kind} == others


def entry(actor: str) -> ev.AuditEntry:
    return ev.AuditEntry(at_wall_ms=0, actor=actor, action="any", digest="0123456789abcdef", plan=b"{}")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """At minute 10 two run; at 20 ann has a node cordoned, at 25 bob halves a quota, one ends."""
    made = Engine.open(tmp_path / "journal.db")
    made.advance(START_MS)
    made.command(Define(cell=small_cell(quota={"gpu_milli": 16_000})))
    ends = workload("ends", gpu=1000, run=22 * MINUTE_MS)
    made.command(submit(ends, workload("stays", gpu=1000, run=600 * MINUTE_MS)))
    made.advance(START_MS + 20 * MINUTE_MS)
    made.command(Cordon(ids=(made.workload("stays").placement[0].node,)), audit=entry("person:ann"))
    made.advance(START_MS + 25 * MINUTE_MS)
    spec = next(spec for spec in made.state.queues.specs if spec.name == "a")
    half = msgspec.structs.replace(spec, nominal={"gpu_milli": 8_000})
    made.command(ChangeQueue(queue=half), audit=entry("person:bob"))
    made.advance(START_MS + 30 * MINUTE_MS)
    yield made
    made.close()


def told(found: CellDifference) -> list[tuple[str, str, str]]:
    return [
        (each.what, each.subject, each.by) for counted in (*found.workloads, *found.nodes) for each in counted.latest
    ]


@pytest.mark.both_databases
def test_who_brought_about_what_with_values_before_and_after(engine: Engine) -> None:
    node = engine.workload("stays").placement[0].node
    found = difference(engine, START_MS + 10 * MINUTE_MS, START_MS + 30 * MINUTE_MS)
    assert told(found) == [
        ("finished", "ends", "the work itself"), ("cordoned", node, "person:ann, plan 0123456789ab"),
    ]  # fmt: skip
    (rule,) = found.rules
    assert (rule.kind, rule.subject, rule.field) == ("queue", "a", "nominal.gpu_milli")
    assert (rule.before, rule.after, rule.by) == ("16000", "8000", "person:bob, plan 0123456789ab")
    assert rule.at_ms == START_MS + 25 * MINUTE_MS
    (queue,) = found.queues
    assert (queue.queue, queue.finished, queue.running_before, queue.running_after) == ("a", 1, 2, 1)


def test_only_a_queue_or_a_node_is_told_of(engine: Engine) -> None:
    since_ms, until_ms = START_MS + 10 * MINUTE_MS, START_MS + 30 * MINUTE_MS
    of_other = difference(engine, since_ms, until_ms, queue="b")
    assert (told(of_other), of_other.queues, of_other.rules) == ([], (), ())
    assert [each[1] for each in told(difference(engine, since_ms, until_ms, queue="a"))] == ["ends"]
    node = engine.workload("stays").placement[0].node
    on_node = {each[1] for each in told(difference(engine, since_ms, until_ms, node=node))}
    assert node in on_node
    assert told(difference(engine, since_ms, until_ms, node="c0")) == []
    for filters in ({"queue": "nosuch"}, {"node": "nosuch"}):
        with pytest.raises(NotFoundError):
            difference(engine, since_ms, until_ms, **filters)


def test_lists_are_bounded_and_counts_are_not(engine: Engine) -> None:
    engine.advance(START_MS + 31 * MINUTE_MS)
    engine.command(submit(*(workload(f"w{number}", gpu=1000, run=MINUTE_MS) for number in range(40))))
    engine.advance(START_MS + 60 * MINUTE_MS)
    found = difference(engine, START_MS + 30 * MINUTE_MS, engine.now_ms, limit=3)
    counts = {each.what: (each.count, len(each.latest)) for each in found.workloads}
    assert counts["submitted"] == (40, 3)
    assert counts["finished"] == (40, 3)
