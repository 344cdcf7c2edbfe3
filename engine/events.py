"""Everything that can happen: one record each, and the only way state changes.

`Tick` sets the cell's clock; the events after it happen at that time. Rows (of workloads, nodes) are indexes into the
state's columns, given in creation order, so they mean the same at every replay. Node lists are packed int32, because
one gang may bind 130,000 of them.
"""

from __future__ import annotations

import msgspec

from engine.model import NodeSpec, Policy, PoolSpec, PriorityClassSpec, QueueSpec, WorkloadSpec


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all events. Positional on the wire: append fields, never reorder them."""


class Tick(Event, frozen=True, array_like=True, gc=False, tag=0):
    at_ms: int


class CellNamed(Event, frozen=True, array_like=True, gc=False, tag=1):
    name: str


class PoolAdded(Event, frozen=True, array_like=True, gc=False, tag=2):
    pool: PoolSpec


class NodesAdded(Event, frozen=True, array_like=True, gc=False, tag=3):
    nodes: tuple[NodeSpec, ...]


class QueueAdded(Event, frozen=True, array_like=True, gc=False, tag=4):
    queue: QueueSpec


class PriorityClassAdded(Event, frozen=True, array_like=True, gc=False, tag=5):
    priority_class: PriorityClassSpec


class PolicySet(Event, frozen=True, array_like=True, gc=False, tag=6):
    policy: Policy


class Submitted(Event, frozen=True, array_like=True, gc=False, tag=7):
    """Takes the next workload row."""

    workload: WorkloadSpec


class GroupPlacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the tasks of one group are: entry i puts `counts[i]` tasks on `nodes[i]`, using `devices[i]`."""

    nodes: bytes
    """int32 node rows."""
    counts: bytes
    """int32 tasks on that node."""
    devices: bytes = b""
    """int64 bit mask of devices used on that node; empty when the group asks for no GPU."""


class Placed(Event, frozen=True, array_like=True, gc=False, tag=8):
    """A gang is bound and its quota charged, all at once."""

    row: int
    groups: tuple[GroupPlacement, ...]


class Started(Event, frozen=True, array_like=True, gc=False, tag=9):
    """The executor says that every task runs."""

    row: int


class Finished(Event, frozen=True, array_like=True, gc=False, tag=10):
    row: int


class Failed(Event, frozen=True, array_like=True, gc=False, tag=11):
    """The work itself failed: consumes an attempt."""

    row: int


class Cancelled(Event, frozen=True, array_like=True, gc=False, tag=12):
    row: int


class Held(Event, frozen=True, array_like=True, gc=False, tag=13):
    row: int


class Released(Event, frozen=True, array_like=True, gc=False, tag=14):
    row: int


class Requeued(Event, frozen=True, array_like=True, gc=False, tag=15):
    """Back to the queue at its original age; work kept to the last checkpoint."""

    row: int
    cause: int
    """Index into REQUEUE_CAUSES."""


REQUEUE_CAUSES = ("asked", "drain", "node lost")


class NodesChanged(Event, frozen=True, array_like=True, gc=False, tag=16):
    nodes: bytes
    """int32 node rows."""
    state: int
    """A NodeState."""


class AuditEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who had which plan executed. Written in the same transaction as the effect."""

    at_wall_ms: int
    actor: str
    action: str
    digest: str
    plan: bytes
    """Canonical JSON of the plan, the bytes the digest was made from."""


class Audited(Event, frozen=True, array_like=True, gc=False, tag=17):
    entry: AuditEntry


AnyEvent = (
    Tick
    | CellNamed
    | PoolAdded
    | NodesAdded
    | QueueAdded
    | PriorityClassAdded
    | PolicySet
    | Submitted
    | Placed
    | Started
    | Finished
    | Failed
    | Cancelled
    | Held
    | Released
    | Requeued
    | NodesChanged
    | Audited
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyEvent])


def encode(events: list[AnyEvent]) -> bytes:
    """One journal batch."""
    return _encoder.encode(events)


def decode(payload: bytes) -> list[AnyEvent]:
    """The batch back. Raises msgspec.DecodeError when the bytes are not what `encode` wrote."""
    return _decoder.decode(payload)
