"""What is wrong in a cell, as far as it shows now: waits by their cause, nodes out of use, pools that cannot grow.

Read off a fork of the live cell, on the drafter's own thread: nothing here waits for the engine, nor the engine for it.
A symptom says what it is, what it is about and how bad it is; what is to be done about it is `runbooks.draft_rules`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine.explain import ON_HOLD, SUSPENDED
from engine.model import WorkloadState

if TYPE_CHECKING:
    from engine.agents import AgentsReport
    from engine.control import Engine

MOST_LOTS = 400
"""Kinds of like waiting workloads whose reason is worked out: those that have waited longest."""
LEAST_WAIT_MS = 10 * 60_000
"""Nothing that has waited for less is called late, unless somebody says what was promised."""


class Lot(msgspec.Struct, frozen=True, kw_only=True):
    """Like workloads that wait: of one queue, priority and request."""

    id: str
    """The one that has waited longest."""
    row: int
    count: int
    queue: str
    tenant: str
    token: str
    """Primary reason (`engine.explain`)."""
    wait_ms: int
    priority: int
    tasks: int
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    """Of one workload, all its tasks."""


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is out of order."""

    kind: str
    """A row of `runbooks.draft_rules.RULES`."""
    of: str
    """Kind of its subject: cell, queue, pool, node, workload, tenant, zone, reservation, budget."""
    subject: str
    weight: int
    """How bad it is beside others: more is worse."""
    text: str
    """As a person reads it."""
    lots: tuple[Lot, ...] = ()
    ids: tuple[str, ...] = ()
    """Other objects that it is about, such as nodes."""
    words: tuple[str, ...] = ()
    """What people call it."""


class Scene:
    """One look at a cell: `engine` is a fork on which everything has started that would start anyway."""

    def __init__(self, engine: Engine, agents: AgentsReport | None = None) -> None:
        self.engine = engine
        self.state = engine.state
        self.agents = agents
        self.now_ms = engine.now_ms
        self.lots = waiting_lots(engine)

    def queue_lots(self, queue: str) -> list[Lot]:
        """Those of a queue, and of all below it."""
        tree = self.state.queues
        row = tree.row(queue)
        names = {tree.specs[leaf].name for leaf, path in enumerate(tree.path) if row in path}
        return [lot for lot in self.lots if lot.queue in names]


def waiting_lots(engine: Engine) -> list[Lot]:
    """Queued workloads by what they wait for, those that have waited longest first."""
    state = engine.state
    w, queues = state.workloads, state.queues
    firsts: list[tuple[int, int]] = []
    for group in state.pending.groups.values():
        found: dict[int, list[int]] = {}
        for row in group.rows[group.front :]:
            found.setdefault(w.cls[row], []).append(row)
        firsts += [(rows[0], len(rows)) for rows in found.values()]
    firsts.sort()
    lots = []
    for row, count in firsts[:MOST_LOTS]:
        cpu, memory, gpu, _ = w.class_at(row).request
        lots.append(
            Lot(
                id=w.ids[row], row=row, count=count, queue=queues.specs[w.queue[row]].name,
                tenant=w.tenants.names[w.tenant[row]], token=engine.reader.explainer.token(row),
                wait_ms=engine.now_ms - w.submitted[row], priority=w.value_at(row), tasks=w.class_at(row).tasks,
                cpu_milli=cpu, memory_mib=memory, gpu_milli=gpu,
            )
        )  # fmt: skip
    return sorted(lots, key=lambda lot: (-lot.wait_ms, lot.row))


def waits(scene: Scene, late_ms: int) -> list[Symptom]:
    """One symptom for each queue and cause of waits that are too long."""
    found: dict[tuple[str, str], list[Lot]] = {}
    for lot in scene.lots:
        if lot.wait_ms > late_ms:
            found.setdefault((lot.queue, lot.token), []).append(lot)
    symptoms = []
    for (queue, token), lots in found.items():
        count, longest = sum(lot.count for lot in lots), max(lot.wait_ms for lot in lots)
        symptoms.append(
            Symptom(
                kind=f"wait_{token}", of="queue", subject=queue, weight=longest // 60_000 * max(1, len(lots)),
                text=f"{count:,} of queue {queue} wait, the longest {longest // 60_000} min: {token}",
                lots=tuple(lots), words=("wait", "queue", "slo", "pending"),
            )
        )  # fmt: skip
    return symptoms


PARKED = {WorkloadState.HELD: ON_HOLD, WorkloadState.SUSPENDED: SUSPENDED}
