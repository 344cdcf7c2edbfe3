"""Answers to clients about runbooks, intents to another scheduler, and the audit.

These are plain structs; shell, console and server import them at their start, so nothing heavy is loaded here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.external_cells import FarLook, IntentView, IntentWord, SchedulerName
from runbooks.plans.checks import Finding
from runbooks.plans.identity import Signed
from runbooks.plans.typed_plan import Act, Proposal

Status = Literal["draft", "approved", "changed", "retired", "faulty"]
"""`changed`: another file of that id was approved, this one is a draft again. `faulty`: it has problems."""


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a file."""

    where: str
    """As in "drain.md:12"."""
    rule: str
    problem: str
    remedy: str


class RunbookLine(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the runbook registry."""

    id: str
    """Of its front matter; the name of the file where that cannot be read."""
    version: int
    title: str
    owner: str
    status: Status
    note: str
    """Why it has that status: who approved it, what is missing, the first problem."""
    source: str
    """"built in", or the path of the file."""
    sha256: str
    problems: int = 0
    signed: bool = False
    """A vote on it must be signed."""


class InputLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: str
    help: str
    bounds: str
    """In words: how many, from what to what, required or not."""


class RunbookView(msgspec.Struct, frozen=True, kw_only=True):
    """A runbook in full."""

    line: RunbookLine
    inputs: tuple[InputLine, ...]
    when: tuple[str, ...]
    limits: str
    steps: tuple[str, ...]
    """Each with its checks and its way back, in words."""
    prose: str
    """Untrusted text."""
    votes: tuple[str, ...]
    problems: tuple[FileProblem, ...]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """An input with its value."""

    name: str
    values: tuple[str, ...]
    source: str
    """Given, default, or selected: in words."""


class RunbookRun(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run, previewed or proposed."""

    line: RunbookLine
    when: tuple[Finding, ...]
    applies: bool
    inputs: tuple[Chosen, ...]
    skipped: tuple[str, ...] = ()
    """Steps that have nothing to act on."""
    dry_run: bool
    proposal: Proposal | None = None
    """None: it cannot be done now, `refused` says why."""
    refused: str = ""
    rollback: tuple[str, ...] = ()
    """How each step is taken back, the last one first."""
    checks: tuple[str, ...] = ()
    """What is looked at after each step."""


class RunbookAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that somebody asks for."""

    id: str
    inputs: dict[str, str] = {}
    """Input -> text; several ids with commas between."""
    dry_run: bool = True
    reason: str = ""
    sha256: str = ""
    """Of the file that was looked at; empty: whatever it is now."""


class RunbookVote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's word on a version, by the SHA-256 of its file."""

    id: str
    sha256: str = ""
    comment: str = ""
    signed: Signed | None = None


MIN_REASON = 10
"""Characters in which must be said what was found."""


class IntentAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer on an intent in doubt."""

    number: int
    outcome: Literal["done", "undone", "retry"]
    """retry: carry it again; for submissions alone."""
    reason: str


class IntentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of an intent. It holds names and texts of the other scheduler: untrusted."""

    version: int
    now_ms: int
    view: IntentView
    scheduler: SchedulerName = "Slurm"
    """Who was asked."""
    wants: tuple[str, ...]
    """What was asked for, in lines."""
    words: tuple[IntentWord, ...]
    """What was said of it, the oldest first."""
    proposal: str = ""
    """The proposal whose step left it; empty for a submission, and where none is found."""
    by: str = ""
    """Subject of who asked for it; empty where that is on no record."""
    agreed: tuple[str, ...] = ()
    """Subjects of who voted for it."""
    act: Act | None = None
    """What would have the same done once more; None for a submission, which is carried again as it is."""
    far: FarLook | None = None
    """None where the other scheduler cannot be asked."""


FOR_MACHINES = frozenset(("rows", "signed", "of", "body"))
"""Of a record's data, what is there to be checked and too long for a line."""
MAX_ROWS = 1_000
"""Records of a page."""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter of records. All given conditions must hold."""

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
    """The state of the log."""

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
    """A range of records to export."""

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
