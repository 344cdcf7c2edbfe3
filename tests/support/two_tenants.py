"""A cell with work of two tenants, each with a word that is in every name of theirs and nowhere else."""

from __future__ import annotations

import msgspec

from engine.control import Engine
from engine.model.commands import AddQueues, Reserve, SetBudgets, Submit
from engine.model.specs import BudgetSpec, Dependency, QueueSpec, ReservationSpec, WorkloadSpec
from tests.support.cells import workload

HOUR_MS = 3_600_000
WORDS = ("okapi", "zebra")
"""One of each tenant."""


def work_of(word: str, name: str, **more: object) -> WorkloadSpec:
    """Work whose id, name, tenant, team, queue and tags hold the word."""
    spec = workload(f"{word}/{name}", queue=f"{word}-queue", gpu=8000, estimate=HOUR_MS, run=HOUR_MS, tenant=word)
    marked = {"name": f"{word}-{name}-name", "team": f"{word}-team", "tags": {f"{word}-tag": f"{word}-value"}}
    return msgspec.structs.replace(spec, **{**marked, **more})


def populate(engine: Engine) -> None:
    """Both have running, waiting, held and dependent work, a queue, a budget and a reservation; okapi's work that waits
    for room stands behind zebra's."""
    engine.command(AddQueues(queues=tuple(QueueSpec(name=f"{word}-queue", parent="root") for word in WORDS)))
    for word in reversed(WORDS):
        engine.command(
            SetBudgets(budgets=(BudgetSpec(name=f"{word}-budget", scope="tenant", of=word, limit_microusd=10**12),))
        )
        engine.command(
            Reserve(
                reservation=ReservationSpec(
                    name=f"{word}-reservation", nodes=(f"c{WORDS.index(word)}",), start_ms=2**42,
                    end_ms=2**42 + HOUR_MS, queues=(f"{word}-queue",),
                )
            )
        )  # fmt: skip
        engine.command(Submit(workloads=(work_of(word, "runs-0"), work_of(word, "runs-1"))))
    for word in reversed(WORDS):
        after = (Dependency(id=f"{word}/runs-0"),)
        engine.command(
            Submit(
                workloads=(
                    work_of(word, "waits-0"),
                    work_of(word, "waits-1"),
                    work_of(word, "held", held=True),
                    work_of(word, "after", after=after),
                )
            )
        )
