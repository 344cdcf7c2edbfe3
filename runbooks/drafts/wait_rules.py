"""Rules for waiting work: by cause, the least that lets it start.

`answer` first looks whether the work starts by itself. Then it tries the options for the cause, mildest first:
borrowing, lending and quota; room on nodes; reservations, closed queues and budgets. An option counts when late work
starts because of it on a fork, nothing else stops, and nothing as important starts later. `resized` makes requests
smaller that are far above the use of similar work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from engine.model.quantities import counted, lasting, usd, whole
from engine.model.spec_parts import MICROUSD
from engine.model.specs import RESOURCES, FlavorQuota, QueueMode, QueueSpec
from engine.reads import pending_reasons
from engine.state.queue_tree import Lack
from runbooks.actions.workloads import RETURNED
from runbooks.drafts import node_rules
from runbooks.drafts.node_rules import boot_ms, consolidated, larger_pools, pool_row, uncordoned
from runbooks.drafts.solver import Case, DraftOption, Family, RuleAnswer, Solver, TrialResult
from runbooks.drafts.symptoms import CellScene, Symptom, SymptomQuestion, WaitingLot
from runbooks.drafts.typed_draft import DraftGoal
from runbooks.plans.typed_plan import ActionName


def more_quota(case: Case) -> Iterator[Family]:
    """Options for quota: borrow more, be lent more, more quota of its own, or some of an idle sibling's."""
    lack = case.lack(case.first)
    tree = case.state.queues
    if lack is None:
        return
    pool, resource = tree.named_slot(lack.slot)
    units = {"gpu_milli": "gpus", "cpu_milli": "cpus"}.get(resource, "")
    queue = case.symptom.subject
    own = tree.specs[tree.row(queue)]
    there = case.free(resource) if not pool else _free_of(case, pool, resource)
    most = min(case.wanted(resource), max(there, 0)) // 1000
    if units and most >= 1:
        low = max(1, min(-(-lack.short // 1000), most))
        free = tree.available(tree.row(queue), lack.slot, case.scene.now_ms)
        enough = -(-(case.wanted(resource) - max(free, 0)) // 1000)
        for way in quota_ways(case, lack, own, pool, resource, units):
            if way is not None:
                yield Family(low, most, way, 0, enough)


def quota_ways(
    case: Case, lack: Lack, own: QueueSpec, pool: str, resource: str, units: str
) -> list[Callable[[int], DraftOption] | None]:
    """The options, mildest first. For the quota of one pool only the queue's own is offered."""
    at = case.state.queues.specs[lack.vertex]
    if pool:
        return [borrow(at, pool, resource, units), nominal(case, own, pool, resource, units)]
    idle = idle_siblings(case, own, resource)
    return [
        borrow(at, "", resource, units), lend(idle, resource, units), nominal(case, own, "", resource, units),
        rebalance(own, idle, resource, units),
    ]  # fmt: skip


def _free_of(case: Case, pool: str, resource: str) -> int:
    found = case.scene.pools.get(pool)
    return 0 if found is None else found.capacity[resource] - found.used[resource]


def quota_of(spec: QueueSpec, pool: str) -> QueueSpec | FlavorQuota:
    """Its quota of all pools together, or of one; empty where it names none."""
    if not pool:
        return spec
    return next((flavor for flavor in spec.flavors if flavor.pool == pool), FlavorQuota(pool=pool))


def idle_siblings(case: Case, own: QueueSpec, resource: str) -> list[tuple[QueueSpec, int]]:
    """(queue, quota of its own that it does not use) under the same parent where nothing waits; most first."""
    tree, slot = case.state.queues, RESOURCES.index(resource)
    found = []
    for row, spec in enumerate(tree.specs):
        if spec.parent != own.parent or spec.name == own.name or resource not in spec.nominal:
            continue
        spare = spec.nominal[resource] - tree.used_vector(row)[slot]
        if spare >= 1000 and not case.scene.queue_lots(spec.name):
            found.append((spec, spare))
    return sorted(found, key=lambda item: (-item[1], item[0].name))


def borrow(spec: QueueSpec, pool: str, resource: str, units: str) -> Callable[[int], DraftOption] | None:
    """Raise the limit of borrowing of whoever it is that keeps it from that."""
    limit = quota_of(spec, pool).borrowing_limit.get(resource)
    if limit is None:
        return None
    word = units.removesuffix("s").upper()
    of = {"pool": pool} if pool else {}

    def option(more: int) -> DraftOption:
        to = limit // 1000 + more
        return DraftOption(
            text=f"let queue {spec.name} borrow {to:,} {word}, {more:,} more",
            steps=(("set_quota", {"queue": spec.name, **of, f"borrowing_limit_{units}": to}),),
            harms="Borrowed quota is reclaimed first when its owners need it.",
        )

    return option


def lend(idle: list[tuple[QueueSpec, int]], resource: str, units: str) -> Callable[[int], DraftOption] | None:
    """Raise what the idle sibling lends that has most to lend and does not."""
    lender = next(((s, spare) for s, spare in idle if s.lending_limit.get(resource, spare) < spare), None)
    if lender is None:
        return None
    spec, spare = lender
    word, had = units.removesuffix("s").upper(), spec.lending_limit[resource]

    def option(more: int) -> DraftOption:
        to = min(had + more * 1000, spare) // 1000
        return DraftOption(
            text=f"let queue {spec.name}, which does not use it, lend {to:,} {word}",
            steps=(("set_quota", {"queue": spec.name, f"lending_limit_{units}": to}),),
            harms=f"Queue {spec.name} has to reclaim what it lent when its own work arrives.",
        )

    return option


def nominal(case: Case, spec: QueueSpec, pool: str, resource: str, units: str) -> Callable[[int], DraftOption] | None:
    if resource not in quota_of(spec, pool).nominal:
        return None
    of = {"pool": pool} if pool else {}
    word = units.removesuffix("s").upper()
    pools = [pool.name for pool in case.pools() if pool.capacity.gpu_milli]
    late_s = min(1_800_000, case.first.wait_ms - 60_000) // 1000

    def option(more: int) -> DraftOption:
        by_runbook = units == "gpus" and not pool and pools and more <= 512 and late_s >= 60
        return DraftOption(
            text=f"raise the quota of queue {spec.name} by {more:,} {word}",
            steps=(("set_quota", {"queue": spec.name, **of, f"add_{units}": more}),),
            runbook="queue-wait-over-slo" if by_runbook else "",
            inputs={"queue": spec.name, "pool": pools[0] if pools else "", "gpus": str(more), "slo": f"{late_s}s"},
            harms="Total quota grows: what is free tonight may be missing tomorrow.",
        )

    return option


def rebalance(
    own: QueueSpec, idle: list[tuple[QueueSpec, int]], resource: str, units: str
) -> Callable[[int], DraftOption] | None:
    """Moves quota to the queue from the idle sibling with most to spare."""
    if not idle or resource not in own.nominal:
        return None
    donor, spare = idle[0]
    word = units.removesuffix("s").upper()

    def option(more: int) -> DraftOption:
        moved = min(more, spare // 1000)
        keeps, has = donor.nominal[resource] // 1000 - moved, own.nominal[resource] // 1000 + moved
        whole_numbers = donor.nominal[resource] % 1000 == 0 == own.nominal[resource] % 1000
        return DraftOption(
            text=f"move {moved:,} {word} of quota from queue {donor.name}, which does not use it, to {own.name}",
            steps=(
                ("set_quota", {"queue": donor.name, f"nominal_{units}": keeps}),
                ("set_quota", {"queue": own.name, f"nominal_{units}": has}),
            ),
            runbook="quota-rebalance" if units == "gpus" and whole_numbers else "",
            inputs={
                "donor": donor.name, "donor_gpus": str(keeps), "receiver": own.name, "receiver_gpus": str(has),
            },
            harms=f"Queue {donor.name} waits where it used to start at once, until this is rolled back.",
        )  # fmt: skip

    return option


SOON_MS = 10 * 60_000
"""What starts by itself within this needs nothing."""
MAX_APPROVED = 20
MAX_REBALANCE = 8


def answer(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer for a wait; None when nothing that may be done helps."""
    flood = flooding(scene, symptom)
    if flood is not None:
        return node_rules.tenant(scene, flood, question)
    case = Case(scene, symptom, question)
    token = symptom.kind.removeprefix("wait_")
    alone_ms = max(SOON_MS, boot_ms(case))
    soon = case.solver.left_alone(alone_ms)
    if soon == case.solver.watched:
        return RuleAnswer(
            option=None, why=f"{symptom.text}; all of it starts by itself within {lasting(case.solver.ahead(alone_ms))}"
        )
    best: TrialResult | None = None
    for family in FAMILIES.get(token, _none)(case):
        result = case.solver.least(family.low, family.high, family.option, family.ahead_ms, family.enough)
        if best is None or result.gain > best.gain:
            best = result
        if best.gain == len(case.solver.watched - soon):
            break
    if best is None or not best.gain:
        return RuleAnswer(
            option=None,
            why=_no_way(case, token),
            about=(("queue", symptom.subject), ("workload", case.first.id)),
            tried=tuple(case.solver.tried),
            questions=QUESTIONS.get(token, ()),
        )
    return found(case, best)


def flooding(scene: CellScene, symptom: Symptom) -> Symptom | None:
    """The flood of a tenant that most of the late work is, or that keeps it waiting: room or quota given to it would go
    to the flood."""
    rows = {scene.state.workloads.row_of[id_] for lot in symptom.lots for id_ in lot.members}
    for flood in scene.floods:
        mine, hurt = len(rows.intersection(flood.rows)), len(rows.intersection(flood.hurt))
        if flood.of == "tenant" and 2 * (mine + hurt) >= len(rows):
            text = f"tenant {flood.name} floods the line with {flood.waiting:,} of {flood.line:,} waiting workloads"
            return Symptom(kind="tenant", of="tenant", subject=flood.name, text=text, hurts=True)
    return None


def displaced_way(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """Less important work gives way to what lost its nodes with a zone, where that starts all of it."""
    case = Case(scene, symptom, question)
    if symptom.kind not in (f"wait_{pending_reasons.CAPACITY}", f"wait_{pending_reasons.FRAGMENTED}") or not displaced(
        case
    ):
        return None
    for family in given_way(case):
        result = case.solver.least(family.low, family.high, family.option, family.ahead_ms, family.enough)
        if result.gain == len(case.solver.watched):
            return found(case, result)
    return None


def found(case: Case, best: TrialResult) -> RuleAnswer:
    late, started = len(case.solver.watched), len(best.started)
    within = "at once" if not best.ahead_ms else f"within {lasting(best.ahead_ms)}"
    reason = case.scene.reason(case.first)
    return RuleAnswer(
        option=best.option,
        why=f"{case.symptom.text}: {reason}" if reason else case.symptom.text,
        about=(("queue", case.symptom.subject), ("workload", case.first.id)),
        target=DraftGoal(
            text=f"late work in queue {case.symptom.subject} starts",
            before=f"{late:,} late, the oldest for {lasting(case.first.wait_ms)}",
            after=f"{started:,} start {within}{f', {late - started:,} still waiting' if started < late else ''}",
            met=started == late,
        ),
        starts=tuple(sorted(best.started))[:2],
        ahead_ms=best.ahead_ms,
        tried=tuple(one for one in case.solver.tried if one.text != best.option.text),
        risks=(best.option.harms,) if best.option.harms else (),
        partial=started < late,
    )


def _none(case: Case) -> Iterator[Family]:
    yield from ()


# -- room -------------------------------------------------------------------------------------------------------------


def more_room(case: Case) -> Iterator[Family]:
    yield from uncordoned(case)
    yield from larger_pools(case)
    yield from owners_due(case)
    yield from given_way(case)


def whole_pieces(case: Case) -> Iterator[Family]:
    yield from uncordoned(case)
    yield from consolidated(case)
    yield from larger_pools(case)


def given_way(case: Case) -> Iterator[Family]:
    """The least important work gives way to what is more important, where somebody points at just that, or where what
    is more important has lost its nodes with a zone."""
    if not (pointed_at(case) or displaced(case)):
        return
    w, state = case.state.workloads, case.state
    pools = {pool_row(case, pool) for pool in case.pools()}
    victims: list[tuple[int, int, str]] = []
    for row in range(len(w.ids)):
        if state.is_bound(row) and w.value_at(row) < case.priority:
            nodes = [state.allocations.node[a] for a in state.allocations.of_workload(w.first_allocation[row])]
            if nodes and all(state.capacity.pool[node] in pools for node in nodes):
                lost = 0 if w.checkpoint_cost[row] else w.lost_if_stopped(row, case.scene.now_ms)
                victims.append((w.value_at(row), lost * w.tasks[row], w.ids[row]))
    ids = [id_ for _, _, id_ in sorted(victims)][:MAX_REBALANCE]
    if ids:
        yield Family(1, len(ids), _given_way("preempt", ids))
        # What the scheduler itself might not preempt somebody can still suspend.
        yield Family(1, len(ids), _given_way("suspend", ids))


def displaced(case: Case) -> bool:
    """True when the late work ran, lost its place, and a zone is failing."""
    if not any(symptom.kind == "zone_lost" for symptom in case.scene.nodes()):
        return False
    history = case.scene.engine.workload(case.first.id).history
    return any(item.what == RETURNED for item in history)


def pointed_at(case: Case) -> bool:
    """True when a person picked the late work or named it."""
    return bool(case.question.pick or (case.question.names("workload") and case.question.text))


def owners_due(case: Case) -> Iterator[Family]:
    """Work of queues that hold more than their own goes, where what is late is within the quota of its own queue, and
    somebody points at just that: least important first, of those what loses least."""
    if not pointed_at(case):
        return
    state, tree, w = case.state, case.state.queues, case.state.workloads
    own = w.queue[case.first.row]
    resource = "gpu_milli" if case.first.gpu_milli else "cpu_milli"
    slot = RESOURCES.index(resource)
    nominal_ = tree.specs[own].nominal.get(resource)
    if nominal_ is None or tree.used_vector(own)[slot] + case.wanted(resource) > nominal_:
        return
    root = tree.path[own][-1]
    over = {
        row: tree.used_vector(row)[slot] - spec.nominal[resource]
        for row, spec in enumerate(tree.specs)
        if row != own and not tree.children[row] and tree.path[row][-1] == root and resource in spec.nominal
    }
    pools = {pool_row(case, pool) for pool in case.pools()}
    victims: list[tuple[int, int, str, int, int]] = []
    for row in range(len(w.ids)):
        if not state.is_bound(row) or over.get(w.queue[row], 0) <= 0:
            continue
        nodes = [state.allocations.node[a] for a in state.allocations.of_workload(w.first_allocation[row])]
        if w.value_at(row) <= case.priority and nodes and all(state.capacity.pool[node] in pools for node in nodes):
            lost = w.lost_if_stopped(row, case.scene.now_ms) * w.tasks[row]
            victims.append(
                (w.value_at(row), lost, w.ids[row], w.queue[row], w.class_at(row).request[2 if slot == 2 else 0])
            )
    ids: list[str] = []
    for _, _, id_, queue, held in sorted(victims):
        if over[queue] > 0:
            ids.append(id_)
            over[queue] -= held
    ids = ids[:MAX_REBALANCE]
    if ids:
        yield Family(1, len(ids), _given_way("preempt", ids, "above the quota of its own queue"))
        yield Family(1, len(ids), _given_way("suspend", ids, "above the quota of its own queue"))


def _given_way(action: ActionName, ids: list[str], which: str = "of lower priority") -> Callable[[int], DraftOption]:
    return lambda count: DraftOption(
        text=f"{action} {counted(count, 'workload')} {which}",
        steps=((action, {"workloads": tuple(ids[:count])}),),
        harms="Preempted work loses its progress since the last checkpoint, and waits.",
    )


# -- promises, people and rules ---------------------------------------------------------------------------------------


def unreserved(case: Case) -> Iterator[Family]:
    """Reservations that lie idle and whose own queues want nothing."""
    idle = {symptom.subject for symptom in case.scene.idle_reservations()}
    for each in case.state.bookings.reservations:
        spec = each.spec
        if spec.name in idle and not any(case.scene.queue_lots(queue) for queue in spec.queues):
            yield Family(1, 1, _take_back(spec.name))


def _take_back(name: str) -> Callable[[int], DraftOption]:
    return lambda _: DraftOption(
        text=f"remove reservation {name}, which is idle",
        steps=(("unreserve", {"reservations": (name,)}),),
        runbook="stale-reservation",
        inputs={"reservation": name},
        harms="Its owner may come late and expect empty nodes.",
    )


def opened(case: Case) -> Iterator[Family]:
    """The queues above it that are closed; not while a zone or spot machines are being lost."""
    tree = case.state.queues
    path = tree.path[tree.row(case.symptom.subject)]
    closed = [vertex for vertex in path if tree.mode[vertex] != QueueMode.OPEN]
    trouble = case.scene.nodes()
    if any(symptom.kind in ("zone_lost", "spot_storm") for symptom in trouble):
        return
    names = tuple(tree.specs[vertex].name for vertex in closed)
    yield Family(
        1, 1,
        lambda _: DraftOption(
            text=f"open queue {' and '.join(names)}", steps=(("open_queue", {"queues": names}),),
            harms=f"{case.scene.closed_by('queue', names) or 'it is not recorded who held it'}; "
            "see first that what led to it is over",
        ),
    )  # fmt: skip


def first_in_line(case: Case) -> Iterator[Family]:
    """Options for the first workload of a strict queue: what helps it; to hold it when it can never start; to pass over
    it."""
    explainer = case.scene.engine.reader.explainer
    first = min(lot.row for lot in case.scene.queue_lots(case.symptom.subject))
    head = next(lot for lot in case.scene.lots if lot.row == first)
    token = explainer.token(first)
    if token == pending_reasons.NO_NODES:
        yield Family(
            1, 1,
            lambda _: DraftOption(
                text=f"hold {head.id}, which no node of the cell can ever take",
                steps=(("hold", {"workloads": (head.id,)}),),
                harms=f"{head.id} keeps its place and does not start until somebody releases it.",
            ),
        )  # fmt: skip
    elif token in FAMILIES and token != pending_reasons.BEHIND:
        yield from FAMILIES[token](Case(case.scene, _only(case.symptom, head, token), case.question))
    spec = case.state.queues.specs[case.state.queues.row(case.symptom.subject)]
    if spec.order == "strict_fifo":
        yield Family(
            1, 1,
            lambda _: DraftOption(
                text=f"let queue {spec.name} pass over what cannot start",
                steps=(("set_quota", {"queue": spec.name, "order": "best_effort"}),),
                harms=f"{head.id}, which is first, may be passed by smaller work while this holds.",
            ),
        )  # fmt: skip


def _only(symptom: Symptom, lot: WaitingLot, token: str) -> Symptom:
    return msgspec.structs.replace(symptom, kind=f"wait_{token}", lots=(lot,))


def more_budget(case: Case) -> Iterator[Family]:
    """The spending of what is late, where a budget asks for approval; else more of it."""
    budgets = case.state.budgets
    stopping = [
        budgets.specs[row] for row in range(len(budgets.specs)) if budgets.stops_row(case.state, row, case.first.row)
    ]
    if len(stopping) != 1:
        return
    spec = stopping[0]
    if spec.action == "approve":
        ids = tuple(id_ for lot in case.lots for id_ in lot.members)[:MAX_APPROVED]
        yield Family(
            1, len(ids),
            lambda count: DraftOption(
                text=f"approve the spending of {counted(count, 'workload')}",
                steps=(("approve_spending", {"workloads": ids[:count]}),),
                harms=f"Budget {spec.name} is spent; this adds to the cost.",
            ),
        )  # fmt: skip
        return
    yield Family(1, 1, lambda _: raised(case.scene, spec.name))


def raised(scene: CellScene, name: str) -> DraftOption:
    """Enough for the rest of the window, what it will have spent by then below 95 % of the limit, and what is spent
    below 80 %: but no more than as much again, of what is not spent already."""
    line = scene.budgets[name]
    spec, spent = line.spec, line.spent_microusd
    limit = max(min(line.forecast_microusd * 100 // 95, 2 * spec.limit_microusd), spent * 5 // 4) + MICROUSD
    more = max(1, -(-(limit - spec.limit_microusd) // MICROUSD))
    return DraftOption(
        text=f"add {usd(more * MICROUSD)} to budget {name}",
        steps=(("set_budget", {"budget": name, "add_usd": more}),),
        runbook="budget-nearly-spent",
        inputs={"budget": name, "usd": str(more)},
        harms="The limit stays raised in the next window too.",
    )


def quota_or_way(case: Case) -> Iterator[Family]:
    """More quota, where there is room; else that less important work returns what it has."""
    yield from more_quota(case)
    yield from owners_due(case)
    yield from given_way(case)


FAMILIES: Mapping[str, Callable[[Case], Iterator[Family]]] = {
    pending_reasons.QUOTA: quota_or_way,
    pending_reasons.CAPACITY: more_room,
    pending_reasons.FRAGMENTED: whole_pieces,
    pending_reasons.SCATTERED: whole_pieces,
    pending_reasons.RESERVED: unreserved,
    pending_reasons.QUEUE_HELD: opened,
    pending_reasons.BEHIND: first_in_line,
    pending_reasons.BUDGET: more_budget,
}
"""Token -> what might be done."""
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    pending_reasons.QUEUE_HELD: ("Until when is the queue to be closed?",),
    pending_reasons.BUDGET: ("Has the budget owner agreed to more?",),
    pending_reasons.NO_NODES: ("Does its owner know that no node here can take it?",),
    pending_reasons.RESERVED: ("Does the owner of the reservation still come?",),
}


def _no_way(case: Case, token: str) -> str:
    """The reason that nothing is done, in a sentence."""
    reason = case.scene.reason(case.first)
    start_ms = case.scene.engine.reader.explainer.start_bound(case.first.row)
    when = ""
    if start_ms is not None and start_ms > case.scene.now_ms:
        when = f"; it does not start within {lasting(start_ms - case.scene.now_ms)}"
    if token == pending_reasons.NO_NODES:
        return f"{case.symptom.text}: {reason}; no action on the cell helps, its owner has to change the request"
    if token == pending_reasons.ARRAY_LIMIT:
        return f"{case.symptom.text}: {reason}; its owner set that limit"
    if token == pending_reasons.PREEMPTED:
        return f"{case.symptom.text}: {reason}; room is being made"
    if token == pending_reasons.QUEUE_HELD:
        tree = case.state.queues
        closed = [tree.specs[row].name for row in tree.path[tree.row(case.symptom.subject)]]
        who = case.scene.closed_by("queue", closed)
        return f"{case.symptom.text}: {reason}{f'; {who}' if who else ''}; no option tried helps without harm"
    size = whole(case.first.gpu_milli or case.first.cpu_milli)
    said = f" ({size} {'GPU' if case.first.gpu_milli else 'CPU'} asked for)"
    return f"{case.symptom.text}: {reason or 'not known'}{said}{when}; no option tried helps without harm"


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
    return f"{who} ask for {' and '.join(asks)} a task, and similar jobs use at most {used_of(over)}"


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


def resized(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
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
    """Options with a smaller request: of one resource, then of both."""
    ways: list[dict[str, int]] = []
    cpu = {"cpu_milli": smaller(over.cpu_milli, 1000)}
    memory = {"memory_mib": smaller(over.memory_mib, 1024)}
    ways += [cpu] * bool(over.cpu_milli) + [memory] * bool(over.memory_mib)
    ways += [cpu | memory] * bool(over.cpu_milli and over.memory_mib)
    found = []
    for way in ways:
        to = [f"{way['cpu_milli'] // 1000:,} CPU"] if "cpu_milli" in way else []
        to += [f"{way['memory_mib'] // 1024:,} GiB"] if "memory_mib" in way else []
        steps = (("resize", {"workloads": ids, **way, "evidence": f"similar jobs use {used_of(over)}"}),)
        found.append(
            DraftOption(
                text=f"let {counted(len(ids), 'workload')} ask for {' and '.join(to)} a task",
                steps=steps,  # type: ignore[arg-type]
                harms="If they need more than similar jobs, they run slower or out of memory.",
            )
        )
    return found
