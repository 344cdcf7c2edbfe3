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
from engine.loop import EngineLoop
from engine.model.commands import Release, Submit
from engine.model.list_queries import Query
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from engine.twin.forks import Pages
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.composition import Composed
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
    """Cordon a node, as a client does: what is shown is measured on a fork. How long that takes, and for how long the
    engine's thread is held meanwhile; beside it the same with the fork on the engine's thread."""
    for size, workloads, gangs in ((5_000, 10_000, True), (50_000, 100_000, False), (130_000, 100_000, False)):
        engine = twin_bench._full_cell(size, workloads, gangs=gangs)
        pages = Pages()
        while not pages.tidy(0.01):
            pass
        door = gate_on(engine)
        names = [values[0] for values in engine.query(Query(kind="nodes", columns=("id",), limit=20)).rows]
        loop = HeldLoop(engine)
        loop.paused = True
        loop.start()
        made, held, within = [], [], []
        for i in range(7):
            begun = time.perf_counter()
            held.append(loop.held_ms(door, asked("cordon", names[i]), beside=True))
            made.append((time.perf_counter() - begun) * 1000)
            within.append(loop.held_ms(door, asked("cordon", names[10 + i]), beside=False))
        loop.stop()
        engine.close()
        at = f"propose to cordon a node, {size:,} nodes, {workloads:,} workloads, engine's thread held"
        reference = (
            f"the proposal is made in p50 {middle(made):.1f} ms; all of it on the engine's thread, CPU: "
            f"p50 {middle(within):.1f} ms"
        )
        yield row(at, held, reference, made_ms=middle(made), within_ms=middle(within))


class HeldLoop(EngineLoop):
    """Counts the CPU time for which calls hold its thread."""

    _held_s = 0.0

    def _answer(self, fn: Any, future: Any) -> None:
        begun = time.thread_time()
        super()._answer(fn, future)
        self._held_s += time.thread_time() - begun

    def held_ms(self, door: Gate, request: Request, *, beside: bool) -> float:
        """CPU milliseconds for which proposing this holds the thread. `beside`: tried in a copy of the process."""
        before = self.call(lambda _: self._held_s)
        composed = self.call_beside(lambda _: door.composition(request), Composed) if beside else None
        self.call(lambda _: door.propose(THIS_ACCOUNT, request, composed=composed))
        return (self.call(lambda _: self._held_s) - before) * 1000


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
