"""What a live cell shows is kept once, also over a restart, and is told by `muster history show`."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from console.cli import main
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.service.telemetry import Archive, Collector, kept_by
from engine.control import Engine
from engine.journal.side_tables import Records, RecordsError
from engine.loop import EngineLoop
from engine.model.commands import ChangeQueue, Requeue, Submit
from engine.model.errors import SpecError
from engine.model.specs import QueueSpec, UsageSample
from engine.reads import overview
from engine.reads.overview import Gauges
from recommender.history.metrics import HistoryRequest, SampleBatch, SampleRow
from recommender.history.telemetry import Telemetry
from tests.support.cells import small_cell, workload
from tests.support.gates import gate_of
from tests.support.prometheus_server import prometheus_holding
from tests.support.served import HOUR_MS, gpu_job, served_on_unix

MINUTE_MS = 60_000
START_MS = 1_700_000_000_000


@contextmanager
def kept_cell(path: Path | None = None) -> Iterator[tuple[EngineLoop, Telemetry, Collector]]:
    """A loop over the small cell whose time only passes by hand, its history, and who keeps it."""
    engine = Engine.open(path, cell=small_cell())
    loop = EngineLoop(engine)
    loop.paused = True
    loop.start()
    records = Records(path, kept_by(loop))
    telemetry = Telemetry(records, clock=lambda _: engine.now_ms)
    try:
        if engine.now_ms < START_MS:
            passes(loop, START_MS - engine.now_ms)
        yield loop, telemetry, Collector(loop, telemetry)
    finally:
        loop.stop()
        records.close()
        engine.close()


def passes(loop: EngineLoop, ms: int) -> None:
    loop.call(lambda engine: engine.advance(engine.now_ms + ms))


def submit(loop: EngineLoop, *ids: str, **options: object) -> None:
    loop.call(lambda engine: engine.command(Submit(workloads=tuple(gpu_job(each, **options) for each in ids))))  # type: ignore[arg-type]


def latest(telemetry: Telemetry, metric: str, of: str = "cell", subject: str = "") -> float:
    points = telemetry.series(metric, of, subject, START_MS - MINUTE_MS, START_MS + 100 * HOUR_MS, HOUR_MS)
    return float(points.last[points.count > 0][-1])


def total(telemetry: Telemetry, metric: str, of: str = "cell", subject: str = "") -> float:
    points = telemetry.series(metric, of, subject, START_MS - MINUTE_MS, START_MS + 100 * HOUR_MS, HOUR_MS)
    return float(points.total[points.count > 0].sum())


def test_use_demand_and_waiting_are_what_the_cell_shows() -> None:
    with kept_cell() as (loop, telemetry, collector):
        submit(loop, "a", "b", tasks=2, queue="a")
        submit(loop, "c", tasks=3, queue="b")
        passes(loop, MINUTE_MS)
        collector.collect()
        view = loop.call(lambda engine: engine.overview())
        assert latest(telemetry, "used_gpu") == view.used["gpu_milli"] == 32_000
        assert latest(telemetry, "capacity_gpu") == view.capacity["gpu_milli"] == 32_000
        assert latest(telemetry, "demand_gpu") == 56_000
        assert (latest(telemetry, "running"), latest(telemetry, "waiting")) == (2, 1)
        assert latest(telemetry, "demand_gpu", "queue", "b") == 24_000
        assert latest(telemetry, "demand_gpu", "queue", "root") == 56_000
        assert latest(telemetry, "demand_gpu", "pool", "gpu") == 56_000
        assert latest(telemetry, "demand_gpu", "gpu_model", "H100") == 56_000
        assert latest(telemetry, "demand_nodes", "pool", "gpu") == 7
        assert latest(telemetry, "price", "pool", "gpu") == 20_000_000
        assert latest(telemetry, "cost_rate") == view.cost_microusd_hour
        assert latest(telemetry, "nodes", "pool", "cpu") == 2


def test_starts_waits_and_ends_are_counted_once() -> None:
    with kept_cell() as (loop, telemetry, collector):
        collector.collect()
        submit(loop, *(f"w{i}" for i in range(6)))
        passes(loop, MINUTE_MS)
        collector.collect()
        assert total(telemetry, "started") == 4
        for _ in range(4):
            passes(loop, 40 * MINUTE_MS)
            collector.collect()
        assert (total(telemetry, "started"), total(telemetry, "finished")) == (6, 6)
        assert total(telemetry, "finished", "queue", "root") == total(telemetry, "finished", "queue", "a") == 6
        assert latest(telemetry, "wait_p95_s") == pytest.approx(3600, abs=1)
        runs = telemetry.runs(0, 2**50, 100)
        assert sorted(run.id for run in runs) == [f"w{i}" for i in range(6)]
        assert {(run.pool, run.gpu_model, run.outcome, run.gpu_milli) for run in runs} == {
            ("gpu", "H100", "finished", 8000)
        }
        charged = loop.call(lambda engine: [engine.workload(run.id).cost_microusd for run in runs])
        assert [run.cost_microusd for run in runs] == charged
        assert min(charged) > 0
        assert all(run.ended_ms - run.started_ms == HOUR_MS == run.requested_ms for run in runs)


def brute(waits_ms: list[int], percent: int) -> float | None:
    """The value that `percent` of the waits are below, in seconds."""
    return sorted(waits_ms)[len(waits_ms) * percent // 100] / 1000 if waits_ms else None


@pytest.mark.both_databases
def test_waits_of_each_queue_over_time_are_those_that_the_events_tell(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    with kept_cell(tmp_path / "journal.db") as (loop, telemetry, collector):
        collector.collect()
        queue_of, seen, expected = {}, 0, {}
        since_ms = loop.call(lambda engine: engine.now_ms)
        for minute in range(120):
            for i in range(int(random.integers(0, 3))):
                name, queue = f"w{minute}-{i}", str(random.choice(["a", "b"]))
                gpus, length = int(random.integers(1, 9)), int(random.integers(5, 45)) * MINUTE_MS
                queue_of[name] = queue
                job = workload(name, queue=queue, gpu=1000 * gpus, estimate=length, run=length)
                loop.call(lambda engine, job=job: engine.command(Submit(workloads=(job,))))
            passes(loop, MINUTE_MS)
            collector.collect()
            told = loop.call(lambda engine: (engine.now_ms, engine.changes(0, 10_000).items))
            now_ms, items = told
            seen = len(items)
            begun = {each.subject: each.at_ms for each in reversed(items) if each.what == "running"}
            came = {each.subject: each.at_ms for each in items if each.what == "submitted"}
            for queue, members in (("a", ["a"]), ("b", ["b"]), ("root", ["a", "b"]), ("", ["a", "b"])):
                ours = {name: at_ms for name, at_ms in came.items() if queue_of[name] in members}
                started = [begun[name] - at for name, at in ours.items() if since_ms <= begun.get(name, -1) < now_ms]
                waits = [now_ms - at for name, at in ours.items() if name not in begun]
                for percent in (50, 95):
                    expected[f"wait_p{percent}_s", queue, now_ms] = brute(started, percent)
                    expected[f"waiting_p{percent}_s", queue, now_ms] = brute(waits, percent)
                expected["waiting", queue, now_ms] = len(waits)
            since_ms = now_ms
        assert seen < 10_000, "all events were told"
        telemetry.flush()
        told_again = Telemetry(Records(tmp_path / "journal.db"))
        for (metric, queue, at_ms), value in expected.items():
            found = told_again.series(metric, "queue" if queue else "cell", queue, at_ms, at_ms + 1, 1)
            assert (float(found.last[0]) if found.count[0] else None) == value, (metric, queue, at_ms)
        assert max(value or 0 for (metric, *_), value in expected.items() if metric == "waiting_p95_s") > 60


def test_quota_of_a_queue_and_waits_of_a_pool_are_kept() -> None:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 16_000}))
    loop = EngineLoop(engine)
    loop.paused = True
    loop.start()
    telemetry = Telemetry(clock=lambda _: engine.now_ms)
    collector = Collector(loop, telemetry)
    try:
        passes(loop, START_MS - engine.now_ms)
        collector.collect()
        submit(loop, "a", "b", "c", queue="a")
        passes(loop, 61 * MINUTE_MS)
        collector.collect()
        assert latest(telemetry, "quota_gpu", "queue", "a") == 16_000
        assert latest(telemetry, "quota_gpu", "queue", "root") == 2**40 + 16_000
        assert not [key for key in telemetry.keys("quota_cpu") if key.subject == "a"]
        assert latest(telemetry, "wait_p95_s", "pool", "gpu") == pytest.approx(3600, abs=1)
        assert not telemetry.keys("wait_p50_s", "pool")[1:]
        more = QueueSpec(name="a", parent="root", nominal={"gpu_milli": 24_000})
        loop.call(lambda engine: engine.command(ChangeQueue(queue=more)))
        passes(loop, MINUTE_MS)
        collector.collect()
        assert latest(telemetry, "quota_gpu", "queue", "a") == 24_000
    finally:
        loop.stop()
        engine.close()


def test_after_a_restart_nothing_is_missed_or_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with kept_cell(path) as (loop, telemetry, collector):
        collector.collect()
        submit(loop, "a", "b")
        passes(loop, 2 * HOUR_MS)
        collector.collect()
        submit(loop, "c")
        passes(loop, 2 * HOUR_MS)
        # It goes down before it has looked.
    with kept_cell(path) as (loop, telemetry, collector):
        passes(loop, MINUTE_MS)
        for _ in range(2):
            collector.collect()
            passes(loop, MINUTE_MS)
        assert total(telemetry, "finished") == total(telemetry, "started") == 3
        assert telemetry.run_counts() == {"cell": 3}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_a_cell_met_in_parts_is_known_as_by_a_look(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(overview, "AT_ONCE", at_once)
    with kept_cell() as (loop, _, _):
        submit(loop, "ended-before")
        passes(loop, 2 * HOUR_MS)
        submit(loop, "runs-on", "ends", "stopped", "waits", "waits-too")
        passes(loop, HOUR_MS // 2)
        since_ms = loop.call(lambda engine: engine.now_ms)
        met, looked = Gauges(since_ms), Gauges(0)
        loop.call(lambda engine: looked.look(engine.state, since_ms))
        while not loop.call(lambda engine: met.meet(engine.state)):
            pass
        loop.call(lambda engine: engine.command(Requeue(ids=("stopped",))))
        submit(loop, "new")
        passes(loop, HOUR_MS)
        for _ in range(2):
            looks = loop.call(lambda engine: [each.look(engine.state, engine.now_ms) for each in (met, looked)])
            for name, *columns in zip(looks[0]._fields, *looks, strict=True):
                np.testing.assert_equal(columns[0], columns[1], name)
            passes(loop, HOUR_MS)
        assert len(looks[0].ended_rows) > 0


def test_a_journal_without_history_begins_it_with_the_ends_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=small_cell())
    engine.advance(START_MS)
    engine.command(Submit(workloads=(gpu_job("old"),)))
    engine.advance(START_MS + 2 * HOUR_MS)
    engine.close()
    with kept_cell(path) as (_, telemetry, collector):
        collector.collect()
        assert [run.id for run in telemetry.runs(0, 2**50, 10)] == ["old"]
        assert not telemetry.keys("finished")


def test_what_tasks_use_is_kept_by_kind_and_with_the_run() -> None:
    with kept_cell() as (loop, telemetry, collector):
        collector.collect()
        job = workload("train-0012", count=2, cpu=4000, memory=8000, estimate=HOUR_MS, run=HOUR_MS, tenant="acme")
        loop.call(lambda engine: engine.command(Submit(workloads=(job,))))
        (place,) = loop.call(lambda engine: engine.workload("train-0012")).placement
        for cpu, memory in ((3000, 5001), (2000, 6001)):
            passes(loop, MINUTE_MS)
            report = UsageSample(workload="train-0012", node=place.node, cpu_milli=cpu, memory_mib=memory)
            assert loop.call(lambda engine, report=report: engine.report_usage([report])) == 1
            collector.collect()
        assert latest(telemetry, "use_cpu", "kind", "acme/train") == 1000
        passes(loop, 2 * HOUR_MS)
        collector.collect()
        (run,) = telemetry.runs(0, 2**50, 10)
        assert (run.peak_cpu_milli, run.peak_memory_mib) == (1500, 3001)


def fill(archive: Archive) -> None:
    """The database's file gets no more pages from now on, and those it has are full."""

    def full(connection: Any) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all()

    archive.telemetry.records.write(full)
    times = tuple(START_MS - MINUTE_MS * i for i in range(3000))
    row = SampleRow("node_load", "node", "g0", times, tuple(math.sin(at) for at in times))
    with pytest.raises(RecordsError, match="is full"):
        archive.import_samples(SampleBatch(source="elsewhere", series=(row,)))


@pytest.mark.about_files("what keeps it from being written")
def test_what_ended_while_nothing_could_be_written_is_kept_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.journal.side_tables.RETRY_S", 0.0)
    monkeypatch.setattr("engine.journal.sqlite_store.BUSY_S", 0.0)
    path = tmp_path / "journal.db"
    with kept_cell(path) as (loop, telemetry, collector), closing(sqlite3.connect(path)) as other:
        submit(loop, "a", "b", tasks=2)
        collector.collect()
        passes(loop, 2 * HOUR_MS)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordsError, match="locked"):
            collector.collect()
        other.rollback()
        passes(loop, HOUR_MS)
        collector.collect()
        assert total(telemetry, "finished") == len(telemetry.runs(0, 2**50, 10)) == 2


@pytest.mark.about_files("what keeps it from being written")
def test_a_full_disk_ends_the_keeping_by_its_reason_and_not_the_cell(tmp_path: Path) -> None:
    with kept_cell(tmp_path / "journal.db") as (loop, telemetry, collector):
        collector.collect()
        archive = Archive(loop, telemetry)
        fill(archive)
        with pytest.raises(RecordsError, match="is full"):
            collector.collect()
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), archive=archive)
        assert "is full" in archive.history(HistoryRequest()).error
        assert client.health().history_error == archive.error
        assert client.health().journal_error == ""
        submit(loop, "a")
        assert client.workload("a").state == "running"


def test_it_is_asked_and_added_to_with_care() -> None:
    with kept_cell() as (loop, telemetry, collector):
        archive = Archive(loop, telemetry)
        collector.collect()
        passes(loop, MINUTE_MS)
        collector.collect()
        found = archive.history(HistoryRequest(metric="used_cpu", last_ms=3 * MINUTE_MS))
        assert [point.count for point in found.points if point.count] == [1, 1]
        assert found.points[0].mean is None
        listed = archive.history(HistoryRequest())
        assert (listed.series_count, listed.points, listed.error) == (len(listed.series), (), "")
        for bad in (
            HistoryRequest(metric="usd_cpu"), HistoryRequest(of="planet"), HistoryRequest(metric="price", of="tenant"),
            HistoryRequest(step_ms=0), HistoryRequest(since_ms=5, until_ms=4), HistoryRequest(runs=10**9),
            HistoryRequest(until_ms=2**63, runs=1),
        ):  # fmt: skip
            with pytest.raises(SpecError):
                archive.history(bad)
        row = SampleRow("gpu_util", "node", "g0", (START_MS, 2**52), (50.0, 1.0))
        receipt = archive.import_samples(SampleBatch(source="prometheus:x", series=(row,)))
        assert (receipt.taken, [(each.reason, each.count) for each in receipt.refused]) == (1, [("of the future", 1)])
        with pytest.raises(SpecError, match="a different number of times"):
            archive.import_samples(
                SampleBatch(source="p", series=(SampleRow("gpu_util", "node", "g0", (1, 2), (1.0,)),))
            )
        with pytest.raises(SpecError, match="source"):
            archive.import_samples(SampleBatch(source="cell", series=()))
        assert archive.history(HistoryRequest(metric="gpu_util", of="node")).stale_count == 0
        passes(loop, 5 * MINUTE_MS)
        assert archive.history(HistoryRequest(metric="gpu_util", of="node")).stale_count == 1


def muster(*words: str) -> int:
    return main.run(words)


@pytest.fixture
def engine_socket() -> Iterator[str]:
    with kept_cell() as (loop, _, _), served_on_unix(loop) as path:
        yield str(path)


def test_traces_are_imported_once_and_listed(
    engine_socket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "tiny.swf"
    jobs = [f"{i} {i * 10} 5 60 4 -1 -1 4 120 -1 1 {i % 3} 1 1 1 1 -1 -1" for i in range(1, 41)]
    trace.write_text("; UnixStartTime: 1000000000\n" + "\n".join([*jobs, "broken"]) + "\n")
    for _ in range(2):
        assert muster("history", "import", "swf", str(trace), "--json", "--connect", engine_socket) == 0
        (told,) = json.loads(capsys.readouterr().out)
        assert (told["taken"], told["bad_lines"]) == (40, 1)
    assert muster("history", "show", "--connect", engine_socket) == 0
    assert "40 from swf:tiny.swf" in capsys.readouterr().out
    assert muster("history", "import", "swf", str(tmp_path / "none.swf"), "--connect", engine_socket) == 7
    assert muster("history", "import", "swf", str(trace), "--connect", engine_socket, "--readonly") == 4


def test_history_is_told_in_eighty_columns_and_names_what_is_wrong(
    engine_socket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert muster("history", "show", "gpu_utl", "--connect", engine_socket) == 2
    assert "Did you mean 'gpu_util'" in capsys.readouterr().err
    assert muster("history", "show", "gpu_util", "node:", "--connect", engine_socket) == 2
    assert muster("history", "show", "gpu_util", "--since", "soon", "--connect", engine_socket) == 2
    assert muster("history", "show", "--connect", engine_socket) == 0
    assert "no measurements yet" in capsys.readouterr().out
    assert muster("history", "show", "demand_gpu", "queue:x", "--connect", engine_socket) == 0
    assert "no measurements" in capsys.readouterr().out


def test_a_prometheus_is_imported_once_and_goes_on(
    engine_socket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = int(time.time()) // 60 * 60 - 60
    said = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    for node in ("g0", "g1", "stranger"):
        said += [f'DCGM_FI_DEV_GPU_UTIL{{Hostname="{node}",gpu="0"}} {i} {now_s - 60 * (29 - i)}' for i in range(30)]
    connected = ("--connect", engine_socket)
    with prometheus_holding([*said, "# EOF"], tmp_path) as url:
        brought = []
        for _ in range(2):
            assert muster("history", "import", "prometheus", url, "--since", "2h", "--json", *connected) == 0
            (told,) = json.loads(capsys.readouterr().out)
            brought.append(told["metrics"]["gpu_util"])
            assert (told["unmatched"], told["unmatched_first"]) == (1, ["stranger"])
        assert brought[0] == {"nodes": 2, "taken": 60, "refused": {}}
        assert muster("history", "show", "gpu_util", "node:g1", "--since", "3h", "--json", *connected) == 0
        points = json.loads(capsys.readouterr().out)["points"]
        assert sum(count for _, count, *_ in points) == 30
        assert muster("history", "import", "prometheus", url, "--step", "0s", *connected) == 2
    assert muster("history", "import", "prometheus", url, *connected) == 5
    assert "Imported so far: nothing" in capsys.readouterr().err
    assert muster("history", "show", "gpu_util", *connected) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["SUBJECT", "node:g0", "node:g1"]
    assert max(map(len, lines)) <= 80
