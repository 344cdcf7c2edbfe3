"""Where the shelf of suggestions is kept: two tables beside the cell's journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    select,
)

from engine.journal.database import put
from engine.journal.side_tables import Records
from recommender.findings.queries import Followed
from recommender.findings.suggestion_store import MAX_FOLLOWED, SuggestionRecord

T = TypeVar("T")

META = MetaData()
STANDING = Table(
    "suggestion",
    META,
    Column("id", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
FOLLOWED = Table(
    "suggestion_promise",
    META,
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String, primary_key=True),
    Column("way", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
DROP_FOLLOWED = delete(FOLLOWED).where(
    FOLLOWED.c.at_ms == bindparam("at"), FOLLOWED.c.id == bindparam("of"), FOLLOWED.c.way == bindparam("by")
)

_encode = msgspec.json.Encoder().encode


class SuggestionRows:
    """A shelf's keeper over `Records`. Raises RecordsError. A row that does not decode, as from another version, is
    left out."""

    def __init__(self, records: Records) -> None:
        self._records = records
        records.create([STANDING, FOLLOWED])

    def load(self) -> tuple[list[SuggestionRecord], list[Followed]]:
        with self._records.reading() as connection:
            standings = connection.execute(select(STANDING.c.body).order_by(STANDING.c.id)).scalars().all()
            newest = select(FOLLOWED.c.body).order_by(FOLLOWED.c.at_ms.desc(), FOLLOWED.c.id).limit(MAX_FOLLOWED)
            followed = connection.execute(newest).scalars().all()
        return _decoded(standings, SuggestionRecord), _decoded(followed, Followed)[::-1]

    def save(
        self, standings: Sequence[SuggestionRecord], followed: Sequence[Followed], void: Sequence[Followed] = ()
    ) -> None:
        standing_rows = [{"id": each.id, "body": _encode(each)} for each in standings]
        followed_rows = [
            {"at_ms": each.at_ms, "id": each.id, "way": each.way, "body": _encode(each)} for each in followed
        ]

        void_rows = [{"at": each.at_ms, "of": each.id, "by": each.way} for each in void]

        def saved(connection: Connection) -> None:
            if void_rows:
                connection.execute(DROP_FOLLOWED, void_rows)
            if standing_rows:
                put(connection, STANDING, standing_rows)
            if followed_rows:
                put(connection, FOLLOWED, followed_rows)

        self._records.write(saved)

    def forget(self, ids: Sequence[str]) -> None:
        gone = list(ids)
        self._records.write(lambda connection: connection.execute(delete(STANDING).where(STANDING.c.id.in_(gone))))


def _decoded(bodies: Sequence[bytes], kind: type[T]) -> list[T]:
    found = []
    for body in bodies:
        try:
            found.append(msgspec.json.decode(body, type=kind))
        except msgspec.DecodeError:
            continue
    return found
