"""Every table of a cell's database, by whoever writes it: what a copy takes along."""

from __future__ import annotations

from sqlalchemy import MetaData, Table

from console import idempotency, tokens
from engine import journal_tables
from engine.migrations import MIGRATION
from recommender import forecast_rows, shelf_tables, telemetry_tables
from runbooks import approvals, audit_tables, books, draft_books, model_limits, policy_tables, pseudonyms

_OTHERS: tuple[MetaData, ...] = (
    books.METADATA,
    audit_tables.METADATA,
    audit_tables.MOVED_METADATA,
    policy_tables.METADATA,
    approvals.METADATA,
    draft_books.METADATA,
    model_limits.METADATA,
    pseudonyms.METADATA,
    telemetry_tables.META,
    shelf_tables.META,
    forecast_rows.META,
    tokens.METADATA,
    idempotency.METADATA,
)


def tables() -> list[Table]:
    own = [*journal_tables.TABLES, journal_tables.table_of(journal_tables.Estimate), MIGRATION]
    return [*own, *(table for metadata in _OTHERS for table in metadata.sorted_tables)]
