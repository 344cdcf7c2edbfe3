"""What-ifs in processes of their own: the live engine feels nothing of them, and nothing of them is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_cells import Player, differences, lives
from served import running_loop

from engine.control import Engine
from engine.model.errors import NotFoundError, RefusedError
from engine.model.twin_queries import Ask, AskStart, Outlook, RunStatus, WhatIf
from engine.model.what_if_edits import EditsError, parse_all
from engine.state.run_times import OF_ESTIMATE, HistoricRunTimes, quantile, quantiles, uniform, uniforms
from engine.twin import forks, live_twin
from engine.twin.live_twin import MAX_AT_ONCE, Twins
from engine.twin.rehearsals import Rehearsal
from tests.support.patience import PATIENCE_S

HOUR = 3_600_000
FEW = settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def busy_engine(path: Path | None = None, truth: int = 1) -> Engine:
    """Four GPU nodes full of work of two tenants, as much again waiting, some of it with checkpoints. `truth` scales
    what only the simulated executor knows: how long the work will run."""
    engine = Engine.open(path, cell=small_cell(gpu_nodes=4))
    for n, queue in enumerate(("a", "b")):
        gangs = [
            workload(f"{queue}{i}", queue=queue, count=i % 2 + 1, gpu=4000, estimate=(i + 1) * HOUR, tenant=f"t{n}",
                     run=(i + 1) * HOUR // 2 * truth, checkpoint=i % 2 * HOUR // 4)
            for i in range(6)
        ]  # fmt: skip
        singles = [
            workload(f"{queue}-s{i}", queue=queue, gpu=0, cpu=1000, estimate=2 * HOUR, run=HOUR * truth, tenant=f"t{n}")
            for i in range(20)
        ]
        engine.command(submit(*gangs, *singles))
    engine.advance(HOUR // 4)
    return engine


def what_if(*edits: str, **more: object) -> WhatIf:
    return WhatIf(**({"edits": parse_all(edits), "horizon_ms": 12 * HOUR, "seeds": 1} | more))  # type: ignore[arg-type]


def watch(twins: Twins) -> None:
    """Wait until a child has something to say, and take it in."""
    forks.wait_for(list(twins.children.values()), PATIENCE_S)
    twins.poll()


def ended(twins: Twins, ask: Ask) -> RunStatus:
    """The run once it is over, and its process too."""
    run = twins.start(ask).id
    while twins.busy:
        watch(twins)
    return twins.status(run)


def answered(engine: Engine, ask: Ask) -> Outlook:
    status = ended(Twins(engine), ask)
    assert status.error is None, status.error
    assert isinstance(status.answer, Outlook)
    return status.answer


@pytest.fixture
def twins() -> Iterator[Twins]:
    made = Twins(busy_engine())
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(pids: Iterable[int]) -> bool:
    """Whether they all end. The kernel kills what a killed process leaves behind, but on a busy
    machine not at once."""
    until = time.monotonic() + PATIENCE_S
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def children_of(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.add(int(stat.parent.name))
    return found


def working(twins: Twins, ask: Ask) -> tuple[str, forks.Child, set[int]]:
    """A run that is under way, its process, and the processes of its rehearsals."""
    run = twins.start(ask).id
    worker = twins.children[run]
    while not (rehearsals := children_of(worker.pid)) and not worker.over:
        watch(twins)
    assert rehearsals
    return run, worker, rehearsals


LONG = what_if("drain g0", seeds=100, horizon_ms=7 * 24 * HOUR)

# -- the live engine --------------------------------------------------------------------------------------------------


@FEW
@given(lives(), st.data())
def test_whatever_is_rehearsed_the_engine_is_untouched_and_goes_on_as_if_nothing_had_been(
    life: object, data: st.DataObject
) -> None:
    player = Player(life)  # type: ignore[arg-type]
    for operation in life.operations:  # type: ignore[attr-defined]
        player.do(operation)
    engine = player.engine
    w, names = engine.state.workloads, engine.state.capacity.row_of
    some = [name for row, name in enumerate(w.ids) if engine.state.is_bound(row)]
    offered = [f"drain {name}" for name in names] + [f"fail {name} for 5m" for name in names]
    offered += [f"preempt {name}" for name in some] + [f"cancel {name} at +1m" for name in w.row_of]
    offered += [f"{word} {spec.name}" for spec in engine.state.queues.specs for word in ("hold-queue", "open-queue")]
    offered += ["policy fcfs", "policy conservative"]
    edits = data.draw(st.lists(st.sampled_from(offered), min_size=1, max_size=3, unique=True))
    apart, before = engine.fork(), engine.state.digest()
    with contextlib.suppress(EditsError):
        assert ended(Twins(engine), what_if(*edits, horizon_ms=HOUR)).state in ("done", "failed")
    assert engine.state.digest() == before
    until = engine.now_ms + HOUR
    for one in (engine, apart):
        one.advance(until)
    assert engine.state.digest() == apart.state.digest()


@FEW
@given(lives())
def test_with_the_run_times_that_the_executor_knows_the_twin_foretells_exactly_what_happens(life: object) -> None:
    player = Player(life)  # type: ignore[arg-type]
    for operation in life.operations:  # type: ignore[attr-defined]
        player.do(operation)
    engine = player.engine
    until = engine.now_ms + HOUR

    def ahead(report: forks.Report) -> None:
        foretold = Rehearsal(engine, engine.seed, None)
        foretold.advance(until)
        report(foretold.state.digest().encode())

    worker = forks.start(ahead, 60)
    frames = []
    while not worker.over:
        forks.wait_for([worker], PATIENCE_S)
        frames += worker.frames()
    engine.advance(until)
    assert [frame.decode() for frame in frames] == [engine.state.digest()]


def test_a_fork_and_its_parent_differ_by_no_more_than_how_their_time_was_cut() -> None:
    """A turn records the time at which it ends, so turns that are cut elsewhere leave another number of records. What
    happened, and when, is the same."""
    engine = Engine.open(None, cell=small_cell(gpu_nodes=2))
    engine.command(submit(*[workload(f"w{i}", gpu=4000, run=(i + 1) * HOUR // 7, estimate=HOUR) for i in range(12)]))
    at_once, alike = engine.fork(), engine.fork()
    until = engine.now_ms + 6 * HOUR
    for one in (engine, alike):
        while one.now_ms < until:
            one.advance(min(until, one.now_ms + HOUR // 10))
    at_once.advance(until)
    assert engine.state.digest() == alike.state.digest()
    assert set(differences(engine.state, at_once.state)) == {"scalars.version", "scalars.now_ms"}


def test_the_future_that_only_the_executor_knows_is_not_looked_at() -> None:
    known, other = (answered(busy_engine(truth=truth), what_if("drain g0", "weight a 3")) for truth in (1, 3))
    assert known.figures == other.figures
    assert known.starts == other.starts


# -- answers ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_answer() -> None:
    engine = busy_engine()
    engine.advance(8 * HOUR)
    ask = what_if("fail g1 for 2h", "shock gpu 50% at +3h", seeds=2, horizon_ms=6 * HOUR, arrivals=True)
    assert answered(engine, ask) == answered(engine, ask)
    assert answered(engine, ask).figures != answered(engine, msgspec.structs.replace(ask, seed=7)).figures


def test_before_and_after_are_told_for_all_that_matters() -> None:
    engine = busy_engine()
    outlook = answered(engine, what_if("preempt a0", "add 2 nodes to gpu at +1h", seeds=5, watch=("a5", "b5")))
    found = {(figure.of, figure.name, figure.subject): figure for figure in outlook.figures}
    for name in ("wait_mean", "wait_p50", "wait_p95"):
        for of, subject in (("cell", ""), ("queue", "a"), ("queue", "b")):
            assert (of, name, subject) in found
    for name in ("evictions", "lost_work", "utilisation", "fragmentation", "cost", "idle_cost"):
        assert ("cell", name, "") in found
    assert {subject for of, name, subject in found if name == "cost" and of == "tenant"} == {"t0", "t1"}
    evictions = found["cell", "evictions", ""]
    assert (evictions.before.most, evictions.change.least) == (0, 1)
    assert found["cell", "lost_work", ""].change.least > 0
    # To pay less is no gain where less was done for it.
    assert found["cell", "cost", ""].better == found["tenant", "cost", "t0"].better == ""
    assert found["cell", "lost_work", ""].better == "lower"
    for figure in outlook.figures:
        for over in (figure.before, figure.after, figure.change):
            assert over.least <= over.p10 <= over.p50 <= over.p90 <= over.most
    watched = {start.id: start for start in outlook.starts if start.why == "watched"}
    assert set(watched) == {"a5", "b5"}
    assert watched["b5"].before is not None
    assert watched["b5"].before.chance_permille > 0
    assert outlook.edits == ("preempt a0", "add 2 nodes to gpu at +1h")


NEW = '{"id": "new", "queue": "b", "groups": [{"count": 2, "request": {"gpu_milli": 8000}}], "estimate_ms": 3600000}'


@pytest.mark.parametrize(
    ("edit", "figure", "sign"),
    [
        ("add 8 nodes to gpu", "wait_mean", -1),
        ("remove g0,g1", "wait_mean", 1),
        ("resize gpu 12", "wait_mean", -1),
        ("fail rack=r0 for 6h", "evictions", 1),
        ("shock gpu 50% for 6h", "evictions", 1),
        ("drain g0", "wait_mean", 1),
        ("cordon rack=r0", "wait_mean", 1),
        ("quota root gpu=4 evict", "wait_mean", 0),
        ("hold-queue b", "waiting", 1),
        ("cancel a0,a1", "wait_mean", -1),
        ("preempt a0,a1", "evictions", 1),
        ("migrate b-s0 to gpu", "evictions", 0),
        (f"submit {NEW}", "started", 1),
        ("weight a 9", "evictions", 0),
        ("policy fcfs", "wait_mean", 0),
        ("priority b5 high", "evictions", 0),
    ],
)
def test_every_kind_of_edit_does_what_it_says(edit: str, figure: str, sign: int) -> None:
    outlook = answered(busy_engine(), what_if(edit))
    change = next(f.change.least for f in outlook.figures if (f.name, f.of) == (figure, "cell"))
    assert (change > 0) - (change < 0) == sign or not sign
    assert not outlook.notes


def test_of_work_that_an_edit_stops_the_next_start_is_told() -> None:
    outlook = answered(busy_engine(), what_if("hold-queue a", "preempt a0", "preempt b0", watch=("a0", "b0", "b-s0")))
    starts = {start.id: start for start in outlook.starts}
    assert starts["a0"].before is starts["b0"].before is None
    assert starts["a0"].after is not None
    assert starts["a0"].after.started == 0
    assert starts["b0"].after is not None
    assert starts["b0"].after.least_ms is not None
    assert starts["b-s0"].after is None


def test_an_edit_that_cannot_be_made_when_its_time_comes_is_noted() -> None:
    outlook = answered(busy_engine(), what_if("preempt a0 at +11h", "drain g3 at +1h"))
    assert any("preempt a0 at +11h" in note for note in outlook.notes)


def test_edits_that_cannot_be_made_at_once_fail_the_run_with_what_is_wrong(twins: Twins) -> None:
    before = twins._engine.state.digest()
    status = ended(twins, what_if("migrate a0 to cpu", "drain g3"))
    assert status.state == "failed"
    assert status.error is not None
    assert "edit 1 'migrate a0 to" in status.error.problem
    assert twins._engine.state.digest() == before


def test_progress_and_first_estimates_come_before_the_end() -> None:
    engine, frames = busy_engine(), []
    live_twin.answer(engine, what_if("drain g0", seeds=3), HistoricRunTimes(engine.state), frames.append)
    told = [live_twin._decoder.decode(frame) for frame in frames]
    assert [one.whole for one in told] == [*(False,) * (len(told) - 1), True]
    assert all(one.permille <= after.permille for one, after in pairwise(told))
    partial = [one.answer for one in told[:-1] if one.answer is not None]
    assert {1, 2} <= {outlook.seeds for outlook in partial}
    last = told[-1].answer
    assert (last.seeds, last.covered_ms) == (3, last.horizon_ms)


def test_what_is_asked_wrongly_is_refused_before_anything_starts(twins: Twins) -> None:
    with pytest.raises(EditsError, match=r"there is no node 'g9'.*there is no queue 'c'"):
        twins.start(what_if("drain g9", "weight c 2"))
    with pytest.raises(NotFoundError, match="nobody"):
        twins.start(what_if("drain g0", watch=("nobody",)))
    with pytest.raises(RefusedError, match="running"):
        twins.start(AskStart(id="a0"))
    with pytest.raises(NotFoundError, match="T-1"):
        twins.status("T-1")
    assert not twins.busy


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_cancelled_run_is_gone_with_all_its_processes_and_makes_room(twins: Twins) -> None:
    run, worker, rehearsals = working(twins, LONG)
    for _ in range(MAX_AT_ONCE - 1):
        twins.start(LONG)
    with pytest.raises(RefusedError, match="in progress"):
        twins.start(LONG)
    assert twins.cancel(run).state == "cancelled"
    assert not alive(worker.pid)
    assert gone(rehearsals)
    assert twins.cancel(run).state == "cancelled"
    assert twins.start(LONG).state == "running"


def test_closing_leaves_no_process_behind(twins: Twins) -> None:
    pids = set()
    for _ in range(2):
        _, worker, rehearsals = working(twins, LONG)
        pids |= {worker.pid, *rehearsals}
    twins.close()
    assert gone(pids)
    assert not twins.busy
    assert {status.state for status in twins.runs()} == {"cancelled"}
    assert not forks._RUNNING


def test_a_killed_process_is_an_error_that_says_so(twins: Twins) -> None:
    run, worker, rehearsals = working(twins, LONG)
    os.kill(worker.pid, signal.SIGKILL)
    while twins.busy:
        watch(twins)
    status = twins.status(run)
    assert (status.state, status.error.code) == ("failed", "refused")  # type: ignore[union-attr]
    assert "ended early (exit -9)" in status.error.problem  # type: ignore[union-attr]
    run, worker, rehearsals = working(twins, LONG)
    os.kill(min(rehearsals), signal.SIGKILL)
    while twins.busy:
        watch(twins)
    assert "a rehearsal ended early" in twins.status(run).error.problem  # type: ignore[union-attr]
    assert not alive(worker.pid)


def test_a_run_that_takes_too_long_is_ended(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_twin, "MAX_SECONDS", 0.0)
    status = ended(twins, LONG)
    assert status.state == "failed"
    assert "took too long" in status.error.problem  # type: ignore[union-attr]


def test_the_child_holds_nothing_of_its_parents_but_its_pipe(tmp_path: Path) -> None:
    """A listening socket or journal that stayed open there would outlive the engine."""
    engine = busy_engine(tmp_path / "journal.db")
    listening = socket.create_server(("127.0.0.1", 0))

    def held(report: forks.Report) -> None:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
        there = [os.readlink(f"/dev/fd/{n}") for n in numbers if n > 2 and os.path.lexists(f"/dev/fd/{n}")]
        report("\n".join(there).encode())

    worker = forks.start(held, 20)
    frames = []
    while not worker.over:
        forks.wait_for([worker], PATIENCE_S)
        frames += worker.frames()
    listening.close()
    engine.close()
    (kind,) = {name.partition(":")[0] for name in frames[0].decode().splitlines()}
    assert kind == "pipe"
    assert len(frames[0].splitlines()) == 1


def test_a_signal_to_a_young_child_is_none_to_its_parent() -> None:
    """An event loop hears of signals by a socket that the child has too."""
    heard: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        wakeup = signal.set_wakeup_fd(theirs.fileno())
        try:
            for _ in range(10):
                worker = forks.start(lambda report: signal.pause(), 20)
                worker.cancel()
                assert worker.exit_code in (-signal.SIGKILL, 128 + signal.SIGTERM)
        finally:
            signal.set_wakeup_fd(wakeup)
            signal.signal(signal.SIGTERM, handler)
        theirs.close()
        assert ours.recv(1) == b""
    assert not heard


@pytest.mark.thorough
def test_many_threads_may_watch_and_cancel_while_the_engine_goes_on() -> None:
    with running_loop() as loop:
        loop.call(lambda engine: engine.command(submit(workload("w", gpu=8000, count=4, run=HOUR, estimate=HOUR))))
        runs = [loop.call(lambda _: loop.twins.start(what_if("drain g0", seeds=8))).id for _ in range(MAX_AT_ONCE)]
        seen: list[RunStatus] = []

        def follow(run: str) -> None:
            status = loop.twins.status(run)
            while status.state == "running":
                assert loop.twins.runs()
                status = loop.twins.wait(run, status.serial, 20)
            seen.append(status)

        threads = [threading.Thread(target=follow, args=(run,)) for run in runs for _ in range(2)]
        threads.append(threading.Thread(target=lambda: loop.twins.cancel(runs[0])))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(seen) == 2 * MAX_AT_ONCE
        assert {status.state for status in seen if status.id != runs[0]} == {"done"}
        left = loop.call(lambda _: loop.twins.start(LONG)).id
        worker = loop.twins.children[left]
    assert loop.twins.status(left).state == "cancelled"
    assert not alive(worker.pid)


# -- run times --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=30).map(lambda values: array("q", sorted(values))),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 2 * 10**9)), min_size=1, max_size=20
    ),
)  # fmt: skip
def test_many_draws_at_once_are_those_one_by_one(likely: array[int], asked: list[tuple[float, int]]) -> None:
    shares, beyond = (np.array(column) for column in zip(*asked, strict=True))
    each = [quantile(likely, share, least) for share, least in asked]
    assert quantiles([array("q", [5]), likely], np.ones(len(asked), np.int64), shares, beyond).tolist() == each
    assert all(drawn > least for drawn, (_, least) in zip(each, asked, strict=True))


def test_draws_have_the_shares_they_should() -> None:
    names = [f"w{i}" for i in range(4000)]
    shares = uniforms(5, names)
    assert shares.tolist() == [uniform(5, name) for name in names]
    drawn = np.sort(quantiles([OF_ESTIMATE], np.zeros(4000, np.int64), shares, np.zeros(4000, np.int64)))
    for permille in (100, 500, 900):
        assert drawn[permille * 4] == pytest.approx(quantile(OF_ESTIMATE, permille / 1000, 0), rel=0.05)
