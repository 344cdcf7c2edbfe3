"""Cells in memory whose rows beside the events are in PostgreSQL. As a plugin of pytest it has every test of the gate,
the audit and the policies whose cell is in memory run on a real server:

    PYTHONPATH=tests/support python -m pytest -p rows_in_postgres tests/runbooks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import postgres
import pytest
from sqlalchemy import Connection

from engine.database import Schema, place_of
from engine.postgres_store import PostgresStore

T = TypeVar("T")


class Rows:
    """As `engine.journal.Memory`."""

    def __init__(self) -> None:
        place = place_of(postgres.new_url())
        assert isinstance(place, Schema)
        self._store = PostgresStore(place, 0)

    def transact(self, change: Callable[[Connection], T]) -> T:
        with self._store.writing() as connection:
            return change(connection)

    def look(self, read: Callable[[Connection], T]) -> T:
        with self._store.reading() as connection:
            return read(connection)

    def close(self) -> None:
        self._store.close()


@pytest.fixture(autouse=True)
def rows_in_postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Rows] = []

    def rows() -> Rows:
        made.append(Rows())
        return made[-1]

    monkeypatch.setattr("engine.control.Memory", rows)
    yield
    for each in made:
        each.close()
