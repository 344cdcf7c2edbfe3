"""What operators ask for by name, and the cell cannot know by itself: another priority or queue for a workload, less of
a request, machines by a certain time. The cell says whether it is so, and a fork whether it helps and harms nobody.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from engine.model import HOUR_MS, MAX_QUANTITY, PriorityClassSpec, WorkloadState
from engine.money import usd
from runbooks.draft_case import Answer
from runbooks.draft_question import EVERYDAY, Asked
from runbooks.draft_solver import Option, Solver, named
from runbooks.symptoms import Lot, Scene, Symptom, counted

DOWN = re.compile(
    r"\b(?:lower\w*|down|demot\w*|deprio\w*|back\s+to|put|set|reset|reduce\w*|drop|downgrad\w*|instead|mistake\w*|accident\w*|wrong\w*"
    r"|mis\w*|should|only|just|belongs?|trivial|abus\w*)\b"
)
"""Words of those who want less importance for something."""
LEAST_STEM = 4
WAITS = (WorkloadState.QUEUED, WorkloadState.WAITING, WorkloadState.HELD)
AHEAD_MS = 30 * 60_000
COUNT = re.compile(
    r"\b(\d{1,4})\s*(?:x\s+)?(?:more\s+|extra\s+|additional\s+)?(?:\w+\s+)?"
    r"(?:nodes?|machines?|instances?|boxes|servers?|vms?|hosts?)\b"
)
CLOCK = re.compile(r"\b([01]?\d|2[0-3])(?::([0-5]\d)|\s*(am|pm))\b")
SOON = re.compile(r"\bin\s+(\d{1,3})\s*(minutes|minute|min|m|hours|hour|h)\b")
LASTS_MS = 3 * HOUR_MS
MARGIN_MS = 10 * 60_000
SPARE = 3, 2
"""A request is that many parts of that many of what its likes use at most."""
WORTH_PERMILLE = 600
"""Of what it asks for, above which less is not worth it."""
LIKES = 2
"""Runs of the like that must have been seen in use."""
MOST_RESIZED = 20


class Wish(NamedTuple):
    """Machines by a certain time."""

    pool: str
    nodes: int
    at_ms: int


def told(scene: Scene, asked: Asked) -> list[Symptom]:
    """What a question asks for, as far as the cell bears it out."""
    found = []
    for ids in grouped(scene, asked):
        to = class_meant(scene, asked, ids[0])
        if to:
            text = f"{ids[0]} waits" if len(ids) == 1 else f"{len(ids):,} workloads such as {ids[0]} wait"
            found.append(Symptom(kind="priority", of="workload", subject=ids[0], ids=ids, text=text, hurts=True))
    for id_ in asked.names("workload"):
        if queue_meant(scene, asked, id_):
            found.append(Symptom(kind="move", of="workload", subject=id_, text=f"{id_} waits", hurts=True))
    for over in oversized(scene):
        lot = over.lot
        asks = [f"{lot.cpu_milli // lot.tasks // 1000:,} CPU"] * bool(over.cpu_milli)
        asks += [f"{lot.memory_mib // lot.tasks // 1024:,} GiB"] * bool(over.memory_mib)
        text = (
            f"{counted(lot.count, 'workload')} of queue {lot.queue} ask for {' and '.join(asks)} a task, and "
            f"their likes use {used_of(over)} at most"
        )
        found.append(Symptom(kind="oversized", of="queue", subject=lot.queue, text=text, lots=(lot,), hurts=True))
    wish = wished(scene, asked)
    if wish is not None:
        text = f"pool {wish.pool} is to have {wish.nodes:,} nodes by then"
        found.append(Symptom(kind="ahead", of="pool", subject=wish.pool, text=text))
    return found


# -- another priority, another queue ----------------------------------------------------------------------------------


def grouped(scene: Scene, asked: Asked) -> list[tuple[str, ...]]:
    """Waiting workloads that are named; and those that a word stands for, which their names begin with."""
    w = scene.state.workloads
    named = [id_ for id_ in asked.names("workload") if w.state[w.row_of[id_]] in WAITS]
    words = {word.rstrip("-*") for word in re.findall(r"[a-z0-9_*-]+", asked.text.lower()) if len(word) >= LEAST_STEM}
    stems = words | {word.removesuffix("s") for word in words if len(word) > LEAST_STEM}
    starts = tuple(f"{stem}-" for stem in sorted(stems) if stem not in EVERYDAY)
    alike: dict[int, list[str]] = {}
    for lot in scene.lots:
        if lot.id.lower().startswith(starts) and not set(lot.members).intersection(named):
            kept = [id_ for id_ in lot.members if id_.lower().startswith(starts)]
            alike.setdefault(w.priority[lot.row], []).extend(kept)
    return [(id_,) for id_ in named] + [tuple(ids[:MOST_RESIZED]) for ids in alike.values()]


def class_meant(scene: Scene, asked: Asked, id_: str) -> str:
    """The one other priority class that the question names; empty where it names none, or several."""
    w = scene.state.workloads
    row = w.row_of.get(id_)
    if row is None or w.state[row] not in WAITS:
        return ""
    words = set(re.findall(r"[a-z0-9_-]+", asked.text.lower()))
    own: PriorityClassSpec = w.priority_classes[w.priority[row]]
    found: list[PriorityClassSpec] = [
        spec for spec in w.priority_classes if spec.name.lower() in words and spec.name != own.name
    ]
    said = "priority" in asked.topics or own.name.lower() in words
    if not said or len(found) != 1 or (found[0].value < own.value and not DOWN.search(asked.text.lower())):
        return ""
    return found[0].name


def priority(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    id_, to = symptom.subject, class_meant(scene, asked, symptom.subject)
    w = scene.state.workloads
    if next(spec.value for spec in w.priority_classes if spec.name == to) < w.value_at(w.row_of[id_]):
        return lowered(scene, symptom, to)
    ids = symptom.ids or (id_,)
    value = next(spec.value for spec in w.priority_classes if spec.name == to)
    option = Option(
        text=f"make {named(ids)} of class {to}", steps=(("set_priority", {"workloads": ids, "to": to}),),
        harms=f"What is less important than {to} starts later, or gives way.",
    )  # fmt: skip
    result = Solver(scene.engine, ids, value).try_(option, AHEAD_MS)
    least = [name for name in (*result.stopped, *result.delayed) if w.value_at(w.row_of[name]) >= value]
    if result.refused or least or value <= w.value_at(w.row_of[id_]):
        return Answer(option=None, why=f"{symptom.text}; of class {to} it would not be better for it, or for others",
                      questions=("Who decides on its priority?",))  # fmt: skip
    own = w.priority_classes[w.priority[w.row_of[id_]]].name
    return Answer(option=option, why=f"{id_} waits as {own}", risks=(option.harms,),
                  questions=("Who says that it is that important?",))  # fmt: skip


def lowered(scene: Scene, symptom: Symptom, to: str) -> Answer | None:
    """Waiting work of less importance than it was given, where it stands in front of other waiting work."""
    w, ids = scene.state.workloads, symptom.ids
    own = w.value_at(w.row_of[ids[0]])
    value = next(spec.value for spec in w.priority_classes if spec.name == to)
    behind = [lot for lot in scene.lots if value < lot.priority < own]
    behind = behind or [lot for lot in scene.lots if value == lot.priority]
    if not behind:
        return Answer(option=None, why=f"{symptom.text}; nothing waits behind it that is more important than {to}")
    option = Option(
        text=f"make {named(ids)} of class {to}", steps=(("set_priority", {"workloads": ids, "to": to}),),
        harms="It starts later than what is more important.",
    )  # fmt: skip
    result = Solver(scene.engine, [id_ for lot in behind for id_ in lot.members], value).try_(option, AHEAD_MS)
    if result.refused or result.stopped:
        return None
    was = w.priority_classes[w.priority[w.row_of[ids[0]]]].name
    return Answer(option=option, why=f"{symptom.text} as {was}, in front of {behind[0].id}", risks=(option.harms,),
                  questions=("Does its owner know?",))  # fmt: skip


def queue_meant(scene: Scene, asked: Asked, id_: str) -> str:
    """The one other queue that the question names, where it says that the work is in the wrong one."""
    w, tree = scene.state.workloads, scene.state.queues
    row = w.row_of.get(id_)
    if row is None or w.state[row] not in WAITS:
        return ""
    if not re.search(r"\b(move|moved|wrong|belongs?|instead|meant|should|submitted)\b", asked.text.lower()):
        return ""
    own = tree.specs[w.queue[row]].name
    words = set(re.findall(r"[A-Za-z0-9._-]+", asked.text.lower()))
    leaves = [spec.name for at, spec in enumerate(tree.specs) if not tree.children[at]]
    found = [name for name in leaves if name.lower() in words and name != own]
    return found[0] if len(found) == 1 else ""


def move(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    id_, to = symptom.subject, queue_meant(scene, asked, symptom.subject)
    w = scene.state.workloads
    row = w.row_of[id_]
    option = Option(
        text=f"move {id_} to queue {to}", steps=(("move", {"workloads": (id_,), "to": to}),),
        harms=f"It counts against the quota of queue {to} from then on.",
    )  # fmt: skip
    result = Solver(scene.engine, (id_,), w.value_at(row)).try_(option, AHEAD_MS)
    if not result.gain:
        return Answer(option=None, why=f"{symptom.text}; in queue {to} it would not start sooner, or others later")
    own = scene.state.queues.specs[w.queue[row]].name
    return Answer(option=option, why=f"{id_} waits in queue {own}", risks=(option.harms,))


# -- requests that are too large --------------------------------------------------------------------------------------


class Over(NamedTuple):
    """A lot of one group, and what one task of its likes uses at most, where that is far less than is asked for; 0
    where it is not."""

    lot: Lot
    cpu_milli: int
    memory_mib: int


def oversized(scene: Scene) -> list[Over]:
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
        if len(seen) < LIKES or len(w.class_at(lot.row).groups) != 1:
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


def resized(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    lot = symptom.lots[0]
    over = next((one for one in oversized(scene) if one.lot.row == lot.row), None)
    ids = lot.members[:MOST_RESIZED]
    if over is None:
        return None
    solver = Solver(scene.engine, ids, lot.priority)
    tried = [solver.try_(one) for one in less(over, ids)]
    result = max(tried, key=lambda one: one.gain)
    option = result.option
    if not result.gain:
        return None
    return Answer(option=option, why=symptom.text, risks=(option.harms,), questions=("Do their owners agree?",),
                  partial=len(result.started) < len(ids))  # fmt: skip


def less(over: Over, ids: tuple[str, ...]) -> list[Option]:
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
            Option(
                text=f"let {counted(len(ids), 'workload')} ask for {' and '.join(to)} a task",
                steps=steps,  # type: ignore[arg-type]
                harms="If they need more than their likes they run slower, or out of memory.",
            )
        )
    return found


# -- machines by a certain time ---------------------------------------------------------------------------------------


def wished(scene: Scene, asked: Asked) -> Wish | None:
    """None unless pool, number and time are all said."""
    pools = [name for name in asked.names("pool") if scene.sizes[name].scaling is not None]
    text = asked.text.lower()
    count, at_ms = COUNT.search(text), moment(text, scene.now_ms)
    if len(set(pools)) != 1 or count is None or at_ms is None or not 0 < int(count[1]) < MAX_QUANTITY:
        return None
    return Wish(pools[0], int(count[1]), at_ms)


def moment(text: str, now_ms: int) -> int | None:
    """The next time of day that is said, in UTC, or so long from now."""
    soon = SOON.search(text)
    if soon is not None:
        return now_ms + int(soon[1]) * (HOUR_MS if soon[2].startswith("h") else 60_000)
    clock = CLOCK.search(text)
    if clock is None:
        return None
    hour = int(clock[1]) % 12 + 12 * (clock[3] == "pm") if clock[3] else int(clock[1])
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    at = now.replace(hour=hour % 24, minute=int(clock[2] or 0), second=0, microsecond=0)
    at += timedelta(days=at <= now)
    return int(at.timestamp() * 1000)


def ahead(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    wish = wished(scene, asked)
    size = scene.sizes[symptom.subject]
    if wish is None or size.scaling is None:
        return None
    if wish.nodes > size.scaling.most:
        return Answer(option=None, why=f"{symptom.text}, and may grow to {size.scaling.most:,}",
                      questions=("May it grow further, at that price?",))  # fmt: skip
    if size.ready + size.booting + size.ordered >= wish.nodes:
        return Answer(option=None, why=f"pool {wish.pool} has, or has ordered, {wish.nodes:,} nodes already")
    starts_ms = max(0, wish.at_ms - scene.now_ms - size.scaling.boot_ms[1] - MARGIN_MS)
    lasts_ms = wish.at_ms - scene.now_ms - starts_ms + LASTS_MS
    price = next(pool.price_microusd_hour for pool in scene.state.capacity.pools if pool.name == wish.pool)
    option = Option(
        text=f"have {wish.nodes:,} nodes in pool {wish.pool} in time",
        steps=(("set_targets", {"pool": wish.pool, "nodes": wish.nodes, "starts_in": starts_ms, "lasts": lasts_ms}),),
        runbook="pre-scale" if wish.nodes <= 1000 and lasts_ms <= 24 * HOUR_MS else "",
        inputs={
            "pool": wish.pool, "nodes": str(wish.nodes), "starts_in": f"{starts_ms // 1000}s",
            "lasts": f"{lasts_ms // 1000}s",
        },
        harms=f"Until work comes they idle, at {usd(wish.nodes * price)} an hour.",
    )  # fmt: skip
    if not Solver(scene.engine, ()).try_(option).harmless:
        return None
    return Answer(option=option, why=symptom.text, risks=(option.harms,))
