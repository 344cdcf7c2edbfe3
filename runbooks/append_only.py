"""What keeps the audit's tables append-only in the database itself, against code of our own that errs. Whoever may
change the tables' definitions can lift it: the chain of hashes is what shows that."""

from __future__ import annotations

from sqlalchemy import Connection, text

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
