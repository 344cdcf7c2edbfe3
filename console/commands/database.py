"""`muster database`: location and tables of a cell's records, an integrity check, a backup while it is served
and the way back from one, and a copy to another database."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path

import msgspec
from sqlalchemy import Connection, MetaData, Table, inspect, select

from console.client.attach import settings_of
from console.client.launch import refuse_file
from console.client.sockets import private_folder
from console.commands.show import write_json, write_lines
from console.forms.settings import ConsoleSettings, cell_paths
from console.server import idempotency
from console.service import token_store
from console.text.plain_tables import facts, table
from console.text.terminal_text import duration, mebibytes, printable, timestamp
from engine.journal import outside_readers
from engine.journal import tables as journal_tables
from engine.journal.database import Place, Schema, SqliteFile, place_of, schema_for
from engine.journal.event_journal import head_of
from engine.journal.outside_readers import read
from engine.journal.postgres_store import LEASE, STANDBY, holder_of
from engine.journal.tables import MIGRATION, MIGRATIONS, Snapshot, table_of
from engine.model.errors import RefusedError, SpecError
from recommender.findings import suggestion_store as shelf_tables
from recommender.history import chunks as telemetry_tables
from runbooks.audit import log as audit_tables
from runbooks.drafts import store as draft_books
from runbooks.gate import authority, incidents
from runbooks.gate import policy_changes as policy_tables
from runbooks.gate import store as books
from runbooks.models import limits, prompt

LARGEST = 6
"""Tables that are named."""
GONE_MS = 10_000
"""A standby that was not seen for so long stands by no more."""


class DatabaseReport(msgspec.Struct, kw_only=True):
    """A cell's database as it was found."""

    place: str
    version: int
    format: int
    migrations: int
    known_migrations: int
    snapshots: tuple[int, ...]
    bytes: int
    rows: dict[str, int]
    writer: str
    """Empty: nobody, or nobody knows, as of a file."""
    epoch: int = 0
    since_ms: int = 0
    renewed_ago_ms: int = 0
    standbys: tuple[str, ...] = ()


def show(arguments: argparse.Namespace) -> None:
    """Reads beside the engine; writes nothing."""
    place = _named(arguments.where, settings_of(arguments))
    _must_exist(place)
    kept = read(place, lambda connection: _kept(connection, place))
    if arguments.json:
        write_json(msgspec.to_builtins(kept))
        return
    write_lines(_lines(kept, place))


def check(arguments: argparse.Namespace) -> None:
    """Raises JournalCorrupt for what does not verify."""
    place = _named(arguments.where, settings_of(arguments))

    _must_exist(place)
    events = outside_readers.check(place).events
    if arguments.json:
        write_json({"place": str(place), "events": events})
        return
    write_lines([f"{printable(str(place))}: {events:,} events, all intact"])


def backup(arguments: argparse.Namespace) -> None:
    """Beside the engine: it goes on meanwhile."""
    place, path = _named("", settings_of(arguments)), Path(arguments.file).absolute()
    _must_exist(place)
    version = outside_readers.backup(place, path, tables(), _tell)
    if arguments.json:
        write_json({"from": str(place), "to": str(path), "version": version, "bytes": path.stat().st_size})
        return
    size = mebibytes(-(-path.stat().st_size // 2**20))
    write_lines([f"{printable(str(path))}: version {version:,}, {size}, verified"])


def restore(arguments: argparse.Namespace) -> None:
    """No engine may serve the cell meanwhile. Raises RefusedError for a cell in PostgreSQL: a new schema takes one."""
    settings = settings_of(arguments)
    if settings.readonly:
        raise RefusedError("this session is read-only", "Start without --readonly to act")
    place, path = _named("", settings), Path(arguments.file).absolute()
    _must_exist(SqliteFile(path))
    if isinstance(place, Schema):
        raise RefusedError(
            f"cell '{printable(cell_paths(settings).folder.name)}' is kept in PostgreSQL",
            f"Copy it into a new schema: muster database copy {path} 'postgresql://…?schema=NAME'",
        )
    private_folder(place.path.parent)
    version, former = outside_readers.restore(path, place)
    if arguments.json:
        write_json({"from": str(path), "to": str(place), "version": version, "former": former and str(former)})
        return
    kept = [f"the cell as it was is kept in {printable(str(former))}"] if former is not None else []
    write_lines([f"{printable(str(place))}: version {version:,}, verified", *kept])


def copy(arguments: argparse.Namespace) -> None:
    """The source is held as by an engine meanwhile, so that nobody writes it."""
    from engine.journal.event_journal import Journal

    settings = settings_of(arguments)
    if settings.readonly:
        raise RefusedError("this session is read-only", "Start without --readonly to act")
    places = [_named(where, settings) for where in (arguments.source, arguments.target)]
    meant = [os.path.realpath(place.path) if isinstance(place, SqliteFile) else place for place in places]
    if meant[0] == meant[1]:
        raise SpecError("TO", "is where the cell already is", "Give another destination")
    _must_exist(places[0])
    with closing(Journal(places[0], 0)) as source, closing(Journal(places[1], source.seed)) as target:
        counts = outside_readers.copy(source, target, tables(), _tell)
        version = target.version
    if arguments.json:
        write_json({"from": str(places[0]), "to": str(places[1]), "version": version, "rows": counts})
        return
    rows = sum(counts.values())
    write_lines(
        [
            f"{printable(str(places[1]))}: version {version:,}, {rows:,} rows in {len(counts)} tables, verified",
            f"{printable(str(places[0]))} is unchanged: from now on serve only one of the two",
        ]
    )


def _tell(name: str, rows: int) -> None:
    if rows:
        print(f"{printable(name)}: {rows:,} rows", file=sys.stderr)


# -- finding it -------------------------------------------------------------------------------------------------------


def _named(where: str, settings: ConsoleSettings) -> Place:
    """Raises SpecError."""
    if not where and settings.connect:
        raise SpecError("--connect", "names no database", "Give the database URL, on the engine's machine")
    paths = cell_paths(settings)
    cell = paths.folder.name
    if not where and not settings.database:
        refuse_file(f"cell '{cell}'", paths.folder, paths.journal)
    return place_of(where or settings.database or str(paths.journal), schema_for(cell))


def _must_exist(place: Place) -> None:
    if isinstance(place, SqliteFile) and not place.path.exists():
        raise SpecError("FROM", f"there is no file {place}", "Give the journal of a cell, or its database")
    if isinstance(place, Schema):
        from engine.journal.postgres_store import exists

        if not exists(place):
            raise SpecError("FROM", f"there is no cell at {place}", "See `muster database show URL`")


# -- what is there ----------------------------------------------------------------------------------------------------


def _kept(connection: Connection, place: Place) -> DatabaseReport:
    head = head_of(connection, place)
    inspector = inspect(connection)
    names = inspector.get_table_names()
    numbers = connection.execute(select(MIGRATION.c.number)).scalars().all() if MIGRATION.name in names else ()
    versions = select(table_of(Snapshot).c.version).order_by("version")
    snapshots = connection.execute(versions).scalars().all() if "snapshot" in names else ()  # a fleet has none
    found = DatabaseReport(
        place=str(place), version=head["last_version"], format=head["format"], migrations=max(numbers, default=0),
        known_migrations=len(MIGRATIONS), snapshots=tuple(snapshots), bytes=_bytes(connection, place),
        rows={name: _rows(connection, name) for name in sorted(names)}, writer="",
    )  # fmt: skip
    if isinstance(place, Schema):
        _add_people(connection, found)
    return found


def _rows(connection: Connection, name: str) -> int:
    quoted = connection.dialect.identifier_preparer.quote(name)
    return int(connection.exec_driver_sql(f"SELECT count(*) FROM {quoted}").scalar() or 0)


def _bytes(connection: Connection, place: Place) -> int:
    if isinstance(place, SqliteFile):
        return place.path.stat().st_size
    whole = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND "
    return int(connection.exec_driver_sql(whole + "relnamespace = current_schema()::regnamespace").scalar() or 0)


def _add_people(connection: Connection, kept: DatabaseReport) -> None:
    now_ms = connection.exec_driver_sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").scalar() or 0
    lease = connection.execute(select(LEASE)).one()
    kept.writer = str(holder_of(lease.holder)) if lease.owner else ""
    kept.since_ms, kept.renewed_ago_ms = lease.since_ms, now_ms - lease.renewed_ms
    kept.epoch = connection.exec_driver_sql("SELECT epoch FROM fence").scalar() or 0
    seen = select(STANDBY).where(STANDBY.c.seen_ms > now_ms - GONE_MS).order_by(STANDBY.c.seen_ms)
    kept.standbys = tuple(str(holder_of(row.holder)) for row in connection.execute(seen))


def _lines(kept: DatabaseReport, place: Place) -> list[str]:
    snapshots = ", ".join(f"{version:,}" for version in kept.snapshots) or "none yet"
    pairs = [
        ("stored in", kept.place),
        ("journal", f"version {kept.version:,}, format {kept.format}; snapshots at {snapshots}"),
        ("migrations", f"{kept.migrations} of the {kept.known_migrations} known to this Muster"),
    ]
    if isinstance(place, Schema):
        renewed = f"renewed {duration(max(0, kept.renewed_ago_ms))} ago"
        writer = f"{kept.writer}, since {timestamp(kept.since_ms)}, {renewed}" if kept.writer else "nobody"
        pairs += [("writer", writer), ("epoch", f"{kept.epoch:,}"), ("standby", ", ".join(kept.standbys) or "nobody")]
    pairs.append(("size", mebibytes(-(-kept.bytes // 2**20))))
    largest = sorted(kept.rows.items(), key=lambda row: -row[1])[:LARGEST]
    rows = [[name, f"{count:,}"] for name, count in largest]
    return [*(printable(line) for line in facts(pairs)), "", *table(["TABLE", "ROWS"], rows, [False, True])]


_OTHERS: tuple[MetaData, ...] = (
    books.METADATA,
    incidents.METADATA,
    audit_tables.METADATA,
    audit_tables.MOVED_METADATA,
    policy_tables.METADATA,
    authority.METADATA,
    draft_books.METADATA,
    limits.METADATA,
    prompt.METADATA,
    telemetry_tables.META,
    shelf_tables.META,
    telemetry_tables.META,
    token_store.METADATA,
    idempotency.METADATA,
)


def tables() -> list[Table]:
    own = [*journal_tables.TABLES, journal_tables.table_of(journal_tables.Estimate), journal_tables.PRUNED, MIGRATION]
    return [*own, *(table for metadata in _OTHERS for table in metadata.sorted_tables)]
