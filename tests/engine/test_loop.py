"""The engine's thread: callers, time, the feed, those who wait for news, and the end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import pytest
from cells import small_cell, submit, workload

from engine import loop as loops
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model.details import WorkloadDetail
from engine.model.errors import JournalError, NotFoundError, RefusedError, UnreachableError
from engine.model.specs import WorkloadSpec
from engine.twin import forks
from tests.support.patience import PATIENCE_S

Feed = Iterator[tuple[int, WorkloadSpec]]


@pytest.fixture
def start() -> Iterator[Callable[..., EngineLoop]]:
    """Starts loops, and stops them when the test is over."""
    loops: list[EngineLoop] = []

    def started(
        engine: Engine | None = None, *, speed: float = 1.0, feed: Feed | None = None, paused: bool = False
    ) -> EngineLoop:
        loop = EngineLoop(engine or Engine.open(None, cell=small_cell()), speed=speed, feed=feed)
        loop.paused = paused
        loops.append(loop)
        loop.start()
        return loop

    yield started
    for loop in loops:
        loop.stop()


def eventually(loop: EngineLoop, holds: Callable[[Engine], bool]) -> None:
    """Wait, version by version, until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not loop.call(lambda engine: holds(engine)):
        assert time.monotonic() < deadline, "it never came to hold"
        loop.wait_version(loop.call(lambda engine: engine.version), 0.05)


def test_a_call_returns_what_the_function_returns_and_raises_what_it_raises(start) -> None:
    loop = start()
    assert loop.call(lambda engine: engine.command(submit(workload("x")))).changed == ("x",)
    with pytest.raises(NotFoundError, match="'y'"):
        loop.call(lambda engine: engine.workload("y"))
    with pytest.raises(TimeoutError, match="its own"):
        loop.call(lambda engine: (_ for _ in ()).throw(TimeoutError("its own")))
    assert loop.call(lambda engine: engine.workload("x").state) == "running", "a failed call ends nothing"


@pytest.mark.parametrize("beside_from", [0, 10**9])
def test_what_runs_beside_the_thread_returns_and_raises_the_same_and_changes_nothing(
    start, monkeypatch: pytest.MonkeyPatch, beside_from: int
) -> None:
    """In a copy of the process, and in a small cell on a fork within it."""
    monkeypatch.setattr(loops, "BESIDE_FROM", beside_from)
    loop = start()
    loop.call(lambda engine: engine.command(submit(workload("x"))))
    before = loop.call(lambda engine: engine.state.digest())

    def tried(engine: Engine) -> WorkloadDetail:
        fork = engine.fork()
        fork.command(cmd.Cancel(ids=("x",)))
        return fork.workload("x")

    found = loop.call_beside(lambda engine: lambda: tried(engine), WorkloadDetail)
    assert found.state == "cancelled"
    with pytest.raises(NotFoundError, match="'y'"):
        loop.call_beside(lambda engine: lambda: engine.workload("y"), WorkloadDetail)
    with pytest.raises(NotFoundError, match="'z'"):
        loop.call_beside(lambda engine: (lambda _: lambda: found)(engine.workload("z")), WorkloadDetail)
    assert loop.call(lambda engine: engine.state.digest()) == before


def test_who_waits_for_what_runs_beside_the_thread_is_told_when_it_comes_to_no_end(start, monkeypatch) -> None:
    monkeypatch.setattr(loops, "BESIDE_FROM", 0)
    loop = start()
    with pytest.raises(RefusedError, match="ended early"):
        loop.call_beside(lambda _: lambda: os._exit(7), int)
    monkeypatch.setattr(loops, "BESIDE_S", 0.2)
    with pytest.raises(RefusedError, match="took too long"):
        loop.call_beside(lambda _: lambda: time.sleep(PATIENCE_S), int)
    assert loop.call(lambda engine: engine.now_ms) >= 0, "the thread goes on"


def test_no_child_outlives_a_caller_who_gave_up_before_it_began(start, monkeypatch) -> None:
    children: list[forks.Child] = []
    begin = forks.start

    def remembered(*arguments: object, **options: object) -> forks.Child:
        children.append(begin(*arguments, **options))
        return children[-1]

    monkeypatch.setattr(forks, "start", remembered)
    monkeypatch.setattr(loops, "BESIDE_FROM", 0)
    monkeypatch.setattr(loops, "ANSWER_S", 0.05)
    loop = start()
    given_up = threading.Event()

    def prepare(_: Engine) -> Callable[[], None]:
        given_up.wait()
        return lambda: time.sleep(PATIENCE_S)

    with pytest.raises(UnreachableError):
        loop.call_beside(prepare, type(None))
    given_up.set()
    loop.call(lambda _: None, PATIENCE_S)
    assert [child.over for child in children] == [True]


def test_calls_run_on_one_thread_that_is_not_the_callers(start) -> None:
    loop = start()
    with ThreadPoolExecutor(8) as callers:
        names = list(callers.map(lambda _: loop.call(lambda engine: threading.get_ident()), range(64)))
    assert len(set(names)) == 1
    assert threading.get_ident() not in names


def test_commands_of_many_callers_are_each_done_once(start) -> None:
    loop = start()
    accepted: list[str] = []

    def client(number: int) -> None:
        for i in range(20):
            # Two clients each submit the same id: exactly one of them is told that it did.
            name = f"w{number // 2}-{i}"
            try:
                receipt = loop.call(lambda engine, name=name: engine.command(submit(workload(name))))
            except Exception as error:
                assert "already exists" in str(error)  # noqa: PT017 - in a thread of its own
                continue
            accepted.extend(receipt.changed)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(8)))
    assert sorted(accepted) == sorted(f"w{n}-{i}" for n in range(4) for i in range(20))
    assert sorted(loop.call(lambda engine: list(engine.state.workloads.ids))) == sorted(accepted)


def test_a_call_that_is_not_answered_in_time_is_withdrawn(start) -> None:
    loop = start()
    busy, go_on = threading.Event(), threading.Event()

    def occupy(engine: Engine) -> None:
        busy.set()
        assert go_on.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as other:
        blocked = other.submit(loop.call, occupy)
        assert busy.wait(PATIENCE_S)
        with pytest.raises(UnreachableError):
            loop.call(lambda engine: engine.command(submit(workload("late"))), timeout_s=0.01)
        go_on.set()
        blocked.result(PATIENCE_S)
    assert loop.call(lambda engine: list(engine.state.workloads.ids)) == [], "what was given up is not done later"


def test_time_passes_at_the_given_speed_and_work_ends(start) -> None:
    loop = start(speed=1_000_000)
    loop.call(lambda engine: engine.command(submit(workload("x", run=60_000))))
    eventually(loop, lambda engine: engine.workload("x").state == "finished")
    history = loop.call(lambda engine: engine.workload("x").history)
    assert history[-1].at_ms - history[0].at_ms == 60_000


def test_no_time_passes_while_paused_and_none_is_made_up_for_afterwards(start) -> None:
    loop = start(speed=1_000_000_000, paused=True)
    loop.call(lambda engine: engine.command(submit(workload("x", run=60_000))))
    before = loop.call(lambda engine: engine.now_ms)
    for _ in range(5):
        assert loop.call(lambda engine: engine.now_ms) == before == 0
    assert loop.call(lambda engine: engine.workload("x").state) == "running"
    loop.paused = False
    eventually(loop, lambda engine: engine.workload("x").state == "finished")


def test_busy_callers_do_not_slow_cell_time(start) -> None:
    """Each call ends a turn: what a turn rounds off must not be lost."""
    loop = start()

    def work(engine: Engine) -> tuple[float, int]:
        until = time.monotonic() + 0.0018
        while time.monotonic() < until:
            pass
        return time.monotonic(), engine.now_ms

    seen = [loop.call(work) for _ in range(101)]
    (wall, cell), (now, cell_now) = seen[0], seen[-1]
    longest_ms = max(after[0] - before[0] for before, after in pairwise(seen)) * 1000
    # Cell time may lag by the turn that runs; half of it was lost when every turn dropped its fraction.
    assert cell_now - cell >= (now - wall) * 1000 * 0.8 - 20 - 2 * longest_ms


@pytest.mark.parametrize("fed", [False, True])
def test_who_asks_waits_for_one_cycle_and_not_for_all_that_is_due(start, monkeypatch, fed: bool) -> None:
    """Where cycles take longer than the time between them, reads took 30 s and never came back. What a turn does not
    get to happens later, at its own time."""
    monkeypatch.setattr("engine.loop.MAX_TURN_S", 0.0)
    jobs = [workload(f"w{i:02}", queue="b", gpu=8000, count=4) for i in range(20)]
    engine = Engine.open(None, cell=small_cell())
    begun, seen = [], []
    cycle = engine.scheduler.cycle

    def asked_in_each(enough: Callable[[], bool]) -> None:
        begun.append(engine.now_ms)
        count = len(begun)
        loop.post(lambda _: seen.append(len(begun) - count))
        cycle(enough)

    monkeypatch.setattr(engine.scheduler, "cycle", asked_in_each)
    if not fed:
        engine.scheduler.cycle = cycle
        engine.command(submit(*jobs))
        engine.scheduler.cycle = asked_in_each
    loop = start(engine, speed=10_000_000, feed=((i, job) for i, job in enumerate(jobs, 1)) if fed else None)
    eventually(loop, lambda engine: engine.overview().states.get("finished") == len(jobs))
    assert max(seen) <= 1, "cycles between a question and its turn"
    ends = [loop.call(lambda engine, job=job: engine.workload(job.id).history[-1].at_ms) for job in jobs]
    assert ends == [fed + 60_000 * (i + 1) for i in range(len(jobs))]


def test_the_feed_is_submitted_in_order_each_at_its_own_time(start) -> None:
    arrivals = [(5_000, "a"), (5_000, "b"), (90_000, "c"), (3_600_000, "d")]
    loop = start(speed=10_000_000, feed=((at, workload(name)) for at, name in arrivals))
    eventually(loop, lambda engine: "d" in engine.state.workloads.row_of)
    seen = loop.call(lambda engine: [(engine.workload(i).submitted_ms, i) for i in engine.state.workloads.ids])
    assert seen == arrivals
    assert loop.feed_error == ""


def test_what_the_feed_finds_refused_is_told_and_the_rest_goes_on(start) -> None:
    feed = iter([(1, workload("a")), (1, workload("a")), (1, workload("b", queue="nowhere")), (2, workload("c"))])
    loop = start(speed=1000, feed=feed)
    eventually(loop, lambda engine: "c" in engine.state.workloads.row_of)
    assert loop.call(lambda engine: list(engine.state.workloads.ids)) == ["a", "c"]
    assert "nowhere" in loop.feed_error


def test_a_feed_that_fails_is_told_and_the_engine_goes_on(start) -> None:
    def broken() -> Feed:
        yield 1, workload("a")
        raise ValueError("line 2 is not a job")

    loop = start(speed=1000, feed=broken())
    eventually(loop, lambda engine: loop.feed_error != "")
    assert "line 2 is not a job" in loop.feed_error
    assert loop.call(lambda engine: engine.command(submit(workload("b")))).changed == ("b",)
    assert loop.call(lambda engine: list(engine.state.workloads.ids)) == ["a", "b"]


def test_what_the_feed_brings_while_the_journal_fails_is_submitted_later(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("engine.loop.RETRY_S", 0.0)
    engine = Engine.open(tmp_path / "journal.db", cell=small_cell())
    append, failures = engine._journal.append, iter(range(3))

    def full(*batch: object) -> None:
        if next(failures, None) is not None:
            raise JournalError("the disk is full")
        append(*batch)

    monkeypatch.setattr(engine._journal, "append", full)
    try:
        loop = start(engine, speed=1000, feed=iter([(1, workload("a")), (1, workload("b"))]))
        eventually(loop, lambda engine: "b" in engine.state.workloads.row_of and not engine.journal_error)
        assert next(failures, None) is None
        assert loop.call(lambda engine: list(engine.state.workloads.ids)) == ["a", "b"]
    finally:
        loop.stop()
        engine.close()


def test_waiting_for_a_version_ends_with_the_change(start) -> None:
    loop = start(paused=True)
    version = loop.call(lambda engine: engine.version)
    assert loop.wait_version(version, 0.01) == version, "nothing happened"
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(loop.wait_version, version, PATIENCE_S)
        receipt = loop.call(lambda engine: engine.command(submit(workload("x"))))
        assert waiting.result(PATIENCE_S / 2) == receipt.version
    assert loop.wait_version(version, PATIENCE_S) == receipt.version, "what is past already is not waited for"


def test_a_listener_is_told_each_version_until_it_ends_it(start) -> None:
    loop = start(paused=True)
    told: Future[int] = Future()
    heard: list[int] = []

    def listen(version: int) -> None:
        heard.append(version)
        if not told.done():
            told.set_result(version)

    end = loop.on_version(listen)
    receipt = loop.call(lambda engine: engine.command(submit(workload("x"))))
    assert told.result(PATIENCE_S) == receipt.version
    end()
    after = loop.call(lambda engine: engine.command(submit(workload("y"))))
    # The turn that follows has announced it when a waiter knows.
    assert loop.wait_version(receipt.version, PATIENCE_S) == after.version
    loop.call(lambda engine: None)
    assert heard == [receipt.version]


def test_stopping_wakes_who_waits_and_refuses_further_calls(start) -> None:
    loop = start(paused=True)
    version = loop.call(lambda engine: engine.version)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(loop.wait_version, version, PATIENCE_S)
        loop.stop()
        assert waiting.result(PATIENCE_S / 2) == version
    with pytest.raises(UnreachableError):
        loop.call(lambda engine: engine.version)
    assert loop.engine.command(submit(workload("x"))).changed == ("x",), "the engine itself stays open"


def test_every_call_made_while_it_stops_is_either_done_or_refused(start) -> None:
    loop = start()
    done: list[int] = []

    def client(number: int) -> None:
        try:
            for i in range(100_000):
                name = f"w{number}-{i}"
                loop.call(lambda engine, name=name: engine.command(cmd.AddNodes(nodes=())), PATIENCE_S)
                done.append(1)
        except UnreachableError as error:
            assert "did not answer" not in str(error)  # noqa: PT017 - in a thread of its own

    with ThreadPoolExecutor(4) as clients:
        running = [clients.submit(client, n) for n in range(4)]
        loop.call(lambda engine: None)
        loop.stop()
        for each in running:
            each.result(PATIENCE_S)
