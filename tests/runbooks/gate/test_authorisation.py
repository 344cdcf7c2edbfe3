"""Who can write the database: whatever they change, put in or take out is named by the verifiers, and nothing that the
records do not authorise is carried out."""

from __future__ import annotations

import contextlib
import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from before_authorisation import before_authorisation
from effort import examples
from gate_history import Lived, another_policy, gate_on, live, opened, several_steps, voted
from gates import asked
from hypothesis import given, settings
from hypothesis import strategies as st
from on_postgres import is_server, kept
from records import records
from sqlalchemy import MetaData, Table

import console
import runbooks
from console.commands.audit import verify as verify_command
from engine.control import Engine
from engine.model.errors import RefusedError
from runbooks.audit import verify
from runbooks.audit.log import record_table
from runbooks.audit.verify import AUTHORISATION, GATE_TABLES, Trust, link
from runbooks.gate.approval_policy import (
    MODES,
    OWN_ACTIONS,
    SOLO,
    ApproverGroup,
    Grant,
    OwnWork,
    Person,
    Policy,
    Rule,
    Vote,
    is_own,
    need,
    tally,
)
from runbooks.gate.policy_changes import VERSION, change_need
from runbooks.gate.store import CONFIRMATION, PROPOSAL, VOTE
from runbooks.plans.identity import Scope
from runbooks.plans.typed_plan import TIERS, Origin, OwnedWork, Party, Tier
from tests.support.team import public_key, team

AUDIT_TABLES = ("audit_log", "audit_record", "audit_private", "audit_checkpoint", "audit_key")
OF_EARLIER_VERSIONS = {"audit_segment"}
"""Not made any more; that a record must tell of its rows is shown in test_audit.py."""
OUTSIDE = {
    "draft", "draft_pseudonym_key", "model_spend", "access_token", "token_group", "login_used", "idempotency",
    "fleet_about", "fleet_closed", "fleet_event", "fleet_submission",
}  # fmt: skip
"""Tables of which no record tells: nothing is authorised by them."""
NOT_FOUND = {
    ("audit_record", "delete last"): "the newest records",
    ("audit_checkpoint", "delete last"): "the newest checkpoint",
}
"""What the drill does and the verifiers do not find -> how docs/audit.md says so."""


def tables_of(package: Any) -> dict[str, Table]:
    """Every table that a module of a package declares."""
    found: dict[str, Table] = {}
    folder = Path(package.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if "MetaData()" in path.read_text():
            module = importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))
            for value in vars(module).values():
                if isinstance(value, MetaData):
                    found |= value.tables
    return found


TABLES = tables_of(runbooks) | tables_of(console)


def test_every_table_is_on_record_or_is_said_not_to_be() -> None:
    assert set(GATE_TABLES) | set(AUDIT_TABLES) | OF_EARLIER_VERSIONS | OUTSIDE == set(TABLES)
    for name, key in GATE_TABLES.items():
        assert [column.name for column in TABLES[name].primary_key] == list(key)
    manual = (Path(runbooks.__file__).parents[1] / "docs" / "audit.md").read_text()
    for name in OUTSIDE:
        assert f"`{name}`" in manual
    for words in NOT_FOUND.values():
        assert words in manual.lower()


# -- the drill --------------------------------------------------------------------------------------------------------


class Raw:
    """The database of a cell that is not running, past everything that is ours."""

    def __init__(self, path: Path) -> None:
        self.place = kept(path)
        if isinstance(self.place, str):
            import psycopg

            self._server = verify.PostgresDatabase(self.place)._connection
            self._server.close()
            base, _, query = self.place.partition("?")
            schema = next(part[7:] for part in query.split("&") if part.startswith("schema="))
            rest = "&".join(part for part in query.split("&") if not part.startswith("schema="))
            self.database: Any = psycopg.connect(f"{base}?{rest}" if rest else base, autocommit=True)
            self.database.execute(f'SET search_path TO "{schema}"')
            for name in AUDIT_TABLES:
                self.database.execute(f"ALTER TABLE {name} DISABLE TRIGGER USER")
        else:
            self.database = sqlite3.connect(self.place, isolation_level=None)
            triggers = self.database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for (name,) in triggers:
                self.database.execute(f"DROP TRIGGER {name}")

    def execute(self, sql: str, values: Any = ()) -> Any:
        return self.database.execute(sql if isinstance(self.place, Path) else sql.replace("?", "%s"), values)

    def rows(self, table: str) -> list[dict[str, Any]]:
        key = ", ".join(column.name for column in TABLES[table].primary_key)
        found = self.execute(f"SELECT * FROM {table} ORDER BY {key}")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]

    def put(self, table: str, row: dict[str, Any]) -> None:
        names = ", ".join(f'"{name}"' for name in row)
        self.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))

    def take(self, table: str, row: dict[str, Any]) -> None:
        keys = [column.name for column in TABLES[table].primary_key]
        where = " AND ".join(f"{key} = ?" for key in keys)
        self.execute(f"DELETE FROM {table} WHERE {where}", tuple(row[key] for key in keys))

    def found(self, *, signatures: bool = True) -> list[str]:
        """What the verifier names."""
        code, reports = verify.verify([self.place], Trust(signatures=signatures))
        told = [bad.what for report in reports for bad in report.problems]
        assert bool(code) == bool(told)
        return told

    def close(self) -> None:
        self.database.close()


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if value is None:
        return b"{}"
    return value + {int: 100_000, str: "x", bytes: b" "}[type(value)]


def edits(raw: Raw, table: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(what is done, the row as it is, as it becomes; empty: it is not there)"""
    rows = raw.rows(table)
    if rows:
        for column, value in rows[-1].items():
            yield f"edit {column}", rows[-1], rows[-1] | {column: other(value)}
        yield "delete first", rows[0], {}
        yield "delete last", rows[-1], {}
    if rows:
        unique = {"note", "name", "key", "nonce", "subject", "ref"}
        new = {
            name: rows[-1][name] + 1_000 if isinstance(rows[-1][name], int) and name in keys_of(table)
            else other(rows[-1][name]) if name in unique | keys_of(table)
            else rows[-1][name]
            for name in rows[-1]
        }  # fmt: skip
    else:
        new = {column.name: 1 if column.type.python_type is int else b"x" * 32 if column.type.python_type is bytes
               else "x" for column in TABLES[table].columns}  # fmt: skip
    yield "insert", {}, new


def keys_of(table: str) -> set[str]:
    return {column.name for column in TABLES[table].primary_key}


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    """A cell with a past, and a record after the last checkpoint that tells of no row."""
    path = tmp_path / "journal.db"
    with opened(path) as lived:
        live(lived)
        with pytest.raises(RefusedError):
            lived.gate.refuse_unless(lived.of["ann"].actor, "thaw")
    with contextlib.closing(Raw(path)) as found:
        assert found.found() == []
        yield found


@pytest.mark.both_databases
def test_what_is_changed_put_in_or_taken_out_of_any_table_is_named(raw: Raw) -> None:
    unseen: set[tuple[str, str]] = set()
    done = 0
    for table in sorted(set(GATE_TABLES) | set(AUDIT_TABLES)):
        assert raw.rows(table), f"the history has no row of {table}"
        for what, before, after in edits(raw, table):
            if before:
                raw.take(table, before)
            if after:
                raw.put(table, after)
            if not raw.found(signatures=table in AUDIT_TABLES):
                unseen.add((table, what))
            if after:
                raw.take(table, after)
            if before:
                raw.put(table, before)
            done += 1
    assert unseen == set(NOT_FOUND)
    assert done > 150
    assert raw.found() == []


# -- what nobody voted for --------------------------------------------------------------------------------------------


@pytest.fixture
def lived(tmp_path: Path) -> Iterator[Lived]:
    with opened(tmp_path / "journal.db") as found:
        yield found


def change(lived: Lived, sql: str, values: tuple[Any, ...] = ()) -> None:
    """What who can write the database does to it."""
    lived.engine.record(lambda connection: connection.exec_driver_sql(sql, values))


def named(lived: Lived) -> list[str]:
    """By the verifier, of the log as it is now."""
    lived.checkpoint()
    _, reports = verify.verify([kept(lived.folder / "journal.db")], Trust())
    return [bad.what for report in reports for bad in report.problems]


def test_a_proposal_that_is_set_to_approved_by_break_glass_is_not_carried_out(
    lived: Lived, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = lived.of["ann"].propose("cancel", ["r0"])
    assert named(lived) == []
    change(lived, f"UPDATE proposal SET state = 'approved', breakglass = 1, expires_ms = {shown.expires_ms + 10**9}")
    with pytest.raises(RefusedError, match="the audit does not authorise it: the row proposal:1") as refused:
        lived.gate.execute(lived.of["ben"].actor, shown.id)
    assert "muster audit verify" in refused.value.remedy
    assert lived.engine.workload("r0").state == "running"
    assert "the row proposal:1 is not as record 6 left it" in named(lived)[0]
    assert records(lived.engine)[-1]["type"] == "exec.refused"
    path = lived.folder / "journal.db"
    alone = subprocess.run([sys.executable, "-I", verify.__file__, path], capture_output=True, text=True, check=False)
    assert (alone.returncode, "the row proposal:1 is not" in alone.stdout) == (AUTHORISATION, True)
    arguments = verify.arguments().parse_args([str(path)])
    arguments.files = [str(path)]
    arguments.connect = ""
    assert verify_command(arguments) == AUTHORISATION
    assert "the row proposal:1 is not" in capsys.readouterr().out


@pytest.mark.parametrize("state", ["executing", "paused", "rolling_back", "verifying", "verified", "failed"])
def test_nothing_goes_on_or_back_that_was_never_claimed(lived: Lived, state: str) -> None:
    """Also not by itself, as time passes or at the next start."""
    shown = lived.of["ben"].propose("cordon", ["n0"])
    key = f"{shown.digest}:1:0"
    change(
        lived,
        "INSERT INTO effect (key, number, revision, step, back, action, at_ms, version, changed) "
        f"VALUES ('{key}', 1, 1, 0, 0, 'cordon', 1, 1, x'5b5d')",
    )
    change(lived, f"UPDATE proposal SET state = '{state}', executed_ms = {lived.clock()}, since_ms = {lived.clock()}")
    ben = lived.of["ben"].actor
    for ask in (lived.gate.execute, lived.gate.resume, lived.gate.rollback):
        with pytest.raises(RefusedError):
            ask(ben, shown.id)
    for gate in (lived.gate, gate_on(lived.engine, lived.clock, lived.folder).gate):
        gate.tick()
    assert lived.engine.node("n0").state == "ready"
    assert {what.partition(" is ")[0] for what in named(lived)} >= {"the row proposal:1"}


def test_a_forged_vote_an_effect_and_a_word_do_nothing_and_are_named(lived: Lived) -> None:
    """cat has voted on what needs two; the other vote is not theirs who gave it. The plan waits for a word."""
    shown = lived.of["ben"].propose("cancel", ["r0"])
    lived.of["cat"].yes(shown)
    [row] = lived.engine.record(lambda c: c.execute(VOTE.select()).mappings().all())
    forged = dict(row) | {"id": 2, "subject": "person:dan", "account": "unix:2004"}
    lived.engine.record(lambda c: c.execute(VOTE.insert().values(**forged)))
    lived.engine.record(lambda c: c.execute(PROPOSAL.update().values(state="approved")))
    with pytest.raises(RefusedError, match="the audit does not authorise it"):
        lived.gate.execute(lived.of["ben"].actor, shown.id)
    assert lived.engine.workload("r0").state == "running"
    assert any("no record tells of the row vote:2" in what for what in named(lived))


def test_a_forged_word_does_not_let_a_step_be_done(lived: Lived) -> None:
    several_steps(lived)
    lived.engine.record(lambda c: c.execute(CONFIRMATION.delete()))
    assert any("confirmation:1:1:2, which record" in what for what in named(lived))
    with pytest.raises(RefusedError, match="the row confirmation:1:1:2 is gone"):
        lived.gate.rollback(lived.of["ben"].actor, "P-1", "the record is not whole")


def test_a_policy_that_no_vote_put_in_force_is_not_in_force_after_a_restart(lived: Lived) -> None:
    voted(lived)
    was = lived.gate.policies.latest()
    loose = msgspec.structs.replace(SOLO, version=9)
    values = {"digest": loose.digest(), "version": 9, "body": loose.canonical(), "text": b"", "at_ms": 1, "by": "x"}
    lived.engine.record(lambda c: c.execute(VERSION.insert().values(**values)))
    again = gate_on(lived.engine, lived.clock, lived.folder)
    assert again.gate.policies.latest() == was
    cancel = again.of["ben"].propose("cancel", ["w0"])
    with pytest.raises(RefusedError, match="does not count"):
        again.of["ben"].yes(cancel)
    assert named(again) == ["no record tells of the row policy_version:1 of the table policy_version"]


# -- records that are forged in order ---------------------------------------------------------------------------------


def forge(lived: Lived, after: int, edit: Callable[[dict[str, Any]], None]) -> None:
    """Write the records from `after` on anew, each as `edit` leaves it, so that each follows from the one before."""

    def write(connection: Any) -> None:
        rows = connection.execute(record_table.select().order_by(record_table.c.seq)).mappings().all()
        before = next((row["hash"] for row in rows if row["seq"] == after), bytes(32))
        for trigger in ("updates", "update"):
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS audit_record_keeps_{trigger}")
        for row in rows:
            if row["seq"] <= after:
                continue
            record = json.loads(row["body"])
            edit(record)
            body = verify.canonical(record)
            before = link(before, body)
            where = record_table.c.seq == row["seq"]
            connection.execute(record_table.update().where(where).values(body=body, hash=before))

    lived.engine.record(write)


def unsigned(record: dict[str, Any]) -> None:
    if record["type"].startswith("vote."):
        record["data"]["signed"]["signature"] = "A" * 86 + "=="


def of_a_lower_tier(record: dict[str, Any]) -> None:
    if record["type"] == "proposal.simulated":
        record["data"]["of"]["tier"] = "T1"


def by_themselves(record: dict[str, Any]) -> None:
    if record["type"] == "proposal.simulated":
        record["data"]["of"]["author"]["subject"] = "person:ben"


@pytest.mark.about_files("the triggers of SQLite are dropped")
@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (unsigned, "it lacks 1 vote"),
        (by_themselves, "it lacks 1 vote"),
        (of_a_lower_tier, "is not the plan that was voted on"),
    ],
)
def test_records_that_are_forged_in_order_must_still_hold_what_authorises(
    lived: Lived, edit: Callable[[dict[str, Any]], None], what: str
) -> None:
    """Before a checkpoint is over them nothing but what they say can tell: signatures, and who counts."""
    shown = lived.gate.propose(lived.of["ann"].actor, msgspec.structs.replace(asked("suspend", ["r0"]), start="asked"))
    lived.of["ben"].yes(shown)
    lived.gate.audit._told.clear()
    forge(lived, 2, edit)
    again = gate_on(lived.engine, lived.clock, lived.folder)
    with pytest.raises(RefusedError, match=r"lacks a vote|does not authorise"):
        again.gate.execute(again.of["ann"].actor, shown.id)
    assert lived.engine.workload("r0").state == "running"


@pytest.mark.about_files("the triggers of SQLite are dropped")
def test_a_policy_whose_vote_was_forged_in_order_did_not_come_into_force(lived: Lived) -> None:
    was = lived.gate.policies.latest()
    another_policy(lived)
    assert lived.gate.policies.latest() != was

    def edit(record: dict[str, Any]) -> None:
        if record["type"] == "policy.vote":
            record["data"]["signed"]["signature"] = "A" * 86 + "=="

    forge(lived, 2, edit)
    again = gate_on(lived.engine, lived.clock, lived.folder)
    assert again.gate.policies.latest() == was
    cordon = again.of["ben"].propose("cordon", ["n0"])
    with pytest.raises(
        RefusedError, match=r"the policy in force cannot be proved: .* came into force without its votes"
    ):
        again.of["ben"].yes(cordon)


def their_own(record: dict[str, Any]) -> None:
    """It says that what is touched is the work of who asked."""
    if record["type"] == "proposal.simulated":
        record["data"]["of"]["own"] = {"owner": "person:ben", "actions": ["cancel"], "workloads": 1}


@pytest.mark.about_files("the triggers of SQLite are dropped")
def test_work_is_not_ones_own_because_the_records_say_so(lived: Lived) -> None:
    """The plan that is voted on says whose it is, by whom the engine knows."""
    shown = lived.gate.propose(lived.of["ben"].actor, asked("cancel", ["r0"]))
    lived.gate.audit._told.clear()
    forge(lived, 2, their_own)
    again = gate_on(lived.engine, lived.clock, lived.folder)
    with pytest.raises(RefusedError, match="does not count"):
        again.gate.approve(again.of["ben"].actor, shown.id, shown.digest, "mine")
    change(lived, f"UPDATE proposal SET state = 'approved', expires_ms = {shown.expires_ms + 10**9}")
    with pytest.raises(RefusedError, match="the audit does not authorise it"):
        again.gate.execute(again.of["ben"].actor, shown.id)
    assert lived.engine.workload("r0").state == "running"
    assert any("is not the plan that was voted on" in what for what in named(lived))


# -- written before ---------------------------------------------------------------------------------------------------


def test_a_log_from_before_is_not_called_broken_and_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with before_authorisation(), opened(path) as lived:
        live(lived)
        waits = lived.gate.propose(
            lived.of["ann"].actor, msgspec.structs.replace(asked("suspend", ["w0"]), start="asked")
        )
        lived.of["cat"].yes(waits)
        assert named(lived) == []
        _, reports = verify.verify([kept(path)], Trust())
        assert any("written before authorisation was on record" in line for line in verify.as_text(reports[0]))
        clock = lived.clock
    with contextlib.closing(Engine.open(path)) as engine:
        lived = gate_on(engine, clock, tmp_path)
        assert named(lived) == []
        assert lived.gate.policies.latest().version == 2, "the one that was voted for then"
        assert lived.gate.execute(lived.of["ben"].actor, waits.id).state == "verified"
        assert lived.of["cat"].yes(lived.of["ann"].propose("cancel", ["w0"])).state == "verified"
        assert named(lived) == []
        change(lived, "UPDATE proposal SET note = 'x' WHERE number = 1")
        assert any("the row proposal:1 is not as record" in what for what in named(lived))


def test_a_row_that_was_changed_is_not_made_right_by_what_the_gate_writes_after_it(lived: Lived) -> None:
    """The break-glass would carry it through freezes, were it not for the votes that it has in truth."""
    shown = lived.of["ann"].propose("suspend", ["r0"])
    change(lived, "UPDATE proposal SET breakglass = " + ("true" if is_server() else "1"))
    lived.gate.audit._told.clear()
    lived.of["cat"].vote(shown)
    with pytest.raises(RefusedError, match="the row proposal:1 is not as record 6 left it"):
        lived.gate.execute(lived.of["ben"].actor, shown.id)
    lived.of["ben"].vote(shown, "reject")
    assert named(lived) == ["the row proposal:1 is not as record 6 left it"]


# -- the rules, written twice -----------------------------------------------------------------------------------------

SUBJECTS = ("person:ann", "person:ben", "person:cat", "unix:2001", "unix:2002", "unix:2003", "unix:9", "tcp")
ACCOUNTS = ("unix:2001", "unix:2002", "unix:2003", "unix:9", "tcp", "token:person:ann", "token:person:cat")


@st.composite
def decided(draw: st.DrawFn) -> tuple[Policy, Tier, Party, str, Origin, Scope, list[Vote], OwnedWork]:
    """A policy, a plan and votes on it, of all kinds that there are."""
    scopes = st.sampled_from((Scope(), Scope(pools=("p",)), Scope(pools=("p", "q")), Scope(tenants=("t",))))
    roles = st.lists(st.sampled_from(("operator", "approver", "admin", "submitter")), unique=True).map(tuple)
    lines = {"ann": public_key("ann").line, "ben": public_key("ben").line, "cat": public_key("cat").line}
    people = tuple(
        Person(
            id=id_, accounts=tuple(draw(st.lists(st.sampled_from(ACCOUNTS[:5]), unique=True, max_size=2))),
            keys=(line,) if draw(st.booleans()) else (), roles=draw(roles), on_call=draw(st.booleans()),
            scoped=tuple(Grant(roles=draw(roles), scope=draw(scopes)) for _ in range(draw(st.integers(0, 1)))),
        )
        for id_, line in lines.items()
        if draw(st.booleans())
    )  # fmt: skip
    origins = st.sampled_from(("person", "runbook", "recommender", "model"))
    tier = draw(st.sampled_from(TIERS))
    rules = tuple(
        Rule(
            tier=tier, scope=draw(scopes), approvals=draw(st.integers(1, 3)), roles=draw(roles), expiry_ms=1,
            signed=draw(st.booleans()), self_ok=tuple(draw(st.lists(origins, unique=True))),
            groups=(ApproverGroup(name="g", people=("ann", "cat")),) if draw(st.booleans()) else (),
        )
        for _ in range(draw(st.integers(0, 2)))
    )  # fmt: skip
    some = st.lists(st.sampled_from(OWN_ACTIONS), unique=True).map(tuple)
    own_works = st.one_of(st.just(msgspec.UNSET), st.builds(OwnWork, actions=some, workloads=st.integers(1, 3)))
    policy = Policy(name="x", mode=draw(st.sampled_from(MODES)), people=people, rules=rules, own_work=draw(own_works))
    author = Party(
        subject=draw(st.sampled_from(SUBJECTS)), kind=draw(st.sampled_from(("human", "service", "llm"))),
        account=draw(st.sampled_from(ACCOUNTS)), signed=draw(st.booleans()),
    )  # fmt: skip
    keys = ("", "", *(public_key(name).fingerprint for name in lines))
    votes = [
        Vote(
            subject=draw(st.sampled_from(SUBJECTS)), kind=draw(st.sampled_from(("human", "human", "service"))),
            account=draw(st.sampled_from(ACCOUNTS)), key=draw(st.sampled_from(keys)), verdict="approve", at_ms=1,
        )
        for _ in range(draw(st.integers(0, 4)))
    ]  # fmt: skip
    requester = draw(st.sampled_from(("", *SUBJECTS)))
    own = OwnedWork(
        owner=draw(st.sampled_from(SUBJECTS)), actions=draw(some), workloads=draw(st.integers(1, 3))
    )  # fmt: skip
    return policy, tier, author, requester, draw(origins), draw(scopes), votes, own


@settings(max_examples=examples(300), deadline=None)
@given(decided())
def test_the_verifier_counts_votes_as_the_gate_does(
    case: tuple[Policy, Tier, Party, str, Origin, Scope, list[Vote], OwnedWork],
) -> None:
    policy, tier, author, requester, origin, scope, votes, own = case
    body, by, touched, theirs_alone = (json.loads(msgspec.json.encode(each)) for each in (policy, author, scope, own))
    facts = {"author": by, "requester": requester, "origin": origin, "own": theirs_alone}
    mine = is_own(policy, own, author, requester, origin)
    assert verify.is_own(body, facts) == mine
    said = [verify.ProvenActor(vote.subject, vote.kind, vote.account, vote.key) for vote in votes]
    needs = (need(policy, tier, origin, scope, author=author.kind, own=mine), change_need(policy))
    theirs = (verify.need_of(body, tier, origin, touched, author.kind, own=mine), verify.change_need_of(body))
    for ours, other_ in zip(needs, theirs, strict=True):
        counted = tally(policy, votes, author, requester, ours, scope, owner="unix:9")
        assert verify.missing_votes(body, "unix:9", said, by, requester, other_, touched) == counted.missing


@pytest.mark.parametrize(("author", "requester", "missing"), [("ann", "", 0), ("cat", "", 1), ("ann", "person:cat", 1)])
def test_on_record_nobody_counts_on_what_they_wrote_or_asked_for(author: str, requester: str, missing: int) -> None:
    """Also not from another account, with their own key."""
    body = json.loads(team().canonical())
    vote = verify.ProvenActor("person:cat", "human", "unix:2003", public_key("cat").fingerprint)
    wrote = {"subject": f"person:{author}", "kind": "human", "account": "unix:77", "signed": True}
    asked_for = verify.need_of(body, "T2", "person", verify.WHOLE, "human")
    assert verify.missing_votes(body, "unix:9", [vote], wrote, requester, asked_for, verify.WHOLE) == missing
