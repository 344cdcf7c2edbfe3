"""`muster budget efficiency`, `muster node interrupt`, and the flags of where work may run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from console.cli.main import run
from console.commands.money import lines
from console.forms.documents import LocatedDocument
from console.forms.work_files import workloads_of
from engine.loop import EngineLoop
from engine.model.commands import Interrupt, Submit
from engine.model.errors import SpecError
from tests.console.fake_client import FakeClient
from tests.support.cells import workload
from tests.support.served import running_loop, served_on_unix, socket_folder

HOUR = 3_600_000
Shell = Callable[..., int]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with socket_folder() as folder:
        monkeypatch.setenv("MUSTER_STATE_DIR", str(folder))
        monkeypatch.setenv("MUSTER_CONFIG", str(folder / "none.toml"))
        yield folder


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    """An hour in which one workload of tenant t has finished, and another lost half an hour when g0 was taken."""
    with running_loop() as running:
        running.paused = True

        def prepare(engine: object) -> None:
            jobs = (workload("a", gpu=8000, run=2 * HOUR, estimate=2 * HOUR, tenant="t", models=("H100",)),
                    workload("b", gpu=8000, run=HOUR // 2, estimate=HOUR // 2, tenant="t"))  # fmt: skip
            engine.command(Submit(workloads=jobs))  # type: ignore[attr-defined]
            engine.advance(HOUR // 2)  # type: ignore[attr-defined]
            engine.command(Interrupt(ids=("g0",), notice_ms=0))  # type: ignore[attr-defined]
            engine.advance(HOUR)  # type: ignore[attr-defined]

        running.call(prepare)
        yield running


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    with served_on_unix(loop) as address:
        yield lambda *arguments: run([*arguments, "--connect", str(address)])


def test_goodput_leaves_out_what_was_lost(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("budget", "efficiency", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    gpu = next(pool for pool in report["pools"] if pool["pool"] == "gpu")
    assert (gpu["nodes"], gpu["taken"], gpu["spot"]) == (3, 1, False)
    # 3 GPU nodes for an hour and one for half of it, at 20 USD; 2 CPU nodes at 1 USD.
    assert report["cost_microusd"] == 3 * 20_000_000 + 10_000_000 + 2 * 1_000_000
    assert report["finished"] == 1
    (tenant,) = [line for line in report["tenants"] if line["tenant"] == "t"]
    assert tenant["finished"] == 1
    # Half an hour of a node whose devices, all of them asked for, carry nine tenths of its price, and the CPU a little.
    assert 9_000_000 <= tenant["wasted_microusd"] <= 10_000_000
    assert report["goodput_permille"] == (
        (report["charged_microusd"] - report["wasted_microusd"]) * 1000 // report["cost_microusd"]
    )
    assert shell("budget", "efficiency") == 0
    out = capsys.readouterr().out
    assert "$72.00 spent on all nodes" in out
    assert max(map(len, out.splitlines())) <= 100


def test_nothing_finished_has_no_price() -> None:
    with running_loop() as loop:
        text = "\n".join(lines(loop.call(lambda engine: engine.goodput())))
    assert "0 workloads, - each" in text


def test_hostile_names_stay_text() -> None:
    for line in lines(FakeClient(hostile=True).goodput()):
        assert line.isprintable()


def test_a_drill_gives_notice_only_when_it_is_approved(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("node", "interrupt", "g1", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "Interrupt node g1  [T3" in shown
    assert "requeues a" in shown
    assert loop.call(lambda engine: engine.node("g1").state) == "ready"
    assert shell("node", "interrupt", "g1", "--yes") == 4, "what cannot be undone is not done without a reason"
    assert "needs a reason" in capsys.readouterr().err
    assert shell("node", "interrupt", "g1", "--yes", "--reason", "a drill") == 0
    assert "g1 is draining, with 1 workload until its end" in capsys.readouterr().err
    assert shell("node", "interrupt", "g1", "--yes") == 4, "it has had its notice"
    assert shell("node", "interrupt", "g0", "--yes") == 3, "it is gone"


@pytest.mark.parametrize(
    ("fields", "kind", "on_demand"),
    [
        ({"capacity": "spot"}, "spot", 0),
        ({"capacity": "any", "on_demand": "30%"}, "", 3),
        ({"capacity": "spot-first", "on_demand": 2}, "spot-first", 2),
        ({"on_demand": "4"}, "", 4),
        ({"on_demand": "0%"}, "", 0),
    ],
)
def test_files_say_which_machines(fields: dict[str, object], kind: str, on_demand: int) -> None:
    raw = {"id": "a", "queue": "q", "tasks": 10, "request": {"cpu": 1}, **fields}
    (group,) = workloads_of(LocatedDocument("file", raw, {}), lambda: 0)[0].groups
    assert (group.capacity_type, group.on_demand) == (kind, on_demand)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"on_demand": "half"}, "not a number of tasks"),
        ({"on_demand": "130%"}, "not a number of tasks"),
        ({"on_demand": 11}, "more than count"),
        ({"capacity": "cheap"}, "capacity"),
    ],
)
def test_files_that_say_it_wrongly_are_told(fields: dict[str, object], what: str) -> None:
    raw = {"id": "a", "queue": "q", "tasks": 10, "request": {"cpu": 1}, **fields}
    with pytest.raises(SpecError, match=what):
        workloads_of(LocatedDocument("file", raw, {}), lambda: 0)


def test_flags_say_which_machines(shell: Shell, loop: EngineLoop) -> None:
    flags = ("--queue", "a", "--cpus", "1", "--tasks", "4", "--held")
    assert shell("submit", "--id", "s", *flags, "--on-demand-share", "50%") == 0
    groups = loop.call(lambda engine: engine.state.workloads.class_at(engine.state.workloads.row_of["s"]).groups)
    assert [(group.name, group.count, group.capacity_type) for group in groups] == [
        ("main", 2, ""), ("main-on-demand", 2, "on-demand"),
    ]  # fmt: skip
    assert shell("submit", "--id", "t", *flags, "--on-demand") == 0
    assert shell("submit", "--id", "u", *flags, "--spot") == 2, "there is no spot pool"
