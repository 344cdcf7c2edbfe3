"""`muster audit` on a real engine, through both clients and as a shell command."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from console.cli.main import run
from console.client.protocol import Client
from console.client.remote import RemoteClient
from console.commands.audit import CSV_COLUMNS, csv_row, page_lines, record_lines
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.text.plain_tables import FORMULA
from engine.loop import EngineLoop
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.list_queries import Query
from runbooks.audit import verify
from runbooks.audit.witnesses import differences
from runbooks.plans.identity import THIS_ACCOUNT
from runbooks.plans.queries import AuditPage, AuditQuery, AuditRange, AuditRow, AuditText
from runbooks.plans.typed_plan import asks
from tests.support.audit_logs import tampered
from tests.support.gates import gate_of
from tests.support.served import running_loop, served_on_unix

REASON = "the fan of slot 3"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "cell" / "journal.db"


@pytest.fixture
def loop(journal: Path) -> Iterator[EngineLoop]:
    journal.parent.mkdir()
    with running_loop(journal) as running:
        yield running


@dataclass
class Cell:
    client: Client
    socket: str
    """Empty for a client of this process."""


@pytest.fixture(params=["local", "remote"])
def cell(request: pytest.FixtureRequest, loop: EngineLoop) -> Iterator[Cell]:
    with ExitStack() as after:
        if request.param == "local":
            yield Cell(LocalClient(loop, gate_of(loop.engine), Advisor(loop)), "")
            return
        path = after.enter_context(served_on_unix(loop))
        client = RemoteClient(str(path))
        after.callback(client.close)
        yield Cell(client, str(path))


@pytest.fixture
def served(loop: EngineLoop) -> Iterator[Cell]:
    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        yield Cell(client, str(path))
        client.close()


def cordon(client: Client) -> str:
    """One act through the gate; the node's id."""
    node = str(client.query(Query(kind="nodes", columns=("id",), limit=1)).rows[0][0])
    proposal = client.propose(asks("cordon", (node,), REASON))
    client.approve(proposal.id, proposal.digest)
    return node


def rows(client: Client, **query: Any) -> tuple[AuditRow, ...]:
    return client.audit_page(AuditQuery(**query)).rows


def exported(client: Client, **wanted: Any) -> str:
    part = client.audit_part(AuditRange(**wanted))
    assert not part.after
    return part.lines


# -- the same from both clients ---------------------------------------------------------------------------------------


@pytest.mark.about_files("the shell and the verifier are told its path")
def test_an_act_is_a_story_that_can_be_read_checked_and_taken_along(cell: Cell, tmp_path: Path, journal: Path) -> None:
    cordon(cell.client)
    told = rows(cell.client, proposal="P-1")
    assert {"proposal.drafted", "vote.approve", "exec.effect", "proposal.verified"} <= {row.type for row in told}
    assert {text.text for row in told for text in row.private} == {REASON}
    state = cell.client.audit_state()
    assert state.covered == state.last == told[-1].seq
    assert state.error == ""
    bundle = tmp_path / "export.jsonl"
    bundle.write_text(exported(cell.client))
    assert verify.verify([bundle, journal], verify.Trust())[0] == 0
    assert rows(cell.client, type="audit.exported")[0].data["private"] is True


@pytest.mark.about_files("the shell and the verifier are told its path")
def test_a_reason_is_erased_on_request(cell: Cell, journal: Path) -> None:
    cordon(cell.client)
    ref = next(text.ref for row in rows(cell.client) for text in row.private)
    erased = cell.client.redact_audit(ref, "asked for")
    assert erased.ref == ref
    assert rows(cell.client)[-1].data == {"ref": ref, "reason": "asked for"}
    assert REASON not in {text.text for row in rows(cell.client) for text in row.private}
    assert verify.verify([journal], verify.Trust())[0] == 0
    with pytest.raises(NotFoundError):
        cell.client.redact_audit(ref, "asked for")


def test_what_cannot_be_is_refused_alike(cell: Cell) -> None:
    with pytest.raises(SpecError):
        cell.client.audit_page(AuditQuery(limit=0))
    with pytest.raises(RefusedError):
        cell.client.audit_part(AuditRange(first=99))
    with pytest.raises(RefusedError, match="no key file"):
        cell.client.rotate_audit_key()


def test_a_read_only_session_changes_nothing(loop: EngineLoop) -> None:
    with served_on_unix(loop, read_only=True) as path:
        client = RemoteClient(str(path))
        for change in (
            lambda: client.anchor_audit(), lambda: client.rotate_audit_key(),
            lambda: client.redact_audit("x", "y"),
        ):  # fmt: skip
            with pytest.raises(RefusedError, match="read-only"):
                change()
        assert client.audit_state().last >= 1
        client.close()


@pytest.mark.about_files("a cell in memory has none, nor a server")
def test_a_cell_in_memory_has_an_audit_too() -> None:
    with running_loop() as loop:
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop))
        cordon(client)
        assert rows(client, type="exec")
        assert exported(client)


# -- the shell --------------------------------------------------------------------------------------------------------


@pytest.mark.about_files("the shell and the verifier are told its path")
def test_the_commands_work_together(
    served: Cell, journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reach = ["--connect", served.socket]
    cordon(served.client)

    def said(*words: str, code: int = 0) -> str:
        assert run(["audit", *words]) == code
        return capsys.readouterr().out

    shown = said("show", "P-1", *reach)
    assert "exec.effect" in shown
    assert REASON in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "hash" in said("show", "--seq", "2", *reach)
    said("show", "--seq", "999", *reach, code=3)
    (tmp_path / "note").write_text(said("anchor", *reach))
    told = said("verify", str(journal), "--against", "note")
    assert told.splitlines()[-1] == "ok, and matches note"
    assert "1 executed action and agrees" in told
    assert "ok" in said("verify", *reach)
    said("export", "--out", "a.jsonl", *reach)
    said("export", "--out", "a.jsonl", *reach, code=4)
    said("export", "--format", "csv", "--redact", "--out", "a.csv", *reach)
    assert json.loads(said("verify", "a.jsonl", "--json"))["code"] == 0
    said("verify", "a.csv", code=2)
    said("export", "--range", "5", *reach, code=2)
    said("redact", "nothing", "--reason", "x", *reach, code=4)
    said("redact", "nothing", "--reason", "x", "--yes", *reach, code=3)
    assert said("key", *reach).strip() == "none"
    said("verify", "nothing.db", code=2)
    said("verify", "a.jsonl", "--key", "x", code=2)


@pytest.mark.about_files("the shell and the verifier are told its path")
def test_a_log_that_was_tampered_with_is_named_on_the_shell(
    loop: EngineLoop, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop))
    cordon(client)
    tampered(journal, lambda database: database.execute("DELETE FROM audit_record WHERE seq = 4"))
    assert run(["audit", "verify", str(journal)]) == verify.CHAIN
    assert "BAD: record 4 is missing" in capsys.readouterr().out


@pytest.mark.about_files("the shell and the verifier are told its path")
def test_the_journal_and_the_audit_tell_of_the_same_acts(loop: EngineLoop, journal: Path) -> None:
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop))
    cordon(client)
    assert differences(journal) == (1, ())

    def unsay(database: sqlite3.Connection) -> None:
        """As if the effect had never been told of: the rest is written anew, and nothing is signed."""
        before = bytes(32)
        kept = database.execute("SELECT body FROM audit_record WHERE type != 'exec.effect' ORDER BY seq").fetchall()
        database.execute("DELETE FROM audit_record")
        database.execute("DELETE FROM audit_checkpoint")
        for seq, (body,) in enumerate(kept, start=1):
            record = json.loads(body) | {"seq": seq}
            body = verify.canonical(record)
            before = verify.link(before, body)
            database.execute(
                "INSERT INTO audit_record VALUES (?, ?, ?, ?, ?, ?, ?)",
                (seq, record["type"], record["actor"]["subject"], record["proposal"], record["at_ms"], body, before),
            )

    tampered(journal, unsay)
    assert verify.verify([journal], verify.Trust())[0] == verify.AUTHORISATION
    assert "no record tells of" in differences(journal)[1][0].what
    assert run(["audit", "verify", str(journal)]) == verify.AUTHORISATION


@pytest.mark.about_files("the shell and the verifier are told its path")
def test_an_act_that_the_engine_never_did_is_named(loop: EngineLoop, journal: Path) -> None:
    gate = gate_of(loop.engine)
    data = {"key": "x:1:0", "action": "cordon", "version": 3}

    def write(connection: Connection) -> int:
        return gate.audit.append(connection, "exec.effect", THIS_ACCOUNT, data=data)

    loop.call(lambda engine: engine.record(write))
    assert "was never done" in differences(journal)[1][0].what


# -- what is shown ----------------------------------------------------------------------------------------------------

HOSTILE = "=cmd|' /C calc'!A0\x1b]52;c;x\x07\u202e[@click=app.quit]x[/]"


def hostile_row(**changes: Any) -> AuditRow:
    values: dict[str, Any] = {
        "seq": 1, "at_ms": 1_772_366_400_000, "type": "vote.approve", "subject": HOSTILE, "kind": "human",
        "account": HOSTILE, "signed": True, "key": HOSTILE, "session": HOSTILE, "proposal": HOSTILE, "revision": 1,
        "step": HOSTILE, "plan": HOSTILE, "policy": HOSTILE, "data": {HOSTILE: HOSTILE, "x": [HOSTILE]},
        "private": (AuditText(ref=HOSTILE, text=HOSTILE), AuditText(ref="r", text=None)), "hash": "00",
    }  # fmt: skip
    return AuditRow(**{**values, **changes})


def test_records_cannot_act_on_a_terminal() -> None:
    row = hostile_row()
    page = AuditPage(rows=(row,), matched=1, last=1)
    for line in (*page_lines(page), *record_lines(row)):
        assert line.isprintable(), line
    assert all(len(line) <= 80 for line in page_lines(page))


@pytest.mark.parametrize("start", [*FORMULA, "\n"])
def test_no_cell_of_csv_is_a_formula(start: str) -> None:
    text = f"{start}1+1"
    record = {
        "v": 1, "seq": 1, "at_ms": 1, "log": "l", "type": "vote.approve",
        "actor": {"subject": text, "kind": "human", "account": text, "signed": True, "session": "", "key": text},
        "proposal": text, "revision": 1, "step": text, "plan": "", "policy": "", "data": {"x": text}, "private": [],
    }  # fmt: skip
    cells = dict(zip(CSV_COLUMNS, csv_row(record, "00" * 32), strict=True))
    assert not any(cell.startswith(FORMULA) for cell in cells.values())
    assert cells["subject"].isprintable()


def test_csv_has_a_row_for_each_record(served: Cell, tmp_path: Path) -> None:
    cordon(served.client)
    table = tmp_path / "a.csv"
    assert run(["audit", "export", "--format", "csv", "--out", str(table), "--connect", served.socket]) == 0
    with open(table, newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    told = rows(served.client)
    assert [(row["seq"], row["type"], row["hash"]) for row in found] == [
        (str(row.seq), row.type, row.hash) for row in told[: len(found)]
    ]  # fmt: skip
    assert len(found) == len(told)
