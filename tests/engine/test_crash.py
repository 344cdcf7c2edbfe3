"""kill -9 at random moments: what was acknowledged is there, once, and what ran goes on."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from collections import Counter
from pathlib import Path

import crash_worker
import pytest
from cells import small_cell
from effort import THOROUGH
from invariants import check_settled, check_state
from on_postgres import is_server, kept

from engine.control import Engine
from engine.model.specs import WorkloadState
from engine.state.workloads import SUBMITTED

TERMINAL = ("finished", "failed", "cancelled")


def run_and_kill(path: Path, seed: int, lines: int, after_s: float) -> list[tuple[str, int, list[str]]]:
    """What one worker acknowledged before it was killed, `after_s` seconds after so many lines of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.control", "crash_worker"])
    acknowledged = path.with_name(f"acknowledged-{seed}")
    worker = context.Process(target=crash_worker.work, args=(str(kept(path)), seed, str(acknowledged)))
    worker.start()
    while lines and not (acknowledged.exists() and acknowledged.read_bytes().count(b"\n") >= lines):
        assert worker.is_alive(), "the worker died of something else"
        time.sleep(0.002)
    time.sleep(after_s)  # the random moment itself, not a wait for something
    worker.kill()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL, "the worker died of something else"
    lines = acknowledged.read_bytes().split(b"\n")[:-1] if acknowledged.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def crash_rounds(path: Path, rounds: int) -> Counter[str]:
    """Kill `rounds` workers one after another on the same journal, checking each time. Returns what was seen."""
    Engine.open(path, cell=small_cell(), seed=11).close()
    rng = random.Random(2026)
    submitted: set[str] = set()
    cancelled: set[str] = set()
    version = 0
    seen: Counter[str] = Counter()
    for seed in range(rounds):
        acknowledged = run_and_kill(path, seed, rng.choice((0, 1, 5)), rng.uniform(0.0, 0.1))
        seen["acknowledged"] += len(acknowledged)
        seen["killed before the first acknowledgement"] += not acknowledged
        for kind, at, ids in acknowledged:
            version = max(version, at)
            if kind == "Submit":
                submitted.update(ids)
            elif kind == "Cancel":
                cancelled.update(ids)
        engine = Engine.open(path)
        check_recovered(engine, submitted, cancelled, version)
        if seed % 10 == 0:
            digest = engine.state.digest()
            engine._journal.close()
            engine = Engine.open(path, use_snapshot=False)
            assert engine.state.digest() == digest
        engine._journal.close()
    finish_everything(path, seen)
    return seen


def check_recovered(engine: Engine, submitted: set[str], cancelled: set[str], version: int) -> None:
    w = engine.state.workloads
    assert engine.version >= version
    check_state(engine.state)
    check_settled(engine)
    assert submitted <= set(w.row_of), "an acknowledged workload is gone"
    for name in cancelled:
        assert w.state[w.row_of[name]] == WorkloadState.CANCELLED, f"{name} was cancelled, and is not"
    assert list(w.history_what).count(SUBMITTED) == len(w.ids), "something was submitted twice"
    engine.executor.next_report_ms()  # adopted work is reckoned when it is first asked for
    due = list(engine.executor._reports)
    for *_, together in engine.executor._together:
        due += zip(together.at, together.row, together.row, together.attempt, strict=True)
    ends = {row: end for end, row, _, attempt, *_ in due if attempt == w.attempts[row]}
    for row, state in enumerate(w.state):
        if state == WorkloadState.RUNNING:
            left = max(w.simulated[row] - w.kept[row], 1)
            assert ends[row] == w.started[row] + left, "a running task was not resumed"


def finish_everything(path: Path, seen: Counter[str]) -> None:
    """Let all go to its end: nothing ends twice, and nothing ran longer because of a crash."""
    from engine.model.commands import Release, Uncordon

    engine = Engine.open(path)
    w = engine.state.workloads
    engine.command(Uncordon(ids=crash_worker.NODES))
    held = tuple(w.ids[row] for row, state in enumerate(w.state) if state == WorkloadState.HELD)
    if held:
        engine.command(Release(ids=held))
    while (end := engine.next_due()) is not None:
        engine.advance(end)
    check_state(engine.state)
    for row, name in enumerate(w.ids):
        history = engine.workload(name).history
        ends = [item.what for item in history if item.what in TERMINAL]
        assert len(ends) == 1, f"{name} ended {len(ends)} times"
        if ends == ["finished"]:
            assert w.ended[row] - w.started[row] == max(w.simulated[row] - w.kept[row], 1), f"{name} ran too long"
    seen["workloads"] = len(w.ids)
    seen["events"] = engine.version
    engine.close()


@pytest.mark.both_databases
def test_nothing_acknowledged_is_lost_or_doubled_by_a_kill(tmp_path: Path) -> None:
    seen = crash_rounds(tmp_path / "journal.db", 20 if THOROUGH and not is_server() else 8)
    assert seen["acknowledged"] > 10


@pytest.mark.slow
def test_two_hundred_kills(tmp_path: Path) -> None:
    seen = crash_rounds(tmp_path / "journal.db", 200)
    print("\n200 kills:", dict(seen))
    assert seen["acknowledged"] > 200
