"""Reads of a large cell go on beside its engine, whatever that is busy with, and never go back in time."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine import read_replica
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import NotFoundError, SpecError
from engine.model.list_queries import Query, Term
from engine.twin import counterfactuals, forks
from tests.support.cells import small_cell
from tests.support.gates import gate_of
from tests.support.large_cells import large_engine, steady_feed
from tests.support.patience import PATIENCE_S
from tests.support.served import gpu_job

ALL = Query(kind="workloads", columns=("id", "state"))
ALL_QUEUES = Query(kind="queues", limit=10_000)
"""As the page of queues asks for them."""


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoop]:
    """Over a small cell that counts as large."""
    monkeypatch.setattr(read_replica, "LARGE", 1)
    loop = EngineLoop(Engine.open(None, cell=small_cell()))
    loop.start()
    yield loop
    loop.stop()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
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
    loop.post(lambda _: (begun.set(), go_on.wait(PATIENCE_S)))
    assert begun.wait(PATIENCE_S)
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
    monkeypatch.setattr(read_replica, "LARGE", 1)
    monkeypatch.setattr(read_replica, "EVERY_S", 0.02)
    monkeypatch.setattr(read_replica, "MIN_SHARE", 1)
    engine = large_engine(64, 300)
    loop = EngineLoop(engine, speed=20.0, feed=steady_feed(engine, 200))
    loop.start()
    ends = time.monotonic() + PATIENCE_S

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
    found = read_replica.Answers._found
    looked = []

    def slow(answers: read_replica.Answers, frame: bytes) -> bytes:
        os.read(reading, 1)
        return found(answers, frame)

    start = forks.start
    monkeypatch.setattr(
        forks,
        "start",
        lambda work, life_s, keep, **rest: start(work, life_s, keep=(*keep, reading), **rest),
    )
    first = loop.read("query", ALL).version
    monkeypatch.setattr(read_replica.Answers, "_found", slow)
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
    until(lambda: loop.copies._coming is not None)
    for _ in range(5):
        looked.append(loop.read("query", ALL).version)
        loop.call(lambda _: None)
    assert set(looked) == {first}
    os.write(writing, b"x")
    until(lambda: loop.read("query", ALL).rows == [["j-1", "running"]])
    monkeypatch.setattr(read_replica.Answers, "_found", found)
    receipt = loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-2"),))))
    assert loop.read("query", ALL, least_version=receipt.version).matched == 2
    os.close(reading)
    os.close(writing)


def test_readers_are_woken_for_what_they_can_see(loop: EngineLoop) -> None:
    before = loop.read("query", ALL).version
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(loop.wait_version, before, PATIENCE_S)
        loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
        seen = waiting.result(PATIENCE_S)
    assert loop.read("changes", before, 10).version >= seen > before


@pytest.mark.parametrize(
    ("busy", "found_by", "others"),
    [
        (("fairness",), (Engine, "fairness"), (("query", ALL), ("query", ALL_QUEUES), ("unblocking", "j-1"))),
        (
            ("unblocking", "j-1"),
            (counterfactuals, "verified"),
            (("query", ALL), ("query", ALL_QUEUES), ("fairness",), ("budgets",)),
        ),
    ],
)
def test_what_takes_long_keeps_nobody_who_asks_for_less(
    loop: EngineLoop,
    monkeypatch: pytest.MonkeyPatch,
    busy: tuple[str, ...],
    found_by: tuple[object, str],
    others: tuple[tuple[Any, ...], ...],
) -> None:
    """The page of queues waited for tens of seconds behind a search for what would let a workload start."""
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
    answer = getattr(*found_by)
    reading, writing = os.pipe()

    def slow(engine: Engine, *arguments: str) -> object:
        os.read(reading, 1)
        return answer(engine, *arguments)

    monkeypatch.setattr(*found_by, slow)
    # A child keeps only its own files open; here, that one too.
    start = forks.start
    monkeypatch.setattr(
        forks,
        "start",
        lambda work, life_s, keep, **rest: start(work, life_s, keep=(*keep, reading), **rest),
    )
    loop.paused = True
    loop.call(lambda _: None)
    loop.read("query", ALL)
    with ThreadPoolExecutor(1 + len(others)) as readers:
        first = readers.submit(loop.read, *busy)
        try:
            until(lambda: loop.copies._copy.lanes[loop.copies.urgency_of(busy[0], busy[1:])].lock.locked())
            for answered in [readers.submit(loop.read, *other) for other in others]:
                answered.result(PATIENCE_S)
            assert not first.done()
        finally:
            os.write(writing, b"x")
        first.result(PATIENCE_S)
    os.close(reading)
    os.close(writing)


def test_a_copy_that_never_gets_ready_is_given_up(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before it answers, and another takes its place: what is read does not stand still."""
    first = loop.read("query", ALL).version  # by a copy that is given its usual time to answer
    patience_s, found, make = read_replica.PATIENCE_S, read_replica.Answers._found, loop.copies._made
    made: list[read_replica.Copy] = []

    def first_hangs(*given: object) -> object:
        return found(*given) if made else time.sleep(30 * PATIENCE_S)

    monkeypatch.setattr(read_replica.Answers, "_found", first_hangs)
    monkeypatch.setattr(loop.copies, "_made", lambda: made.append(make()) or made[-1])
    monkeypatch.setattr(read_replica, "PATIENCE_S", 0.2)
    monkeypatch.setattr(read_replica, "END_S", 0.1)
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("j-1"),))))
    until(lambda: loop.read("query", ALL) and made)
    assert loop.read("query", ALL).version == first
    until(lambda: loop.read("query", ALL) and len(made) > 1)
    monkeypatch.setattr(read_replica, "PATIENCE_S", patience_s)  # the next has its usual time, on a busy machine too
    until(lambda: loop.read("query", ALL).rows == [["j-1", "running"]])
    until(lambda: made[0]._worker.over)


def test_a_copy_answers_however_many_files_the_engine_has_open(loop: EngineLoop) -> None:
    """Its lanes have higher numbers then than `select` can take, as beside a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        loop.read("query", ALL)
        release = held_up(loop)
        try:
            assert loop.read("query", ALL).rows == []
            assert loop.read("fairness").queues
        finally:
            release()
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
    monkeypatch.setattr(read_replica, "IDLE_S", 0.05)
    until(lambda: children() == before)
    assert loop.read("query", ALL).version == loop.engine.version, "the first look after a while is of now"


def test_all_copies_end_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_replica, "LARGE", 1)
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
