"""Reads of a large cell go on beside its engine, whatever that is busy with, and never go back in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from console.advisor import Advisor
from console.local_client import LocalClient
from engine import copies
from engine.commands import Submit
from engine.control import Engine
from engine.errors import NotFoundError, SpecError
from engine.loop import EngineLoop
from engine.query import Query, Term
from tests.support.cells import small_cell
from tests.support.gates import gate_of
from tests.support.large_cells import large_engine, steady_feed
from tests.support.served import gpu_job

DEADLINE_S = 20.0
ALL = Query(kind="workloads", columns=("id", "state"))


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoop]:
    """Over a small cell that counts as large."""
    monkeypatch.setattr(copies, "LARGE", 1)
    loop = EngineLoop(Engine.open(None, cell=small_cell()))
    loop.start()
    yield loop
    loop.stop()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def children() -> set[int]:
    own = f"/proc/self/task/{threading.get_native_id()}/children"
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with open(own.replace(str(threading.get_native_id()), task)) as listed:
            found |= {int(pid) for pid in listed.read().split()}
    return found


def held_up(loop: EngineLoop) -> Callable[[], None]:
    """Keep the engine's thread busy; call the answer to let it go."""
    begun, go_on = threading.Event(), threading.Event()
    loop.post(lambda _: (begun.set(), go_on.wait(DEADLINE_S)))
    assert begun.wait(DEADLINE_S)
    return go_on.set


def test_nobody_waits_for_a_turn(loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
    assert loop.read("query", ALL).rows == [["j-1", "running"]]
    release = held_up(loop)
    try:
        assert loop.read("query", ALL).rows == [["j-1", "running"]]
        assert loop.read("workload", "j-1").state == "running"
        assert loop.read("overview").states["running"] == 1
        assert loop.read("changes", 0, 10).items
    finally:
        release()


def test_what_is_wrong_with_a_question_is_said_as_the_engine_would(loop: EngineLoop) -> None:
    with pytest.raises(NotFoundError, match="no workload 'nobody'"):
        loop.read("workload", "nobody")
    with pytest.raises(SpecError, match="no 'colour'"):
        loop.read("query", Query(kind="workloads", columns=("colour",)))
    with pytest.raises(SpecError, match="is not a number"):
        loop.read("query", Query(kind="workloads", where=(Term("gpu", ">", "many"),)))


def test_people_see_what_they_just_did(loop: EngineLoop) -> None:
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop))
    client.query(ALL)
    for i in range(8):
        receipt = client.command(Submit(workloads=(gpu_job(f"j-{i}"),)))
        page = client.query(ALL)
        assert page.version >= receipt.version
        assert [row[0] for row in page.rows] == [f"j-{n}" for n in range(i + 1)]
        assert client.health().version >= receipt.version


def test_versions_never_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """For several readers at once, while work comes and goes; and each answer is of one state."""
    monkeypatch.setattr(copies, "LARGE", 1)
    monkeypatch.setattr(copies, "EVERY_S", 0.02)
    monkeypatch.setattr(copies, "LEAST_SHARE", 1)
    engine = large_engine(64, 300)
    loop = EngineLoop(engine, speed=20.0, feed=steady_feed(engine, 200))
    loop.start()
    ends = time.monotonic() + DEADLINE_S

    def look(_: int) -> bool:
        last, seen = 0, 0
        while seen < 5 and time.monotonic() < ends:
            page = loop.read("query", Query(kind="workloads", where=(Term("state", "=", "running"),)))
            overview = loop.read("overview")
            changes = loop.read("changes", last, 500)
            assert last <= page.version <= overview.version <= changes.version
            assert all(last < item.version <= changes.version for item in changes.items)
            if page.version == overview.version:
                assert page.matched == overview.states["running"]
            seen += last != changes.version
            last = changes.version
        return seen == 5

    with ThreadPoolExecutor(4) as readers:
        assert all(readers.map(look, range(4))), "they saw it move"
    loop.stop()
    assert (loop.feed_error, loop.fault) == ("", "")


def test_a_copy_is_shown_when_it_has_ready_what_people_look_at(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the one before it answers meanwhile. Who wrote does not wait for that."""
    reading, writing = os.pipe()
    found = copies.Answers._found
    looked = []

    def slow(answers: copies.Answers, frame: bytes) -> bytes:
        os.read(reading, 1)
        return found(answers, frame)

    start = copies.child.start
    monkeypatch.setattr(
        copies.child, "start", lambda work, life_s, keep, **rest: start(work, life_s, keep=(*keep, reading), **rest)
    )
    first = loop.read("query", ALL).version
    monkeypatch.setattr(copies.Answers, "_found", slow)
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
    until(lambda: loop.copies._coming is not None)
    for _ in range(5):
        looked.append(loop.read("query", ALL).version)
        loop.call(lambda _: None)
    assert set(looked) == {first}
    os.write(writing, b"x")
    until(lambda: loop.read("query", ALL).rows == [["j-1", "running"]])
    monkeypatch.setattr(copies.Answers, "_found", found)
    receipt = loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-2"),))))
    assert loop.read("query", ALL, least_version=receipt.version).matched == 2
    os.close(reading)
    os.close(writing)


def test_readers_are_woken_for_what_they_can_see(loop: EngineLoop) -> None:
    before = loop.read("query", ALL).version
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(loop.wait_version, before, DEADLINE_S)
        loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
        seen = waiting.result(DEADLINE_S)
    assert loop.read("changes", before, 10).version >= seen > before


def test_what_takes_long_keeps_nobody(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    fairness = Engine.fairness
    reading, writing = os.pipe()

    def slow(engine: Engine) -> object:
        os.read(reading, 1)
        return fairness(engine)

    monkeypatch.setattr(Engine, "fairness", slow)
    # A child keeps only its own files open; here, that one too.
    start = copies.child.start
    monkeypatch.setattr(
        copies.child, "start", lambda work, life_s, keep, **rest: start(work, life_s, keep=(*keep, reading), **rest)
    )
    loop.read("query", ALL)
    with ThreadPoolExecutor(1) as other:
        report = other.submit(loop.read, "fairness")
        for _ in range(3):
            assert loop.read("query", ALL).rows == []
        assert not report.done()
        os.write(writing, b"x")
        assert report.result(DEADLINE_S).queues
    os.close(reading)
    os.close(writing)


def test_a_copy_that_was_killed_is_made_again(loop: EngineLoop) -> None:
    others = children()
    loop.read("query", ALL)
    copies_of_ours = children() - others
    assert copies_of_ours
    for pid in copies_of_ours:
        os.kill(pid, signal.SIGKILL)
    assert loop.read("query", ALL).rows == [], "the engine answers itself"
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
    until(lambda: loop.read("query", ALL).matched == 1)


def test_no_copy_is_kept_where_nobody_looks(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    loop.read("query", ALL)
    assert children() > before
    monkeypatch.setattr(copies, "IDLE_S", 0.05)
    until(lambda: children() == before)
    assert loop.read("query", ALL).version == loop.engine.version, "the first look after a while is of now"


def test_all_copies_end_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LARGE", 1)
    before = children()
    loop = EngineLoop(Engine.open(None, cell=small_cell()))
    loop.start()
    loop.read("query", ALL)
    loop.read("fairness")
    loop.stop()
    until(lambda: children() == before)


def test_a_small_cell_has_none() -> None:
    before = children()
    loop = EngineLoop(Engine.open(None, cell=small_cell()))
    loop.start()
    assert loop.read("query", ALL).rows == []
    assert children() == before
    loop.stop()
