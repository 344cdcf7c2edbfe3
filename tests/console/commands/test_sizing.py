"""`muster workload size` and `workload advise` against a live engine, and new work that starts with what it needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from console.cli.main import run
from console.commands.advice import advice_lines, size_lines
from console.service.advisor import Advisor
from console.service.insights import Insights, bound_rows, held_by_others
from console.service.local_client import LocalClient
from console.service.telemetry import Archive, Collector
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.specs import Settings
from recommender.estimates.queries import SizingRequest
from recommender.history.metrics import RunBatch, RunRecord
from recommender.history.telemetry import Telemetry
from tests.console.fake_client import FakeClient
from tests.support.cells import small_cell, workload
from tests.support.gates import gate_of
from tests.support.served import HOUR_MS, served_on_unix

Shell = Callable[..., int]
NOW_MS = 100 * HOUR_MS


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    cell = msgspec.structs.replace(small_cell(), settings=Settings(rightsizing="initial"))
    running = EngineLoop(Engine.open(None, cell=cell))
    running.start()
    running.call(lambda engine: engine.advance(NOW_MS))
    yield running
    running.stop()
    running.engine.close()


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    """Runs a command against a small cell."""
    with served_on_unix(loop) as path:
        yield lambda *words: run([*words, "--connect", str(path)])


def client(loop: EngineLoop, insights: Insights | None = None, archive: Archive | None = None) -> LocalClient:
    return LocalClient(loop, gate_of(loop.engine), Advisor(loop), insights=insights, archive=archive)


def ended(number: int, **changes: object) -> RunRecord:
    base = {
        "id": f"train-{number}", "source": "swf:old", "tenant": "acme", "name": f"train-{number}", "cpu_milli": 8_000,
        "memory_mib": 32_768, "gpu_milli": 8_000, "submitted_ms": 0, "started_ms": 0, "ended_ms": HOUR_MS + number,
        "outcome": "finished", "pool": "gpu", "gpu_model": "H100", "peak_cpu_milli": 2_000, "peak_memory_mib": 6_000,
    }  # fmt: skip
    return RunRecord(**{**base, **changes})  # type: ignore[arg-type]


def train(number: int) -> object:
    return workload(f"train-{number}", tenant="acme", gpu=8_000, cpu=8_000, memory=32_768, run=HOUR_MS)


def test_nothing_known_is_said(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("workload", "size") == 0
    assert "no usage data yet" in capsys.readouterr().out
    assert shell("workload", "size", "nobody") == shell("workload", "advise", "nobody") == 3
    capsys.readouterr()
    loop.call(lambda engine: engine.command(Submit(workloads=(train(1),))))
    assert shell("workload", "advise", "train-1") == 0
    assert "gpu is the only pool that train-1 could run in" in capsys.readouterr().out


def test_what_kinds_use_is_told_from_history(loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    with served_on_unix(loop) as path:
        from console.client.remote import RemoteClient

        remote = RemoteClient(str(path))
        remote.import_runs(RunBatch(runs=tuple(ended(number) for number in range(20))))
        remote.close()
        loop.call(lambda engine: engine.command(Submit(workloads=(train(99),))))
        assert run(["workload", "size", "--connect", str(path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[1].split()[:3] == ["acme/train", "cpu", "8"]
        assert "1 task running" in lines[2]
        assert run(["workload", "size", "train-99", "--connect", str(path), "--json"]) == 0
        (kind,) = json.loads(capsys.readouterr().out)["kinds"]
        assert (kind["kind"], kind["runs"], kind["tasks"], kind["cpu"]["recommended"]) == ("acme/train", 20, 1, 2_400)
        assert kind["saved_cpu_milli"] == 5_600
        assert kind["saved_microusd_hour"] > 0
        assert run(["workload", "size", "train-99", "--connect", str(path)]) == 0
        assert "peak use of one task: CPU p10" in capsys.readouterr().out
        assert run(["workload", "advise", "train-99", "--connect", str(path), "--json"]) == 0
        advice = json.loads(capsys.readouterr().out)
        (option,) = advice["options"]
        assert (option["pool"], option["basis"], option["runs"]) == ("gpu", "own runs", 20)
        assert option["cost_microusd"]["p50"] == pytest.approx(option["rate_microusd_hour"], rel=0.01)


def test_new_work_starts_with_what_its_kind_needs(loop: EngineLoop) -> None:
    archive = Archive(loop, Telemetry())
    archive.telemetry.add_runs(ended(number) for number in range(20))
    insights = Insights(loop, archive)
    loop.engine.recommender = insights.sizer
    loop.call(lambda engine: engine.command(Submit(workloads=(train(1),))))
    insights.keep_up()
    loop.call(lambda engine: engine.command(Submit(workloads=(train(2),))))
    asked = [client(loop, insights, archive).workload(f"train-{number}").groups[0].cpu_milli for number in (1, 2)]
    assert asked == [8_000, 2_400]
    (found,) = insights.findings()
    assert (found.kind, found.action, found.about) == ("oversized", "notify", "acme/train")  # it has no checkpoints


def test_runs_are_learnt_once_however_often_they_are_read(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.service.insights.FRESH_S", 0.0)
    archive = Archive(loop, Telemetry())
    insights = Insights(loop, archive)
    seen = []
    for number in range(3):
        archive.telemetry.add_runs([ended(number, ended_ms=NOW_MS - 1_000 * number)])
        seen.append(insights.sizing(SizingRequest()).kinds[0].runs)
    assert seen == [1, 2, 3]


def test_what_neighbours_hold_is_seen_and_joined_to_the_run(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [workload(f"job-{number}", tenant="acme", cpu=8_000, run=HOUR_MS) for number in range(3)]
    loop.call(lambda engine: engine.command(Submit(workloads=tuple(small))))
    shares = loop.call(lambda engine: held_by_others(engine.state, bound_rows(engine.state)))
    assert sorted(shares) == [(f"job-{number}", 0.5) for number in range(3)]
    monkeypatch.setattr("console.service.insights.FRESH_S", 0.0)
    monkeypatch.setattr("console.service.insights.EVERY_S", 0.0)
    archive = Archive(loop, Telemetry())
    insights, collector = Insights(loop, archive), Collector(loop, archive.telemetry)
    collector.collect()
    for _ in range(3):
        insights.keep_up()
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    collector.collect()
    insights.keep_up()
    assert [(each.kind, each.share) for each in insights.beside] == [("acme/job", 0.5)] * 3


def test_names_of_strangers_are_shown_and_do_nothing() -> None:
    fake = FakeClient(hostile=True)
    for line in (*size_lines(fake.sizing(SizingRequest())), *advice_lines(fake.advice_on("w"))):
        assert line.isprintable()
        assert len(line) <= 80
