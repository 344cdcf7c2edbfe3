"""`muster cell fragmentation` and `cell consolidate`: what is shown, what is done, and what a script gets back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from console.actions.request_builder import parse
from console.cli.main import run
from console.client.remote import RemoteClient
from console.commands.capacity import consolidation_lines, fragmentation_lines
from console.text.plain_tables import overview_lines
from console.views.cell_overview import fleet
from console.views.suggestions import recommendation_lines
from engine.loop import EngineLoop
from engine.model.commands import Cancel, Submit
from engine.model.consolidation_queries import ConsolidationRequest
from engine.model.errors import RefusedError, SpecError
from runbooks.actions.workloads import consolidation_request
from tests.console.fake_client import FakeClient
from tests.support.cells import workload
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix, socket_folder

MINUTE = 60_000
Shell = Callable[..., int]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with socket_folder() as folder:
        monkeypatch.setenv("MUSTER_STATE_DIR", str(folder))
        monkeypatch.setenv("MUSTER_CONFIG", str(folder / "none.toml"))
        yield folder


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    """g0 to g3 each have a job of 4 GPU on one half; `big`, of 8 GPU, waits."""
    times = {"estimate": 10 * HOUR_MS, "run": 10 * HOUR_MS, "checkpoint": 10 * MINUTE}
    with running_loop() as running:
        running.paused = True

        def prepare(engine: object) -> None:
            for i in range(4):
                jobs = [workload(f"{name}{i}", gpu=4000, **times) for name in ("h", "x")]
                engine.command(Submit(workloads=tuple(jobs)))  # type: ignore[attr-defined]
            engine.advance(15 * MINUTE)  # type: ignore[attr-defined]
            engine.command(Cancel(ids=tuple(f"x{i}" for i in range(4))))  # type: ignore[attr-defined]
            engine.command(Submit(workloads=(gpu_job("big"),)))  # type: ignore[attr-defined]

        running.call(prepare)
        yield running


@pytest.fixture
def address(loop: EngineLoop) -> Iterator[Path]:
    with served_on_unix(loop) as path:
        yield path


@pytest.fixture
def shell(address: Path) -> Shell:
    return lambda *arguments: run([*arguments, "--connect", str(address)])


def state_of(loop: EngineLoop, name: str) -> str:
    return loop.call(lambda engine: engine.workload(name).state)


# -- fragmentation ----------------------------------------------------------------------------------------------------


def test_fragmentation_is_told_by_pool_and_kind_of_task(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("cell", "fragmentation") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("fragmentation 20.0%: the share of 16 GPU free")
    assert (
        lines[1] == "mix: 5 of 5 waiting or running tasks ask for GPU, each counted once; by the published rule 20.0%"
    )
    assert "gpu 16 GPU 20.0%" in lines
    assert "4 GPU 1 CPU in gpu 4 0 16 GPU 16 GPU 0.0% 4 4" in lines
    assert "8 GPU 1 CPU in gpu 0 1 16 GPU 0 GPU 100.0% 0 2" in lines
    assert "free 16 GPU, usable for tasks of 8 GPU: 0 GPU (0 fit; 2 would if unfragmented)" in lines
    assert shell("cell", "fragmentation", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ppm"], report["free_milli"], len(report["shapes"])) == (200_000, 16_000, 2)


def test_a_cell_without_gpu_work_says_so() -> None:
    with running_loop() as loop:
        lines = fragmentation_lines(loop.call(lambda engine: engine.fragmentation()))
    assert lines == ["no GPU work is waiting or running; 32 GPU is free"]


def test_the_overview_has_it_in_one_short_figure(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("overview") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 15
    assert any(line.startswith("in use") and line.endswith("20% of the free GPU fragmented") for line in lines)
    view = msgspec.structs.replace(FakeClient().overview(), fragmentation_ppm=415_000)
    told = ["".join(text for text, _ in line.spans) for line in fleet(view, 60).lines]
    assert "41% of the free GPU is fragmented" in map(str.strip, told)
    assert any("41% of the free GPU" in line for line in overview_lines(view))


def test_why_says_what_is_free_and_what_is_usable(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("why", "big") == 0
    out = capsys.readouterr().out
    assert "▸ Fragmented" in out
    assert "free 16 GPU, usable 0 GPU" in out
    assert "would start if: h3 is moved to g0" in out


# -- consolidation ----------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_plan_and_effect_and_does_nothing(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("cell", "consolidate", "--dry-run") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["MOVE QUEUE SIZE LOST WORK FROM TO", "h3 a 4 GPU 5m g3 g0"]
    assert "costs 0.40 GPU-h: 0.33 of work repeated, 0.07 to stop and restart" in lines
    assert any(line.startswith("brings 8.00 GPU-h: big (1 task, 8 GPU) starts now, instead of in 9h") for line in lines)
    assert "ratio 20.00 benefit to cost, in shares of the cell" in lines
    # What is left lies in halves still, and one task in five is of 8 GPU.
    assert "GPU fragmentation 20.0% -> 20.0%" in lines
    assert any(line.startswith("Move workload h3 [T2, not proposed]") for line in lines)
    assert state_of(loop, "big") == "queued"


def test_it_is_done_when_agreed(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("cell", "consolidate", "--unblock", "big") == 4
    assert "no terminal to ask on" in capsys.readouterr().err
    assert state_of(loop, "big") == "queued"
    assert shell("cell", "consolidate", "--unblock", "big", "--yes", "--reason", "asked for") == 0
    assert "verified: h3 is running on g0" in capsys.readouterr().err
    assert state_of(loop, "big") == "running"


def test_as_json_it_is_shown_and_done_only_with_yes(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("cell", "consolidate", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [move["id"] for move in shown["consolidation"]["found"]["moves"]] == ["h3"]
    assert shown["proposal"]["plan"]["steps"][0]["act"]["moves"] == [{"id": "h3", "was": ["g3"], "to": ["g0"]}]
    assert state_of(loop, "big") == "queued"
    assert (
        shell("cell", "consolidate", "--free-nodes", "1", "--pool", "gpu", "--max-moves", "1", "--json", "--yes") == 0
    )
    done = json.loads(capsys.readouterr().out)
    assert done["consolidation"]["found"]["frees"] == ["g3"]
    assert done["outcome"]["changed"] == ["h3"]


def test_without_a_plan_it_says_why(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("cell", "consolidate", "--unblock", "h0", "--dry-run") == 0
    assert capsys.readouterr().out == "no plan: h0 is running: it is not waiting for capacity\n"
    assert shell("cell", "consolidate", "--unblock", "h0", "--yes") == 4
    assert "no plan: h0 is running" in capsys.readouterr().err
    assert shell("cell", "consolidate", "--unblock", "nobody") == 3
    assert shell("cell", "consolidate", "--free-nodes", "2") == 2
    assert shell("cell", "consolidate", "--free-nodes", "9", "--pool", "gpu") == 2
    capsys.readouterr()
    assert shell("cell", "consolidate", "--ratio", "1000000", "--json") == 0
    answer = json.loads(capsys.readouterr().out)["consolidation"]
    assert answer["found"]["worth_it"] is False
    assert answer["why"].startswith("it brings 20.00 of its cost")


def test_a_reader_may_look_at_the_plan(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("cell", "consolidate", "--dry-run", "--readonly") == 0
    assert "h3" in capsys.readouterr().out
    assert shell("cell", "consolidate", "--yes", "--readonly") == 4


def test_the_bar_of_the_console_takes_the_same_words() -> None:
    arguments = parse("consolidate", "--free-nodes 2 --pool gpu --ratio 0")
    wanted = ConsolidationRequest(free_nodes=2, pool="gpu", least_ratio_permille=0)
    assert consolidation_request(vars(arguments)) == wanted
    for line in ("--pool gpu", "--free-nodes 2", "--unblock a --free-nodes 1 --pool gpu"):
        with pytest.raises(SpecError):
            consolidation_request(vars(parse("consolidate", line)))


def test_both_clients_answer_alike(loop: EngineLoop, address: Path) -> None:
    from console.service.advisor import Advisor
    from console.service.local_client import LocalClient
    from tests.support.gates import gate_of

    local = LocalClient(loop, gate_of(loop.engine), Advisor(loop))
    remote = RemoteClient(str(address))
    try:
        assert remote.fragmentation() == local.fragmentation()
        assert remote.consolidation(ConsolidationRequest()) == local.consolidation(ConsolidationRequest())
        with pytest.raises(SpecError):
            remote.consolidation(ConsolidationRequest(free_nodes=1))
        with pytest.raises(RefusedError, match="needs approval"):
            remote.command(msgspec.convert({"do": "migrate", "moves": [{"id": "h0", "pool": "gpu"}]}, _command()))
    finally:
        remote.close()


def _command() -> object:
    from engine.model.commands import AnyCommand

    return AnyCommand


def test_a_long_wait_for_whole_pieces_is_suggested_to_be_ended(
    loop: EngineLoop, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("recommend") == 0
    assert "consolidate" not in capsys.readouterr().out
    loop.call(lambda engine: engine.advance(engine.now_ms + 200 * MINUTE))
    assert shell("recommend") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == "1 workload waits for free but fragmented capacity; the largest is big"
    assert "do consolidate --unblock big" in lines
    [words] = [line.split() for line in lines if line.startswith("muster ")]
    assert words[:3] == ["muster", "cell", "consolidate"]
    assert run([*words[1:], "--dry-run"]) == 0
    assert "h3" in capsys.readouterr().out


def test_names_of_strangers_cannot_act_on_the_terminal(loop: EngineLoop) -> None:
    from engine.twin.consolidation import plan

    answer = loop.call(lambda engine: plan(engine.fork(), ConsolidationRequest()))
    assert answer.found is not None
    evil = "\x1b[2J\u202e"
    [move] = answer.found.moves
    made = msgspec.structs.replace(
        answer.found,
        moves=(
            msgspec.structs.replace(move, id=evil, queue=evil, to=(msgspec.structs.replace(move.to[0], node=evil),)),
        ),
        unblocks=tuple(msgspec.structs.replace(work, id=evil) for work in answer.found.unblocks),
        frees=(evil,),
    )
    report = loop.call(lambda engine: engine.fragmentation())
    pools = tuple(msgspec.structs.replace(pool, name=evil) for pool in report.pools)
    kinds = tuple(msgspec.structs.replace(kind, pools=(evil,)) for kind in report.shapes)
    lines = [
        *consolidation_lines(msgspec.structs.replace(answer, found=made, why=evil, tried=(evil,))),
        *fragmentation_lines(msgspec.structs.replace(report, pools=pools, shapes=kinds)),
        *recommendation_lines(FakeClient(hostile=True).recommendations(), []),
    ]
    assert not set("\n".join(lines)) & {"\x1b", "\u202e"}
