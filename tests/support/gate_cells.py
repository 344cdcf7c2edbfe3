"""Small cells on which plans are tried, wall time that moves when told, and an engine whose effects are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.control import Engine
from engine.model.commands import Cordon, Hold, Submit
from engine.model.errors import MusterError
from engine.model.events import AuditEntry
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec
from runbooks.plans.typed_plan import Proposal, QueueChange

MINUTE = 60_000
HOUR = 3_600_000
START = 1_800_000_000_000
"""Wall time, Unix ms, at which every test begins."""


class Clock:
    """Wall time that moves when told."""

    def __init__(self, now_ms: int = START) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Watched:
    """An engine whose audited commands are counted, and whose journal can be made to fail."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.executed: list[AuditEntry] = []
        self.failure: MusterError | None = None

    def command(self, command: Any, *, audit: AuditEntry | None = None, beside: Any = None) -> Any:
        if self.failure is not None:
            raise self.failure
        receipt = self.engine.command(command, audit=audit, beside=beside)
        if audit is not None:
            self.executed.append(audit)
        return receipt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def state_of(self, workload_id: str) -> str:
        return self.engine.workload(workload_id).state


def work(id_: str, gpus: int = 8, run_ms: int = 10 * HOUR, **fields: Any) -> WorkloadSpec:
    """One task that takes a whole node, unless told otherwise."""
    group = TaskGroup(request=Resources(cpu_milli=1000, gpu_milli=gpus * 1000))
    spec = {"id": id_, "queue": "q", "groups": (group,), "estimate_ms": run_ms, "simulated_runtime_ms": run_ms}
    return WorkloadSpec(**(spec | fields))


def nodes_of(count: int, queues: tuple[QueueSpec, ...] = (QueueSpec(name="q"),)) -> CellSpec:
    """A pool of nodes with 8 GPU each."""
    return CellSpec(
        pools=(PoolSpec(name="p", capacity=Resources(cpu_milli=64_000, memory_mib=1000, gpu_milli=8000)),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(count)),
        queues=queues,
    )


CELL = nodes_of(3)
WORK = ("r0", "r1", "w0", "w1", "h0")


def busy_engine(path: Path | None = None) -> Engine:
    """r0 on n0 and r1 on n1 have run an hour; n2 is cordoned; w0 and w1 wait; h0 is on hold."""
    engine = Engine.open(path, cell=CELL)
    engine.command(Cordon(ids=("n2",)))
    engine.command(Submit(workloads=tuple(work(id_) for id_ in WORK)))
    engine.command(Hold(ids=("h0",)))
    engine.advance(engine.now_ms + HOUR)
    return engine


def shared_engine() -> Engine:
    """Queues a and b under root have 8 GPU of their own each and borrow from each other, on three nodes of 8. a0, a1
    and b0 have run an hour or more; a2 waits for quota."""
    nominal = {"gpu_milli": 8000}
    queues = (
        QueueSpec(name="root", nominal=nominal),
        QueueSpec(name="a", parent="root", nominal=nominal),
        QueueSpec(name="b", parent="root", nominal=nominal, weight=2),
    )
    engine = Engine.open(None, cell=nodes_of(3, queues))
    for queue, names in (("a", ("a0",)), ("b", ("b0",)), ("a", ("a1", "a2"))):
        engine.command(Submit(workloads=tuple(work(name, queue=queue) for name in names)))
        engine.advance(engine.now_ms + HOUR)
    return engine


def effects(proposal: Proposal) -> dict[str, tuple[str, str]]:
    """Label -> (before, after)."""
    return {effect.label: (effect.before, effect.after) for effect in proposal.effects}


def change(watched: Watched, name: str, over: str = "refuse", **fields: Any) -> QueueChange:
    """From what a queue has to the same with other fields."""
    was = watched.engine.queue(name).spec
    return QueueChange(was=was, to=msgspec.structs.replace(was, **fields), over=over)  # type: ignore[arg-type]
