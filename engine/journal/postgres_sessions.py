"""Sessions of a PostgreSQL server: how each kind is set, and what its errors mean. Needs the extra `postgres`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import Engine as Database
from sqlalchemy import create_engine
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from engine.journal.database import Schema, driver, error_line, understood
from engine.model.errors import JournalBusy, JournalCorrupt, JournalError

Kind = Literal["writer", "history", "reader", "lease"]
"""The journal's one writer; rows beside it that may lose their last moments; reading; who may write."""

MIN_SERVER = 120_000
"""PostgreSQL 12."""
SILENT_S = 5
"""A server that says nothing for so long is taken for gone."""
_CONNECTION: dict[str, Any] = {
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENT_S * 1000,
}
"""Where the URL says nothing else."""
_ISOLATION = {"default_transaction_isolation": "read committed"}
"""Whatever the database's owner likes: the fence is what keeps writers apart, and rows that it guards are locked."""
_SESSION: dict[Kind, dict[str, str]] = {
    # In the midst of a transaction a plan may be rehearsed, which takes as long as it takes. Who takes over does not
    # wait for a session that was forgotten there: it ends it.
    "writer": {
        "statement_timeout": "60s",
        "lock_timeout": "3s",
        "idle_in_transaction_session_timeout": "60s",
    },
    "history": {
        "statement_timeout": "5s",
        "lock_timeout": "2s",
        "idle_in_transaction_session_timeout": "5s",
        "synchronous_commit": "off",
    },
    "reader": {
        "statement_timeout": "60s",
        "idle_in_transaction_session_timeout": "60s",
        "default_transaction_read_only": "on",
        "default_transaction_isolation": "repeatable read",
    },
    "lease": {"statement_timeout": "3s", "lock_timeout": "2s", "idle_in_transaction_session_timeout": "3s"},
}
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25006", "25P04", "55P03", "53300")
"""Beginnings of the codes of errors after which the next session may do better: the connection failed, the server
stops, starts, has become a replica or has no session left, or an older session has not let go yet."""
_AT_THE_DOOR = (
    ("too many clients", "53300"),
    ("connection slots are reserved", "53300"),
    ("too many connections", "53300"),
    ("session is read-only", "25006"),
    ("hot standby mode", "25006"),
    ("the database system is", "57P03"),
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("not permitted to log in", "28000"),
)
"""What a server says, in English, to who is not let in yet, and its SQLSTATE: libpq passes on the words alone."""
_NOT_THERE = re.compile(r'FATAL:  (role|database) "[^"]*" does not exist')


def session(place: Schema, kind: Kind, owner: str = "") -> Any:
    """A new connection of the driver, set as that kind is. Raises what the driver raises."""
    psycopg = driver()
    given = understood(place.conninfo)
    options = {name: value for name, value in _CONNECTION.items() if name not in given}
    # Also before a server that keeps texts as bytes of any kind: it shall be refused by name, not be misread.
    options["client_encoding"] = "UTF8"
    if "target_session_attrs" not in given:
        options["target_session_attrs"] = "read-write"
    made = psycopg.connect(
        place.conninfo, autocommit=True, **options, application_name=f"muster {kind} {owner}".strip()
    )
    try:
        settings = {"search_path": _quoted(place.name), "timezone": "UTC", **_ISOLATION, **_SESSION[kind]}
        if kind == "writer" and made.execute("SHOW synchronous_commit").fetchone()[0] in ("off", "local"):
            settings["synchronous_commit"] = "on"
        words = ", ".join(["set_config(%s, %s, false)"] * len(settings))
        made.execute(f"SELECT {words}", [part for setting in settings.items() for part in setting])
        made.autocommit = False
    except BaseException:
        made.close()
        raise
    return made


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def check_server(connection: Any, place: Schema) -> None:
    """Raises JournalError for a server to which nothing durable can be entrusted."""
    version = connection.info.server_version
    if version < MIN_SERVER:
        raise JournalError(
            f"{place} is PostgreSQL {version // 10_000}", f"Use PostgreSQL {MIN_SERVER // 10_000} or newer"
        )
    fsync, encoding = connection.execute(
        "SELECT current_setting('fsync'), current_setting('server_encoding')"
    ).fetchone()
    if fsync != "on":
        raise JournalError(
            f"{place} does not write to its disk what it acknowledges (fsync = {fsync})", "Set fsync = on there"
        )
    if encoding != "UTF8":
        raise JournalError(f"{place} keeps texts as {encoding}", "Use a database whose encoding is UTF8")


def pool(place: Schema, kind: Kind, make: Callable[[], Any] | None = None, *, size: int = 1) -> Database:
    """Connections of one kind, at most `size` at a time. `make` makes one in place of `session`."""
    return create_engine(
        "postgresql+psycopg://",
        creator=make or (lambda: session(place, kind)),
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=0,
        pool_timeout=10,
        pool_pre_ping=kind in ("reader", "history"),
    )


def code_of(error: BaseException) -> str:
    """The SQLSTATE of an error, of the driver or as SQLAlchemy passes it on; empty where the server said none."""
    told = getattr(error, "orig", None) or error
    code = getattr(told, "sqlstate", None) or ""
    return code if code or not isinstance(told, driver().OperationalError) else _code_at_the_door(str(told))


def _code_at_the_door(text: str) -> str:
    if found := _NOT_THERE.search(text):
        return "3D000" if found[1] == "database" else "28000"
    return next((code for words, code in _AT_THE_DOOR if words in text), "")


def lost(error: BaseException) -> bool:
    """Return whether the session ended, so that another may do better."""
    code = code_of(error)
    if code:
        return code.startswith(_LOST)
    psycopg = driver()
    return isinstance(getattr(error, "orig", None) or error, psycopg.OperationalError | psycopg.InterfaceError)


def is_undone(error: BaseException) -> bool:
    """Return whether the server said that what it was asked for is not done, so that nobody need look."""
    return code_of(error) in ("25006", "53300", "55P03")


_TOLD: tuple[tuple[str, str, str], ...] = (
    ("53100", "its disk is full", "Free some space there; nothing acknowledged is lost"),
    ("53300", "it has no connection left", "Raise max_connections there, or close other sessions"),
    ("28", "it does not let this user in", "Check user and password; see docs/databases.md"),
    ("3D000", "there is no such database", "Make it: createdb NAME"),
    ("42501", "this user may not do that there", "Grant it the schema: see docs/databases.md"),
    ("55P03", "something there is locked by another session", "End that session; see `muster database show`"),
    ("57P03", "it starts or stops", "Wait until it serves again: see its log"),
    ("57014", "a statement took too long", "See what holds it up: pg_stat_activity"),
    ("25006", "it is a replica, or was made read-only", "Name the primary too, or wait until this one takes writes"),
)
"""Beginning of a SQLSTATE, what that means, what to do."""


def refused(place: Schema, doing: str, error: BaseException) -> JournalError:
    """Translate the server's error into one of ours."""
    if isinstance(error, PoolTimeout):
        return JournalError(f"cannot {doing} journal {place}: the sessions of this process are all taken", "Try again")
    code = code_of(error)
    if code in ("42P01", "42703", "3F000"):
        return JournalCorrupt(
            f"journal {place} is damaged: {error_line(error)}",
            "Nothing was changed. Restore the database from a backup, or name another schema to start an empty cell",
        )
    for start, what, remedy in _TOLD:
        if code.startswith(start):
            kind = JournalBusy if code == "55P03" else JournalError
            return kind(f"cannot {doing} journal {place}: {what} ({error_line(error)})", remedy)
    remedy = "Check that the server runs and can be reached"
    return JournalError(f"cannot {doing} journal {place}: {error_line(error)}", remedy)
