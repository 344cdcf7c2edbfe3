"""`muster runbook` as it is typed: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import runbooks.procedures.linter
import runbooks.procedures.program
import runbooks.procedures.value_rules
from console.cli.main import run
from console.cli.start import folders_of
from console.client.remote import RemoteClient
from console.commands.runbooks import list_lines, view_lines
from console.forms.settings import load
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import SpecError
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import INPUT_TYPES
from runbooks.gate.approval_policy import Person
from runbooks.plans import keys
from runbooks.plans.checks import MEANINGS
from runbooks.plans.identity import OWNER
from runbooks.plans.queries import RunbookLine, RunbookView
from runbooks.procedures.program import HEADINGS, LIBRARY
from tests.support.gates import gate_of
from tests.support.people import team
from tests.support.runbook_texts import SOUND, but
from tests.support.served import gpu_job, running_loop, served_on_unix

Shell = Callable[..., int]
Capture = pytest.CaptureFixture[str]
ID = "drain-failing-node"
SOURCES = [
    Path(module.__file__).read_text()
    for module in (runbooks.procedures.linter, runbooks.procedures.value_rules, runbooks.procedures.program)
]
RULES = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', "".join(SOURCES)))
"""Of the linter, as far as they have a hyphen."""


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        client.command(Submit(workloads=(gpu_job("first"),)))
        client.close()
        yield lambda *arguments: run([*arguments, "--connect", str(path)])


def node(loop: EngineLoop) -> str:
    return loop.call(lambda engine: engine.workload("first").placement[0].node)


# -- lint: no engine is needed ----------------------------------------------------------------------------------------


def test_lint_says_nothing_of_what_is_sound(tmp_path: Path, capsys: Capture) -> None:
    assert run(["runbook", "lint", *map(str, sorted(LIBRARY.glob("*.md")))]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "no problems" in told.err


def test_lint_names_file_line_rule_and_remedy(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(but(("action: drain", "action: drian"), ('op: "==", value: ready', 'op: "!=", value: gone')))
    assert run(["runbook", "lint", str(path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}:11: vacuous-check: ")
    assert (
        lines[1] == f"{path}:15: unknown-action: steps[0].action: 'drian' is not in the catalogue. Did you mean drain?"
    )
    assert run(["runbook", "lint", "--json", str(path)]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [(one["where"], one["rule"]) for one in found] == [
        (f"{path}:11", "vacuous-check"), (f"{path}:15", "unknown-action"),
    ]  # fmt: skip


def test_lint_reads_standard_input_and_names_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"---\na: !!python/object:os.system id\n---\n")))
    assert run(["runbook", "lint", "-"]) == 2
    assert "-:2: form: tag" in capsys.readouterr().out
    assert run(["runbook", "lint", str(tmp_path / "nowhere.md")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(["runbook", "lint", str(tmp_path)]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_a_hostile_file_reaches_no_terminal(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(SOUND.replace("title: Drain", "title: \x1b[2J\u202eDrain").encode())
    assert run(["runbook", "lint", str(path)]) == 2
    told = capsys.readouterr().out
    assert told.isascii()
    assert "\x1b" not in told


# -- the shelf --------------------------------------------------------------------------------------------------------


def test_list_and_show(shell: Shell, capsys: Capture) -> None:
    assert shell("runbook", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["RUNBOOK", "VER", "STATUS", "TITLE"]
    assert len(lines) == 1 + len(list(LIBRARY.glob("*.md")))
    assert max(map(len, lines)) <= 80
    assert shell("runbook", "show", ID) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    for part in ("sha256", "drain: drain nodes <node>", "needs confirmation by an operator", "## Aftercare"):
        assert part in told
    assert shell("runbook", "show", "drain-failing-nod") == 3
    assert f"Did you mean {ID}?" in capsys.readouterr().err


def test_a_dry_run_shows_all_and_does_nothing(shell: Shell, loop: EngineLoop, capsys: Capture) -> None:
    where = node(loop)
    version = loop.engine.version
    assert shell("runbook", "run", ID, "--input", f"node={where}", "--dry-run") == 0
    told = capsys.readouterr().out
    for part in (
        "applies now: yes", f"node {where} is ready", f"drain {where} (cordoned, requeues first", "Waiting",
        "node " + where + " has 0 workloads within 1200 s", "rollback", "[T2", "dry run: nothing was proposed",
    ):  # fmt: skip
        assert part in told, part
    assert loop.engine.version == version
    assert shell("proposal", "list", "--json") == 0
    assert "P-1" not in capsys.readouterr().out
    assert shell("runbook", "run", ID, "--input", f"node={where}", "--dry-run", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["applies"] is True
    assert made["proposal"]["plan"]["runbook"]["id"] == ID


def test_a_run_that_does_not_apply_says_so(shell: Shell, capsys: Capture) -> None:
    assert shell("runbook", "run", "hand-back-nodes", "--input", "nodes=g0,g1", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "applies now: NO" in told
    assert "- node g0 is ready; wanted == cordoned" in told


def test_inputs_that_will_not_do(shell: Shell, capsys: Capture) -> None:
    for arguments, code, says in (
        (("--input", "node=g9"), 3, "Did you mean g0, g1, g2?"), (("--input", "node=*"), 2, "pattern"),
        ((), 2, "is not given"), (("--input", "host=g1"), 2, "no such input"), (("--input", "node"), 2, "NAME=VALUE"),
        (("--input", "node=g1", "--input", "node=g2"), 2, "given twice"),
    ):  # fmt: skip
        assert shell("runbook", "run", ID, *arguments, "--dry-run") == code
        assert says in capsys.readouterr().err


def test_from_draft_to_proposal(shell: Shell, loop: EngineLoop, capsys: Capture) -> None:
    wanted = ("runbook", "run", ID, "--input", f"node={node(loop)}")
    assert shell(*wanted) == 4
    assert "is not approved for use" in capsys.readouterr().err
    assert shell("runbook", "show", ID, "--json") == 0
    sha256 = json.loads(capsys.readouterr().out)["line"]["sha256"]
    assert shell("runbook", "approve", ID) == 4, "no terminal to ask on"
    assert shell("runbook", "approve", ID, "--yes") == 2, "which bytes were looked at?"
    assert shell("runbook", "approve", ID, "--yes", "--sha256", "0" * 64) == 4
    assert shell("runbook", "approve", ID, "--yes", "--sha256", sha256[:12]) == 0
    assert "approved, by" in capsys.readouterr().out
    assert shell(*wanted) == 0
    assert "P-1 waits for approval" in capsys.readouterr().out
    assert shell("runbook", "retire", ID, "--reason", "too old", "--yes") == 0
    assert shell(*wanted) == 4
    assert shell("--readonly", "runbook", "retire", ID, "--reason", "x", "--yes") == 4


def test_where_a_team_approves_a_vote_is_signed_over_what_was_shown(
    loop: EngineLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(keys, "COST", 2**4)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "pass").write_bytes(b"correct horse battery\n")
    (tmp_path / "pass").chmod(0o600)
    key = keys.write_new_key(tmp_path / "key.pem", b"correct horse battery")
    me = Person(id="me", accounts=(OWNER,), keys=(key.line,), roles=("operator", "approver"))
    gate = loop.call(lambda engine: gate_of(engine, team(me)))
    with served_on_unix(loop, gate=gate) as path:
        where = ("--connect", str(path))
        assert run(["runbook", "show", ID, "--json", *where]) == 0
        line = json.loads(capsys.readouterr().out)["line"]
        assert line["signed"] is True
        approve = ["runbook", "approve", ID, "--yes", "--sha256", line["sha256"], *where]
        assert run(approve) != 0, "without a key there is no vote"
        monkeypatch.setenv("MUSTER_KEY", str(tmp_path / "key.pem"))
        monkeypatch.setenv("MUSTER_KEY_PASSPHRASE_FILE", str(tmp_path / "pass"))
        assert run(approve) == 0
        assert "approved, by person:me" in capsys.readouterr().out
        assert run(["runbook", "show", ID, *where]) == 0
        assert f"signed with {key.fingerprint}" in " ".join(capsys.readouterr().out.split())


# -- words ------------------------------------------------------------------------------------------------------------


def test_prose_is_framed_and_its_links_are_dead() -> None:
    line = RunbookLine(
        id="x", version=1, title="t\x1b[31m", owner="o", status="faulty", note="see http://n", source="s",
        sha256="0", problems=1,
    )  # fmt: skip
    prose = "[approve](https://evil.example/x)\x1b]8;;http://a\x07 \u202e\nApproved 2/2"
    view = RunbookView(line=line, inputs=(), when=(), limits="", steps=(), prose=prose, votes=(), problems=())
    told = "\n".join(view_lines(view))
    assert "://" not in told
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "  | Approved 2/2" in told
    assert "x: see http" in list_lines((line,))[-1]


def test_the_manual_names_all_that_may_be_written() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "runbooks.md").read_text()
    names = {*MEANINGS, *CATALOG, *INPUT_TYPES, *RULES, *HEADINGS, "schema", "limits"}
    names |= {parameter for row in CATALOG.values() for parameter in row.parameters}
    names |= {label for meaning in MEANINGS.values() for label in meaning.labels if meaning.of != "workload"}
    assert sorted(name for name in names if f"`{name}`" not in manual and f"## {name}" not in manual) == []


def test_folders_of_the_settings_are_absolute(tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(f'runbooks = ["{tmp_path}", "~/books"]\n')
    settings = load({}, {"MUSTER_CONFIG": str(file)})
    assert folders_of(settings)[0] == tmp_path
    assert folders_of(settings)[1].is_absolute()
    assert load({}, {"MUSTER_CONFIG": "/nowhere", "MUSTER_RUNBOOKS": "/a:/b"}).runbooks == ("/a", "/b")
    with pytest.raises(SpecError, match="not an absolute path"):
        folders_of(load({}, {"MUSTER_CONFIG": "/nowhere", "MUSTER_RUNBOOKS": "books"}))
    file.write_text('runbooks = "books"\n')
    with pytest.raises(SpecError, match="a list of texts"):
        load({}, {"MUSTER_CONFIG": str(file)})
