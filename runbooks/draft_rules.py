"""What is done about what: for each symptom the options, mildest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runbooks.draft import Brief
from runbooks.draft_solver import Option, Result, Solver
from runbooks.symptoms import LEAST_WAIT_MS, Scene, Symptom, waits

Rule = Callable[[Scene, Symptom, Brief], Result | None]


def found(scene: Scene, brief: Brief) -> list[Symptom]:
    return sorted(waits(scene, LEAST_WAIT_MS), key=lambda symptom: -symptom.weight)


def wait_for_quota(scene: Scene, symptom: Symptom, brief: Brief) -> Result | None:
    tree, queue = scene.state.queues, symptom.subject
    spec = tree.specs[tree.row(queue)]
    asked = sum(lot.gpu_milli * lot.count for lot in symptom.lots)
    free = sum(pool.capacity["gpu_milli"] - pool.used["gpu_milli"] for pool in scene.engine.overview(brief=True).pools)
    most = min(asked, free) // 1000
    if not most or "gpu_milli" not in spec.nominal:
        return None

    def option(gpus: int) -> Option:
        return Option(text=f"Raise the quota of {queue} by {gpus} GPU", steps=(
            ("set_quota", {"queue": queue, "add_gpus": gpus}),), runbook="queue-wait-over-slo")  # fmt: skip

    late = {lot.id for lot in symptom.lots}
    solver = Solver(
        scene.engine,
        lambda fork: sum(not fork.state.is_bound(fork.state.workloads.row_of[id_]) for id_ in late),
        lambda value: value == 0,
        tuple(late),
    )
    return solver.least(1, most, option)


RULES: Mapping[str, Rule] = {"wait_WaitingForQuota": wait_for_quota}
