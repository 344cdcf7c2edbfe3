"""Many workloads at once: whether things happen one by one or together cannot be seen afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from cells import small_cell, submit, workload
from hypothesis import given
from random_cells import HOUR, SOME, Life, Player, differences, lives

from engine import commands as cmd
from engine import events as ev
from engine.child import Report
from engine.control import Engine
from engine.edits import parse_all
from engine.errors import MusterError
from engine.model import WorkloadState
from engine.rehearsal import Conditions, Sample, decode, rehearse
from engine.run_times import Learnt
from engine.scheduler import Scheduler

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


@SOME
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
        assert list(player.engine.scheduler.decisions) == list(together.scheduler.decisions)


def busy(most_at_once: int, journal: Path | None = None) -> tuple[Engine, list[ev.AnyEvent]]:
    """Hundreds of single tasks in two queues that must wait for room, for quota and for each other."""
    engine = Engine.open(journal, cell=CELL)
    events = journalled(engine)
    engine.scheduler.most_at_once = most_at_once
    for batch in range(4):
        specs = [
            workload(f"w{batch}-{i}", gpu=(1000, 2000, 250, 0)[i % 4], run=(i % 7 + 1) * 600_000, estimate=HOUR)
            for i in range(120)
        ]
        engine.command(submit(*specs))
        engine.advance(engine.now_ms + 20 * 60_000)
    return engine, events


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


def test_a_submission_that_is_wrong_anywhere_is_refused_whole_with_the_place() -> None:
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2))
    before = engine.state.digest()
    good = [workload(f"w{i}", gpu=1000) for i in range(50)]
    wrong = {
        "no queue 'nowhere'": msgspec.structs.replace(good[7], queue="nowhere"),
        "w3": msgspec.structs.replace(good[7], id="w3"),
        "nobody": msgspec.structs.replace(good[7], priority_class="nobody"),
        "could ever run": workload("w7", gpu=64_000),
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
    samples: list[Sample] = []
    for most in (512, 1):
        monkeypatch.setattr(Scheduler, "most_at_once", most)
        engine, _ = busy(most)
        w = engine.state.workloads
        waiting = [name for name, state in zip(w.ids, w.state, strict=True) if state == WorkloadState.QUEUED][5]
        frames: list[bytes] = []
        under = Conditions(seed=1, horizon_ms=12 * HOUR, focus=(waiting,), until="started" if traced else "horizon")
        report: Report = frames.append
        rehearse(engine, parse_all(["drain g0"]) if not traced else (), under, Learnt(engine.state), report)
        found = decode(frames[-1])
        assert isinstance(found, Sample)
        samples.append(found)
    assert dict(samples[0].figures)["started", "cell", ""] > 0
    assert samples[0] == samples[1]
    assert samples[0].focus[0].started_ms > 0
    assert samples[0].focus[0].freed_by or not traced
