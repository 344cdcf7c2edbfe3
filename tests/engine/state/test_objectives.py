"""Burn of objectives: by hand, as counted and as remembered, against a plain recomputation, and kept in the journal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.details import Burn, BurnWindow
from engine.model.errors import SpecError
from engine.model.list_queries import Query
from engine.model.specs import CellSpec, WorkloadState
from engine.state.queue_tree import Starts

S, MINUTE = 1000, 60_000
WITHIN_MS = 2 * MINUTE


def cell(**queues: tuple[int, int]) -> CellSpec:
    """The small cell; queue name -> (objective ms, permille)."""
    plain = small_cell(1, 1)
    specs = [
        msgspec.structs.replace(
            spec, start_within_ms=queues[spec.name][0], objective_permille=queues[spec.name][1]
        ) if spec.name in queues else spec
        for spec in plain.queues
    ]  # fmt: skip
    return msgspec.structs.replace(plain, queues=tuple(specs))


def one(engine: Engine, queue: str) -> Burn:
    return next(burn for burn in engine.overview().burns if burn.queue == queue)


def test_late_starts_and_what_waits_too_long_burn() -> None:
    engine = Engine.open(None, cell=cell(a=(WITHIN_MS, 900)))
    assert one(engine, "a").hour == BurnWindow(started=0, late=0, waiting=0, burn_permille=None)
    # One GPU node: each takes it whole, for a minute and a half.
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=90 * S, estimate=90 * S) for i in range(6))))
    engine.advance(5 * MINUTE)
    # Started at 0, 90, 180 and 270 s, and two wait since 300 s: four of six are late, where a tenth may be.
    assert one(engine, "a").hour == BurnWindow(started=4, late=2, waiting=2, burn_permille=4 * 10_000 // 6)
    assert engine.queue("a").burn == one(engine, "a")
    page = engine.query(Query(kind="queues", columns=("name", "burn", "burn_6h")))
    assert page.rows == [["root", None, None], ["a", 6666, 6666], ["b", None, None]]


def test_an_objective_of_a_cohort_counts_what_is_below_it_and_an_hour_is_over_after_an_hour() -> None:
    engine = Engine.open(None, cell=cell(root=(WITHIN_MS, 950)))
    assert one(engine, "root").hour.started == 0
    engine.command(submit(workload("x", queue="b"), workload("y", queue="a")))
    engine.advance(59 * MINUTE)
    assert one(engine, "root").hour.started == 2
    engine.advance(61 * MINUTE)
    assert (one(engine, "root").hour.started, one(engine, "root").six_hours.started) == (0, 2)
    engine.advance(361 * MINUTE)
    assert one(engine, "root").six_hours.burn_permille is None


def test_time_before_it_could_start_is_not_waited() -> None:
    engine = Engine.open(None, cell=cell(a=(WITHIN_MS, 950)))
    assert one(engine, "a").hour.started == 0
    engine.command(submit(workload("held", held=True)))
    engine.advance(10 * MINUTE)
    engine.command(cmd.Release(ids=("held",)))
    assert one(engine, "a").hour == BurnWindow(started=1, late=0, waiting=0, burn_permille=0)


def test_it_is_read_from_the_journal_again(tmp_path: Path) -> None:
    engine = Engine.open(tmp_path / "j.db", cell=cell(a=(WITHIN_MS, 900)))
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=90 * S, estimate=90 * S) for i in range(6))))
    engine.advance(5 * MINUTE)
    before = engine.overview().burns
    engine.close()
    again = Engine.open(tmp_path / "j.db")
    assert again.overview().burns == before
    again.close()


@pytest.mark.parametrize(("changes", "field"), [
    ({"start_within_ms": -1}, "start_within_ms"), ({"objective_permille": 1000}, "objective_permille"),
    ({"objective_permille": 0}, "objective_permille"),
])  # fmt: skip
def test_an_objective_that_cannot_be_is_refused(changes: dict[str, int], field: str) -> None:
    plain = small_cell()
    queues = (msgspec.structs.replace(plain.queues[0], **changes), *plain.queues[1:])
    with pytest.raises(SpecError, match=field):
        Engine.open(None, cell=msgspec.structs.replace(plain, queues=queues))


def plainly(engine: Engine, queue: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(started, late, waiting) of the hour and of six, from every workload's own history."""
    now = engine.now_ms
    spec = engine.queue(queue).spec
    names = [row[0] for row in engine.query(Query(kind="workloads", columns=("id",), limit=10_000)).rows]
    counts = []
    for minutes in (60, 360):
        started = late = waiting = 0
        for name in names:
            view = engine.workload(name)
            if queue not in (view.queue, "root"):
                continue
            could_ms = -1
            for item in view.history:
                if item.what in ("submitted", "released", "woke", "requeued", "resumed"):
                    could_ms = item.at_ms
                elif item.what == "placed" and item.at_ms // MINUTE > now // MINUTE - minutes:
                    started += 1
                    late += item.at_ms - could_ms > spec.start_within_ms
            waiting += view.state == WorkloadState.QUEUED.label and now - could_ms > spec.start_within_ms
        counts.append((started, late, waiting))
    return counts[0], counts[1]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("submit", "hold", "release", "requeue", "cancel", "pass")),
        st.integers(0, 11), st.integers(1, 5000), st.sampled_from(("a", "b")),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(max_examples=examples(12), deadline=None)
@given(steps=STEPS, asked_at=st.integers(0, 24))
def test_counted_as_remembered_as_recomputed(steps: list[tuple[str, int, int, str]], asked_at: int) -> None:
    """Asked half-way, it counts from then on; forgotten, it remembers; and both are what the histories say."""
    engine = Engine.open(None, cell=cell(root=(WITHIN_MS, 950), a=(5 * MINUTE, 800)))
    made = 0
    for number, (what, which, seconds, queue) in enumerate(steps):
        if number == asked_at:
            engine.overview()
        name = f"w{which % max(1, made)}"
        state = engine.workload(name).state if made else ""
        if what == "submit":
            many = [
                workload(f"w{made + i}", queue=queue, gpu=4000, run=seconds * S, estimate=seconds * S)
                for i in range(1 + which)
            ]
            engine.command(submit(*many))
            made += len(many)
        elif what == "hold" and state == "queued":
            engine.command(cmd.Hold(ids=(name,)))
        elif what == "release" and state == "held":
            engine.command(cmd.Release(ids=(name,)))
        elif what == "requeue" and state == "running":
            engine.command(cmd.Requeue(ids=(name,)))
        elif what == "cancel" and state == "queued":
            engine.command(cmd.Cancel(ids=(name,)))
        engine.advance(engine.now_ms + seconds * S)
    counted = engine.overview().burns
    engine.state.queues.starts = Starts()
    assert engine.overview().burns == counted
    for burn in counted:
        shown = tuple((each.started, each.late, each.waiting) for each in (burn.hour, burn.six_hours))
        assert shown == plainly(engine, burn.queue)
