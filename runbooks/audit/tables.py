"""The audit's tables in the journal's database, and the triggers that keep them append-only.

The triggers are against code of our own that errs. Whoever may change the tables' definitions can lift them: the chain
of hashes is what shows that.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, String, Table, text

from engine.journal.database import BIG

METADATA = MetaData()
log_table = Table(
    "audit_log", METADATA,
    Column("id", Integer, primary_key=True), Column("log", String, nullable=False),
    Column("v", Integer, nullable=False),
)  # fmt: skip
record_table = Table(
    "audit_record", METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("type", String, nullable=False), Column("subject", String, nullable=False),
    Column("proposal", String, nullable=False, index=True), Column("at_ms", BIG, nullable=False),
    Column("body", LargeBinary, nullable=False), Column("hash", LargeBinary, nullable=False),
)  # fmt: skip
"""The columns besides body and hash are copies to search by."""
private_table = Table(
    "audit_private", METADATA,
    Column("ref", String, primary_key=True), Column("key", LargeBinary, nullable=False),
    Column("text", String, nullable=False),
)  # fmt: skip
checkpoint_table = Table(
    "audit_checkpoint", METADATA,
    Column("size", Integer, primary_key=True, autoincrement=False), Column("note", String, nullable=False),
    Column("frontier", LargeBinary, nullable=False),
)  # fmt: skip
"""`frontier`: the roots of the complete subtrees, one after the other, so that the next checkpoint goes on from it."""
key_table = Table(
    "audit_key", METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=False), Column("key", String, nullable=False),
)  # fmt: skip
"""From which record on which public key signs; `none` where nothing is signed."""

MOVED_METADATA = MetaData()
moved_table = Table(
    "audit_segment", MOVED_METADATA,
    Column("last", Integer, primary_key=True, autoincrement=False), Column("first", Integer, nullable=False),
    Column("hash", LargeBinary, nullable=False), Column("file", String, nullable=False),
    Column("sha256", String, nullable=False),
)  # fmt: skip
"""Records that versions before this one moved to files: the first, the last and its hash. Not there otherwise."""

_TABLES = (
    ("audit_record", "seq", "UPDATE OR DELETE"),
    ("audit_checkpoint", "size", "UPDATE OR DELETE"),
    ("audit_private", "ref", "UPDATE"),
    ("audit_key", "seq", "UPDATE OR DELETE"),
    ("audit_log", "id", "UPDATE OR DELETE"),
)
"""(table, its key, what is refused of a row): texts kept apart can be erased."""
_SAYS = "the audit is append-only"

_SQLITE = tuple(
    f"CREATE TRIGGER IF NOT EXISTS {table}_keeps_{when.split()[0].lower()} BEFORE {when} "
    f"BEGIN SELECT RAISE(ABORT, '{_SAYS}'); END"
    for table, key, refused in _TABLES
    for when in (
        *(f"{change} ON {table}" for change in refused.split(" OR ")),
        # `INSERT OR REPLACE` deletes without asking the trigger for that.
        f"INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key})",
    )
)
_POSTGRES = tuple(
    statement
    for table, _, refused in _TABLES
    for statement in (
        f"CREATE OR REPLACE FUNCTION {table}_keeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION '{_SAYS}'; END $$",
        f"CREATE TRIGGER {table}_keeps_row BEFORE {refused} ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_keeps()",
        f"CREATE TRIGGER {table}_keeps_all BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_keeps()",
    )
)
_THERE = "SELECT 1 FROM pg_trigger WHERE tgname = 'audit_log_keeps_all' AND tgrelid = to_regclass('audit_log')"


def keep_append_only(connection: Connection) -> None:
    """Have the triggers, unless they are there."""
    if connection.dialect.name == "sqlite":
        for trigger in _SQLITE:
            connection.execute(text(trigger))
    elif connection.exec_driver_sql(_THERE).first() is None:
        for statement in _POSTGRES:
            connection.exec_driver_sql(statement)
