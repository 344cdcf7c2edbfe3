"""Every table of a cell's database, by whoever writes it: what a copy takes along."""

from __future__ import annotations

from sqlalchemy import MetaData, Table

from console.auth import token_store
from console.server import idempotency
from engine.journal import tables as journal_tables
from engine.journal.schema_migrations import MIGRATION
from recommender.findings import tables as shelf_tables
from recommender.forecasts import forecast_records
from recommender.history import tables as telemetry_tables
from runbooks.audit import tables as audit_tables
from runbooks.drafts import store as draft_books
from runbooks.gate import runbook_approvals
from runbooks.gate import store as books
from runbooks.models import limits, pseudonyms
from runbooks.policy import tables as policy_tables

_OTHERS: tuple[MetaData, ...] = (
    books.METADATA,
    audit_tables.METADATA,
    audit_tables.MOVED_METADATA,
    policy_tables.METADATA,
    runbook_approvals.METADATA,
    draft_books.METADATA,
    limits.METADATA,
    pseudonyms.METADATA,
    telemetry_tables.META,
    shelf_tables.META,
    forecast_records.META,
    token_store.METADATA,
    idempotency.METADATA,
)


def tables() -> list[Table]:
    own = [*journal_tables.TABLES, journal_tables.table_of(journal_tables.Estimate), MIGRATION]
    return [*own, *(table for metadata in _OTHERS for table in metadata.sorted_tables)]
