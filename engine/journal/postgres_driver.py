"""The driver of PostgreSQL, loaded where it is used, and what it reads in a URL. Needs the extra `postgres`."""

from __future__ import annotations

from typing import Any

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
    """What libpq reads in it. Raises SpecError, without telling what stood there: it may hold a password."""
    psycopg = driver()
    try:
        found: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise SpecError(
            "database", "is no URL that PostgreSQL's client understands", "Give postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    return found
