"""The stand-alone verifier: what was done to a log is named, and nothing that it reads makes it fail."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from on_postgres import is_server, kept

from runbooks.audit import verify
from runbooks.audit.verify import CHAIN, CHECKPOINT, SIGNATURE, TRUNCATED, USAGE, Frontier, LogReport, Trust
from runbooks.audit.witnesses import checkpoint_text, origin_of
from tests.support.audit_logs import ALICE, make_log, open_log, signer, tampered
from tests.support.patience import PATIENCE_S

KEY = signer().verifier_key(origin_of("test"))
VERIFIER = Path(verify.__file__)
Tamper = Callable[[sqlite3.Connection], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """33 records, checkpoints at 10, 20 and 30, a text kept apart in record 12."""
    path = tmp_path_factory.mktemp("log") / "journal.db"
    log = open_log(path, signer())
    log.add(count=9)
    log.checkpoint()
    log.add()
    log.add_private("because of the customer")
    log.add(count=8)
    log.checkpoint()
    log.add(count=10)
    log.checkpoint()
    log.add(count=3)
    log.engine.close()
    return path


@pytest.fixture
def journal(original: Path, tmp_path: Path) -> Path:
    if is_server():
        pytest.skip("about SQLite's file: what is done to a copy of it")
    copy = tmp_path / "journal.db"
    shutil.copy(original, copy)
    return copy


def checked(*paths: Path, **known: Any) -> tuple[int, LogReport]:
    """(exit code, report of the first file)"""
    if is_server() and paths[0].suffix == ".db":
        code, reports = verify.verify([kept(path) for path in paths], Trust(**known))
        return code, reports[0]
    code, reports = verify.verify(paths, Trust(**known))
    return code, next(report for report in reports if report.name == str(paths[0]))


def first_bad(path: Path, **known: Any) -> tuple[int, int | None]:
    """(exit code, record that is named)"""
    code, report = checked(path, **known)
    return code, report.problems[0].record if report.problems else None


def newest_note(path: Path) -> str:
    with sqlite3.connect(path) as database:
        (note,) = database.execute("SELECT note FROM audit_checkpoint ORDER BY size DESC").fetchone()
    database.close()
    return str(note)


# -- what is in order -------------------------------------------------------------------------------------------------


def test_a_log_that_nobody_touched_is_in_order(journal: Path) -> None:
    code, report = checked(journal)
    assert (code, report.problems) == (0, [])
    assert (report.first, report.last, report.records) == (1, 33, 33)
    assert (report.checkpoints, report.signed, report.private) == (3, 3, 1)
    assert report.newest is not None
    assert report.newest.size == 30


def test_it_is_read_while_the_engine_writes(tmp_path: Path) -> None:
    log = make_log(tmp_path / "journal.db", signer())
    assert first_bad(tmp_path / "journal.db") == (0, None)
    log.add(count=5)
    log.checkpoint()
    assert checked(tmp_path / "journal.db")[1].last == 38
    log.close()


def test_it_runs_as_one_file_without_the_project(journal: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere" / "verify.py"
    alone.parent.mkdir()
    shutil.copy(VERIFIER, alone)
    done = subprocess.run(
        [sys.executable, "-I", str(alone), str(journal), "--json", "--key", KEY],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=alone.parent,
    )  # fmt: skip
    assert done.stderr == ""
    assert json.loads(done.stdout)["code"] == done.returncode == 0


def test_it_imports_nothing_of_the_project() -> None:
    lines = VERIFIER.read_text().splitlines()
    modules = {line.split()[1].split(".")[0] for line in lines if line.lstrip().startswith(("import ", "from "))}
    assert modules - {"cryptography", "psycopg"} <= sys.stdlib_module_names


def test_without_cryptography_it_says_so_and_does_not_say_ok(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "cryptography").mkdir()
    (tmp_path / "cryptography" / "__init__.py").write_text("raise ImportError('not here')")
    command = [sys.executable, str(VERIFIER), str(journal)]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert done.returncode == SIGNATURE
    assert "cannot be checked without" in done.stderr
    command.append("--no-signatures")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert done.returncode == 0
    assert "signatures were not checked" in done.stdout


# -- what was done to it ----------------------------------------------------------------------------------------------


def rewrite(database: sqlite3.Connection, start: int, end: int = 10**9, *, changed: bool = True) -> None:
    """Write records anew, with hashes that fit each other."""
    row = database.execute("SELECT hash FROM audit_record WHERE seq = ?", (start - 1,)).fetchone()
    before = row[0] if row else bytes(32)
    rows = database.execute("SELECT seq, body FROM audit_record WHERE seq BETWEEN ? AND ? ORDER BY seq", (start, end))
    for seq, body in rows.fetchall():
        if changed and seq == start:
            body = body.replace(b'"kind":"human"', b'"kind":"robot"').replace(b'"kind":"system"', b'"kind":"robot"')
        before = hashlib.sha256(b"\x02" + before + body).digest()
        database.execute("UPDATE audit_record SET body = ?, hash = ? WHERE seq = ?", (body, before, seq))


def resign(database: sqlite3.Connection, key: int | None, start: int = 0) -> None:
    """Make the checkpoints anew, with another key or none."""
    tree, before, sizes = Frontier(), "", [size for (size,) in database.execute("SELECT size FROM audit_checkpoint")]
    for seq, hash_ in database.execute("SELECT seq, hash FROM audit_record ORDER BY seq").fetchall():
        tree.push(verify.leaf_of(hash_))
        if seq not in sizes:
            continue
        note = checkpoint_text("test", seq, tree.root(), before, 1)
        before = note
        if seq >= start:
            if key is not None:
                note = signer(key).sign(origin_of("test"), note)
            database.execute(
                "UPDATE audit_checkpoint SET note = ?, frontier = ? WHERE size = ?", (note, b"".join(tree.nodes), seq)
            )
        else:
            (kept,) = database.execute("SELECT note FROM audit_checkpoint WHERE size = ?", (seq,)).fetchone()
            before = verify.read_note(kept).text


def swap(database: sqlite3.Connection) -> None:
    rows = dict(database.execute("SELECT seq, body FROM audit_record WHERE seq IN (14, 15)").fetchall())
    hashes = dict(database.execute("SELECT seq, hash FROM audit_record WHERE seq IN (14, 15)").fetchall())
    for seq, other in ((14, 15), (15, 14)):
        database.execute("UPDATE audit_record SET body = ?, hash = ? WHERE seq = ?", (rows[other], hashes[other], seq))


def edited(seq: int, old: str, new: str) -> Tamper:
    return lambda database: database.execute(
        "UPDATE audit_record SET body = CAST(replace(CAST(body AS TEXT), ?, ?) AS BLOB) WHERE seq = ?", (old, new, seq)
    )


def sql(*statements: str) -> Tamper:
    return lambda database: [database.execute(statement) for statement in statements]


TAMPERS: dict[str, tuple[Tamper, int, int | None]] = {
    "a record is edited": (edited(14, "alice", "mallory"), CHAIN, 14),
    "the first record is edited": (edited(1, "system", "nobody"), CHAIN, 1),
    "a number grows": (edited(14, '"n":1', '"n":2'), CHAIN, 14),
    "a number becomes a float": (edited(14, '"n":1', '"n":1.0'), CHAIN, 14),
    "a key is used twice": (edited(14, '"n":1', '"n":1,"n":1'), CHAIN, 14),
    "a record type is changed": (edited(14, "exec.step", "exec.verify"), CHAIN, 14),
    "a body becomes a text": (
        sql("UPDATE audit_record SET body = CAST(body AS TEXT) WHERE seq = 14"), CHAIN, 14),
    "a body becomes a number": (sql("UPDATE audit_record SET body = 7 WHERE seq = 14"), CHAIN, 14),
    "a body is no JSON": (sql("UPDATE audit_record SET body = x'00ff' WHERE seq = 14"), CHAIN, 14),
    "a hash is changed": (sql("UPDATE audit_record SET hash = zeroblob(32) WHERE seq = 14"), CHAIN, 14),
    "a hash is short": (sql("UPDATE audit_record SET hash = x'00' WHERE seq = 14"), CHAIN, 14),
    "a record is written anew alone": (lambda database: rewrite(database, 14, 14), CHAIN, 14),
    "what it is found by is changed": (
        sql("UPDATE audit_record SET subject = 'person:mallory' WHERE seq = 14"), CHAIN, 14),
    "a record is deleted": (sql("DELETE FROM audit_record WHERE seq = 14"), CHAIN, 14),
    "the first record is deleted": (sql("DELETE FROM audit_record WHERE seq = 1"), CHAIN, 1),
    "two records are swapped": (swap, CHAIN, 14),
    "a record after the newest checkpoint is edited": (edited(32, "alice", "mallory"), CHAIN, 32),
    "the end is cut off": (sql("DELETE FROM audit_record WHERE seq > 27"), TRUNCATED, 28),
    "all is cut off": (sql("DELETE FROM audit_record"), TRUNCATED, 1),
    "all is written anew": (lambda database: rewrite(database, 1), CHECKPOINT, 1),
    "the rest is written anew": (lambda database: rewrite(database, 14), CHECKPOINT, 11),
    "all is written anew, unsigned": (
        lambda database: (rewrite(database, 1), resign(database, None)), SIGNATURE, 10),
    "all is written anew with another key": (
        lambda database: (rewrite(database, 1), resign(database, 2)), SIGNATURE, 10),
    "a fork after a checkpoint, with another key": (
        lambda database: (rewrite(database, 14), resign(database, 2, 20)), SIGNATURE, 20),
    "a checkpoint is taken out": (sql("DELETE FROM audit_checkpoint WHERE size = 20"), CHECKPOINT, 30),
    "the first checkpoint is taken out": (sql("DELETE FROM audit_checkpoint WHERE size = 10"), CHECKPOINT, 20),
    "a checkpoint is edited": (
        sql("UPDATE audit_checkpoint SET note = replace(note, 'at 1', 'at 2') WHERE size = 20"), SIGNATURE, 20),
    "a checkpoint is no note": (sql("UPDATE audit_checkpoint SET note = 'x' WHERE size = 20"), CHECKPOINT, 20),
    "a checkpoint is a blob": (
        sql("UPDATE audit_checkpoint SET note = CAST(note AS BLOB) WHERE size = 20"), CHECKPOINT, 20),
    "a checkpoint is filed elsewhere": (
        sql("UPDATE audit_checkpoint SET size = 21 WHERE size = 20"), CHECKPOINT, 21),
    "what a checkpoint goes on from is changed": (
        sql("UPDATE audit_checkpoint SET frontier = zeroblob(64) WHERE size = 20"), CHECKPOINT, 20),
    "a text kept apart is changed": (sql("UPDATE audit_private SET text = 'other'"), CHAIN, 12),
    "a text kept apart becomes a blob": (sql("UPDATE audit_private SET text = x'00'"), CHAIN, 12),
    "a key of a text is changed": (sql("UPDATE audit_private SET key = 'k'"), CHAIN, 12),
    "a text kept apart is taken out": (sql("DELETE FROM audit_private"), CHAIN, 12),
    "the log is called another": (sql("UPDATE audit_log SET log = 'other'"), CHAIN, 1),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERS)
def test_what_was_done_is_named(journal: Path, what: str) -> None:
    tamper, code, record = TAMPERS[what]
    assert first_bad(tampered(journal, tamper)) == (code, record), checked(journal)[1].problems


FIELDS_OF_ANOTHER_TYPE = (
    ("type", 7), ("type", None), ("seq", "14"), ("seq", [14]), ("log", 1), ("actor", "x"), ("actor", []), ("data", 1),
    ("data", []), ("private", {}), ("private", [1]), ("private", [{"ref": [1], "mac": 2}]), ("private", [{"ref": "x"}]),
    ("at_ms", "x"), ("proposal", {}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value"), FIELDS_OF_ANOTHER_TYPE)
def test_a_writer_that_means_harm_does_not_make_it_fail(journal: Path, name: str, value: Any) -> None:
    """Records in the form of none, under hashes that fit."""

    def change(database: sqlite3.Connection) -> None:
        (body,) = database.execute("SELECT body FROM audit_record WHERE seq = 14").fetchone()
        body = verify.canonical(json.loads(body) | {name: value})
        database.execute("UPDATE audit_record SET body = ? WHERE seq = 14", (body,))
        rewrite(database, 14, changed=False)

    assert first_bad(tampered(journal, change)) == (CHAIN, 14)


# -- what is known from elsewhere -------------------------------------------------------------------------------------


def forged(path: Path) -> Path:
    """Written anew by somebody who made a key of his own, from the first record on."""

    def change(database: sqlite3.Connection) -> None:
        other = signer(2).verifier_key(origin_of("test"))
        edited(1, KEY, other)(database)
        database.execute("UPDATE audit_key SET key = ?", (other,))
        rewrite(database, 1)
        resign(database, 2)

    return tampered(path, change)


def test_a_log_forged_with_its_own_key_needs_something_remembered(journal: Path) -> None:
    """What cannot be detected from the file alone (docs/audit.md)."""
    remembered = verify.read_note(newest_note(journal))
    assert first_bad(journal, keys=(KEY,), notes=(remembered,)) == (0, None)
    forged(journal)
    assert first_bad(journal) == (0, None)
    assert first_bad(journal, keys=(KEY,))[0] == SIGNATURE
    assert first_bad(journal, notes=(remembered,))[0] == CHECKPOINT


def test_records_after_the_newest_checkpoint_can_be_dropped_unseen(journal: Path) -> None:
    """What cannot be detected (docs/audit.md): the next checkpoint would have covered them."""
    code, report = checked(tampered(journal, sql("DELETE FROM audit_record WHERE seq > 30")))
    assert (code, report.last) == (0, 30)


def test_with_the_newest_checkpoint_more_can_be_dropped_unless_it_is_remembered(journal: Path) -> None:
    remembered = verify.read_note(newest_note(journal))
    tampered(journal, sql("DELETE FROM audit_record WHERE seq > 20", "DELETE FROM audit_checkpoint WHERE size > 20"))
    assert first_bad(journal) == (0, None)
    assert first_bad(journal, notes=(remembered,)) == (TRUNCATED, 21)


def test_who_has_host_and_key_can_forge_from_the_last_remembered_checkpoint_on(journal: Path) -> None:
    """What cannot be detected (docs/audit.md)."""
    with sqlite3.connect(journal) as database:
        (note,) = database.execute("SELECT note FROM audit_checkpoint WHERE size = 20").fetchone()
    database.close()
    tampered(journal, lambda database: (rewrite(database, 22), resign(database, 1, 30)))
    assert first_bad(journal, keys=(KEY,), notes=(verify.read_note(note),)) == (0, None)


def test_a_fork_is_found_by_what_either_side_remembers(original: Path, journal: Path) -> None:
    one = verify.read_note(newest_note(original))
    tampered(journal, lambda database: (rewrite(database, 22), resign(database, 1, 30)))
    two = verify.read_note(newest_note(journal))
    assert first_bad(journal, notes=(two,)) == (0, None)
    assert first_bad(journal, notes=(one,))[0] == CHECKPOINT
    assert first_bad(original, notes=(two,))[0] == CHECKPOINT


def test_notes_are_read_as_anchors_keep_them(journal: Path, tmp_path: Path) -> None:
    with sqlite3.connect(journal) as database:
        notes = [note for (note,) in database.execute("SELECT note FROM audit_checkpoint ORDER BY size")]
    database.close()
    text = "# ours\n" + "\n".join(notes)
    assert [note.size for note in verify.read_notes(text)] == [10, 20, 30]
    line = " ".join(verify.read_note(notes[0]).text.splitlines()[:3])
    read = verify.read_notes(f"Mar  1 12:00:00 host muster: {line}\n")
    assert [(note.size, note.root) for note in read] == [(10, verify.read_note(notes[0]).root)]
    assert first_bad(journal, notes=tuple(read)) == (0, None)


def test_a_note_of_another_log_says_nothing_of_this_one(journal: Path) -> None:
    other = verify.read_note(checkpoint_text("other", 10, bytes(32), "", 1))
    assert first_bad(journal, notes=(other,))[0] == CHECKPOINT
    ours = verify.read_note(newest_note(journal))
    assert first_bad(journal, notes=(other, ours)) == (0, None), "a place may be shared"


def test_a_part_is_read_between_checkpoints(journal: Path) -> None:
    code, reports = verify.verify([journal], Trust(), 15, 18)
    assert (code, reports[0].first, reports[0].last) == (0, 11, 20)
    tampered(journal, edited(5, "alice", "mallory"))
    assert verify.verify([journal], Trust(), 15, 18)[0] == 0
    assert verify.verify([journal], Trust())[0] == CHAIN


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_hands_over_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    log = make_log(path, signer())
    log.audit.rotate(signer(2), ALICE)
    log.add(count=3)
    log.close()
    code, report = checked(path, keys=(KEY,))
    assert (code, len(report.keys), report.checkpoints) == (0, 2, report.signed)


def test_a_key_that_the_one_before_did_not_sign_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    make_log(path, signer()).close()
    lost = open_log(path, signer(2))
    lost.add(count=3)
    lost.close()
    code, report = checked(path)
    assert (code, report.problems[0].record) == (SIGNATURE, 34)
    assert "key before did not sign" in report.problems[0].what
    assert first_bad(path, keys=(signer(2).verifier_key(origin_of("test")),)) == (0, None)


def test_nothing_is_signed_over_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    make_log(path, signer()).close()
    keyless = open_log(path)
    keyless.add()
    keyless.audit.after(at_once=True)
    assert "its key is not here" in keyless.audit.error
    keyless.engine.close()
    assert checked(path)[0] == 0


def test_a_log_without_a_key_says_so_and_may_get_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    make_log(path, None).close()
    code, report = checked(path)
    assert (code, report.signed) == (0, 0)
    assert any("none signed" in line for line in verify.as_text(report))
    later = open_log(path, signer())
    later.add(count=3)
    later.close()
    code, report = checked(path)
    assert (code, report.signed) == (0, 1)


# -- exports ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    log = make_log(tmp_path_factory.mktemp("export") / "journal.db", signer())
    log.add_private("because of the customer")
    log.checkpoint()
    found = {
        "whole": log.export(), "withheld": log.export(private=False), "part": log.export(first=12, last=25),
        "tail": log.export(first=31, last=32),
    }  # fmt: skip
    log.close()
    return found


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "export.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize(("which", "first", "last"), [("whole", 1, 34), ("part", 12, 25), ("tail", 31, 32)])
def test_an_export_is_checked_by_itself(
    exports: dict[str, str], tmp_path: Path, which: str, first: int, last: int
) -> None:
    code, report = checked(written(tmp_path, exports[which]), keys=(KEY,))
    assert (code, report.problems) == (0, [])
    assert (report.first, report.last) == (first, last)
    assert report.signed >= 1
    assert report.newest is not None
    assert report.newest.size >= last


def test_texts_stay_behind_when_asked(exports: dict[str, str], tmp_path: Path) -> None:
    assert "because of the customer" in exports["whole"]
    assert "because of the customer" not in exports["withheld"]
    assert checked(written(tmp_path, exports["withheld"]))[1].absent == 1
    assert checked(written(tmp_path, exports["whole"]))[1].private == 1


def test_an_export_may_be_written_differently_by_other_tools(exports: dict[str, str], tmp_path: Path) -> None:
    lines = exports["whole"].splitlines()
    pretty = [lines[0], *(json.dumps(json.loads(line), sort_keys=False) for line in lines[1:])]
    assert first_bad(written(tmp_path, "\n".join(pretty) + "\n")) == (0, None)


BUNDLE_TAMPERS: dict[str, tuple[Callable[[list[str]], list[str]], int, int | None]] = {
    "a record is edited": (
        lambda lines: [line.replace("alice", "mallory") if '"seq":14,' in line else line for line in lines], CHAIN, 14),
    "a record is taken out": (lambda lines: [line for line in lines if '"seq":14,' not in line], CHAIN, 14),
    "the last line is missing": (lambda lines: lines[:-1], TRUNCATED, 35),
    "the end is missing": (lambda lines: lines[:20], TRUNCATED, None),
    "records are missing at the end": (
        lambda lines: [line for line in lines if '"seq":34,' not in line and "\\n34\\n" not in line], TRUNCATED, 34),
    "a text is changed": (
        lambda lines: [line.replace("of the customer", "we felt like it") for line in lines], CHAIN, 34),
    "a checkpoint is of another log": (
        lambda lines: [
            line.replace("muster-audit/test", "muster-audit/tent") if line.startswith('{"checkpoint"') else line
            for line in lines], CHECKPOINT, 10),
    "where it begins is changed": (
        lambda lines: [lines[0].replace("00" * 32, "01" * 32), *lines[1:]], CHAIN, 1),
    "a line is no JSON": (lambda lines: [*lines[:5], "{", *lines[5:]], CHAIN, None),
}  # fmt: skip


@pytest.mark.parametrize("what", BUNDLE_TAMPERS)
def test_what_was_done_to_an_export_is_named(exports: dict[str, str], tmp_path: Path, what: str) -> None:
    tamper, code, record = BUNDLE_TAMPERS[what]
    found = first_bad(written(tmp_path, "\n".join(tamper(exports["whole"].splitlines())) + "\n"))
    assert found[0] == code
    assert record is None or found[1] == record


def test_a_part_that_was_moved_does_not_fit_its_checkpoint(exports: dict[str, str], tmp_path: Path) -> None:
    head, *rest = exports["part"].splitlines()
    loaded = json.loads(head)
    loaded["before"]["frontier"][0] = "00" * 32
    path = written(tmp_path, "\n".join([json.dumps(loaded, separators=(",", ":")), *rest]) + "\n")
    assert first_bad(path)[0] == CHECKPOINT


# -- any bytes --------------------------------------------------------------------------------------------------------

CODES = {0, USAGE, CHAIN, CHECKPOINT, TRUNCATED, SIGNATURE}
SCARS = st.lists(st.tuples(st.integers(0, 2**31), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6)


def scarred(content: bytes, scars: list[tuple[int, bytes]]) -> bytes:
    found = bytearray(content)
    for at, piece in scars:
        place = at % len(found)
        found[place : place + len(piece)] = piece
    return bytes(found)


@settings(max_examples=examples(150), deadline=None)
@given(scars=SCARS, cut=st.one_of(st.none(), st.integers(0, 2**31)))
def test_no_damage_to_the_database_makes_it_fail(
    original: Path, tmp_path_factory: pytest.TempPathFactory, scars: list[tuple[int, bytes]], cut: int | None
) -> None:
    content = scarred(original.read_bytes(), scars)
    path = tmp_path_factory.getbasetemp() / "scarred.db"
    path.write_bytes(content if cut is None else content[: cut % len(content)])
    code, reports = verify.verify([path], Trust())
    assert code in CODES
    assert list(verify.as_text(reports[0]))
    json.dumps(verify.as_data(reports[0]))


@settings(max_examples=examples(300), deadline=None)
@given(scars=SCARS, cut=st.one_of(st.none(), st.integers(0, 2**31)))
def test_no_damage_to_an_export_makes_it_fail_or_passes_for_another(
    exports: dict[str, str], tmp_path_factory: pytest.TempPathFactory, scars: list[tuple[int, bytes]], cut: int | None
) -> None:
    content = exports["whole"].encode()
    damaged = scarred(content, scars)
    damaged = damaged if cut is None else damaged[: cut % len(damaged)]
    path = tmp_path_factory.getbasetemp() / "scarred.jsonl"
    path.write_bytes(damaged)
    code, _ = verify.verify([path], Trust(keys=(KEY,)))
    assert code in CODES
    if code == 0:
        assert records_of(damaged) == records_of(content)


def records_of(bundle: bytes) -> list[Any]:
    return [line["record"] for raw in bundle.splitlines()[1:] if "record" in (line := json.loads(raw))]


NO_LOGS = {
    str(i): content
    for i, content in enumerate((
        b"", b"\x00" * 100, b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\xff" * 4096, b'{"muster_audit":"log"',
        b'{"muster_audit":"log"}\n',
        b'{"muster_audit":"log","v":1,"first":' + b"[" * 100_000, b"seq,at,type,\n", b"[" * 5_000_000,
    ))
}  # fmt: skip


@pytest.mark.parametrize("which", NO_LOGS)
def test_what_is_no_log_is_refused(tmp_path: Path, which: str) -> None:
    path = tmp_path / "thing"
    path.write_bytes(NO_LOGS[which])
    code, _ = verify.verify([path], Trust())
    assert code in CODES - {0}


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert verify.verify([tmp_path / "nothing"], Trust())[0] == USAGE
    assert verify.verify([tmp_path], Trust())[0] == USAGE


# -- the tree against its definition ----------------------------------------------------------------------------------


def by_definition(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + by_definition(leaves[:split]) + by_definition(leaves[split:])).digest()


def test_the_tree_is_that_of_rfc_6962() -> None:
    leaves = [hashlib.sha256(b"\x00" + bytes([i])).digest() for i in range(70)]
    frontier = Frontier()
    for size, leaf in enumerate(leaves, start=1):
        frontier.push(leaf)
        assert frontier.root() == by_definition(leaves[:size])


def test_the_roots_of_known_trees() -> None:
    """The tree of the eight leaves that implementations of RFC 6962 test themselves with."""
    inputs = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
    frontier = Frontier()
    for text in inputs:
        frontier.push(hashlib.sha256(b"\x00" + bytes.fromhex(text)).digest())
    assert frontier.root().hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


# -- the form ---------------------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(VALUES)
def test_the_canonical_form_is_that_of_rfc_8785(value: Any) -> None:
    assert verify.canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [1.5, float("nan"), 2**53, {1: 2}, {"a": b"x"}, "\ud800", {"\udfff": 1}, {1, 2}])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - also UnicodeEncodeError
        verify.canonical(value)


def test_depth_is_bounded() -> None:
    value: Any = 1
    for _ in range(verify.MAX_DEPTH):
        value = [value]
    verify.canonical(value)
    with pytest.raises(ValueError, match="levels"):
        verify.canonical([value])
