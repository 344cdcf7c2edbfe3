"""The place of a cell's records: a SQLite file, named by a path, or a schema of a PostgreSQL server, named by a URL.

What differs by the kind of database stands in `engine.journal.sqlite_store` and `engine.journal.postgres_store`. All
other code writes SQLAlchemy Core for both, with the helpers here where the two differ. PostgreSQL's driver is loaded
where it is used and needs the extra `postgres`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from sqlalchemy import BigInteger, Connection, Integer, MetaData, String, Table, inspect
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable

from engine.model.errors import SpecError


def driver() -> Any:
    """The module psycopg. Raises SpecError where it is not installed."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        raise SpecError("database", "the driver of PostgreSQL is not here", "Install muster[postgres]") from None
    return psycopg


def understood(conninfo: str) -> dict[str, Any]:
    """Parse it as libpq does. Raises SpecError that does not repeat the text, which may hold a password."""
    psycopg = driver()
    try:
        found: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise SpecError(
            "database", "is no URL that PostgreSQL's client understands", "Give postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    return found


T = TypeVar("T")
BIG = BigInteger().with_variant(Integer(), "sqlite")
"""An integer of 64 bits. SQLite has no others, and an own name for its key."""
SCHEMA = "muster"
"""Of a PostgreSQL database, where neither the URL nor a cell's name says another."""
_MAX_NAME = 63
"""Bytes of a name in PostgreSQL; what is longer it would cut."""
_MISSPELT = re.compile(r"\s*postgres(ql)?\b[^/]*:|.*\b(password|dbname)\s*=", re.IGNORECASE | re.DOTALL)
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class SqliteFile:
    """A SQLite database."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Schema:
    """A schema of a PostgreSQL database: one for each cell."""

    conninfo: str = field(repr=False)
    """For libpq; may hold a password, so it is never shown."""
    name: str
    shown: str
    """What of it is not secret, for people."""

    @property
    def has_password(self) -> bool:
        return bool(understood(self.conninfo).get("password"))

    def __str__(self) -> str:
        return self.shown


Place = SqliteFile | Schema


def place_of(where: str | Path | Place, schema: str = SCHEMA) -> Place:
    """The place that a path or a URL names. Raises SpecError for a URL of another kind, or one nobody understands."""
    if isinstance(where, SqliteFile | Schema):
        return where
    text = str(where)
    kind = text.partition("://")[0] if isinstance(where, str) and "://" in text else ""
    if not kind and _MISSPELT.match(text):
        # As a path it would be shown, with the password that may be in it.
        raise SpecError("database", "is neither a URL nor a path", "Give postgresql://USER@HOST/DATABASE")
    if not kind:
        return SqliteFile(Path(where))
    if kind == "sqlite":
        return SqliteFile(Path(unquote(text.removeprefix("sqlite://").removeprefix("/"))))
    if kind in ("postgresql", "postgres"):
        return _schema_of(text, schema)
    raise SpecError("database", f"is a URL of {kind[:20]!a}", "Give postgresql://USER@HOST/DATABASE, or a file's path")


def url_with(url: str, cell: str) -> str:
    """The URL with the schema of the cell, unless it names one."""
    if "schema=" in url.partition("?")[2]:
        return url
    return f"{url}{'&' if '?' in url else '?'}schema={schema_for(cell)}"


def schema_for(cell: str) -> str:
    """The schema that a cell has in a database whose URL names none, so that two cells never share one."""
    return f"muster_{cell}"


def schema_for_fleet(name: str) -> str:
    """The same for a fleet; no cell has that name."""
    return f"fleet_{name}"


def _schema_of(url: str, schema: str) -> Schema:
    """`schema=NAME` in the URL is ours; the rest is libpq's."""
    base, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    name = dict(options).get("schema", schema)
    if not _SCHEMA_NAME.fullmatch(name) or len(name.encode()) > _MAX_NAME:
        raise SpecError(
            "database", f"{name[:80]!a} is not a schema name", "Add ?schema=NAME with letters, digits, '_', '-', '.'"
        )
    rest = urlencode([(key, value) for key, value in options if key != "schema"], quote_via=quote)
    conninfo = f"{base}?{rest}" if rest else base
    found = understood(conninfo)
    port = str(found.get("port") or "").strip(",")
    at = f"{found.get('host') or ''}" + (f":{port}" if port else "")
    who = f"{found['user']}@" if found.get("user") else ""
    return Schema(conninfo, name, f"PostgreSQL {who}{at}/{found.get('dbname') or ''}, schema {name}")


def create_tables(connection: Connection, metadata: MetaData) -> None:
    """`metadata.create_all`, with one look at which tables there are, and statements that are written out once: a cell
    that is opened has tens of them."""
    create_some(connection, metadata.sorted_tables)


def create_some(connection: Connection, tables: Sequence[Table]) -> None:
    """Have these tables, unless they are there."""
    there = inspect(connection).get_table_names()
    for table in tables:
        if table.name not in there:
            for statement in _statements(table, connection.dialect.name):
                connection.exec_driver_sql(statement)


@functools.cache
def _statements(table: Table, dialect_name: str) -> tuple[str, ...]:
    """Return the statements that create a table and its indexes."""
    dialect = registry.load(dialect_name)()
    if dialect_name == "postgresql":
        table = _by_code_point(table)
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    made: list[CreateTable | CreateIndex] = [CreateTable(table), *map(CreateIndex, indexes)]
    return tuple(str(each.compile(dialect=dialect)) for each in made)


def _by_code_point(table: Table) -> Table:
    """The same with texts that are compared as SQLite does: by what they are, not by the habits of a country."""
    copy = table.to_metadata(MetaData())
    for column in copy.columns:
        if isinstance(column.type, String):
            column.type = String(column.type.length, collation="C")
    return copy


def put(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows; one that is there already by its key becomes the new one."""
    statement = _insert_for(connection)(table)
    keys = [column.name for column in table.primary_key]
    news = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=news), list(rows))


def put_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows, except those that are there already by their key: they stay as they are."""
    connection.execute(_insert_for(connection)(table).on_conflict_do_nothing(), list(rows))


def _insert_for(connection: Connection) -> Any:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert
    from sqlalchemy.dialects import sqlite

    return sqlite.insert


def error_line(error: BaseException) -> str:
    """Return the database's message in one line."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
