"""However wrong a process beside the engine goes, nothing but that one answer is lost: not the engine, not its time,
not the machine's memory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import read_replica
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.errors import RefusedError
from engine.model.list_queries import Query
from engine.twin import forks
from tests.support.cells import small_cell
from tests.support.patience import PATIENCE_S

ALL = Query(kind="workloads", columns=("id", "state"))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoop]:
    """Over a small cell that counts as large and whose time stands still: no copy is made again for news."""
    monkeypatch.setattr(read_replica, "LARGE", 1)
    loop = EngineLoop(Engine.open(None, cell=small_cell()))
    loop.paused = True
    loop.start()
    yield loop
    loop.stop()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def below(pid: int) -> list[int]:
    """Its children, whichever thread started them, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for word in (task / "children").read_text().split():
            found += [int(word), *below(int(word))]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_without_end_to_its_memory_ends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "MIN_ROOM", 64 << 20)
    monkeypatch.setattr(forks, "MAX_ROOM", 64 << 20)

    def eat(report: forks.Report) -> None:
        kept = []
        for _ in range(1 << 12):
            kept.append(bytearray(1 << 20))
            report(b"x")

    eating = forks.start(eat, PATIENCE_S)
    heard = 0
    while not eating.over:
        forks.wait_for([eating], PATIENCE_S)
        heard += len(eating.frames())
    # Not 64: an allocator has mapped more than it uses, and that is filled too.
    assert 1 <= heard < 1 << 10
    assert eating.exit_code == forks.OUT_OF_MEMORY
    assert "memory" in eating.failure_text


def test_where_memory_runs_out_all_the_same_a_child_goes_first() -> None:
    said = forks.start(lambda report: report(Path("/proc/self/oom_score_adj").read_bytes()), PATIENCE_S)
    forks.wait_for([said], PATIENCE_S)
    assert said.frames() == [b"1000\n"]
    said.cancel()


def test_a_question_that_needs_too_much_memory_is_refused_and_not_asked_of_the_engine(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_in = []

    def greedy(_: Engine) -> object:
        asked_in.append(os.getpid())
        return [bytearray(1 << 20) for _ in range(1 << 12)]

    monkeypatch.setattr(forks, "MIN_ROOM", 128 << 20)
    monkeypatch.setattr(forks, "MAX_ROOM", 128 << 20)
    monkeypatch.setattr(Engine, "fairness", greedy)
    with pytest.raises(RefusedError, match="memory"):
        loop.read("fairness")
    assert not asked_in, "nothing bounds the engine itself"
    assert loop.read("query", ALL).rows == []


def test_a_long_search_that_is_killed_is_told_and_not_begun_by_the_engine(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_in = []

    def hangs(_: Engine) -> object:
        asked_in.append(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    monkeypatch.setattr(Engine, "fairness", hangs)
    with pytest.raises(RefusedError, match="took too long"):
        loop.read("fairness")
    assert not asked_in
    assert loop.read("query", ALL).rows == []


def test_a_long_search_does_not_go_on_when_nobody_can_wait_for_it(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_replica, "SLOW_PATIENCE_S", 0.2)
    monkeypatch.setattr(Engine, "fairness", lambda _: time.sleep(PATIENCE_S))
    before = set(below(os.getpid()))
    with pytest.raises(RefusedError, match="too long"):
        loop.read("fairness")
    until(lambda: set(below(os.getpid())) <= before)


def test_a_copy_that_hangs_holds_nobody_up_for_long_and_is_ended(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_replica, "PATIENCE_S", 0.2)
    monkeypatch.setattr(read_replica, "END_S", 0.1)
    before = set(below(os.getpid()))
    loop.read("query", ALL)
    (hung,) = set(below(os.getpid())) - before
    os.kill(hung, signal.SIGSTOP)
    assert loop.read("query", ALL).rows == []
    assert set(below(os.getpid())) - before - {hung}, "a fresh copy, although nothing has happened"
    until(lambda: not alive(hung))


SERVED = """
import sys, time
from engine import read_replica
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.list_queries import Query
from tests.support.cells import small_cell
import threading
read_replica.LARGE = 1
def fairness(engine):
    print("searching", flush=True, file=sys.stderr)
    time.sleep(600)
Engine.fairness = fairness
loop = EngineLoop(Engine.open(None, cell=small_cell()))
loop.start()
loop.read("query", Query(kind="workloads", columns=("id",)))
threading.Thread(target=lambda: loop.read("fairness"), daemon=True).start()
time.sleep(600)
"""


def test_whoever_works_for_an_engine_ends_with_it_also_when_it_is_killed() -> None:
    served = subprocess.Popen([sys.executable, "-c", SERVED], stderr=subprocess.PIPE)
    assert served.stderr is not None
    try:
        assert select.select([served.stderr], (), (), PATIENCE_S)[0]
        assert served.stderr.readline() == b"searching\n"
        working = below(served.pid)
        assert len(working) == 2, "a copy, and a search beside it"
    finally:
        served.kill()
        served.wait()
        served.stderr.close()
    until(lambda: not any(map(alive, working)))
