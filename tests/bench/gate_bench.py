"""What the gate costs: proposing in large cells, from the last vote to the first effect, and a step beside what the
engine does by itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_bench
import msgspec
import twin_bench

from engine.control import Engine
from engine.model.commands import Release, Submit
from engine.model.list_queries import Query
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.composition import ForkTrial
from runbooks.gate.policy_versions import Policies
from runbooks.gate.run_limits import ByTier, PolicyLimits
from runbooks.plans.identity import THIS_ACCOUNT
from runbooks.plans.typed_plan import Act, Request, StepRequest

PLANS = 200
MANY = 1_000_000
WIDE = msgspec.structs.replace(
    SOLO,
    limits=PolicyLimits(
        executions_per_hour=ByTier(T0=MANY, T1=MANY, T2=MANY, T3=MANY), nodes_least=MANY, gpus_least=MANY,
        workloads_per_hour=MANY, proposals_per_author_hour=MANY,
    ),
)  # fmt: skip
"""One person, as often as they like."""


def gate() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        yield from first_effect(Path(folder) / "journal.db")
    yield from propose()


class Timed(Engine):
    """Notes when the last command of a plan was durable."""

    effect_at = 0.0

    def command(self, command: Any, *, audit: Any = None, beside: Any = None) -> Any:
        receipt = super().command(command, audit=audit, beside=beside)
        self.effect_at = time.perf_counter()
        return receipt


def first_effect(path: Path) -> Iterator[dict[str, Any]]:
    """One plan after the other on disk, each commit flushed (synchronous = FULL): 400 nodes, 200 workloads on hold."""
    engine = Timed.open(path, cell=engine_bench.cell(400))
    assert isinstance(engine, Timed)
    work = [held(f"w{i}") for i in range(PLANS)]
    engine.command(Submit(workloads=tuple(work)))
    door = gate_on(engine)
    proposed, effect, whole = [], [], []
    for i in range(PLANS):
        begun = time.perf_counter()
        shown = door.propose(THIS_ACCOUNT, asked("release", f"w{i}"))
        asked_at = time.perf_counter()
        door.approve(THIS_ACCOUNT, shown.id, shown.digest)
        proposed.append((asked_at - begun) * 1000)
        effect.append((engine.effect_at - asked_at) * 1000)
        whole.append((time.perf_counter() - asked_at) * 1000)
    alone = by_itself(engine)
    engine.close()
    reference = f"the same command without the gate: p50 {middle(alone):.1f} ms, p99 {late(alone):.1f} ms"
    yield row("from the last vote to the first effect, durable", effect, reference, alone_p50_ms=middle(alone))
    yield row("the same until it is verified", whole, f"proposing it: p50 {middle(proposed):.1f} ms")


def by_itself(engine: Engine) -> list[float]:
    """The engine's own transactions, in milliseconds."""
    engine.command(Submit(workloads=tuple(held(f"x{i}") for i in range(PLANS))))
    took = []
    for i in range(PLANS):
        begun = time.perf_counter()
        engine.command(Release(ids=(f"x{i}",)))
        took.append((time.perf_counter() - begun) * 1000)
    return took


def propose() -> Iterator[dict[str, Any]]:
    """Cordon a node: what is shown is measured on a fork within the process."""
    for size, workloads, gangs in ((5_000, 10_000, True), (50_000, 100_000, False), (130_000, 100_000, False)):
        engine = twin_bench._full_cell(size, workloads, gangs=gangs)
        door = gate_on(engine)
        names = [values[0] for values in engine.query(Query(kind="nodes", columns=("id",), limit=10)).rows]
        took = []
        for i in range(7):
            begun = time.perf_counter()
            door.propose(THIS_ACCOUNT, asked("cordon", names[i]))
            took.append((time.perf_counter() - begun) * 1000)
        begun = time.perf_counter()
        engine.fork()
        forked = (time.perf_counter() - begun) * 1000
        begun = time.perf_counter()
        ForkTrial(engine)
        trial = (time.perf_counter() - begun) * 1000
        engine.close()
        at = f"propose to cordon a node, {size:,} nodes, {workloads:,} workloads"
        reference = f"of it the fork {forked:.0f} ms, with its first cycle and overview {trial:.0f} ms"
        yield row(at, took, reference, fork_ms=forked, trial_ms=trial)


def gate_on(engine: Engine) -> Gate:
    audit = Audit(engine, wall_ms)
    return Gate(engine, Policies(engine, audit, wall_ms, default=WIDE), audit)


def asked(action: Any, target: str) -> Request:
    return Request(steps=(StepRequest(act=Act(action=action, targets=(target,))),))


def held(name: str) -> WorkloadSpec:
    request = Resources(cpu_milli=1000, gpu_milli=1000)
    return WorkloadSpec(id=name, queue="q0", groups=(TaskGroup(request=request),), estimate_ms=3_600_000, held=True)


def row(at: str, took: list[float], reference: str, **more: float) -> dict[str, Any]:
    return {
        "at": at,
        "result": f"p50 {middle(took):.1f} ms, p99 {late(took):.1f} ms",
        "p50_ms": middle(took),
        "p99_ms": late(took),
        "reference": reference,
        **more,
    }


def middle(took: list[float]) -> float:
    return sorted(took)[len(took) // 2]


def late(took: list[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]
