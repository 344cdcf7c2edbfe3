"""What is asked of the audit and what it answers: plain structs, for every face."""

from __future__ import annotations

import msgspec

FOR_MACHINES = frozenset(("rows", "signed", "of", "body"))
"""Of a record's data, what is there to be checked and too long for a line."""
MAX_ROWS = 1_000
"""Records of a page."""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records. What is given must all hold."""

    proposal: str = ""
    actor: str = ""
    """Subject."""
    type: str = ""
    """A type, or the part before the dot, as in "exec"."""
    since_ms: int = 0
    """Wall clock, Unix ms."""
    seq: int = 0
    """This record alone; 0: any."""
    before: int = 0
    """Records with a smaller number alone: the page before; 0: the newest."""
    limit: int = 100
    """At most MAX_ROWS."""


class AuditText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is kept apart."""

    ref: str
    text: str | None
    """None: erased."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A record. The fields are those of `runbooks.audit.log.Audit.append`."""

    seq: int
    at_ms: int
    type: str
    subject: str
    kind: str
    account: str
    signed: bool
    key: str
    session: str
    proposal: str
    revision: int
    step: str
    plan: str
    policy: str
    data: dict[str, object]
    private: tuple[AuditText, ...]
    hash: str
    """Hex."""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records, oldest first."""

    rows: tuple[AuditRow, ...]
    matched: int
    """Records that the question meets, `before` and `limit` left aside."""
    last: int
    """Number of the newest record of all."""


class AuditState(msgspec.Struct, frozen=True, kw_only=True):
    """How the log stands."""

    log: str
    last: int
    checkpoint: str
    """The newest, as a signed note; empty while there is none."""
    covered: int
    """Records that it is over."""
    key: str
    """Public key that signs now, as signed notes have it; `none` where nothing is signed."""
    key_file: str
    anchors: tuple[str, ...]
    error: str
    """Why the last checkpoint or its anchors failed; empty when all is well."""


class AuditRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records to export."""

    first: int = 0
    """0: the oldest."""
    last: int = 0
    """0: the newest of which there is a checkpoint."""
    private: bool = True
    """With the texts that are kept apart."""
    after: int = 0
    """What is wanted next: the part behind this record; 0: the first part."""


class AuditPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines of an export, to be written one part after the other."""

    lines: str
    first: int
    last: int
    after: int
    """To be asked for, with the two before, in the next part; 0: that was all."""


class AuditErased(msgspec.Struct, frozen=True, kw_only=True):
    """A text that was kept apart and is no more."""

    ref: str
    record: int
    """Number of the record that says so."""
    scrubbed: bool
    """It is out of the database's own log too; else somebody is reading, and it goes with time."""
