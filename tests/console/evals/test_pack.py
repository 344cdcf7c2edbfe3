"""`muster pack`: what it prints for people and for programs, and how it fails."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import get_args

import pytest

from console.cli.engine_commands import PACKING
from console.cli.main import run
from engine.scenarios.fgd_packing import Policy

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{row:02},96000,393216,8,G2\n" for row in range(20))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{row:03},{cpu},4096,{devices},{milli},\n"
    for row, (cpu, devices, milli) in enumerate([(8000, 1, 1000), (4000, 1, 470), (12000, 0, 0), (3000, 1, 810)] * 30)
)


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    """The command for a small cluster, up to the policy."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return ["pack", "--format", "openb", "--nodes", str(nodes), "--pods", str(pods)]


def report(capsys: pytest.CaptureFixture[str], *command: str) -> dict:
    assert run([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_shell_offers_every_policy() -> None:
    assert get_args(Policy) == PACKING


@pytest.mark.parametrize("policy", PACKING)
def test_json_has_the_allocation_the_counts_and_the_speed(
    policy: str, lists: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = report(capsys, *lists, "--policy", policy, "--seed", "42", "--inflate", "1.3")
    assert (made["policy"], made["seed"], made["inflate"]) == (policy, 42, 1.3)
    assert (made["nodes"], made["gpus"], made["pods"]) == (20, 160, 120)
    assert 50 < made["alloc_at_100"] <= made["alloc_at_130"] <= 100
    assert made["placed"] < made["arrived"]
    assert made["pods_per_s"] > 0
    assert made["models_nobody_has"] == []


def test_several_seeds_give_their_mean(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    together = report(capsys, *lists, "--policy", "random", "--seed", "5", "--seeds", "3")
    each = [report(capsys, *lists, "--policy", "random", "--seed", seed) for seed in ("5", "6", "7")]
    assert [one["seed"] for one in together["runs"]] == [5, 6, 7]
    for at in ("alloc_at_100", "alloc_at_130"):
        assert [one[at] for one in together["runs"]] == [one[at] for one in each]
        assert together[at] == pytest.approx(sum(one[at] for one in each) / 3, abs=0.005)
    assert run([*lists, "--policy", "random", "--seed", "5", "--seeds", "3"]) == 0
    out = capsys.readouterr().out
    assert "mean of seeds 5 to 7" in out
    assert f"{together['alloc_at_100']:.2f}% of the GPU" in out


def test_gzip_is_read_as_well(lists: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = report(capsys, *lists)
    for at, name in ((4, "nodes.csv.gz"), (6, "pods.csv.gz")):
        packed = tmp_path / name
        packed.write_bytes(gzip.compress(Path(lists[at]).read_bytes()))
        lists[at] = str(packed)
    zipped = report(capsys, *lists)
    assert {**plain, "pods_per_s": 0, "runs": []} == {**zipped, "pods_per_s": 0, "runs": []}


def test_what_was_never_asked_for_is_said_to_be(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, *lists, "--inflate", "1.1")["alloc_at_130"] is None
    assert run([*lists, "--inflate", "1.1"]) == 0
    out = capsys.readouterr().out
    assert "never reached: less than 130% of the GPU was asked for" in out
    assert max(map(len, out.splitlines())) <= 80


def test_pods_for_models_that_no_node_has_are_told(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pods = Path(lists[6])
    pods.write_text(PODS + "x,1000,1024,1,1000,A10|T4\n")
    assert report(capsys, *lists)["models_nobody_has"] == ["A10", "T4"]
    assert run(lists) == 0
    assert "no node has A10, T4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        (4, NODES + "n99,96000,393216,8,XGPU9000\n", "nodes.csv:22: column model: expected a GPU model"),
        (4, NODES + "n99,lots,393216,8,G2\n", "nodes.csv:22: column cpu_milli"),
        (6, PODS + "x,1000,1024\n", "pods.csv:122: column 3: expected 6 columns"),
        (6, PODS + "x,1000,1024,1,2000,\n", "pods.csv:122: column gpu_milli"),
        (6, "nothing\n", "pods.csv:1: column name: expected a header"),
    ],
)
def test_a_wrong_list_is_refused_with_file_and_line(
    lists: list[str], capsys: pytest.CaptureFixture[str], file: int, text: str, told: str
) -> None:
    Path(lists[file]).write_text(text)
    assert run([*lists, "--json"]) == 7
    out, err = capsys.readouterr()
    assert out == ""
    assert told in json.loads(err)["problem"]


def test_files_that_are_not_there_and_absurd_inflation(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*lists, "--inflate", "0"]) == 2
    assert "--inflate" in capsys.readouterr().err
    assert run([*lists, "--inflate", "nan"]) == 2
    lists[4] = "/nonexistent.csv"
    assert run(lists) == 7
    assert "/nonexistent.csv" in capsys.readouterr().err
