"""A draft by rule in large cells: from the question to the draft, beside an engine on its own thread that goes on, and
how long it holds that thread up at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import twin_bench
from gate_bench import gate_on

from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import ChangeQueue, Cordon, Submit
from engine.model.list_queries import Query
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from runbooks.drafts.rule_drafter import RuleDrafter
from runbooks.drafts.typed_draft import Brief, Draft
from runbooks.plans.identity import THIS_ACCOUNT

T = TypeVar("T")
SIZES = ((5_000, 10_000, True), (50_000, 100_000, False), (130_000, 100_000, False))
"""(nodes, workloads, whether they are gangs)"""
LATE = 200
TIMES = 3


class Held:
    """Asks the engine, and notes for how long each turn took it."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self.turns_ms: list[float] = []

    def __call__(self, ask: Callable[[Engine], T]) -> T:
        def timed(engine: Engine) -> T:
            begun = time.perf_counter()
            found = ask(engine)
            self.turns_ms.append((time.perf_counter() - begun) * 1000)
            return found

        return self._loop.call(timed)


def draft() -> Iterator[dict[str, Any]]:
    for size, workloads, gangs in SIZES:
        engine = twin_bench._full_cell(size, workloads, gangs=gangs)
        late(engine)
        door = gate_on(engine)
        loop = EngineLoop(engine)
        loop.start()
        try:
            for question in ("GPU queue wait is over SLO for q0", "queue q0 waits for hours, what should be done?"):
                took, held, made = asked(loop, door, question)
                acts = ", ".join(step.line for step in made.steps) or made.title
                yield {
                    "at": f"draft by rule, {size:,} nodes, {workloads:,} workloads: {question}",
                    "result": f"{statistics.median(took):,.0f} ms, at most {max(took):,.0f} ms: {acts}",
                    "ms": statistics.median(took),
                    "reference": f"longest turn of the engine for it {max(held):,.0f} ms, without the gate's preview",
                    "turn_ms": max(held),
                }
        finally:
            loop.stop()
        engine.close()


def late(engine: Engine) -> None:
    """Work waits at a quota for an hour beside nodes that are free; others for room, beside a few that are cordoned."""
    spec = engine.queue("q0").spec
    used = engine.queue("q0").over
    assert not used
    now = engine.query(Query(kind="queues", columns=("name", "gpu_used", "cpu_used"), limit=100)).rows
    gpu = next(row[1] for row in now if row[0] == "q0")
    tight = msgspec.structs.replace(spec, nominal={"gpu_milli": gpu}, borrowing_limit={"gpu_milli": 0})
    engine.command(ChangeQueue(queue=tight, over="keep"))
    free = engine.query(Query(kind="nodes", columns=("id",), sort=("-gpu_free",), limit=8)).rows
    engine.command(Cordon(ids=tuple(row[0] for row in free)))
    request = Resources(cpu_milli=1000, gpu_milli=1000)
    engine.command(
        Submit(
            workloads=tuple(
                WorkloadSpec(id=f"late-{i}", queue="q0", groups=(TaskGroup(request=request),), estimate_ms=3_600_000)
                for i in range(LATE)
            )
        )
    )
    engine.advance(engine.now_ms + 3_600_000)


def asked(loop: EngineLoop, door: Any, question: str) -> tuple[list[float], list[float], Draft]:
    held = Held(loop)
    drafter = RuleDrafter(
        held, lambda request, runbook=None: loop.call(lambda _: door.preview(THIS_ACCOUNT, request, runbook=runbook))
    )
    took = []
    for _ in range(TIMES):
        version, now_ms = loop.call(lambda engine: (engine.version, engine.now_ms))
        begun = time.perf_counter()
        made = drafter.draft(Brief(question=question, cell="bench", version=version, now_ms=now_ms))
        took.append((time.perf_counter() - begun) * 1000)
    return took, held.turns_ms, made


if __name__ == "__main__":
    for row in draft():
        print(row["at"], "|", row["result"], "|", row["reference"], flush=True)
