"""Runbooks as people see them: what a client is told of the shelf, of one runbook, and of a run."""

from __future__ import annotations

from typing import Literal

import msgspec

from runbooks.people.identity import Signed
from runbooks.plans.checks import Finding
from runbooks.plans.typed_plan import Proposal

Status = Literal["draft", "approved", "changed", "retired", "faulty"]
"""`changed`: another file of that id was approved, this one is a draft again. `faulty`: it has problems."""


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a file."""

    where: str
    """As in "drain.md:12"."""
    rule: str
    problem: str
    remedy: str


class RunbookLine(msgspec.Struct, frozen=True, kw_only=True):
    """One file on the shelf."""

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
    """One runbook whole."""

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
    """What a run would do, or was proposed to do."""

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
