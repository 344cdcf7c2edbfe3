"""The one thing a face holds: a Client. Local (an Engine in this process) and Remote (HTTP over a Unix socket or TCP)
answer the same calls with the same types and raise the same errors.

Calls block; the console makes them on worker threads. This module loads neither httpx nor the engine until one is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.errors import RefusedError

if TYPE_CHECKING:
    from engine.commands import AnyCommand, Receipt
    from engine.query import Changes, NodeDetail, Overview, Page, Query, WorkloadDetail
    from runbooks.plan import ActionName, Outcome, Proposal


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What `muster doctor` and the console's header say of the engine."""

    name: str
    cell: str
    version: int
    now_ms: int
    """Cell time, Unix milliseconds UTC."""
    speed: float
    """Cell milliseconds per wall millisecond; 1 is real time."""
    paused: bool
    pid: int
    journal: str
    journal_error: str
    """Empty while the journal can be written; else what is wrong and what to do."""
    software: str
    """Version of Muster that serves."""


class Client(Protocol):
    """What every face may ask. Errors are `engine.errors.MusterError` and its kinds, nothing else."""

    read_only: bool

    def health(self) -> Health: ...
    def overview(self) -> Overview: ...
    def query(self, query: Query) -> Page: ...
    def workload(self, workload_id: str) -> WorkloadDetail: ...
    def node(self, node_id: str) -> NodeDetail: ...

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        """What happened after state version `after`; waits up to `wait_s` seconds for something to happen."""
        ...

    def command(self, command: AnyCommand) -> Receipt:
        """Submissions and definitions. Actions on what exists go through propose and approve."""
        ...

    def propose(self, action: ActionName, targets: tuple[str, ...], reason: str = "") -> Proposal:
        """Resolve, simulate on a fork and show. Changes nothing."""
        ...

    def approve(self, proposal_id: str, digest: str) -> Outcome:
        """Execute exactly the plan whose digest was shown."""
        ...

    def close(self) -> None: ...


def refuse_read_only() -> RefusedError:
    """The error both clients raise for any change when read-only."""
    return RefusedError("this session is read-only", "Start without --readonly to act")
