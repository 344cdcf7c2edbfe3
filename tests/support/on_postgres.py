"""The same tests on PostgreSQL: what a test opens by a path, or in memory, is then a schema of a real server.

`pytest --database postgres` runs everything so (`make test-postgres`); a test marked `both_databases` runs on both in
any run, on the server where thorough tests run. A test marked `about_files` is about SQLite's file itself, for the
reason it gives, and is left out.

`tests/conftest.py` puts this in place before any module of the product can have taken `place_of` by its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import postgres
import pytest
from sqlalchemy import Connection

from engine.journal import database
from engine.journal.database import Place, Schema, SqliteFile

T = TypeVar("T")
_place_of = database.place_of


class OnServer:
    """One test's cells on the server: which schema stands for which path, and what is open there."""

    def __init__(self) -> None:
        self.server = postgres.shared()
        self._schemas: dict[Path, Schema] = {}
        self.opened: list[Any] = []

    def place(self, path: Path) -> Schema:
        """The schema that stands for a path: always the same."""
        whole = Path(os.path.abspath(path))
        if whole not in self._schemas:
            self._schemas[whole] = self._schema(hashlib.sha256(str(whole).encode()).hexdigest()[:24])
        return self._schemas[whole]

    def fresh(self) -> Schema:
        """A new schema with the tables of a journal."""
        from engine.journal.postgres_store import prepare

        found = _place_of(self.server.cell())
        assert isinstance(found, Schema)
        prepare(found, 0)
        return found

    def _schema(self, name: str) -> Schema:
        found = _place_of(f"{self.server.url()}&schema=f{name}")
        assert isinstance(found, Schema)
        return found

    def end(self) -> None:
        for each in reversed(self.opened):
            with contextlib.suppress(Exception):  # a test may have closed it, or ended its server
                each.close()


_here: OnServer | None = None
"""What is in place now; None: paths are SQLite's files."""


def place_of(where: str | Path | Place, schema: str = database.SCHEMA) -> Place:
    """As `engine.journal.database.place_of`; where a server is in place, a file is a schema of it."""
    found = _place_of(where, schema)
    return _here.place(found.path) if _here is not None and isinstance(found, SqliteFile) else found


def kept(path: Path) -> Path | str:
    """What to tell a child process or the verifier, which know nothing of this, to open what `path` is here: the path,
    or a URL."""
    place = place_of(path)
    return f"{place.conninfo}&schema={place.name}" if isinstance(place, Schema) else path


def literal(content: bytes) -> str:
    """Bytes, as the database of this test writes them in a statement."""
    return f"'\\x{content.hex()}'::bytea" if is_server() else f"x'{content.hex()}'"


def is_server() -> bool:
    """Whether what a test opens is on a server now."""
    return _here is not None


class Rows:
    """As `engine.journal.event_journal.Memory`, on the server."""

    def __init__(self) -> None:
        from engine.journal.postgres_store import PostgresStore

        assert _here is not None
        self._store = PostgresStore(_here.fresh(), 0)
        _here.opened.append(self._store)

    def transact(self, change: Callable[[Connection], T]) -> T:
        with self._store.writing() as connection:
            return change(connection)

    def look(self, read: Callable[[Connection], T]) -> T:
        return self._store.look(read)

    def close(self) -> None:
        self._store.close()


@contextlib.contextmanager
def on_server(*, durable: bool) -> Iterator[None]:
    """Have what is opened meanwhile on the server, and all of it closed in the end. `durable`: also the journals of
    cells that a test has in memory, and not just the rows beside them."""
    global _here
    from engine import control
    from engine.journal import event_journal, side_tables
    from engine.journal.postgres_store import prepare
    from runbooks.audit import reader

    made_reader = reader.AuditReader.__init__
    made_records, open_engine = side_tables.Records.__init__, control.Engine.open.__func__  # type: ignore[attr-defined]
    open_journal = event_journal._opened

    def opened(place: Place, *more: Any) -> Any:
        store = open_journal(place, *more)
        here.opened.append(store)
        return store

    def read(self: reader.AuditReader, *arguments: Any) -> None:
        made_reader(self, *arguments)
        here.opened.append(self)

    def keep(self: side_tables.Records, where: Any, *more: Any, **named: Any) -> None:
        place = here.fresh() if where is None else place_of(where)
        if where is not None and isinstance(place, Schema):
            prepare(place, 0)
        made_records(self, place, *more, **named)
        here.opened.append(self)

    def open_(cls: type[control.Engine], path: Any, **named: Any) -> control.Engine:
        if path is None and durable and f"{os.sep}tests{os.sep}" in sys._getframe(1).f_code.co_filename:
            path = here.fresh()
        engine: control.Engine = open_engine(cls, path, **named)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        here = _here = OnServer()
        patch.setattr(event_journal, "_opened", opened)
        patch.setattr(side_tables.Records, "__init__", keep)
        patch.setattr(reader.AuditReader, "__init__", read)
        patch.setattr(control.Engine, "open", classmethod(open_))
        patch.setattr(control, "Memory", Rows)
        try:
            yield
        finally:
            here.end()
            _here = None


def refuse_to_run() -> None:
    """Say why no test can run on a server here, where that was asked for."""
    if reason := postgres.why_not():
        raise pytest.UsageError(f"--database postgres: {reason}")


def install() -> None:
    """Have every module of the product take this `place_of`."""
    database.place_of = place_of
