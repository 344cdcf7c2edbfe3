"""The audit over HTTP."""

from __future__ import annotations

import msgspec

from console.operations import Operation
from runbooks.audit_pages import (
    AuditErased,
    AuditPage,
    AuditPart,
    AuditQuery,
    AuditRange,
    AuditState,
)


class RedactBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ref: str
    reason: str


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked for needs no words."""


AUDIT = (
    Operation("GET", "/v1/audit", "How the audit log stands", lambda asked: asked.client.audit_state(),
              gives=AuditState),
    Operation("POST", "/v1/audit/page", "Records of the audit", lambda asked: asked.client.audit_page(asked.body),
              takes=AuditQuery, gives=AuditPage),
    # That a part was exported is a record too, also of an engine that is read-only.
    Operation("POST", "/v1/audit/part", "The next part of an export", lambda asked: asked.client.audit_part(asked.body),
              takes=AuditRange, gives=AuditPart, slow=True),
    Operation("POST", "/v1/audit/anchor", "A checkpoint now, to wherever checkpoints are remembered",
              lambda asked: asked.client.anchor_audit(), takes=NoBody, gives=AuditState, changes=True, slow=True),
    Operation("POST", "/v1/audit/rotate", "Another key signs the audit from now on",
              lambda asked: asked.client.rotate_audit_key(), takes=NoBody, gives=AuditState, changes=True),
    Operation("POST", "/v1/audit/redact", "Erase a text that the audit keeps apart",
              lambda asked: asked.client.redact_audit(asked.body.ref, asked.body.reason), takes=RedactBody,
              gives=AuditErased, changes=True),
)  # fmt: skip
