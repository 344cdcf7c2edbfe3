"""Where work begins that names no folder, and what runs on this machine."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import msgspec
import pytest
from cells import workload

from console.cli.main import run
from console.commands.acting import in_this_folder
from engine.external.mirror_report import MirrorReport
from engine.external.slurm.change_carrier import place_of_queue
from engine.external.slurm.job_requests import JobDestination, home_of, wish_of
from engine.model.specs import RunSpec
from tests.console.fake_client import FakeClient

NAMED, WITHOUT = (
    msgspec.structs.replace(workload(name), run=RunSpec(argv=("true",), cwd=cwd))
    for name, cwd in (("named", "/data"), ("without", ""))
)


def test_where_slurm_runs_it_work_begins_where_it_is_submitted_as_with_sbatch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    client = FakeClient()
    assert in_this_folder(client, (NAMED, WITHOUT)) == (NAMED, WITHOUT), "where Muster runs it, its home is taken"
    monkeypatch.setattr(client, "mirror", lambda: MirrorReport(where="head", state="lost"))
    found = in_this_folder(client, (NAMED, WITHOUT, workload("nothing-to-run")))
    assert [spec.run.cwd if spec.run else None for spec in found] == ["/data", str(tmp_path), None]


def test_what_comes_by_the_api_without_a_folder_begins_at_home() -> None:
    mine = pwd.getpwuid(os.getuid())
    assert home_of("") == home_of(mine.pw_name) == mine.pw_dir
    assert home_of("nobody-of-that-name") == ""
    token = "1-" + "a" * 20
    assert wish_of(WITHOUT, token, place_of_queue(WITHOUT, "/home/ann")).workdir == "/home/ann"
    assert wish_of(NAMED, token, place_of_queue(NAMED, "/home/ann")).workdir == "/data"
    assert wish_of(WITHOUT, token, JobDestination()).workdir == "/tmp"


def test_without_an_id_the_processes_of_all_that_runs_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient(20)
    monkeypatch.setattr(client, "close", lambda: None, raising=False)
    monkeypatch.setattr("console.commands.processes.connect", lambda _arguments: client)
    assert not run(["workload", "processes"])
    assert capsys.readouterr().out == "nothing is running on this machine\n"
    client.written = b"step 1\n"
    assert not run(["workload", "processes"])
    told = capsys.readouterr().out.splitlines()
    names = [line for line in told if not line.startswith(" ")]
    assert len(names) > 1
    assert "process 4242" in told[1]
    assert not run(["workload", "processes", "--json"])
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == names
