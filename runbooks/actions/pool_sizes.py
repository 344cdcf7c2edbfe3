"""Sizes of pools as plans count and tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbooks.plans.amounts import utc

if TYPE_CHECKING:
    from engine.elasticity.scaling_report import PoolSize

SHOWN = 6
"""Entries of a schedule that are spelled out."""
Schedule = tuple[tuple[int, int], ...]
"""(cell ms, nodes from then on), by time."""


def nodes_of(size: PoolSize) -> int:
    """Nodes that a pool has or has on order, whatever their state."""
    return size.ready + size.booting + size.other + size.ordered


def nodes_now(size: PoolSize) -> str:
    """As in "4 nodes, 2 more boot, 1 more on order"."""
    there = size.ready + size.other
    more = [f"{count:,} more {what}" for count, what in ((size.booting, "boot"), (size.ordered, "on order")) if count]
    return ", ".join([f"{there:,} node{'s' if there != 1 else ''}", *more])


def schedule_words(targets: Schedule) -> str:
    """As in "6 nodes from 2026-03-01 08:00:00 UTC, 0 from …"."""
    told = [f"{nodes:,}{' nodes' if not i else ''} from {utc(at_ms)}" for i, (at_ms, nodes) in enumerate(targets)]
    more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    return f"{', '.join(told[:SHOWN])}{more}" if told else "nothing set"


def floors(was: Schedule, to: Schedule) -> list[tuple[int, int]]:
    """(nodes that were set, nodes that shall be set) from each time of either schedule on."""
    return [(floor(was, at_ms), floor(to, at_ms)) for at_ms in sorted({at_ms for at_ms, _ in (*was, *to)})]


def floor(schedule: Schedule, at_ms: int) -> int:
    """Nodes set for that time: the last entry that has begun by then."""
    return max(((begins_ms, nodes) for begins_ms, nodes in schedule if begins_ms <= at_ms), default=(0, 0))[1]
