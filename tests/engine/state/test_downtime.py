"""Where a cell's clock goes on after an engine was away, and who pays for the time in which none decided."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from engine import loop
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model import events as ev
from engine.model.commands import Define
from engine.model.reports import ShowbackRequest
from engine.model.specs import NodeSpec, NodeState, WorkloadState
from engine.state import timers
from engine.state.cell_state import State
from tests.support.cells import small_cell, submit, workload
from tests.support.effort import examples
from tests.support.random_cells import SOME, Life, Player, lives

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
BEGIN = 20_000 * DAY + 22 * HOUR
"""Two hours before midnight: three hours of downtime fall into two days."""
NODE_HOUR = 4 * 20_000_000 + 2 * 1_000_000
"""What all nodes of the small cell cost in an hour, micro-USD."""


class Host:
    """A host's clock, as the journal sees it."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    clock = Host(BEGIN)
    monkeypatch.setattr("engine.journal.event_journal._wall_ms", lambda: clock.now_ms)
    return clock


def begun(path: Path | None, *, watched: bool = False) -> Engine:
    """Four GPU nodes: one gang that ends after an hour, three that go on for five, and two that wait for a node."""
    engine = Engine.open(path)
    engine.advance(BEGIN)
    engine.command(Define(cell=small_cell()))
    if watched:
        engine.agents.register(["g0", "c0"])
    long = [workload(f"long{i}", gpu=8000, run=5 * HOUR, estimate=5 * HOUR) for i in range(3)]
    waiting = [workload(f"next{i}", gpu=8000, run=HOUR, estimate=HOUR) for i in range(2)]
    engine.command(submit(workload("short", gpu=8000, run=HOUR, estimate=HOUR), *long, *waiting))
    return engine


def crashed(path: Path, **more: bool) -> None:
    """A cell whose engine ended without a word."""
    begun(path, **more)._journal.close()


def lines(engine: Engine, since_ms: int = 0, until_ms: int | None = None) -> dict[str, int]:
    report = engine.showback(ShowbackRequest(by="queue", since_ms=since_ms, until_ms=until_ms))
    assert sum(line.microusd for line in report.lines) == report.total_microusd
    return {line.name or line.kind: line.microusd for line in report.lines} | {"total": report.total_microusd}


def told(engine: Engine) -> list[tuple[str, str]]:
    """What is said of the clock on the page of events."""
    return [(change.what, change.detail) for change in engine.changes(0).items if change.subject == "engine"]


def test_what_no_work_used_while_no_engine_decided_is_downtime_and_lines_still_sum_to_the_cost(
    tmp_path: Path, host: Host
) -> None:
    path = tmp_path / "journal.db"
    crashed(path)
    engine = Engine.open(path)
    said = timers.resume(engine, BEGIN + 3 * HOUR, follow=False)
    assert "from 2024-10-04 22:00:00 UTC to 2024-10-05 01:00:00 UTC" in said
    found = lines(engine)
    assert (found["total"], found["idle"]) == (3 * NODE_HOUR, 0)
    assert found["a"] == sum(int(cost) for cost in engine.state.ledger.costs(engine.now_ms))
    # The node that was freed after an hour stood still for two, and so did both without devices for three.
    assert found["downtime"] > 2 * 20_000_000 + 3 * 2_000_000
    first, second = lines(engine, BEGIN, BEGIN), lines(engine, engine.now_ms)
    assert (first["total"], second["total"]) == (2 * NODE_HOUR, NODE_HOUR)
    assert first["downtime"] + second["downtime"] == found["downtime"]
    goodput = engine.goodput()
    assert goodput.downtime_microusd == found["downtime"]
    assert goodput.charged_microusd + goodput.downtime_microusd == goodput.cost_microusd
    assert engine.state.ledger.idle(engine.now_ms) == 0
    engine.advance(engine.now_ms + HOUR)
    assert lines(engine)["downtime"] == found["downtime"], "it is over"
    assert lines(engine)["idle"] > 0
    digest = engine.state.digest()
    engine._journal.close()
    for use_snapshot in (True, False):
        again = Engine.open(path, use_snapshot=use_snapshot)
        assert again.state.digest() == digest
        again.close()


def test_a_price_and_nodes_that_change_in_a_downtime_leave_the_sum_exact() -> None:
    """Nothing does so today; the ledger holds whatever is recorded between its begin and its end."""
    engine = begun(None)
    state = engine.state
    for event in (
        ev.DowntimeBegan(), ev.Tick(BEGIN + 10 * MINUTE), ev.PriceSet(0, 7_000_001), ev.Tick(BEGIN + 23 * MINUTE),
        ev.NodesAdded((NodeSpec(id="late", pool="gpu"),)), ev.Tick(BEGIN + 71 * MINUTE), ev.DowntimeEnded(BEGIN),
    ):  # fmt: skip
        state.apply(event)
    ledger, now_ms = state.ledger, state.now_ms
    down = sum(ledger.down.amount(pool, now_ms) for pool in range(2))
    assert down == ledger.total_grains(now_ms) - ledger.spent_grains(now_ms)
    assert ledger.idle(now_ms + HOUR) > 0 == ledger.idle(now_ms)


def test_many_that_end_together_on_both_sides_of_midnight_leave_the_sum_exact() -> None:
    engine = begun(None)
    jobs = [workload(f"m{i}", cpu=2000, run=HOUR + i * 11 * MINUTE, estimate=3 * HOUR) for i in range(16)]
    engine.command(submit(*jobs))
    before = engine.version
    engine.catch_up(BEGIN + 4 * HOUR)
    assert engine.version - before >= len(jobs)
    found, first, rest = lines(engine), lines(engine, BEGIN, BEGIN), lines(engine, BEGIN + 3 * HOUR)
    assert found["a"] + found["downtime"] == found["total"]
    for name in found.keys() - {"idle"}:
        assert found[name] == first[name] + rest[name]


def test_nothing_is_decided_in_a_downtime_and_it_is_on_record(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "journal.db"
    crashed(path, watched=True)
    engine = Engine.open(path)
    timers.resume(engine, BEGIN + 3 * HOUR, follow=False)
    w = engine.state.workloads
    row_of = w.row_of
    assert WorkloadState(w.state[row_of["short"]]) == WorkloadState.FINISHED
    assert w.ended[row_of["short"]] == BEGIN + HOUR
    assert w.started[row_of["next0"]] == BEGIN + 3 * HOUR, "not at the hour at which nobody was there to start it"
    assert WorkloadState(w.state[row_of["next1"]]) == WorkloadState.QUEUED
    assert told(engine) == [
        ("downtime began", "no engine decides from here on"),
        ("downtime over", "no engine was running since 2024-10-04 22:00:00 UTC"),
    ]
    assert engine.state.downtimes.since(BEGIN) == [(BEGIN, BEGIN + 3 * HOUR)]
    assert engine.state.downtimes.since(BEGIN + 3 * HOUR) == []
    # Watched nodes were not heard because nobody listened: they have as long as ever to call.
    engine.advance(engine.now_ms + 30 * SECOND)
    assert NodeState(engine.state.capacity.state[engine.state.capacity.row_of["g0"]]) == NodeState.READY
    engine.advance(engine.now_ms + 10 * MINUTE)
    assert NodeState(engine.state.capacity.state[engine.state.capacity.row_of["g0"]]) == NodeState.DOWN
    engine.close()


def test_a_short_restart_is_not_told_and_costs_no_node(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "journal.db"
    crashed(path, watched=True)
    engine = Engine.open(path)
    assert timers.resume(engine, BEGIN + 2 * MINUTE, follow=False) == ""
    assert engine.now_ms == BEGIN + 2 * MINUTE
    assert told(engine) == []
    assert "downtime" not in lines(engine)
    assert NodeState(engine.state.capacity.state[engine.state.capacity.row_of["g0"]]) == NodeState.READY
    engine.close()


def test_a_host_whose_clock_stepped_back_goes_on_from_the_journal(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "journal.db"
    crashed(path)
    host.now_ms = BEGIN - HOUR
    engine = Engine.open(path)
    said = timers.resume(engine, host.now_ms, follow=True)
    assert "clock shows 2024-10-04 21:00:00 UTC, the journal ends at 2024-10-04 22:00:00 UTC" in said
    assert told(engine) == [
        ("clock held", "the host's clock shows 2024-10-04 21:00:00 UTC; the cell keeps its own time")
    ]
    engine.advance(BEGIN + 2 * MINUTE)
    engine.keep_time()
    engine._journal.close()
    # And when the host's clock is beyond the cell's again, the cell follows it: no further than it was away.
    again = Engine.open(path)
    assert timers.resume(again, BEGIN + 30 * MINUTE, follow=False)
    assert again.now_ms == BEGIN + 30 * MINUTE
    assert again.state.downtimes.since(0) == [(BEGIN + 2 * MINUTE, BEGIN + 30 * MINUTE)]
    again.close()


def test_clocks_of_hosts_that_differ_by_seconds_are_not_told(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "journal.db"
    crashed(path)
    engine = Engine.open(path)
    assert timers.resume(engine, BEGIN - 3 * SECOND, follow=False) == ""
    assert (engine.now_ms, told(engine)) == (BEGIN, [])
    engine.close()


@pytest.mark.parametrize("follow", [False, True])
def test_a_cell_with_a_time_of_its_own_never_jumps_to_the_hosts(tmp_path: Path, host: Host, follow: bool) -> None:
    """A demo that is served at speed 1; but nodes that exist have no other time than their host's."""
    path = tmp_path / "journal.db"
    host.now_ms = BEGIN + 223 * DAY
    crashed(path)
    host.now_ms += 2 * SECOND
    engine = Engine.open(path)
    said = timers.resume(engine, host.now_ms, follow=follow)
    assert said
    if follow:
        assert engine.now_ms == host.now_ms
        assert lines(engine)["idle"] == 0
    else:
        assert engine.now_ms == BEGIN
        assert [what for what, _ in told(engine)] == ["clock held"]
        assert lines(engine)["total"] == 0
    engine.close()


@pytest.mark.parametrize("follow", [False, True])
def test_a_host_whose_clock_is_far_ahead_is_asked_about(tmp_path: Path, host: Host, follow: bool) -> None:
    """A year after the last change: it may be so, or be a wrong clock that would let every deadline pass."""
    path = tmp_path / "journal.db"
    crashed(path)
    engine = Engine.open(path)
    said = timers.resume(engine, BEGIN + 365 * DAY, follow=follow)
    assert ("--catch-up" in said) == (not follow)
    assert engine.now_ms == BEGIN + (365 * DAY if follow else 0)
    engine.close()


def test_a_snapshot_of_an_earlier_muster_knows_no_downtime() -> None:
    engine = begun(None)
    engine.advance(BEGIN + HOUR)
    dumped = msgspec.msgpack.decode(msgspec.msgpack.encode(engine.state.dump()))
    del dumped["downtimes"], dumped["ledger"]["meters"]["down"]
    state = State()
    state.load(dumped)
    old, engine = engine, Engine(state)
    engine.catch_up(BEGIN + 4 * HOUR)
    old.catch_up(BEGIN + 4 * HOUR)
    for since_ms in (0, BEGIN, BEGIN + 3 * HOUR):
        assert lines(engine, since_ms) == lines(old, since_ms)
    assert lines(engine)["downtime"] > 0


class Away(Player):
    """Plays a life in which nobody decides while time passes, every other time for long."""

    def advance(self, engine: Engine, milliseconds: int) -> None:
        longer = timers.MIN_DOWNTIME_MS * (len(self.commands) % 2)
        self.commands.append(engine.now_ms + milliseconds + longer)
        engine.catch_up(engine.now_ms + milliseconds + longer)


@given(life=lives(durable=True))
@settings(SOME, max_examples=examples(12))
def test_any_life_with_downtimes_charges_what_nodes_cost_and_is_the_same_when_it_is_replayed(life: Life) -> None:
    with tempfile.TemporaryDirectory() as folder:
        player = Away(life, folder)
        player.play()
        engine = player.engine
        ledger, now_ms = engine.state.ledger, engine.now_ms
        for pool in range(len(ledger.cost)):
            cost, used, down = (meter.amount(pool, now_ms) for meter in (ledger.cost, ledger.used, ledger.down))
            assert 0 <= down <= cost - used
            assert ledger.down.rate[pool] == 0
        lines(engine)
        engine.close()
        again = player.open(use_snapshot=False)
        assert again.state.digest() == engine.state.digest()
        again.close()


# -- a running engine -------------------------------------------------------------------------------------------------


class Monotonic:
    """The clock that a loop goes by."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._real = time.monotonic

    def __call__(self) -> float:
        return self._real() + self.offset_s


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    clock = Monotonic()
    monkeypatch.setattr(loop, "awake_or_asleep_s", clock)
    return clock


@contextmanager
def running(engine: Engine, **more: object) -> Iterator[EngineLoop]:
    found = EngineLoop(engine, **more)
    found.start()
    try:
        found.call(lambda _: None)  # It has read its clock by then.
        yield found
    finally:
        found.stop()
        engine.close()


def eventually(found: EngineLoop, holds: Callable[[Engine], bool]) -> None:
    end = time.monotonic() + 20
    while not found.call(lambda engine: holds(engine)):
        assert time.monotonic() < end, "it never came to hold"


@pytest.mark.parametrize("real_time", [True, False])
def test_a_process_that_stood_still_for_hours_names_the_gap_or_lets_it_be(
    monotonic: Monotonic, real_time: bool
) -> None:
    """Stopped by a signal, or a machine that slept: at speed 60 three hours would be a week."""
    with running(begun(None), speed=1.0 if real_time else 60.0, real_time=real_time) as found:
        eventually(found, lambda engine: engine.now_ms > BEGIN)
        monotonic.offset_s = 3 * 3600
        if real_time:
            eventually(found, lambda engine: engine.now_ms >= BEGIN + 3 * HOUR)
            assert found.call(lambda engine: len(engine.state.downtimes.ended)) == 1
            assert found.call(lambda engine: lines(engine)["downtime"]) > 0
        else:
            before = found.call(lambda engine: engine.now_ms)
            eventually(found, lambda engine: engine.now_ms > before)
            assert found.call(lambda engine: engine.now_ms) < BEGIN + HOUR
            assert found.call(lambda engine: "downtime" not in lines(engine))


def test_a_cell_in_real_time_records_its_time_though_nothing_happens(
    tmp_path: Path, monotonic: Monotonic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else hours in which an engine ran, and had nothing to do, would be taken for a downtime after a crash."""
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=small_cell())
    with running(engine, real_time=True) as found:
        for minutes in range(1, 4):
            monotonic.offset_s = 61.0 * minutes
            eventually(found, lambda engine, minutes=minutes: engine.state.now_ms >= 61_000 * minutes)
    assert engine.state.now_ms >= 183_000


def test_a_wall_clock_that_steps_back_under_a_running_engine_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = begun(tmp_path / "journal.db", watched=True)
    real = time.time_ns
    with running(engine, real_time=True) as found:
        eventually(found, lambda engine: engine.now_ms > BEGIN)
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
        before = found.call(lambda engine: engine.now_ms)
        found.call(lambda engine: engine.command(submit(workload("after"))))
        eventually(found, lambda engine: engine.now_ms > before + 200)
        assert found.fault == ""
        assert found.call(lambda engine: engine.now_ms) < before + MINUTE
    Engine.open(tmp_path / "journal.db").close()
