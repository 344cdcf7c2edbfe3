"""Symptoms: what is wrong in a cell, as a question names it, as the cell shows it now, and as is on record.

`CellScene` finds symptoms on a fork of the live cell, on the drafter's own thread, so neither waits for the other.
`read` finds in a question the objects of the cell that it names and the words of a closed table that name a symptom;
nothing else of the sentence is read. `on_record` finds objects to leave alone, such as nodes under review, and who took
objects out of use.

`runbooks.drafts.symptom_rules` decides what to do about a symptom.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from engine.capacity.index import OPEN
from engine.model.columns import view
from engine.model.errors import JournalError
from engine.model.quantities import counted, lasting
from engine.model.specs import HOUR_MS, NodeState, QueueMode, WorkloadState
from engine.reads import pending_reasons
from engine.reads.floods import Flood, floods
from runbooks.drafts.typed_draft import ReportedFinding
from runbooks.gate.store import EFFECT, REVIEW, REVISION
from runbooks.plans.check_readings import READINGS
from runbooks.plans.typed_plan import Plan
from runbooks.procedures.compiler import zones

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.executors.agent_reports import AgentsReport, Straggler
    from engine.model.overviews import Overview, PoolOverview
    from engine.model.reports import BudgetLine, PoolSize


FOR_FAULTS = frozenset(("drain-failing-node", "gpu-ecc-rising", "node-flapping", "straggler"))
"""Runbooks that take nodes out of use because they fail: back they come by hand, once somebody has looked."""
MAX_EFFECTS = 300
CLOSES = {"cordon": "node", "drain": "node", "hold_queue": "queue", "drain_queue": "queue"}
"""Acts that take something out of use, and what."""
OPENS = {"uncordon": "node", "open_queue": "queue"}


class Closed(NamedTuple):
    """The last proposal that took an object out of use, and whose it was."""

    proposal: str
    """Such as P-4; there the reason is, which is not kept here."""
    who: str


class RecordedObjects(NamedTuple):
    left_alone: frozenset[str] = frozenset()
    """Ids of nodes, and of what else reviews are about."""
    closed: Mapping[tuple[str, str], Closed] = {}
    """By (kind, id)."""


def on_record(engine: Engine) -> RecordedObjects:
    """The recorded objects; none when the record cannot be read."""
    with contextlib.suppress(JournalError, SQLAlchemyError, msgspec.MsgspecError):
        return engine.recorded(_read)
    return RecordedObjects()


def _read(connection: Connection) -> RecordedObjects:
    found = set(connection.execute(select(REVIEW.c.about).where(REVIEW.c.closed_ms == 0)).scalars())
    same = (REVISION.c.number == EFFECT.c.number) & (REVISION.c.revision == EFFECT.c.revision)
    query = (
        select(EFFECT.c.back, EFFECT.c.action, EFFECT.c.step, REVISION.c.plan)
        .join(REVISION, same)
        .where(EFFECT.c.action.in_((*CLOSES, *OPENS)))
        .order_by(EFFECT.c.version.desc())
        .limit(MAX_EFFECTS)
    )
    seen: set[tuple[str, str]] = set()
    closed: dict[tuple[str, str], Closed] = {}
    for back, action, step, text in connection.execute(query):
        plan = msgspec.json.decode(text, type=Plan)
        kind = CLOSES.get(action) or OPENS[action]
        targets = {(kind, id_) for id_ in plan.steps[step].act.targets} - seen
        seen |= targets
        if back == (action in CLOSES):
            continue
        closed |= dict.fromkeys(targets, Closed(plan.proposal, plan.requester or plan.author.subject))
        if action in CLOSES and plan.runbook is not None and plan.runbook.id in FOR_FAULTS:
            found |= {id_ for _, id_ in targets}
    return RecordedObjects(frozenset(found), closed)


MAX_LOTS = 400
"""Kinds of like waiting workloads whose reason is worked out: those that have waited longest."""
MAX_MEMBERS = 2_000
"""Workloads of one lot, or nodes of one symptom, that are named."""
MAX_PARKED = 2_000
MAX_CLOSERS = 3
"""People of whom it is told that they took something out of use."""
LOST_IN_ZONE = 3
"""Nodes of one zone down or silent at once that are a failing zone, with a fifth of all it has."""
STORM = 3
"""Nodes of one pool with notice at once: one or two an hour is normal spot."""
IDLE_PERMILLE = 900
"""Of what a reservation keeps, above which it lies idle."""
CORDONED_MS = HOUR_MS
"""What was cordoned more lately is somebody's present work."""
LEFT_MS = 15 * 60_000
"""Before its end, below which a reservation is left alone."""


class WaitingLot(msgspec.Struct, frozen=True, kw_only=True):
    """Like workloads that wait: of one queue, priority and request."""

    id: str
    """The one that has waited longest."""
    row: int
    members: tuple[str, ...]
    """Ids, as many as are named, the one above first."""
    count: int
    queue: str
    tenants: tuple[str, ...]
    token: str
    """Primary reason (`engine.reads.pending_reasons`)."""
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
    """A row of `runbooks.drafts.symptom_rules.RULES`."""
    of: str
    """Kind of its subject: cell, queue, pool, node, workload, tenant, zone, reservation, budget."""
    subject: str
    weight: int = 0
    """How bad it is beside others of its kind."""
    text: str
    """As a person reads it."""
    lots: tuple[WaitingLot, ...] = ()
    ids: tuple[str, ...] = ()
    """What it is about besides: nodes, workloads."""
    hurts: bool = False
    """Somebody waits, or work suffers, because of it."""

    @property
    def name(self) -> str:
        """The name by which a person picks it, such as `wait_QueueHeld:research`."""
        return f"{self.kind}:{self.subject}" if self.subject else self.kind


class CellScene:
    """A reading of a cell. `engine` is a fork on which everything has started that would start anyway; `agents` is the
    report of the live cell's agents."""

    def __init__(
        self, engine: Engine, agents: AgentsReport | None = None, record: RecordedObjects | None = None
    ) -> None:
        self.engine = engine
        self.record = record or RecordedObjects()
        self.state = engine.state
        self.agents = agents
        self.now_ms = engine.now_ms

    # -- what there is ------------------------------------------------------------------------------------------------

    @cached_property
    def lots(self) -> list[WaitingLot]:
        """Queued workloads by what they wait for, those that have waited longest first."""
        state = self.state
        w, queues = state.workloads, state.queues
        alike: dict[tuple[int, int, int, int], list[int]] = {}
        for (priority, queue, _, tenant), group in state.pending.groups.items():
            for row in group.rows[group.front :]:
                alike.setdefault((priority, queue, w.cls[row], tenant), []).append(row)
        lots = []
        for rows in sorted(alike.values())[:MAX_LOTS]:
            row = rows[0]
            cpu, memory, gpu, _ = w.class_at(row).request
            lots.append(
                WaitingLot(
                    id=w.ids[row], row=row, members=tuple(w.ids[one] for one in rows[:MAX_MEMBERS]), count=len(rows),
                    queue=queues.specs[w.queue[row]].name,
                    tenants=tuple(sorted({w.tenants.names[w.tenant[one]] for one in rows[:MAX_MEMBERS]})),
                    token=self.engine.reader.explainer.token(row), wait_ms=self.now_ms - w.submitted[row],
                    priority=w.value_at(row), tasks=w.class_at(row).tasks, cpu_milli=cpu, memory_mib=memory,
                    gpu_milli=gpu,
                )
            )  # fmt: skip
        return sorted(lots, key=lambda lot: (-lot.wait_ms, lot.row))

    @cached_property
    def overview(self) -> Overview:
        return self.engine.overview(brief=True)

    @cached_property
    def pools(self) -> dict[str, PoolOverview]:
        return {pool.name: pool for pool in self.overview.pools}

    @cached_property
    def sizes(self) -> dict[str, PoolSize]:
        return {size.pool: size for size in self.engine.scaling().pools}

    @cached_property
    def budgets(self) -> dict[str, BudgetLine]:
        return {line.spec.name: line for line in self.engine.budgets().budgets}

    @cached_property
    def has_gpus(self) -> bool:
        return self.state.capacity.totals[2] > 0

    @cached_property
    def floods(self) -> list[Flood]:
        return floods(self.state, self.now_ms)

    @cached_property
    def stragglers(self) -> tuple[Straggler, ...]:
        return () if self.agents is None else self.agents.stragglers

    def nodes_in(self, *states: NodeState) -> list[int]:
        """Rows."""
        return np.flatnonzero(np.isin(view(self.state.capacity.state), states)).tolist()

    def node_ids(self, rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.state.capacity.node_ids[row] for row in rows)

    def is_idle(self, node: int) -> bool:
        return self.state.allocations.workloads_on(node) == 0

    @cached_property
    def healthy_cordoned(self) -> tuple[str, ...]:
        """Nodes that are cordoned, for longer than somebody is likely to be at them, and of which nothing speaks
        against their use: with no note, no loss in 24 h, no notice of their provider, no open review, and nobody's by
        reservation; those without work first, longest cordoned first."""
        c, failures = self.state.capacity, self.state.failures
        found = []
        for row in self.nodes_in(NodeState.CORDONED, NodeState.DRAINING):
            if c.state[row] == NodeState.DRAINING and not self.is_idle(row):
                continue
            lost = any(at_ms > self.now_ms - 24 * HOUR_MS for at_ms in failures.losses.get(row, ()))
            kept = row in failures.notes or c.doomed[row] >= 0 or c.booking[row] != OPEN
            fresh = self.now_ms - c.since[row] < CORDONED_MS
            if not (lost or kept or fresh or c.node_ids[row] in self.record.left_alone):
                found.append(row)
        found.sort(key=lambda row: (not self.is_idle(row), c.since[row], c.node_ids[row]))
        return self.node_ids(found)

    def closed_by(self, kind: str, ids: Iterable[str]) -> str:
        """The people who took these objects out of use, and where the reason stands; empty when that is not on
        record."""
        known = dict.fromkeys(done for id_ in ids if (done := self.record.closed.get((kind, id_))) is not None)
        told = [f"{done.who} did so with {done.proposal}" for done in list(known)[:MAX_CLOSERS]]
        first = next(iter(known), None)
        return f"{', '.join(told)}: muster proposal show {first.proposal} has the reason" if first is not None else ""

    def queue_lots(self, queue: str) -> list[WaitingLot]:
        """The lots of a queue and of all queues below it."""
        tree = self.state.queues
        row = tree.row(queue)
        names = {tree.specs[leaf].name for leaf, path in enumerate(tree.path) if row in path}
        return [lot for lot in self.lots if lot.queue in names]

    def reason(self, lot: WaitingLot) -> str:
        """The reason of the wait in the engine's words."""
        reasons = self.engine.reader.explainer.reasons(lot.row)
        return reasons[0].text if reasons else ""

    # -- what is wrong ------------------------------------------------------------------------------------------------

    def waits(self, late_ms: int) -> list[Symptom]:
        """A symptom for each queue and cause of waits longer than `late_ms`."""
        found: dict[tuple[str, str], list[WaitingLot]] = {}
        for lot in self.lots:
            if lot.wait_ms > late_ms:
                found.setdefault((lot.queue, lot.token), []).append(lot)
        return [wait(queue, token, lots) for (queue, token), lots in found.items()]

    def nodes(self) -> list[Symptom]:
        """Stragglers, nodes lost again and again, zones that fail, spot machines that are taken back."""
        return [*self._slow(), *self._flapping(), *self._zones(), *self._storms()]

    def _slow(self) -> list[Symptom]:
        found: dict[tuple[str, str], Straggler] = {}
        for one in self.stragglers:
            found.setdefault((one.node, one.workload), one)
        return [
            Symptom(
                kind="straggler", of="node", subject=node, ids=(gang,), hurts=True,
                weight=1000 - one.done_permille * 1000 // max(one.median_permille, 1),
                text=f"the task of {gang} on node {node} has done {one.done_permille / 10:g} % where the median of its "
                f"gang has done {one.median_permille / 10:g} %",
            )
            for (node, gang), one in found.items()
        ]  # fmt: skip

    def _flapping(self) -> list[Symptom]:
        c, found = self.state.capacity, []
        for row, losses in sorted(self.state.failures.losses.items()):
            recent = sum(at_ms > self.now_ms - 24 * HOUR_MS for at_ms in losses)
            if recent >= 2 and c.state[row] in (NodeState.READY, NodeState.CORDONED):
                node, there = c.node_ids[row], NodeState(c.state[row]).label
                text = f"node {node} was lost {recent} times in 24 h and is {there}"
                hurts = c.state[row] == NodeState.READY
                found.append(Symptom(kind="flapping", of="node", subject=node, weight=recent, text=text, hurts=hurts))
        return found

    def _zones(self) -> list[Symptom]:
        c = self.state.capacity
        states, zones = view(c.state), view(c.zone)
        there = states != NodeState.REMOVED
        lost = np.isin(states, (NodeState.DOWN, NodeState.SUSPECT))
        total, gone = (np.bincount(zones[chosen], minlength=len(c.places.names)) for chosen in (there, there & lost))
        named = [z for z in np.flatnonzero(total).tolist() if c.places.names[z]]
        bad = [z for z in named if gone[z] >= LOST_IN_ZONE and gone[z] * 5 >= total[z]]
        if len(named) > 1 and len(bad) * 2 > len(named):
            # So much at once is rather the network between them and us.
            return []
        found = []
        for zone in bad:
            name = c.places.names[zone]
            text = f"{gone[zone]:,} of {total[zone]:,} nodes of zone {name} are down or silent"
            left = np.flatnonzero((zones == zone) & (states == NodeState.READY)).tolist()
            found.append(
                Symptom(
                    kind="zone_lost", of="zone", subject=name, weight=int(gone[zone]), text=text,
                    ids=self.node_ids(left[:MAX_MEMBERS]), hurts=True,
                )
            )  # fmt: skip
        return found

    def _storms(self) -> list[Symptom]:
        c = self.state.capacity
        ending = np.flatnonzero((view(c.doomed) >= 0) & (view(c.state) != NodeState.REMOVED)).tolist()
        found = []
        for pool, count in Counter(c.pool[row] for row in ending).items():
            spec = c.pools[pool]
            if spec.spot and count >= STORM:
                nodes = self.node_ids(row for row in ending if c.pool[row] == pool)
                text = f"{count:,} of {c.pool_nodes[pool]:,} nodes of spot pool {spec.name} are being reclaimed"
                found.append(
                    Symptom(kind="spot_storm", of="pool", subject=spec.name, weight=count, text=text,
                            ids=nodes[:MAX_MEMBERS], hurts=True)
                )  # fmt: skip
        return found

    def cordons(self) -> list[Symptom]:
        """Nodes that are cordoned, healthy and empty."""
        c = self.state.capacity
        ids = tuple(id_ for id_ in self.healthy_cordoned if self.is_idle(c.row_of[id_]))
        if not ids:
            return []
        oldest = self.now_ms - min(c.since[c.row_of[id_]] for id_ in ids)
        text = f"{counted(len(ids), 'node')} cordoned and empty, the longest for {lasting(oldest)}"
        return [Symptom(kind="cordoned", of="cell", subject="", weight=len(ids), text=text, ids=ids[:MAX_MEMBERS])]

    def idle_reservations(self) -> list[Symptom]:
        """Reservations that have begun, and of whose nodes next to nothing is used."""
        found = []
        for each in self.state.bookings.reservations:
            spec = each.spec
            if not spec.start_ms <= self.now_ms < spec.end_ms - LEFT_MS:
                continue
            idle = READINGS["reservation_idle_permille"](self.engine, spec.name)
            if not isinstance(idle, int) or idle < IDLE_PERMILLE:
                continue
            held = lasting(self.now_ms - spec.start_ms)
            text = (
                f"reservation {spec.name} has kept {counted(len(spec.nodes), 'node')} for {held}, {idle / 10:g} % idle"
            )
            found.append(
                Symptom(kind="idle_reservation", of="reservation", subject=spec.name, weight=len(spec.nodes), text=text)
            )
        return found

    def held_queues(self) -> list[Symptom]:
        """Queues that are held or draining themselves."""
        tree = self.state.queues
        found = []
        for row, spec in enumerate(tree.specs):
            if tree.mode[row] != QueueMode.OPEN:
                waiting = sum(lot.count for lot in self.queue_lots(spec.name))
                text = f"queue {spec.name} is {QueueMode(tree.mode[row]).label}, and {waiting:,} wait in it"
                found.append(
                    Symptom(kind="held_queue", of="queue", subject=spec.name, weight=waiting, text=text,
                            hurts=waiting > 0)
                )  # fmt: skip
        return found

    def spent_budgets(self) -> list[Symptom]:
        """Budgets that are spent, or will be before their window ends, most urgent first."""
        found = []
        for name, line in self.budgets.items():
            limit = max(line.spec.limit_microusd, 1)
            spent, ahead = line.spent_microusd * 1000 // limit, line.forecast_microusd * 1000 // limit
            if spent >= 800 and (ahead > 1000 or spent >= 1000):
                text = f"budget {name} is spent to {spent / 10:g} %, and at this rate to {ahead / 10:g} % by its end"
                found.append(
                    Symptom(kind="budget", of="budget", subject=name, weight=spent, text=text, hurts=line.waiting > 0)
                )
        return found

    def parked(self) -> list[Symptom]:
        """Workloads that somebody holds or has suspended, and those whose dependency can never be met."""
        w = self.state.workloads
        if not w.ids:
            return []
        states = view(w.state)
        rows = np.flatnonzero(
            np.isin(states, (WorkloadState.HELD, WorkloadState.SUSPENDED, WorkloadState.WAITING))
        ).tolist()
        found: dict[tuple[str, str], list[str]] = {}
        for row in rows[:MAX_PARKED]:
            token = self.engine.reader.explainer.token(row)
            found.setdefault((token, self.state.queues.specs[w.queue[row]].name), []).append(w.ids[row])
        return [
            Symptom(
                kind=f"parked_{token}", of="queue", subject=queue, weight=len(ids), ids=tuple(ids),
                text=f"{counted(len(ids), 'workload')} of queue {queue} wait: {token}",
            )
            for (token, queue), ids in found.items()
        ]  # fmt: skip


def wait(queue: str, token: str, lots: list[WaitingLot]) -> Symptom:
    """A symptom of lots of one queue that wait for one cause."""
    count, longest = sum(lot.count for lot in lots), max(lot.wait_ms for lot in lots)
    verb = "waits" if count == 1 else "wait"
    return Symptom(
        kind=f"wait_{token}", of="queue", subject=queue, weight=longest, hurts=True, lots=tuple(lots),
        text=f"{counted(count, 'workload')} of queue {queue} {verb}, the oldest for {lasting(longest)}: {token}",
    )  # fmt: skip


WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/@:-]*[A-Za-z0-9])?")
MAX_TENANTS = 10_000
"""Tenants whose names are looked for in a question."""


class SymptomClass(NamedTuple):
    """A symptom as people name it."""

    reads: str
    """How the reading of it is told."""
    words: str
    """Lower case, between blanks; `*` ends one that may go on."""
    kinds: tuple[str, ...]
    """Kinds of `runbooks.drafts.symptoms.Symptom`; `wait_` stands for every cause of a wait."""


SYMPTOM_CLASSES: Mapping[str, SymptomClass] = {
    "waiting": SymptomClass(
        "work waits",
        "wait* pending queued queueing queuing stuck start* schedul* slo late blocked",
        ("wait_", "parked_WaitingForDependency", "parked_DependencyNeverSatisfied"),
    ),
    "slow": SymptomClass("work is slow", "slow* straggl* lag* throughput", ("straggler",)),
    "hanging": SymptomClass("work hangs", "hang* hung stuck frozen progress", ("stuck",)),
    "failing": SymptomClass("something fails", "fail* crash* error* restarted flap*", ("flapping", "zone_lost")),
    "down": SymptomClass(
        "nodes are down", "down dead lost offline outage gone zone", ("flapping", "zone_lost", "spot_storm")
    ),
    "preempted": SymptomClass("work is preempted", "preempt* evict* interrupt* spot", ("spot_storm",)),
    "quota": SymptomClass("a quota is used up", "quota* borrow* lend*", (f"wait_{pending_reasons.QUOTA}",)),
    "full": SymptomClass(
        "there is no room",
        "full capacity room space fragment* scale* autoscal*",
        tuple(
            f"wait_{token}"
            for token in (pending_reasons.CAPACITY, pending_reasons.FRAGMENTED, pending_reasons.SCATTERED)
        ),
    ),
    "expensive": SymptomClass(
        "it costs too much",
        "expensive cost* budget* spend* spent bill* money idle* unused",
        ("budget", "idle_pool", f"wait_{pending_reasons.BUDGET}"),
    ),
    "oversized": SymptomClass("requests are too large", "request* oversized ask asks", ("oversized",)),
    "held": SymptomClass(
        "something is held",
        "held hold* pause* suspend* closed",
        ("held_queue", f"wait_{pending_reasons.QUEUE_HELD}", "parked_OnHold", "parked_Suspended"),
    ),
    "cordoned": SymptomClass("nodes are out of use", "cordon* drain* maintenance", ("cordoned",)),
    "reserved": SymptomClass(
        "nodes are reserved", "reserv* booked", ("idle_reservation", f"wait_{pending_reasons.RESERVED}")
    ),
    "dependent": SymptomClass(
        "work waits for other work", "depend*", ("parked_WaitingForDependency", "parked_DependencyNeverSatisfied")
    ),
    "crowded": SymptomClass("one tenant has most of the cell", "flood* hog* monopol*", ("tenant",)),
}
"""All words that a symptom is told by."""


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word).replace(r"\*", r"\w*") for word in words.split()))


_PATTERNS = {name: _pattern(row.words) for name, row in SYMPTOM_CLASSES.items()}


class SymptomQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a question, a finding and a pick."""

    text: str
    classes: frozenset[str] = frozenset()
    """Of SYMPTOM_CLASSES."""
    named: tuple[tuple[str, str], ...] = ()
    """(kind, id) of objects of this cell that are named."""
    finding: ReportedFinding | None = None
    pick: str = ""
    """Symptom that a person picked: its name or its subject; empty: none."""

    def names(self, *kinds: str) -> tuple[str, ...]:
        return tuple(id_ for kind, id_ in self.named if kind in kinds)


def read(engine: Engine, text: str, finding: ReportedFinding | None, pick: str = "") -> SymptomQuestion:
    """A question, of the cell as it is."""
    words = WORD.findall(text)
    known = _known(engine)
    named = dict.fromkeys(pair for at in range(len(words)) for pair in _named(engine, known, words, at))
    for id_ in (finding.about, *finding.targets) if finding is not None else ():
        kind, _, name = id_.rpartition(":")
        about = name if kind in ("queue", "tenant", "node") else id_
        named |= dict.fromkeys(_objects(engine, known, about))
    lower = {part for word in words for part in (word.lower(), *re.split(r"[._/@:-]", word.lower()))}
    classes = {name for name, pattern in _PATTERNS.items() if any(pattern.fullmatch(word) for word in lower)}
    return SymptomQuestion(text=text, classes=frozenset(classes), named=tuple(named), finding=finding, pick=pick)


def _named(
    engine: Engine, known: Mapping[str, Mapping[str, str]], words: list[str], at: int
) -> Iterable[tuple[str, str]]:
    """Objects that one word names. A name of one letter counts beside the word for its kind alone."""
    beside = {word.lower().removesuffix("s") for word in words[max(0, at - 1) : at + 2]}
    return (pair for pair in _objects(engine, known, words[at]) if len(words[at]) > 1 or pair[0] in beside)


def _known(engine: Engine) -> dict[str, dict[str, str]]:
    """Kind -> name in lower case -> name, of what there are few of."""
    state = engine.state
    found: dict[str, Iterable[str]] = {
        "queue": (spec.name for spec in state.queues.specs),
        "pool": (pool.name for pool in state.capacity.pools),
        "tenant": state.workloads.tenants.names[:MAX_TENANTS],
        "zone": zones(engine),
        "reservation": (each.spec.name for each in state.bookings.reservations),
        "budget": (spec.name for spec in state.budgets.specs),
    }
    return {kind: {name.lower(): name for name in sorted(names) if name} for kind, names in found.items()}


def _objects(engine: Engine, known: Mapping[str, Mapping[str, str]], word: str) -> Iterable[tuple[str, str]]:
    """(kind, id) of each object that is called so."""
    lower = word.lower()
    yield from ((kind, names[lower]) for kind, names in known.items() if lower in names)
    for kind, rows in (("workload", engine.state.workloads.row_of), ("node", engine.state.capacity.row_of)):
        id_ = word if word in rows else lower
        if id_ in rows:
            yield kind, id_
