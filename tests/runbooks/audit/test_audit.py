"""The audit log's writer: records that are there exactly if what they tell of is, and what is kept of them."""

from __future__ import annotations

import functools
import random
import socket
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from on_postgres import is_server, kept, literal
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from console.commands.database import tables
from engine.control import Engine
from engine.journal import outside_readers
from engine.journal.database import place_of
from engine.journal.event_journal import Journal
from engine.model.commands import AddQueues
from engine.model.errors import JournalBusy, JournalError, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import QueueSpec
from runbooks.audit import verify
from runbooks.audit.log import CHECKPOINT_EVERY, CHECKPOINT_EVERY_MS, MAX_BYTES, Audit, signer_at
from runbooks.audit.reader import AuditReader, page
from runbooks.audit.verify import CHAIN, SIGNATURE, Trust
from runbooks.audit.witnesses import CheckpointSigner, FileAnchor, SyslogAnchor, anchors_of, next_key
from runbooks.plans.queries import AuditQuery
from tests.support.audit_logs import ALICE, BOB, START_MS, Log, make_log, open_log, signer, tampered
from tests.support.cells import small_cell

pytestmark = pytest.mark.both_databases


@pytest.fixture(params=["file", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    opened = open_log(tmp_path / "journal.db" if request.param == "file" else None, signer())
    yield opened
    opened.close()


@pytest.fixture
def memory() -> Iterator[Log]:
    opened = open_log(None)
    yield opened
    opened.close()


def rows(log: Log, **query: Any) -> list[Any]:
    return list(log.engine.recorded(lambda connection: page(connection, AuditQuery(**query))).rows)


def code_of(path: Path, **known: Any) -> int:
    return verify.verify([kept(path) if path.suffix == ".db" else path], Trust(**known))[0]


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_record_says_who_did_what_to_which_plan(log: Log) -> None:
    log.add("exec.step", proposal="P-3", revision=2, step="s1", plan_digest="aa", policy_digest="bb", data={"n": 1})
    row = rows(log, proposal="P-3")[0]
    assert (row.seq, row.type, row.subject, row.key, row.signed) == (2, "exec.step", "person:alice", "ab12", True)
    assert (row.proposal, row.revision, row.step, row.plan, row.policy) == ("P-3", 2, "s1", "aa", "bb")
    assert row.data == {"n": 1}


def test_what_is_undone_leaves_no_record_and_no_gap(log: Log) -> None:
    def fail(connection: Connection) -> None:
        assert log.audit.append(connection, "exec.step", ALICE) == 2
        raise RefusedError("no", "")

    with pytest.raises(RefusedError):
        log.engine.record(fail)
    assert log.add() == 2
    assert [row.seq for row in rows(log)] == [1, 2]
    log.checkpoint()


def test_a_turn_and_its_record_happen_together_or_not_at_all(tmp_path: Path) -> None:
    log = open_log(tmp_path / "journal.db")
    log.engine.close()
    engine = Engine.open(tmp_path / "cell.db", cell=small_cell())
    audit = Audit(engine, lambda: START_MS)
    add = AddQueues(queues=(QueueSpec(name="night"),))

    def beside(connection: Connection) -> None:
        audit.append(connection, "exec.effect", ALICE)
        raise RefusedError("no", "")

    version = engine.version
    with pytest.raises(RefusedError):
        engine.command(add, beside=beside)
    assert engine.version == version
    assert engine.recorded(lambda connection: audit.head(connection)[0]) == 1
    engine.command(add, beside=lambda connection: audit.append(connection, "exec.effect", ALICE) and None)
    assert engine.recorded(lambda connection: audit.head(connection)[0]) == 2
    engine.close()


REWRITES = (
    "UPDATE audit_record SET type = 'x'", "DELETE FROM audit_record", "UPDATE audit_checkpoint SET note = ''",
    "DELETE FROM audit_checkpoint", "UPDATE audit_private SET text = ''", "UPDATE audit_key SET key = ''",
    "DELETE FROM audit_key", "UPDATE audit_log SET log = ''", "DELETE FROM audit_log",
    "INSERT INTO audit_record SELECT * FROM audit_record WHERE seq = 1 ON CONFLICT (seq) DO UPDATE SET body = ''",
    "INSERT INTO audit_private SELECT * FROM audit_private WHERE true ON CONFLICT (ref) DO UPDATE SET text = 'x'",
)  # fmt: skip
REPLACES = (
    "INSERT OR REPLACE INTO audit_record SELECT * FROM audit_record WHERE seq = 1",
    "INSERT OR REPLACE INTO audit_private SELECT * FROM audit_private",
)
"""Of SQLite alone."""


def test_the_tables_only_grow(log: Log) -> None:
    log.add_private("because")
    log.checkpoint()
    for statement in (*REWRITES, *(() if is_server() else REPLACES)):
        with pytest.raises((IntegrityError, JournalError), match="append-only"):
            log.engine.record(lambda connection, statement=statement: connection.exec_driver_sql(statement))


NOT_CANONICAL: tuple[Any, ...] = (
    {"x": 1.5}, {"x": float("nan")}, {"x": 2**60}, {"x": b"bytes"}, {"x": "\ud800"}, {1: 2}, {"x": {1, 2}},
)  # fmt: skip


def test_what_cannot_be_written_in_one_way_only_is_refused(memory: Log) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for data in (*NOT_CANONICAL, {"x": deep}):
        with pytest.raises(SpecError, match="cannot be written"):
            memory.add(data=data)
    assert memory.add() == 2


def test_a_type_is_two_words(memory: Log) -> None:
    for type_ in ("", "exec", "Exec.step", "exec.step.more", "exec. step", "exec.\n", "x" * 99 + ".y"):
        with pytest.raises(SpecError, match="type"):
            memory.add(type_)


def test_what_is_too_long_is_told_by_its_hash(memory: Log) -> None:
    """A plan of a thousand targets must not fail for its length; what it says is in the plan, whose digest is told."""
    memory.add(data={"small": "kept", "long": ["n" * 100] * 1_000})
    data = rows(memory)[-1].data
    assert data["small"] == "kept"
    assert data["long"]["omitted_bytes"] > MAX_BYTES
    assert len(data["long"]["sha256"]) == 64
    with pytest.raises(SpecError, match="bytes"):
        memory.add(proposal="P" * MAX_BYTES)


def test_the_log_has_a_name_that_stays(tmp_path: Path) -> None:
    engine = Engine.open(tmp_path / "journal.db")
    name = Audit(engine, lambda: START_MS).log_id
    assert len(name) == 16
    engine.close()
    engine = Engine.open(tmp_path / "journal.db")
    assert Audit(engine, lambda: START_MS, log_id="other").log_id == name
    engine.close()
    with pytest.raises(SpecError, match="log_id"):
        Audit(Engine.open(None), lambda: START_MS, log_id="with space")


@pytest.mark.about_files("another program has locked it")
def test_where_nothing_can_be_written_nothing_is_appended_and_all_can_be_read(tmp_path: Path) -> None:
    make_log(tmp_path / "journal.db", signer()).close()
    with sqlite3.connect(tmp_path / "journal.db", isolation_level=None) as other:
        log = open_log(tmp_path / "journal.db", signer())
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalBusy):
            log.add()
        assert len(rows(log)) == 33
        other.execute("ROLLBACK")
    other.close()
    assert log.add() == 34
    log.close()
    assert code_of(tmp_path / "journal.db") == 0


# -- texts kept apart -------------------------------------------------------------------------------------------------


def test_a_text_is_kept_apart_until_it_is_erased(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    log = open_log(path, signer())
    sealed = log.add_private("Miss Marple of room 7 asked for it")
    log.checkpoint()
    assert rows(log, proposal="P-1")[0].private[0].text == "Miss Marple of room 7 asked for it"
    assert log.engine.record(lambda connection: log.audit.reveal(connection, sealed.ref)) is not None
    log.engine.record(lambda connection: log.audit.redact(connection, BOB, sealed.ref, "she asked us to"))
    assert log.audit.scrub() != is_server(), "the log of a server is its own"
    assert rows(log, proposal="P-1")[0].private[0].text is None
    assert rows(log)[-1].data == {"ref": sealed.ref, "reason": "she asked us to"}
    for file in tmp_path.iterdir():
        assert b"Marple" not in file.read_bytes(), file
    log.close()
    code, reports = verify.verify([kept(path)], Trust())
    assert (code, reports[0].erased, reports[0].private) == (0, 1, 0)


def test_what_is_erased_is_erased_once_and_for_a_reason(memory: Log) -> None:
    sealed = memory.add_private("secret")
    for reason in ("", "  ", "two\nlines", "x" * 501):
        with pytest.raises(SpecError, match="reason"):
            memory.engine.record(functools.partial(memory.audit.redact, actor=BOB, ref=sealed.ref, reason=reason))
    memory.engine.record(lambda connection: memory.audit.redact(connection, BOB, sealed.ref, "why"))
    with pytest.raises(NotFoundError):
        memory.engine.record(lambda connection: memory.audit.redact(connection, BOB, sealed.ref, "why"))


def test_equal_texts_cannot_be_told_from_their_commitments(memory: Log) -> None:
    one, two = memory.add_private("yes"), memory.add_private("yes")
    assert one.mac != two.mac
    assert one.ref != two.ref


@pytest.mark.parametrize("text", ["x" * 70_000, "\ud800"])
def test_a_text_has_bounds(memory: Log, text: str) -> None:
    with pytest.raises(SpecError, match="text"):
        memory.add_private(text)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def covered(log: Log) -> list[int]:
    def sizes(connection: Connection) -> list[int]:
        return list(connection.exec_driver_sql("SELECT size FROM audit_checkpoint ORDER BY size").scalars())

    found: list[int] = log.engine.recorded(sizes)
    return found


def test_a_checkpoint_comes_with_records_with_time_or_at_once(log: Log) -> None:
    log.add(count=10)
    log.audit.after()
    assert covered(log) == []
    log.clock.now_ms = START_MS + CHECKPOINT_EVERY_MS
    log.audit.after()
    assert covered(log) == [11]
    log.audit.after(at_once=True)
    assert covered(log) == [11], "nothing is new"
    log.engine.record(
        lambda connection: [log.audit.append(connection, "exec.step", ALICE) for _ in range(CHECKPOINT_EVERY)]
    )
    log.audit.after()
    assert covered(log) == [11, 11 + CHECKPOINT_EVERY]
    log.add()
    log.audit.after(at_once=True)
    assert covered(log)[-1] == 12 + CHECKPOINT_EVERY


def test_a_clock_that_falls_back_delays_no_checkpoint(memory: Log) -> None:
    memory.add()
    memory.clock.now_ms = START_MS - 3_600_000
    memory.audit.after()
    assert covered(memory) == [2]


def test_a_restart_goes_on_where_the_log_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for _ in range(3):
        log = open_log(path, signer())
        log.add(count=7)
        log.close()
    code, reports = verify.verify([kept(path)], Trust())
    assert (code, reports[0].last, reports[0].checkpoints) == (0, 22, 3)


FORGERIES: dict[str, str] = {
    "the checkpoints are taken out": "DELETE FROM audit_checkpoint",
    "the newest checkpoint is taken out": "DELETE FROM audit_checkpoint WHERE size = 20",
    "a checkpoint is no note": "UPDATE audit_checkpoint SET note = 'x'",
    "a checkpoint is a number": "UPDATE audit_checkpoint SET note = {number}",
    "what the next goes on from is changed": "UPDATE audit_checkpoint SET frontier = {zeros}",
    "what the next goes on from is nothing": "UPDATE audit_checkpoint SET frontier = {nothing}",
    "records after it are taken out": "DELETE FROM audit_record WHERE seq = 22",
}


@pytest.mark.parametrize("what", FORGERIES)
@pytest.mark.parametrize("restarted", [False, True])
def test_the_engine_signs_no_past_that_it_did_not_sign_before(tmp_path: Path, what: str, restarted: bool) -> None:
    """Who can write the database alone must not get a forged past signed by waiting for the next checkpoint."""
    path, key_file = tmp_path / "journal.db", tmp_path / "keys" / "cell.key"
    log = make_log(path, CheckpointSigner.of(key_file), (10, 20), 23)
    if restarted:
        log.engine.close()
    number = "'0'" if is_server() else "x'00'"  # SQLite keeps bytes where a text should be
    forgery = FORGERIES[what].format(zeros=literal(bytes(64)), nothing=literal(b""), number=number)
    tampered(path, lambda database: database.execute(forgery))
    if restarted:
        log = open_log(path, CheckpointSigner.of(key_file))
    before = covered(log)
    log.audit.after(at_once=True)
    assert log.audit.error
    assert covered(log) == before
    assert log.add() == 24, "the cell goes on"
    log.close()


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_file_is_made_once_and_for_one(tmp_path: Path) -> None:
    path = tmp_path / "config" / "cell.key"
    made = CheckpointSigner.of(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert CheckpointSigner.of(path).public == made.public
    assert [file.name for file in path.parent.iterdir()] == ["cell.key"]
    path.chmod(0o640)
    with pytest.raises(MusterError, match="open to others"):
        CheckpointSigner.of(path)


@pytest.mark.parametrize("content", ["", "muster-audit-key ", "muster-audit-key AAAA", "x" * 1_000, "ssh-ed25519 AAAA"])
def test_what_is_no_key_is_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cell.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(MusterError, match="is not a key"):
        CheckpointSigner.of(path)
    assert path.read_text() == content


def test_a_rotation_that_was_cut_short_ends_with_the_key_in_force(tmp_path: Path) -> None:
    path, key_file = tmp_path / "journal.db", tmp_path / "keys" / "cell.key"
    log = make_log(path, CheckpointSigner.of(key_file))
    old = CheckpointSigner.of(key_file)
    log.audit.rotate_file(ALICE)
    new = CheckpointSigner.of(key_file)
    assert new.public != old.public
    log.add()
    # Killed before the new key was put in the place of the old one: both files are there.
    key_file.rename(next_key(key_file))
    old.keep(key_file)
    assert signer_at(log.engine, key_file).public == new.public
    assert not next_key(key_file).exists()
    # Killed before the log knew of it: the old key stays.
    CheckpointSigner.new().keep(next_key(key_file))
    assert signer_at(log.engine, key_file).public == new.public
    assert not next_key(key_file).exists()
    log.close()
    assert code_of(path) == 0


# -- anchors ----------------------------------------------------------------------------------------------------------


def test_checkpoints_are_remembered_outside(tmp_path: Path) -> None:
    notes = tmp_path / "other" / "muster.notes"
    notes.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(tmp_path / "log"))
        anchors = (FileAnchor(notes), SyslogAnchor(str(tmp_path / "log")))
        log = open_log(tmp_path / "journal.db", signer(), anchors)
        for _ in range(3):
            log.add(count=4)
            log.checkpoint()
        log.close()
        lines = b"".join(syslog.recv(4_096) + b"\n" for _ in range(3)).decode()
    for text in (notes.read_text(), lines):
        known = tuple(verify.read_notes(text))
        assert [note.size for note in known] == [5, 9, 13]
        code, reports = verify.verify([kept(tmp_path / "journal.db")], Trust(notes=known))
        assert (code, reports[0].compared) == (0, 3)


def test_an_anchor_that_fails_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    log = open_log(None, signer(), (FileAnchor(tmp_path / "nowhere" / "notes"), SyslogAnchor(str(tmp_path / "no"))))
    log.add()
    log.audit.after(at_once=True)
    log.audit.close()
    assert "nowhere" in log.audit.error
    assert "syslog" in log.audit.error
    assert covered(log) == [2]


def test_a_link_in_the_place_of_an_anchor_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "notes").symlink_to(tmp_path / "elsewhere")
    log = open_log(None, signer(), (FileAnchor(tmp_path / "notes"),))
    log.add()
    log.close()
    assert log.audit.error
    assert not (tmp_path / "elsewhere").exists()


def test_anchors_are_listed_in_the_settings() -> None:
    assert [anchor.name for anchor in anchors_of("file:/mnt/other/muster.notes, syslog")] == [
        "/mnt/other/muster.notes", "syslog",
    ]  # fmt: skip
    assert anchors_of("") == ()
    for text in ("http://example.org", "file:relative", "git", "file:"):
        with pytest.raises(SpecError, match="audit_anchors"):
            anchors_of(text)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_records_are_found_by_what_they_say(memory: Log) -> None:
    memory.add("vote.approve", proposal="P-1")
    memory.add("vote.reject", proposal="P-2")
    memory.add_private("x")
    assert [row.seq for row in rows(memory, proposal="P-1")] == [2, 4]
    assert [row.seq for row in rows(memory, type="vote")] == [2, 3, 4]
    assert [row.seq for row in rows(memory, type="vote.reject")] == [3]
    assert [row.seq for row in rows(memory, type="v%")] == []
    assert [row.seq for row in rows(memory, actor="person:bob")] == [4]
    assert [row.seq for row in rows(memory, since_ms=START_MS + 2_000)] == [3, 4]
    assert [row.seq for row in rows(memory, seq=3)] == [3]


def test_pages_go_back_in_time(memory: Log) -> None:
    memory.add(count=9)
    newest = memory.engine.recorded(lambda connection: page(connection, AuditQuery(limit=4)))
    assert ([row.seq for row in newest.rows], newest.matched, newest.last) == ([7, 8, 9, 10], 10, 10)
    assert [row.seq for row in rows(memory, limit=4, before=7)] == [3, 4, 5, 6]
    for limit in (0, 1_001):
        with pytest.raises(SpecError, match="limit"):
            rows(memory, limit=limit)


def test_what_is_shown_is_what_the_record_says(tmp_path: Path) -> None:
    make_log(tmp_path / "journal.db", signer()).close()
    tampered(tmp_path / "journal.db", lambda db: db.execute("UPDATE audit_record SET subject = 'person:mallory'"))
    log = open_log(tmp_path / "journal.db", signer())
    assert {row.subject for row in rows(log, actor="person:mallory")} == {"person:alice", "system"}
    log.close()


def test_an_export_of_what_is_not_there_is_refused(memory: Log) -> None:
    memory.add(count=3)
    for wanted in ({"first": -1}, {"first": 5}, {"last": 9}, {"first": 3, "last": 2}):
        with pytest.raises(RefusedError):
            memory.export(**wanted)
    with pytest.raises(SpecError):
        memory.export(first=2, last=3, after=9)


# -- records that versions before this one moved to files --------------------------------------------------------------

MOVED = pytest.mark.about_files("records were moved into files beside one, and never out of a server")


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """Records 1 to 20 are in a file, 21 to 35 in the journal."""
    log = make_log(tmp_path / "journal.db", signer())
    (tmp_path / "moved.jsonl").write_text(log.export(first=1, last=20, private=False))
    log.add("audit.sealed", data={"first": 1, "last": 20, "file": "moved.jsonl", "sha256": ""})
    log.checkpoint()
    log.add()
    log.close()
    return tampered(tmp_path / "journal.db", move_first_20)


def move_first_20(database: sqlite3.Connection) -> None:
    """What those versions did."""
    database.execute(
        "CREATE TABLE audit_segment (last INTEGER PRIMARY KEY, first INTEGER, hash BLOB, file TEXT, sha256 TEXT)"
    )
    database.execute("INSERT INTO audit_segment SELECT 20, 1, hash, 'moved.jsonl', '' FROM audit_record WHERE seq = 20")
    database.execute("DELETE FROM audit_record WHERE seq <= 20")
    database.execute("DELETE FROM audit_checkpoint WHERE size < 20")


@MOVED
def test_a_log_goes_on_from_what_was_moved_to_files(moved: Path) -> None:
    log = open_log(moved, signer())
    assert log.add() == 36
    (moved.parent / "export.jsonl").write_text(log.export(first=21))
    with pytest.raises(RefusedError, match="no records 1 to"):
        log.export(first=1)
    log.close()
    for files in ([moved], [moved.parent / "moved.jsonl", moved], [moved.parent / "export.jsonl"]):
        code, reports = verify.verify(files, Trust(keys=(signer().verifier_key("muster-audit/test"),)))
        assert (code, reports[-1].first) == (0, 21)


@MOVED
def test_a_copy_of_such_a_log_verifies_too(moved: Path) -> None:
    other = moved.with_name("other.db")
    with closing(Journal(place_of(moved), 0)) as source, closing(Journal(place_of(other), source.seed)) as target:
        outside_readers.copy(source, target, tables())
    assert code_of(other) == 0


@MOVED
def test_the_beginning_cannot_be_called_moved_when_no_record_says_so(tmp_path: Path) -> None:
    make_log(tmp_path / "journal.db", signer()).close()
    assert code_of(tampered(tmp_path / "journal.db", move_first_20)) == CHAIN


@MOVED
def test_a_file_of_moved_records_must_be_what_the_log_goes_on_from(moved: Path) -> None:
    other = make_log(moved.parent / "other.db", signer())
    (moved.parent / "moved.jsonl").write_text(other.export(first=1, last=20).replace("alice", "mallory"))
    other.close()
    assert code_of(moved) == 0
    assert verify.verify([moved.parent / "moved.jsonl", moved], Trust())[0] == CHAIN


# -- all of it together -----------------------------------------------------------------------------------------------


def append_and_fail(audit: Audit, connection: Connection) -> float:
    return audit.append(connection, "exec.step", ALICE) / 0


@pytest.mark.parametrize("seed", range(examples(10)))
def test_whatever_happens_the_log_verifies(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "journal.db"
    log = open_log(path, signer())
    texts: list[str] = []
    key = 1
    for _ in range(40):
        step = rng.choice(("add", "add", "add", "private", "undo", "checkpoint", "redact", "restart", "rotate"))
        if step == "add":
            log.add(count=rng.randint(1, 5))
        elif step == "private":
            texts.append(log.add_private(f"text {rng.random()}").ref)
        elif step == "undo":
            with pytest.raises(ZeroDivisionError):
                log.engine.record(functools.partial(append_and_fail, log.audit))
        elif step == "checkpoint":
            log.checkpoint()
        elif step == "redact" and texts:
            ref = texts.pop(rng.randrange(len(texts)))
            log.engine.record(functools.partial(log.audit.redact, actor=BOB, ref=ref, reason="asked"))
        elif step == "restart":
            now_ms = log.clock.now_ms
            log.close()
            log = open_log(path, signer(key))
            log.clock.now_ms = now_ms
        elif step == "rotate":
            key += 1
            log.audit.rotate(signer(key), ALICE)
    log.close()
    code, reports = verify.verify(
        [kept(path)], Trust(keys=(signer().verifier_key("muster-audit/test"),) if key < 2 else ())
    )
    assert (code, [report.problems for report in reports if report.problems]) == (0, [])
    reader = AuditReader(path, lambda ask: ask)
    assert reader.read(lambda connection: page(connection, AuditQuery())).last == reports[-1].last
    reader.close()


def test_a_key_that_was_taken_over_by_nobody_is_named_by_its_record(tmp_path: Path) -> None:
    make_log(tmp_path / "journal.db", signer()).close()
    open_log(tmp_path / "journal.db", signer(7)).close()
    assert code_of(tmp_path / "journal.db") == SIGNATURE
