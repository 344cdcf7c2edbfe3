"""A drafter asked about the line of a flood holds the flood back; it never gives it more."""

from __future__ import annotations

import pytest

from engine.control import Engine
from engine.model import commands as do
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec
from runbooks.drafts import symptom_rules, symptoms
from runbooks.drafts.symptoms import CellScene

MINUTE, HOUR = 60_000, 3_600_000


def flooded(flood: int) -> Engine:
    """A queue at its quota beside free nodes, in which a new tenant has put so many before two of another."""
    queue = QueueSpec(name="q", parent="org", nominal={"cpu_milli": 28_000}, borrowing_limit={"cpu_milli": 0})
    cell = CellSpec(
        pools=(PoolSpec(name="p", capacity=Resources(cpu_milli=32_000, memory_mib=65_536)),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(4)),
        queues=(QueueSpec(name="org"), queue),
    )
    engine = Engine.open(None, cell=cell)
    submit(engine, "old", 1, "ops", MINUTE)
    engine.advance(engine.now_ms + 4 * HOUR)
    submit(engine, "new", flood, "newcorp", 9 * HOUR)
    submit(engine, "late", 4, "ops", 9 * HOUR)
    engine.advance(engine.now_ms + 20 * MINUTE)
    return engine


def submit(engine: Engine, stem: str, count: int, tenant: str, run_ms: int) -> None:
    group = TaskGroup(request=Resources(cpu_milli=4000, memory_mib=1024))
    engine.command(
        do.Submit(
            workloads=tuple(
                WorkloadSpec(id=f"{stem}-{i}", queue="q", tenant=tenant, groups=(group,), estimate_ms=run_ms,
                             simulated_runtime_ms=run_ms)
                for i in range(count)
            )
        )
    )  # fmt: skip


def acts(engine: Engine, text: str) -> list[str]:
    base = engine.fork()
    base.settle()
    answer = symptom_rules.answer(CellScene(base), symptoms.read(base, text, None))
    base.forget()
    return [] if answer.option is None else [action for action, _ in answer.option.steps]


@pytest.mark.parametrize(
    "text", ["queue q waits for quota", "why do the jobs of tenant ops wait", "work of q is stuck"]
)
def test_the_quota_of_a_flood_is_not_raised(text: str) -> None:
    assert "set_quota" not in acts(flooded(250), text)


def test_a_line_that_is_no_flood_may_be_given_quota() -> None:
    assert "set_quota" in acts(flooded(8), "queue q waits for quota")
