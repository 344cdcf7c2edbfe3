"""`muster bench`: what it prints, for people and for programs."""

from __future__ import annotations

import json

import msgspec
import pytest

from console.cli.engine_commands import BENCHMARKS
from console.cli.main import run
from console.evals import bench
from engine.scenarios import gke
from engine.scenarios.kueue import SCENARIOS
from engine.scenarios.spot_week import PolicyOutcome, SpotWeekResult, assumed_market


@pytest.fixture
def small_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline with one cohort of two queues and twenty workloads in each."""
    baseline = SCENARIOS["kueue-baseline"]
    mix = tuple(msgspec.structs.replace(m, count=n) for m, n in zip(baseline.mix, (14, 4, 2), strict=True))
    monkeypatch.setitem(SCENARIOS, "kueue-baseline", msgspec.structs.replace(baseline, cohorts=1, queues=2, mix=mix))


@pytest.mark.parametrize("arguments", [["gke-65k", "--nodes", "650"], ["gke-130k", "--nodes", "200", "--seed", "2"]])
def test_large_clusters_are_beside_what_was_published(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "phases" in err
    assert "no API server, kubelet or network" in " ".join(out.split())
    assert "PUBLISHED" in out
    assert "all of it read back into the same state" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("http")) <= 80
    assert run(["bench", *arguments, "--json", "--no-durable"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["read_back_ms"] is None
    phases = report["result"]["phases"]
    assert phases[0]["tasks"] == report["result"]["nodes"] == int(arguments[2])
    assert phases[0]["published"]["ms"] == {"gke-65k": 150_000, "gke-130k": 220_000}[arguments[0]]
    assert sum(phase["wall_ms"] for phase in phases) > 0


def test_the_drill_says_what_became_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drill", "--nodes", "650"]) == 0
    out, err = capsys.readouterr()
    assert "losing a rack" in err
    assert "30s of cell time until the last that finds room ran again" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(["drill", "--nodes", "650", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["result"]["lost_nodes"]["zone"] == 200
    assert run(["drill", "--nodes", "100"]) == 2


def test_the_shell_offers_every_scenario() -> None:
    assert set(BENCHMARKS) == {*SCENARIOS, "clemson", "spot-week", "predictive-day", *gke.SCENARIOS}


@pytest.mark.usefixtures("small_baseline")
def test_json_has_the_figures_the_bounds_and_what_was_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "kueue-baseline", "--json", "--estimates", "known", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["scenario"], report["estimates"], report["seed"]) == ("kueue-baseline", "known", 3)
    result = report["result"]
    assert result["workloads"] == 40
    assert result["starts"] == 40 + result["preemptions"]
    assert result["makespan_ms"] >= report["arrival_bound_ms"] >= report["capacity_bound_ms"] == 2640
    assert [row["name"] for row in result["classes"]] == ["small", "medium", "large"]
    for row in result["classes"]:
        for spread in (row["first_admission"], row["final_admission"]):
            assert 0 <= spread["p95_ms"] <= spread["max_ms"]
        assert row["first_admission"]["mean_ms"] <= row["final_admission"]["mean_ms"]
    assert report["published"]["final_admission_mean_ms"] == {"small": 215_468, "medium": 76_768, "large": 16_501}
    assert report["published"]["wall_ms"] == 351_116
    assert report["machine"]["cores"] >= 1


@pytest.mark.usefixtures("small_baseline")
def test_the_text_fits_a_terminal_and_says_what_is_not_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "kueue-baseline"]) == 0
    out, err = capsys.readouterr()
    assert "40 workloads" in err
    assert "x the capacity bound" in out
    assert "215.47" in out
    assert "no API server" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_names_every_scenario_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHMARKS)
    assert "15,000" in out
    assert run(["bench", "list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["kueue-large-scale"] == {
        "name": "kueue-large-scale", "queues": 1000, "workloads": 50_000, "capacity_bound_ms": 4025
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["kueue-tiny"], "did you mean kueue-"),
        ([], "list"),
        (["kueue-baseline", "--estimates", "perfect"], "choose from none, known"),
    ],
)
def test_what_is_not_offered_is_misuse(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(["bench", *arguments])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_the_week_on_spot_machines_says_where_prices_are_from_and_fits_a_terminal() -> None:
    each = PolicyOutcome(
        policy="on-demand only", jobs=5000, finished=4990, in_time=4989, cost_microusd=12_345_678_901,
        cost_per_finished_microusd=247_408, on_demand_cost_microusd=12_345_678_901, goodput_permille=967,
        machine_hours=11_888, lost_hours=1234, idle_hours=1234, machines_taken=12_345, stops=12_345, turned=1234,
    )  # fmt: skip
    source = assumed_market().source
    lines = bench._spot_week_lines(
        1, SpotWeekResult(source=source, policies=(each,), bound_microusd=1, bound_per_job_microusd=1)
    )
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert all(part in text for part in source.split("; "))
    assert "12,345.68" in text
    assert "99.8%" in text


def test_prices_that_cannot_be_read_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "spot-week", "--prices", "nowhere-r3.large.csv"]) == 2
    assert "nowhere-r3.large.csv cannot be read" in capsys.readouterr().err
