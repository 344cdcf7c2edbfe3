"""Requests of waiting work that are far larger than what its likes use: what is asked for is made smaller."""

from __future__ import annotations

from typing import NamedTuple

from runbooks.drafts.rules.questions import Question
from runbooks.drafts.rules.solver import DraftOption, RuleAnswer, Solver
from runbooks.drafts.rules.symptoms import CellScene, Symptom, WaitingLot, counted

SPARE = 3, 2
"""A request is that many parts of that many of what its likes use at most."""
WORTH_PERMILLE = 600
"""Of what it asks for, above which less is not worth it."""
MIN_LIKES = 2
"""Runs of the like that must have been seen in use."""
MAX_RESIZED = 20


class Over(NamedTuple):
    """A lot of one group, and what one task of its likes uses at most, where that is far less than is asked for; 0
    where it is not."""

    lot: WaitingLot
    cpu_milli: int
    memory_mib: int


def oversized_requests(scene: CellScene) -> list[Symptom]:
    return [
        Symptom(kind="oversized", of="queue", subject=over.lot.queue, text=_told(over), lots=(over.lot,), hurts=True)
        for over in oversized(scene)
    ]


def _told(over: Over) -> str:
    lot = over.lot
    asks = [f"{lot.cpu_milli // lot.tasks // 1000:,} CPU"] * bool(over.cpu_milli)
    asks += [f"{lot.memory_mib // lot.tasks // 1024:,} GiB"] * bool(over.memory_mib)
    who = f"{counted(lot.count, 'workload')} of queue {lot.queue}"
    return f"{who} ask for {' and '.join(asks)} a task, and their likes use {used_of(over)} at most"


def oversized(scene: CellScene) -> list[Over]:
    """Likes have the same owner and the same name."""
    w, usage = scene.state.workloads, scene.state.usage
    used: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row, there in usage.of.items():
        if scene.state.is_bound(row) and w.tasks[row]:
            cpu, memory = (sum(use[i] for use in there.values()) // w.tasks[row] for i in (0, 1))
            used.setdefault((w.tenant[row], w.names[row]), []).append((cpu, memory))
    found = []
    for lot in scene.lots:
        seen = used.get((w.tenant[lot.row], w.names[lot.row]), []) if w.names[lot.row] else []
        if len(seen) < MIN_LIKES or len(w.class_at(lot.row).groups) != 1:
            continue
        cpu, memory = (max(one[i] for one in seen) for i in (0, 1))
        tasks = max(lot.tasks, 1)
        cpu *= 0 < smaller(cpu, 1000) * 1000 <= WORTH_PERMILLE * (lot.cpu_milli // tasks)
        memory *= 0 < smaller(memory, 1024) * 1000 <= WORTH_PERMILLE * (lot.memory_mib // tasks)
        if cpu or memory:
            found.append(Over(lot, cpu, memory))
    return found


def smaller(used: int, unit: int) -> int:
    """A request for what is used, and half as much again, in whole cores or GiB."""
    parts, of = SPARE
    return -(-used * parts // of // unit) * unit


def used_of(over: Over) -> str:
    cpu, memory = f"{over.cpu_milli / 1000:.1f} CPU", f"{over.memory_mib / 1024:.1f} GiB"
    return " and ".join([cpu] * bool(over.cpu_milli) + [memory] * bool(over.memory_mib))


def resized(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    lot = symptom.lots[0]
    over = next((one for one in oversized(scene) if one.lot.row == lot.row), None)
    ids = lot.members[:MAX_RESIZED]
    if over is None:
        return None
    solver = Solver(scene.engine, ids, lot.priority)
    tried = [solver.try_(one) for one in less(over, ids)]
    result = max(tried, key=lambda one: one.gain)
    option = result.option
    if not result.gain:
        return None
    return RuleAnswer(option=option, why=symptom.text, risks=(option.harms,), questions=("Do their owners agree?",),
                      partial=len(result.started) < len(ids))  # fmt: skip


def less(over: Over, ids: tuple[str, ...]) -> list[DraftOption]:
    """To ask for less of one, then of both."""
    ways: list[dict[str, int]] = []
    cpu = {"cpu_milli": smaller(over.cpu_milli, 1000)}
    memory = {"memory_mib": smaller(over.memory_mib, 1024)}
    ways += [cpu] * bool(over.cpu_milli) + [memory] * bool(over.memory_mib)
    ways += [cpu | memory] * bool(over.cpu_milli and over.memory_mib)
    found = []
    for way in ways:
        to = [f"{way['cpu_milli'] // 1000:,} CPU"] if "cpu_milli" in way else []
        to += [f"{way['memory_mib'] // 1024:,} GiB"] if "memory_mib" in way else []
        steps = (("resize", {"workloads": ids, **way, "evidence": f"likes use {used_of(over)}"}),)
        found.append(
            DraftOption(
                text=f"let {counted(len(ids), 'workload')} ask for {' and '.join(to)} a task",
                steps=steps,  # type: ignore[arg-type]
                harms="If they need more than their likes they run slower, or out of memory.",
            )
        )
    return found
