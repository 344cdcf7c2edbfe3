"""The `muster` command: what a shell gets back, and what survives a killed engine."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from console.cli import doctor, main
from console.cli.daily_commands import KINDS
from console.cli.main import EXIT_CODES, parser, run
from console.cli.start import _connector
from console.client.attach import settings_of
from console.client.credentials import Identity
from console.client.launch import EngineRecord, engine_again, ensure_engine, how_far, last_words, read_record
from console.client.remote import RemoteClient
from console.client.sockets import probe
from console.evals.engine_runs import LiveReplay
from console.forms.filters import FilterError
from console.forms.settings import CellPaths, paths_in
from console.text.progress_line import told_in_log
from console.views.lists import ListView
from engine.control import Engine
from engine.journal.process_locks import this_process
from engine.loop import EngineLoop
from engine.model import errors
from engine.model.commands import Hold, Submit
from engine.model.list_queries import Kind, Query
from engine.model.reports import ShowbackRequest
from engine.model.spec_parts import PRESETS
from engine.model.specs import Policy, QueueSpec
from engine.traces.progress import counter
from engine.traces.replay import Estimate, prepare
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import ORDERS, POLICIES
from runbooks.plans.typed_plan import ActionName
from tests.support.patience import PATIENCE_S
from tests.support.pseudo_terminal import ASKED, read_text
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix, socket_folder

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "evil\x1b]52;c;AAAA\x07\u202ename"
Shell = Callable[..., int]


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own, short enough for sockets, and no settings of the person who runs it."""
    with socket_folder() as folder:
        for name in [name for name in os.environ if name.startswith("MUSTER_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("MUSTER_STATE_DIR", str(folder))
        monkeypatch.setenv("MUSTER_CONFIG", str(folder / "none.toml"))
        yield folder


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    """Runs a command against a small cell that has one running and one waiting workload."""
    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        client.command(Submit(workloads=(gpu_job("first", tasks=4), gpu_job("second", tasks=2))))
        client.close()
        yield lambda *arguments: run([*arguments, "--connect", str(path)])


def muster(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "console.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)  # type: ignore[call-overload, no-any-return]


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


# --- looking -------------------------------------------------------------------------------------------------------


def test_get_prints_an_aligned_table(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("get", "workloads", "--columns", "id,state,gpu,reason", "--sort", "id:desc") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ID      STATE    GPU  REASON",
        "second  queued    16  InsufficientCapacity",
        "first   running   32  –",
    ]


def test_get_filters_limits_and_says_so(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("get", "workloads", "-f", "state:queued gpu>=8") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ID", "second"]
    assert shell("get", "nodes", "--limit", "2") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "2 of 6 shown" in err


def test_get_as_json_is_one_value_in_raw_units(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("get", "workloads", "--json", "--sort=-gpu") == 0
    page = json.loads(capsys.readouterr().out)
    assert [item["id"] for item in page["items"]] == ["first", "second"]
    assert page["items"][0]["gpu"] == 32_000
    assert (page["matched"], page["total"]) == (2, 2)


def test_more_rows_than_one_answer_holds_are_all_listed(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.commands.show.WINDOW", 2)
    assert shell("get", "nodes", "--limit", "0", "--json") == 0
    names = [item["id"] for item in json.loads(capsys.readouterr().out)["items"]]
    assert sorted(names) == ["c0", "c1", "g0", "g1", "g2", "g3"]
    assert shell("get", "nodes", "--limit", "3", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 3


@pytest.mark.parametrize(("kind", "name"), [("workloads", "first"), ("nodes", "g0"), ("queues", "a")])
def test_one_thing_is_addressed_by_its_id(
    shell: Shell, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    assert shell("get", kind, name) == 0
    assert name in capsys.readouterr().out
    assert shell("get", kind, name, "--json") == 0
    json.loads(capsys.readouterr().out)
    assert shell("get", kind, "nothing") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing" in err


def test_overview_fits_an_incident_note(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("overview") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 15
    assert "1 running, 1 queued" in "\n".join(lines)
    assert shell("overview", "--json") == 0
    assert json.loads(capsys.readouterr().out)["states"]["queued"] == 1


def test_why_tells_the_reason_or_that_there_is_none(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("why", "second") == 0
    assert "▸ InsufficientCapacity" in capsys.readouterr().out
    assert shell("why", "first") == 0
    assert "is not waiting" in capsys.readouterr().out
    assert shell("why", "second", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reasons"][0]["token"] == "InsufficientCapacity"


def test_why_tells_what_would_let_it_start_and_that_this_was_tried(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    version = loop.engine.version
    assert shell("why", "second") == 0
    told = " ".join(capsys.readouterr().out.split())
    change = "2 more nodes in pool gpu"
    assert f"would start if: {change} (verified on a fork at v{version:,})" in told
    assert "→ room for 2 tasks more" in told
    assert shell("why", "second", "--json") == 0
    found = json.loads(capsys.readouterr().out)["unblocking"]["found"]
    assert [edit["do"] for edit in found["edits"]] == ["add_nodes"]
    assert loop.engine.version == version
    assert shell("why", "first", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unblocking"] is None


def test_why_says_unknown_and_what_was_tried(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.call(lambda engine: engine.command(Hold(ids=("second",))))
    assert shell("why", "second") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index(f"would start if: not known; tried on a fork at v{loop.engine.version:,}")
    assert lines[at + 1] == "second is released: then InsufficientCapacity"


def test_why_tells_how_long_it_may_run_and_what_that_rests_on(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("why", "first") == 0
    told = "from its requested time; finished runs: no similar jobs accuracy no such estimate scored yet"
    assert told in " ".join(capsys.readouterr().out.split())
    plain = msgspec.structs.replace(gpu_job("plain"), estimate_ms=0)
    loop.call(lambda engine: engine.command(Submit(workloads=(plain,))))
    assert shell("why", "plain") == 0
    assert "too few similar finished jobs" in capsys.readouterr().out
    jobs = tuple(gpu_job(f"train-{number}") for number in range(12))
    loop.call(lambda engine: engine.command(Submit(workloads=jobs)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 6 * HOUR_MS))
    assert shell("why", "train-0") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " finished runs, 12 of the same tenant, name and size accuracy p90 correct in 100%, p50 within" in told
    assert shell("why", "train-0", "--json") == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["p50_ms"] == pytest.approx(HOUR_MS, rel=0.01)


def test_text_of_strangers_cannot_act_on_the_terminal(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = msgspec.structs.replace(gpu_job("third"), name=HOSTILE)
    loop.call(lambda engine: engine.command(Submit(workloads=(spec,))))
    for command in (("get", "workloads", "--columns", "id,name"), ("get", "workloads", "third"), ("why", "third")):
        assert shell(*command) == 0
        out, err = capsys.readouterr()
        assert not set(out + err) & {"\x1b", "\x07", "\u202e"}


# --- changing ------------------------------------------------------------------------------------------------------


def test_submit_from_flags_and_from_a_file(shell: Shell, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert shell("submit", "--queue", "a", "--gpus-per-task", "8", "--tasks", "2", "--name", "my job", "--held") == 0
    out, err = capsys.readouterr()
    assert out.startswith("my-job-")
    assert "1 submitted" in err
    path = tmp_path / "work.yaml"
    path.write_text("- {id: x1, queue: a, request: {cpu: 1}}\n- {id: x2, queue: b, request: {cpu: 500m}}\n")
    assert shell("submit", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] == ["x1", "x2"]
    assert shell("submit", str(path)) != 0
    assert "x1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--queue", "a"), "missing a file"),
        (("--queue", "a", "--cpus", "many"), "'many' is not a number of cores"),
        (("--queue", "nowhere", "--cpus", "1"), "nowhere"),
        (("--queue", "a", "--gpus-per-task", "8", "--tasks", "99"), "larger than the cell"),
        (("work.yaml", "--queue", "a"), "a file or flags, not both"),
        (("/nonexistent/work.yaml",), "No such file"),
    ],
)
def test_a_submission_that_cannot_be_is_told(
    shell: Shell, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert shell("submit", *arguments) in (2, 3)
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err


def test_an_action_shows_its_plan_and_does_nothing_unless_approved(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("cancel", "first") == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "cancel first (running, 32 GPU" in err
    assert "--yes" in err
    assert shell("cancel", "first", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["plan"]["steps"][0]["act"]["targets"] == ["first"]
    assert shell("get", "workloads", "first", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "running"


def test_an_approved_action_is_done_and_its_ids_are_the_output(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("cancel", "first", "--yes", "--reason", "a test") == 0
    assert capsys.readouterr().out == "first\n"
    assert shell("node", "drain", "g0", "g1", "--yes", "--reason", "a test", "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"]
    assert shell("cancel", "first", "--yes") == 4
    assert shell("cancel", "nothing", "--yes") == 3


@pytest.mark.parametrize(
    ("action", "typed", "code"),
    [
        ("node cordon", "y\n", 0),
        ("node cordon", "\n", 4),
        pytest.param("node cordon", "n\n", 4, marks=pytest.mark.thorough),
        pytest.param("node cordon", "\x04", 4, marks=pytest.mark.thorough),
        ("cancel", "DIGEST\n", 0),
        ("cancel", "y\n", 4),
        pytest.param("cancel", "\n", 4, marks=pytest.mark.thorough),
        pytest.param("cancel", "\x04", 4, marks=pytest.mark.thorough),
    ],
)
def test_on_a_terminal_it_asks_and_only_yes_is_yes(loop: EngineLoop, action: str, typed: str, code: int) -> None:
    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        client.command(Submit(workloads=(gpu_job("first"),)))
        target, was, then = (
            ("c0", "ready", "cordoned") if action == "node cordon" else ("first", "running", "cancelled")
        )
        ours, theirs = pty.openpty()
        command = [
            sys.executable,
            "-m",
            "console.cli.main",
            *action.split(),
            target,
            "--reason",
            "a test",
            "--connect",
            str(path),
        ]
        process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = ""
        while not (asked := ASKED.search(said)):
            said += read_text(ours)
        assert (asked[1] is None) == (action == "node cordon"), "what disrupts is not confirmed by one key"
        os.write(ours, typed.replace("DIGEST", asked[1] or "").encode())
        assert process.wait(PATIENCE_S) == code
        os.close(ours)
        found = client.node(target).state if action == "node cordon" else client.workload(target).state
        assert found == (was if code else then)
        assert client.proposals()[0].state == ("cancelled" if code else "verified")
        client.close()


def test_a_smaller_quota_names_who_would_go_and_evicts_only_when_told(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    smaller = ("queue", "set-quota", "a", "gpu=16", "--borrowing-limit", "gpu=0")
    assert shell(*smaller, "--yes") == 4
    assert "'first'" in capsys.readouterr().err
    assert shell(*smaller, "--over", "evict", "--dry-run") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a: nominal gpu not set -> 16 GPU" in out
    assert "requeue first (running, 32 GPU" in out
    assert (
        "Rollback (approved with the plan) Set quota of a back to nominal gpu not set, borrowing limit gpu not set"
        in out
    )
    assert shell("get", "workloads", "first", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "running"
    assert shell(*smaller, "--over", "evict", "--yes") == 0
    assert capsys.readouterr().out.splitlines() == ["a", "first"]
    assert shell("get", "queues", "a", "--columns", "gpu_used,gpu_nominal,state", "--json") == 0
    [queue] = json.loads(capsys.readouterr().out)["items"]
    assert queue == {"gpu_used": 16_000, "gpu_nominal": 16_000, "state": "open"}


def test_queues_and_workloads_are_stopped_and_started_again(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("workload", "suspend", "first", "--yes") == 0
    assert shell("queue", "drain", "a", "--yes") == 0
    assert "second" in capsys.readouterr().out
    assert shell("get", "workloads", "-f", "state:running") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert shell("submit", "--queue", "a", "--cpus", "1") == 2
    assert "draining" in capsys.readouterr().err
    assert shell("queue", "open", "a", "--yes") == 0
    assert shell("workload", "resume", "first", "--yes") == 0
    capsys.readouterr()
    assert shell("get", "workloads", "--columns", "id,state", "-f", "state:running") == 0
    assert "second" in capsys.readouterr().out
    assert shell("queue", "hold", "a", "b", "--yes") == 0
    assert capsys.readouterr().out.split() == ["a", "b"]


def test_nodes_are_reserved_from_the_shell(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        shell("node", "reserve", "m", "--nodes", "c0,c1", "--start", "+1h", "--end", "+3h", "--queues", "b", "--yes")
        == 0
    )
    assert "m is made" in capsys.readouterr().err
    assert shell("get", "reservations", "--json") == 0
    [item] = json.loads(capsys.readouterr().out)["items"]
    assert (item["name"], item["nodes"], item["queues"], item["end"] - item["start"]) == ("m", 2, "b", 2 * HOUR_MS)
    assert shell("node", "reserve", "n", "--nodes", "c0", "--end", "+3h", "--yes") == 4
    assert shell("node", "unreserve", "m", "--yes") == 0
    assert shell("node", "unreserve", "m", "--yes") == 3


VIEWS: tuple[tuple[Kind, str], ...] = (
    ("workloads", ""), ("workloads", "state:pending"), ("workloads", "!state:running sort:id"),
    ("workloads", "gpus>=8 sort:-gpu,id"), ("workloads", "sort:wait:desc columns:id,prio,wait fir"),
    ("workloads", 'name:"my job" tenant:*'), ("nodes", "state:up use<50% sort:-id"), ("nodes", "!pool:cpu*"),
    ("queues", "queued>0 sort:name columns:name,queued"),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), VIEWS)
def test_the_shell_reads_a_filter_as_the_console_does(
    shell: Shell, capsys: pytest.CaptureFixture[str], kind: Kind, text: str, loop: EngineLoop
) -> None:
    view = ListView.of(kind)
    view.sort, key = (), "name" if kind == "queues" else "id"
    view.filter(text)
    page = loop.call(lambda engine: engine.query(view.query(0, 100)))
    here = [row[page.columns.index(key)] for row in page.rows]
    chosen = [] if view.chosen else ["--columns", key]
    assert shell("get", kind, "-f", text, "--json", *chosen) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item[key] for item in items] == here
    assert not view.chosen or all(tuple(item) == view.chosen for item in items)


@pytest.mark.parametrize("text", ["stat:x", "sort:wat", "a columns:wat", 'id:"n', "gpu>=x", "sort:id:up"])
def test_the_shell_refuses_a_filter_as_the_console_does(
    shell: Shell, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(FilterError) as caught:
        ListView.of("workloads").filter(text)
    assert shell("get", "workloads", "-f", text) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{caught.value.where}: {caught.value.short}" in told
    assert caught.value.remedy in told


def test_a_flag_stands_before_what_the_filter_says(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--sort=-id", "--columns", "id", "-o", "csv")
    assert shell("get", "workloads", "-f", "sort:id columns:queue", *flags) == 0
    assert capsys.readouterr().out.splitlines() == ["id", "second", "first"]


def test_a_policy_that_nobody_confirmed_does_not_wait(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a pipe nobody can be asked, a person may end it at the question: the next try begins anew."""

    class Left(io.StringIO):
        def readline(self, size: int = -1, /) -> str:
            raise KeyboardInterrupt

    assert shell("policy", "use", "solo") == 4
    assert "nothing was done" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Left())
        patch.setattr("console.commands.policy.at_terminal", lambda: True)
        assert shell("policy", "use", "solo") == 130
    capsys.readouterr()
    assert shell("policy", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["candidates"] == []
    assert shell("policy", "use", "solo") == 4
    digest = re.search(r"Add --digest (\w+)", capsys.readouterr().err)
    assert digest is not None
    assert shell("policy", "use", "solo", "--digest", digest[1]) == 0


def test_the_policy_is_set_from_the_shell(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("cell", "set-policy", "conservative", "--yes") == 0
    assert "policy is conservative" in capsys.readouterr().err
    assert shell("overview", "--json") == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "conservative"


def test_fairness_is_told_of_all_queues_or_of_one(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("queue", "fairness") == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["QUEUE", "root", "a", "b"]
    assert "first of a" in out
    assert shell("queue", "fairness", "b", "--json") == 0
    assert [vertex["name"] for vertex in json.loads(capsys.readouterr().out)["queues"]] == ["b"]
    assert shell("queue", "fairness", "nowhere") == 3


def test_the_choices_of_the_shell_are_those_of_the_engine() -> None:
    assert get_args(Policy) == POLICIES
    assert get_args(get_type_hints(QueueSpec)["order"]) == ORDERS
    assert set(PRESETS) == set(CATALOG["set_autoscaling"].parameters["preset"].choices)
    assert get_args(Kind) == KINDS
    assert set(CATALOG) == set(get_args(ActionName))


def test_an_array_with_dependencies_is_submitted_from_flags(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    one = ("submit", "--queue", "b", "--cpus", "1", "--estimate", "10m")
    assert shell(*one, "--id", "sweep", "--array", "0-3%2", "--retries", "1", "--after", "second:started") == 0
    assert capsys.readouterr().out.split() == ["sweep/0", "sweep/1", "sweep/2", "sweep/3"]
    assert shell(*one, "--id", "late", "--not-before", "+2h", "--deadline", "+1d", "--max-runtime", "1h") == 0
    capsys.readouterr()
    assert shell("get", "workloads", "--columns", "id,state", "-f", "state:waiting", "--sort", "id") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "late", "sweep/0", "sweep/1", "sweep/2", "sweep/3",
    ]  # fmt: skip
    assert shell("cancel", "sweep", "--yes") == 0
    assert capsys.readouterr().out.split() == ["sweep/0", "sweep/1", "sweep/2", "sweep/3"]


def test_read_only_acts_on_nothing(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("cancel", "first", "--yes", "--readonly") == 4
    assert "read-only" in capsys.readouterr().err
    assert shell("get", "workloads", "--readonly") == 0


def test_replay_prints_figures_and_counts_bad_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "small.swf"
    job = "{} {} -1 100 2 -1 -1 2 200 -1 1 1 1 -1 1 -1 -1 -1\n"
    trace.write_text("; a comment\n" + job.format(1, 0) + job.format(2, 0) + "nonsense\n" + job.format(3, 10))
    command = ["replay", str(trace), "--format", "swf", "--nodes", "2"]
    assert run([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["jobs"], result["makespan_s"], result["utilisation"]) == (3, 300.0, 1.0)
    assert "1 lines could not be read" in err
    assert run([*command, "--policy", "fcfs"]) == 0
    assert "average wait" in capsys.readouterr().out
    assert run([*command, "--strict"]) == 7
    trace.write_text("nonsense\n")
    assert run(command) == 7
    assert "no job that could run" in capsys.readouterr().err


@pytest.mark.parametrize("estimate", ["requested", "last-two"])
def test_a_trace_is_the_load_of_a_live_cell(tmp_path: Path, estimate: Estimate) -> None:
    trace = tmp_path / "small.swf"
    job = "{} {} -1 100 2 -1 -1 2 200 -1 1 1 1 -1 1 -1 -1 -1\n"
    trace.write_text("".join(job.format(number, number * 10) for number in range(1, 6)))
    opened = LiveReplay(prepare(trace, "swf", nodes=2, estimate=estimate), "easy", 1_000.0)
    try:
        client, version = opened.client(), 0
        deadline = time.monotonic() + PATIENCE_S
        while client.query(Query(kind="workloads")).total < 5:
            assert time.monotonic() < deadline
            version = client.changes(version, 1.0).version
    finally:
        opened.close()


# --- errors and the way out ----------------------------------------------------------------------------------------


def test_every_error_has_an_exit_code_of_its_own_kind() -> None:
    kinds = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    assert kinds == {code for _, codes in EXIT_CODES.values() for code in codes}


@pytest.mark.parametrize(
    "arguments",
    [
        ("explode",),
        ("get", "dragons"),
        ("get", "workloads", "--limit", "-1"),
        ("--nodes", "0"),
        ("replay", "x", "--format", "csv"),
        ("serve", "--speed", "fast"),
    ],
)
def test_misuse_is_exit_code_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("overview",), 5, "no engine runs for cell 'default'"),
        (("overview", "--cell", "../etc"), 2, "not a cell name"),
        (("overview", "--connect", "/nonexistent/x.sock"), 5, "no engine answers"),
        (("overview", "--connect", "ftp://x"), 2, "an engine is not reached by 'ftp'"),
        (("get", "workloads", "-f", "colour:red"), 2, "no column 'colour'"),
        (("get", "workloads", "--sort", "colour"), 2, "no column 'colour'"),
        (("get", "workloads", "--sort", "id:up"), 2, "is not a sort order"),
        (("get", "workloads", "--columns", "colour"), 2, "no column 'colour'"),
        (("serve", "--listen", "0.0.0.0:1"), 4, "authenticate"),
        (("serve", "--speed", "0"), 2, "speed cannot be 0"),
        (("serve", "--demo", "--nodes", "3"), 2, "below"),
        (("serve", "--cell-file", "/nonexistent"), 2, "No such file"),
        (("replay", "/nonexistent", "--format", "swf", "--nodes", "4"), 7, "/nonexistent"),
        (("replay", __file__, "--format", "swf", "--nodes", "4", "--strict"), 7, "test_cli.py:1"),
        (("replay", "/nonexistent", "--format", "swf", "--nodes", "4", "--speed", "2"), 2, "Add --live"),
        (("replay", "/nonexistent", "--format", "swf", "--nodes", "4", "--live"), 2, "needs a terminal"),
        (("stop",), 5, "no engine runs"),
        (("stop", "--connect", "http://127.0.0.1:1"), 4, "on its own machine"),
        ((), 2, "muster overview"),
        (("--fresh",), 2, "belong to the demo"),
        (("--demo", "--fresh", "--cell", "prod"), 4, "removes the journal of a demo"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_cannot_be_done_is_told_in_words(
    arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert "Traceback" not in err


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["overview", "--json"]) == 5
    assert json.loads(capsys.readouterr().err)["code"] == "unreachable"


def test_a_defect_is_one_line_and_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(_: object) -> None:
        password = "hunter2"
        raise ZeroDivisionError(len(password))

    monkeypatch.setattr("console.commands.show.overview", broken)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert run(["overview"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    log = next(tmp_path.glob("muster-crash-*.log"))
    assert str(log) in err
    assert "ZeroDivisionError" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_version_is_instant() -> None:
    """It loads the parser and nothing of weight: a heavy package takes longer than Python itself."""
    command = [sys.executable, "-X", "importtime", "-m", "console.cli.main", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.stdout.startswith("muster ")
    assert "console" in loaded
    assert not loaded & {"asyncio", "engine", "httpx", "msgspec", "numpy", "rich", "runbooks", "sqlalchemy", "textual"}


def test_a_reader_that_goes_away_is_no_error(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path:
        command = f"{sys.executable} -m console.cli.main get nodes --connect {path} | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_reports_every_check(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SLOW_ANSWER_S", PATIENCE_S)
    assert shell("doctor", "--json") == 0
    findings = json.loads(capsys.readouterr().out)
    assert {finding["name"] for finding in findings} >= {"terminal", "locale", "settings", "engine"}
    assert next(finding for finding in findings if finding["name"] == "engine")["state"] == "ok"


def test_doctor_finds_a_broken_journal(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_state / "default").mkdir()
    (own_state / "default" / "journal.db").write_bytes(b"not a database" * 1000)
    assert run(["doctor"]) == 1
    assert "fail  journal" in capsys.readouterr().out


# --- the engine as a process ---------------------------------------------------------------------------------------


@pytest.fixture
def paths(own_state: Path) -> Iterator[CellPaths]:
    """Files of a cell whose engine is ended, by its own process id, when the test is over."""
    found = paths_in(own_state / "lab")
    yield found
    peer = probe(found.socket)
    if peer is not None:
        os.kill(peer.pid, signal.SIGKILL)
        wait_for(lambda: probe(found.socket) is None)


def serve_arguments(paths: CellPaths, *more: str) -> list[str]:
    cell = paths.folder.parent / "cell.yaml"
    cell.write_text(
        "pools: [{name: p, nodes: 2, capacity: {cpu: 8}}]\nqueues: [{name: q}]\n"
        "priority_classes: [{name: normal, value: 1}]\n"
    )
    return ["--cell-file", str(cell), "--data", str(paths.folder), "--cell", "lab", *more]


def test_what_was_acknowledged_survives_kill_9(paths: CellPaths, capsys: pytest.CaptureFixture[str]) -> None:
    ensure_engine(paths, serve_arguments(paths))
    first = probe(paths.socket)
    assert first is not None
    for number in range(5):
        assert run(["submit", "--cell", "lab", "--queue", "q", "--cpus", "4", "--id", f"w{number}"]) == 0
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: probe(paths.socket) is None)
    assert run(["overview", "--cell", "lab"]) == 5
    ensure_engine(paths, serve_arguments(paths))
    client = RemoteClient(str(paths.socket))
    page = client.query(Query(kind="workloads", columns=("id", "state"), sort=("id",)))
    client.close()
    assert page.rows == [
        ["w0", "running"], ["w1", "running"], ["w2", "running"], ["w3", "running"], ["w4", "queued"],
    ]  # fmt: skip
    capsys.readouterr()


def test_stop_writes_a_snapshot_and_leaves_nothing_behind(paths: CellPaths, capsys: pytest.CaptureFixture[str]) -> None:
    ensure_engine(paths, serve_arguments(paths))
    assert run(["stop", "--cell", "lab"]) == 0
    assert "has stopped" in capsys.readouterr().err
    assert not paths.socket.exists()
    assert not paths.record.exists()
    assert paths.journal.exists()


def killed(paths: CellPaths) -> int:
    """Kills the engine as the kernel does. Returns its process id."""
    peer = probe(paths.socket)
    assert peer is not None
    os.kill(peer.pid, signal.SIGKILL)
    wait_for(lambda: probe(paths.socket) is None)
    return peer.pid


def test_a_console_starts_again_what_died_of_its_own_and_nothing_else(paths: CellPaths) -> None:
    ensure_engine(paths, serve_arguments(paths))
    first = killed(paths)
    engine_again(paths)
    second = probe(paths.socket)
    assert second is not None
    assert second.pid != first
    assert run(["stop", "--cell", "lab"]) == 0
    with pytest.raises(errors.UnreachableError, match="was stopped") as caught:
        engine_again(paths)
    assert "muster serve --cell lab" in caught.value.remedy
    words = [sys.executable, "-m", "console.cli.main", "serve", *serve_arguments(paths)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as served:
        wait_for(lambda: probe(paths.socket) is not None)
        served.kill()
    with pytest.raises(errors.UnreachableError, match=f"process {served.pid} has died") as caught:
        engine_again(paths)
    assert "to continue" in caught.value.remedy
    paths.record.write_bytes(msgspec.json.encode(EngineRecord(process=this_process(), cell="lab")))
    with pytest.raises(errors.UnreachableError, match="does not answer"):
        engine_again(paths)


@pytest.mark.thorough
def test_an_engine_comes_back_with_its_own_arguments_whoever_starts_it(paths: CellPaths) -> None:
    """A demo stays a demo at its speed, also by a console that was opened with `--cell` alone; one that may only read
    starts none, and says who would."""
    arguments = ["--data", str(paths.folder), "--cell", "lab", "--demo", "--quiet-day", "--nodes", "20",
                 "--speed", "30"]  # fmt: skip
    ensure_engine(paths, arguments)
    before = RemoteClient(str(paths.socket)).health()
    first = killed(paths)
    asked = parser().parse_args(["--cell", "lab", "--readonly"])
    start, _, _ = _connector(asked, settings_of(asked), Identity(settings_of(asked)))
    for _ in range(2):
        with pytest.raises(errors.UnreachableError, match=f"process {first} has died; a read-only") as caught:
            start()
        assert "muster --cell lab" in caught.value.remedy
    assert probe(paths.socket) is None
    asked = parser().parse_args(["--cell", "lab"])
    start, _, _ = _connector(asked, settings_of(asked), Identity(settings_of(asked)))
    with closing(start()) as client:
        after = client.health()
        assert after.speed == before.speed == 30
        assert abs(after.now_ms - before.now_ms) < HOUR_MS
        assert client.showback(ShowbackRequest()).total_microusd < 20 * 100 * 10**6
        record = read_record(paths.record)
        assert record is not None
        assert (record.arguments, record.process.pid) == (tuple(arguments), client.health().pid)


def test_who_only_reads_starts_no_engine(paths: CellPaths) -> None:
    asked = parser().parse_args(["--cell", "lab", "--readonly"])
    start, _, _ = _connector(asked, settings_of(asked), Identity(settings_of(asked)))
    with pytest.raises(errors.UnreachableError, match="no engine runs for cell 'lab'; a read-only"):
        start()
    assert not paths.folder.exists()
    assert run(["--demo", "--fresh", "--readonly", "--linear"]) == 4


def reapers() -> set[threading.Thread]:
    """One waits for the end of each engine that this process has started."""
    return {thread for thread in threading.enumerate() if thread.name == "engine-reaper"}


@pytest.mark.thorough
def test_two_consoles_that_start_it_again_have_one_engine_and_do_so_at_every_kill(paths: CellPaths) -> None:
    before = reapers()
    ensure_engine(paths, serve_arguments(paths))
    for _ in range(3):
        killed(paths)
        with ThreadPoolExecutor(3) as pool:
            found = [pool.submit(engine_again, paths) for _ in range(3)]
            assert {each.result() for each in found} == {paths.socket}
        peer, record = probe(paths.socket), read_record(paths.record)
        assert peer is not None
        assert record is not None
        assert record.process.pid == peer.pid
        assert record.arguments == tuple(serve_arguments(paths))
        # Who lost has gone before the next kill: it would be one more that may win.
        wait_for(lambda: len(reapers() - before) == 1)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(("--speed", "5000"), id="ahead"),
        pytest.param(("--demo", "--quiet-day", "--nodes", "20"), id="behind", marks=pytest.mark.thorough),
    ],
)
def test_a_cell_with_a_time_of_its_own_is_served_in_real_time_from_where_its_journal_ends(
    paths: CellPaths, first: tuple[str, ...]
) -> None:
    """Hours ahead of the host after a while at speed 5000; months behind it in a demo."""
    base = ["--data", str(paths.folder), "--cell", "lab"]
    ensure_engine(paths, [*base, *first] if "--demo" in first else [*serve_arguments(paths), *first])
    with closing(RemoteClient(str(paths.socket))) as client:
        begun = client.health().now_ms
        wait_for(lambda: client.health().now_ms > begun + 120_000)
        if "--demo" not in first:
            assert run(["submit", "--cell", "lab", "--queue", "q", "--cpus", "4"]) == 0
        before = client.health().now_ms
    killed(paths)
    ensure_engine(paths, [*base, "--speed", "1"])
    with closing(RemoteClient(str(paths.socket))) as client:
        after = client.health()
        assert after.speed == 1
        assert abs(after.now_ms - before) < 24 * HOUR_MS
        assert abs(after.now_ms - time.time_ns() // 10**6) > 60_000
        held = [change for change in client.changes(0, 0).items if change.what == "clock held"]
        assert len(held) == 1
    assert paths.log.read_text().count("this host's clock shows") == 1


@pytest.mark.parametrize("linked", ["folder", pytest.param("journal", marks=pytest.mark.thorough)])
def test_a_second_engine_by_a_link_is_told_which_cell_has_the_journal(paths: CellPaths, linked: str) -> None:
    ensure_engine(paths, serve_arguments(paths))
    before = probe(paths.socket)
    assert before is not None
    other = paths.folder.parent / "other"
    if linked == "folder":
        other.symlink_to(paths.folder, target_is_directory=True)
    else:
        other.mkdir(mode=0o700)
        (other / "journal.db").symlink_to(paths.journal)
    second = muster("serve", "--data", str(other), "--cell", "other", "--socket", str(other.with_suffix(".sock")))
    assert second.returncode == 6
    assert f"is open in another engine (process {before.pid}), which serves cell 'lab'" in second.stderr
    assert "muster stop --cell lab" in second.stderr
    assert probe(paths.socket) == before


def test_which_cell_may_stand_before_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["serve"], ["here"], ["stop"], ["fleet", "submit", "jobs.yaml"], ["get", "nodes"]):
        asked = parser().parse_args(["--cell", "lab", "--readonly", *words])
        assert (asked.cell, asked.readonly) == ("lab", True), words
    assert parser().parse_args(["--cell", "lab", "serve", "--cell", "other"]).cell == "other"


def test_a_second_engine_is_refused_and_the_first_is_found(paths: CellPaths) -> None:
    ensure_engine(paths, serve_arguments(paths))
    before = probe(paths.socket)
    second = muster("serve", *serve_arguments(paths))
    assert second.returncode == 6
    assert "journal" in second.stderr
    ensure_engine(paths, ["--nonsense"])
    assert probe(paths.socket) == before


def test_an_engine_that_cannot_start_is_quoted(paths: CellPaths) -> None:
    with pytest.raises(errors.UnreachableError, match=r"did not start: .*No such file") as caught:
        ensure_engine(paths, ["--data", str(paths.folder), "--cell-file", "/nonexistent.yaml"])
    assert str(paths.log) in caught.value.remedy


def test_a_corrupt_journal_is_refused_with_what_to_do(paths: CellPaths) -> None:
    paths.folder.mkdir(mode=0o700)
    paths.journal.write_bytes(b"not a database" * 1000)
    with pytest.raises(errors.JournalError, match="journal"):
        ensure_engine(paths, serve_arguments(paths))


def test_the_other_running_cell_is_suggested(paths: CellPaths, capsys: pytest.CaptureFixture[str]) -> None:
    ensure_engine(paths, serve_arguments(paths))
    assert run(["overview", "--cell", "default"]) == 5
    assert "choose with --cell lab" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_demo_has_load_and_goes_on_after_a_restart(paths: CellPaths) -> None:
    arguments = ["--demo", "--quiet-day", "--nodes", "20", "--speed", "5000", "--data", str(paths.folder)]
    ensure_engine(paths, arguments)
    client = RemoteClient(str(paths.socket))
    wait_for(lambda: client.overview().finished_last_hour > 0)
    before = client.overview()
    client.close()
    peer = probe(paths.socket)
    assert peer is not None
    os.kill(peer.pid, signal.SIGKILL)
    wait_for(lambda: probe(paths.socket) is None)
    ensure_engine(paths, arguments)
    client = RemoteClient(str(paths.socket))
    wait_for(lambda: client.overview().version > before.version)
    total = client.query(Query(kind="workloads", limit=0)).total
    assert total >= sum(before.states.values())
    client.close()


def test_last_words_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_words(log) == ("", "")
    log.write_text("Traceback\nBoom: x\n\n")
    assert last_words(log) == ("Boom: x", "")
    log.write_text("muster: old\nmuster: what went wrong\n  Do this\n  and that\n")
    assert last_words(log) == ("what went wrong", "Do this\nand that")
    assert last_words(log, start=log.stat().st_size) == ("", "")


def test_how_far_a_start_is_can_be_read_from_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "x.log"
    log.write_text("the engine is starting: of an earlier start\n")
    start = log.stat().st_size
    with log.open("a") as err:
        monkeypatch.setattr(sys, "stderr", err)
        with told_in_log():
            assert how_far(log, start) == ""
            tell = counter("playing 30 days of history: day", 30)
            assert tell is not None
            tell(12)
            assert how_far(log, start) == "playing 30 days of history: day 12 of 30, 40%"
        print("muster engine 'demo' ready", file=err, flush=True)
    assert how_far(log, start) == "playing 30 days of history: day 12 of 30, 40%", "other lines do not hide it"
    log.write_text('{"time":"now","message":"the engine is starting: reading day 3","level":"info"}\n')
    assert how_far(log) == "reading day 3", "where the log is JSON too"


def test_main_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["overview", "--cell", ".."])
    assert caught.value.code == 2


@pytest.mark.thorough
def test_an_empty_cell_is_defined_once(paths: CellPaths, capsys: pytest.CaptureFixture[str]) -> None:
    _, file, *_ = serve_arguments(paths)
    ensure_engine(paths, ["--data", str(paths.folder), "--cell", "lab"])
    assert run(["cell", "define", file, "--cell", "lab"]) == 0
    assert "2 nodes defined" in capsys.readouterr().err
    assert run(["submit", "--cell", "lab", "--queue", "q", "--cpus", "4"]) == 0
    assert run(["cell", "define", file, "--cell", "lab"]) == 4
    assert "already defined" in capsys.readouterr().err


def test_a_served_cell_file_is_priced_by_its_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prices.csv").write_text("machine_type,on_demand_price_per_hour\nbig,1\n")
    file = tmp_path / "cell.yaml"
    file.write_text("prices: prices.csv\npools: [{name: p, machine_type: bigger, capacity: {cpu: 4}}]\n")
    assert run(["serve", "--cell-file", str(file), "--data", str(tmp_path / "data")]) == 2
    assert "prices.csv has no machine type 'bigger'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "node", ["{id: b, pool: p, zone: z, region: other}", "{id: a, pool: p}", "{id: b, pool: q}"], ids=str
)
def test_a_cell_that_the_engine_refuses_is_told_with_its_line_wherever_it_is_given(
    tmp_path: Path, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cell.yaml"
    file.write_text(
        "pools: [{name: p, capacity: {cpu: 4}}]\nnodes:\n- {id: a, pool: p, zone: z, region: r}\n- " + node + "\n"
    )
    assert run(["serve", "--cell-file", str(file), "--data", str(tmp_path / "data")]) == 2
    assert "cell.yaml:4:" in capsys.readouterr().err
    loop = EngineLoop(Engine.open(None))
    loop.start()
    with served_on_unix(loop) as path:
        assert run(["cell", "define", str(file), "--connect", str(path)]) == 2
    assert "cell.yaml:4:" in capsys.readouterr().err
    assert loop.engine.version == 0
    loop.stop()
