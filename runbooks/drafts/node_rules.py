"""Rules for nodes, pools and tenants: failing and slow nodes, hung gangs, spot interruptions, tenants that flood the
cell, idle pools, and options that make room on nodes.

Each rule proposes the least that helps, and less where the work that it stops would not start again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from engine.capacity.task_shapes import Shape
from engine.model.columns import view
from engine.model.quantities import counted, lasting, usd
from engine.model.specs import NodeState, PoolSpec, WorkloadState
from engine.placement.node_choice import grows, suits
from engine.reads import pending_reasons
from engine.twin.counterfactuals import verified
from runbooks.actions.workloads import PUT_BACK
from runbooks.drafts.solver import Case, DraftOption, Family, RuleAnswer, Solver, named, unless_harmful
from runbooks.drafts.symptoms import CellScene, Symptom, SymptomQuestion
from runbooks.plans.typed_plan import ActionName

AGAIN_MS = 2 * 60_000
"""Within which what is stopped should run again elsewhere."""
MAX_LEFT = 200
MAX_SUSPENDED, MAX_HELD = 8, 12
LONG_MS = 20 * 60_000
"""A run that is shorter may still be loading its data."""
OVERDUE = 2
"""Times what was asked for, and what its likes take, after which a run is not just long."""
WHOLE_PERMILLE = 600
"""Of the cell's ready nodes, above which not even a failing zone is taken out of use."""
FLOOD = 20
"""Live workloads of a tenant below which it floods nothing."""


def work_symptoms(scene: CellScene, question: SymptomQuestion) -> list[Symptom]:
    """Symptoms of workloads, tenants and pools: gangs that hang by their agents' reports or are named and run, tenants
    that flood the cell, idle pools."""
    found, w = [], scene.state.workloads
    still = {} if scene.agents is None else {one.workload: one for one in scene.agents.still}
    for id_ in dict.fromkeys((*question.names("workload"), *still)):
        row = w.row_of.get(id_)
        if row is None or w.state[row] != WorkloadState.RUNNING:
            continue
        text, hurts = f"{id_} has run for {lasting(scene.now_ms - w.started[row])}", id_ in still
        if hurts:
            text = f"{text}, and none of its tasks has come on for {lasting(scene.now_ms - still[id_].since_ms)}"
        found.append(Symptom(kind="stuck", of="workload", subject=id_, text=text, hurts=hurts))
    found += floods(scene)
    found += idle_sizes(scene)
    return found


# -- one node ---------------------------------------------------------------------------------------------------------


def why_out(scene: CellScene, ids: tuple[str, ...]) -> str:
    """The risk of returning cordoned nodes to use."""
    who = scene.closed_by("node", ids) or "who cordoned them, and why, is not recorded"
    return f"{who}; the fault may not be visible here"


def hand_back(scene: CellScene, why: str, ids: tuple[str, ...]) -> RuleAnswer | None:
    option = DraftOption(
        text=f"return {counted(len(ids), 'node')}", steps=(("uncordon", {"nodes": ids}),),
        runbook="hand-back-nodes" if len(ids) <= 12 else "", inputs={"nodes": ",".join(ids)},
        harms=why_out(scene, ids),
    )  # fmt: skip
    return unless_harmful(scene, option, why, "Were they tested since they were cordoned?")


def straggler(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """Keep work off the node, and start the gang anew elsewhere, where there is room for it."""
    node, gang = symptom.subject, symptom.ids[0]
    if scene.state.capacity.state[scene.state.capacity.row(node)] != NodeState.READY:
        return RuleAnswer(option=None, why=f"{symptom.text}; the node already takes no new work")
    both = DraftOption(
        text=f"cordon node {node} and restart {gang} elsewhere",
        steps=(("cordon", {"nodes": (node,)}), (PUT_BACK, {"workloads": (gang,)})),
        runbook="straggler", inputs={"node": node, "gang": gang},
        harms=f"{gang} loses its work since the last checkpoint.",
    )  # fmt: skip
    solver = Solver(scene.engine, ())
    result = solver.try_(both, AGAIN_MS)
    if result.harmless and not result.put_off:
        return RuleAnswer(option=both, why=symptom.text, tried=(), risks=(both.harms,),
                          questions=("Is its part of the work larger than the others'?",))  # fmt: skip
    return _cordon(scene, node, symptom.text, f"{gang} would not start again without it")


def _cordon(scene: CellScene, node: str, why: str, because: str) -> RuleAnswer | None:
    """The answer that only keeps new work off a node; never the last node of its pool."""
    pool = scene.pools[scene.engine.node(node).pool]
    if pool.ready < 2:
        return RuleAnswer(option=None, why=f"{why}; it is the last node of pool {pool.name} that takes work",
                          questions=("Can its work wait, or is there other hardware?",))  # fmt: skip
    option = DraftOption(
        text=f"cordon node {node}", steps=(("cordon", {"nodes": (node,)}),),
        harms="Work on it keeps running, at risk.",
    )  # fmt: skip
    return unless_harmful(scene, option, f"{why}; {because}" if because else why)


def drained(scene: CellScene, node: str, why: str, runbook: str, questions: tuple[str, ...] = ()) -> RuleAnswer | None:
    """Cordon and drain; only the cordon where what is stopped would not run again elsewhere."""
    row = scene.state.capacity.row_of.get(node)
    if row is None:
        return None
    state = NodeState(scene.state.capacity.state[row])
    if state != NodeState.READY:
        return RuleAnswer(option=None, why=f"{why}; the node is {state.label} and already takes no new work")
    if scene.pools[scene.engine.node(node).pool].ready < 2:
        return _cordon(scene, node, why, "")
    if scene.is_idle(row):
        return _cordon(scene, node, why, "nothing runs there")
    option = DraftOption(
        text=f"drain node {node}", steps=(("drain", {"nodes": (node,)}),), runbook=runbook, inputs={"node": node},
        harms="Work on it restarts elsewhere from its last checkpoint.",
    )  # fmt: skip
    solver = Solver(scene.engine, ())
    result = solver.try_(option, AGAIN_MS)
    if not result.harmless or result.put_off:
        because = f"drained, {named(result.put_off)} would not run elsewhere" if result.put_off else ""
        return _cordon(scene, node, why, because)
    return RuleAnswer(option=option, why=why, risks=(option.harms,), questions=questions)


def flapping(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    return drained(scene, symptom.subject, symptom.text, "node-flapping", ("Is it power, network or the agent?",))


# -- gangs ------------------------------------------------------------------------------------------------------------


def stuck(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """Start a gang anew that is said to hang, where it has run for long enough to tell."""
    w, row = scene.state.workloads, scene.state.workloads.row(symptom.subject)
    run_ms = scene.now_ms - w.started[row]
    named = symptom.subject in question.names("workload")
    if scene.agents is not None and symptom.subject in scene.agents.moving:
        return RuleAnswer(option=None, why=f"{symptom.text}, and its tasks come on, as their agents say")
    estimate_ms = w.class_at(row).estimate_ms
    usual_ms = usual_run_ms(scene, row)
    late = bool(estimate_ms) and run_ms > OVERDUE * max(estimate_ms, usual_ms)
    if not symptom.hurts and not (late and named):
        return RuleAnswer(option=None, why=f"{symptom.text}, not far longer than requested, or than similar jobs",
                          questions=("What shows that it hangs? Nobody reports its progress here.",
                                 "Can its owner be asked before its work is lost?"))  # fmt: skip
    if run_ms < LONG_MS:
        return RuleAnswer(option=None, why=f"{symptom.text}; it may still be loading its data",
                          questions=("Does its owner know how long it takes to begin?",))  # fmt: skip
    option = DraftOption(
        text=f"restart {symptom.subject} from its last checkpoint",
        steps=((PUT_BACK, {"workloads": (symptom.subject,)}),),
        runbook="stuck-gang", inputs={"gang": symptom.subject, "silent_for": f"{max(run_ms // 1000 - 60, 600)}s"},
        harms=f"{symptom.subject} loses its work since the last checkpoint.",
    )  # fmt: skip
    result = Solver(scene.engine, ()).try_(option, AGAIN_MS)
    if not result.harmless or result.put_off:
        return RuleAnswer(option=None, why=f"{symptom.text}; stopped, it would not start again at once")
    unknown = () if symptom.hurts else ("Does it really hang? Nobody reports its progress here.",)
    return RuleAnswer(option=option, why=symptom.text, risks=(option.harms,),
                      questions=(*unknown, "Has a stack dump of one rank been taken?"))  # fmt: skip


def usual_run_ms(scene: CellScene, row: int) -> int:
    """The longest run of the same name and tenant that has finished; 0 where there is none."""
    w = scene.state.workloads
    name, tenant_row = w.names[row], w.tenant[row]
    ended = np.flatnonzero((view(w.state) == WorkloadState.FINISHED) & (view(w.tenant) == tenant_row)).tolist()
    return max((w.ended[one] - w.started[one] for one in ended if name and w.names[one] == name), default=0)


# -- zones and spot ---------------------------------------------------------------------------------------------------


def zone_lost(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer that keeps new work off the rest of a failing zone, and holds less important work where more important
    work waits."""
    left = symptom.ids[:MAX_LEFT]
    ready = len(scene.nodes_in(NodeState.READY))
    batch = _batch_queue(scene)
    steps: list[tuple[ActionName, dict[str, Any]]] = []
    if left and len(left) * 1000 <= WHOLE_PERMILLE * ready:
        steps.append(("cordon", {"nodes": left}))
    if batch:
        steps.insert(0, ("hold_queue", {"queues": (batch,)}))
    if not steps:
        why = f"{symptom.text}; none of it takes work, and its work restarts elsewhere"
        return RuleAnswer(option=None, why=why,
                          questions=("What does the provider or the data centre say?",))  # fmt: skip
    option = DraftOption(
        text=f"keep new work off the rest of zone {symptom.subject}{f', and hold queue {batch}' if batch else ''}",
        steps=tuple(steps),
        runbook="zone-loss" if batch and len(steps) == 2 else "",
        inputs={"zone": symptom.subject, "batch": batch, "left": ",".join(left)},
        harms="Nodes that come back stay cordoned if they were cordoned here.",
    )  # fmt: skip
    result = Solver(scene.engine, (), 2**31).try_(option)
    if result.refused:
        return None
    return RuleAnswer(option=option, why=symptom.text, risks=(option.harms,), about=(("zone", symptom.subject),),
                      questions=("What does the provider or the data centre say?",))  # fmt: skip


def _batch_queue(scene: CellScene) -> str:
    """The queue with the least important waiting work, where more important work of another queue waits."""
    by_queue: dict[str, int] = {}
    for lot in scene.lots:
        by_queue[lot.queue] = max(by_queue.get(lot.queue, lot.priority), lot.priority)
    if len(by_queue) < 2:
        return ""
    ordered = sorted(by_queue.items(), key=lambda item: (item[1], item[0]))
    return ordered[0][0] if ordered[0][1] < ordered[-1][1] else ""


def spot_storm(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """No more of what is being taken back; and on-demand machines for what would lose its place."""
    spec = next(pool for pool in scene.state.capacity.pools if pool.name == symptom.subject)
    c, state = scene.state.capacity, scene.state
    size = scene.sizes[spec.name]
    rows = [c.row_of[id_] for id_ in symptom.ids]
    displaced = sorted({state.allocations.workload[a] for row in rows for a in state.allocations.on_node(row)})
    shapes = [shape for row in displaced for shape in state.workloads.class_at(row).shapes]
    steps: list[tuple[ActionName, dict[str, Any]]] = []
    inputs: dict[str, str] = {}
    stays = max(0, size.ready + size.booting + size.other - len(symptom.ids))
    stays = max(stays, spec.scaling.least) if spec.scaling is not None else stays
    if spec.scaling is not None and spec.scaling.most > stays:
        steps.append(("set_scaling", {"pool": spec.name, "most": stays}))
    fallback = _fallback(scene, shapes)
    if fallback:
        nodes = min(len(symptom.ids), _room(scene, fallback))
        price = next(pool.price_microusd_hour for pool in c.pools if pool.name == fallback)
        steps.append(("scale_pool", {"pool": fallback, "add_nodes": nodes}))
        inputs = {"spot": spec.name, "fallback": fallback, "nodes": str(nodes), "spot_most": str(stays)}
        harms = f"On-demand machines cost {usd(nodes * price)} an hour more."
    else:
        harms = "Work that loses its place waits for other machines."
    if not steps:
        return RuleAnswer(option=None, why=f"{symptom.text}; no other pool can take its work")
    option = DraftOption(
        text=f"order no more of {spec.name}" + (f", and {inputs['nodes']} nodes of {fallback}" if fallback else ""),
        steps=tuple(steps),
        runbook="spot-storm" if len(steps) == 2 else "", inputs=inputs, harms=harms,
    )  # fmt: skip
    result = Solver(scene.engine, ()).try_(option)
    return None if result.refused else RuleAnswer(option=option, why=symptom.text, risks=(harms,))


def _fallback(scene: CellScene, shapes: list[Shape]) -> str:
    """An on-demand pool that grows, has room to, and would do for what loses its place; the cheapest."""
    c = scene.state.capacity
    pools = [
        pool for row, pool in enumerate(c.pools)
        if not pool.spot and pool.scaling is not None and _room(scene, pool.name) > 0
        and (not shapes or any(row in shape.pool_set for shape in shapes))
    ]  # fmt: skip
    return min(pools, key=lambda pool: (pool.price_microusd_hour, pool.name)).name if pools else ""


def _room(scene: CellScene, pool: str) -> int:
    size = scene.sizes[pool]
    if size.scaling is None:
        return 0
    return size.scaling.most - size.ready - size.booting - size.other - size.ordered


# -- tenants and pools ------------------------------------------------------------------------------------------------


def floods(scene: CellScene) -> list[Symptom]:
    """Tenants that hold, or are, most of what is there, where others wait."""
    w = scene.state.workloads
    if not w.ids:
        return []
    resource = 2 if scene.has_gpus else 0
    total = max(scene.state.capacity.totals[resource], 1)
    held: Counter[int] = Counter()
    for (_, row), use in scene.state.tenant_use.items():
        held[row] += use[resource]
    live = np.isin(view(w.state), (WorkloadState.QUEUED, WorkloadState.PLACED, WorkloadState.RUNNING))
    counts = np.bincount(view(w.tenant)[live], minlength=len(w.tenants.names))
    found = []
    flooding = {flood.name for flood in scene.floods if flood.of == "tenant"}
    for row, name in enumerate(w.tenants.names):
        most = name in flooding or held[row] * 2 >= total or (counts[row] >= FLOOD and counts[row] * 2 > counts.sum())
        if name and most and any(name not in lot.tenants for lot in scene.lots):
            text = f"tenant {name} holds {held[row] * 100 // total} % of the cell with {counts[row]:,} workloads"
            weight = held[row] * 1000 // total
            found.append(
                Symptom(kind="tenant", of="tenant", subject=name, weight=weight, text=f"{text}, and others wait")
            )
    return found


def tenant(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """Hold what it has waiting; where that does not let the others start, suspend the newest of what it runs."""
    w, name = scene.state.workloads, symptom.subject
    index = w.tenants.index.get(name)
    if index is None:
        return None
    mine = np.flatnonzero(view(w.tenant) == index)
    states = view(w.state)[mine]
    queued = [w.ids[row] for row in mine[states == WorkloadState.QUEUED].tolist()]
    running = [w.ids[row] for row in mine[states == WorkloadState.RUNNING][::-1].tolist()]
    others = [lot for lot in scene.lots if name not in lot.tenants]
    if not others:
        return RuleAnswer(option=None, why=f"{symptom.text}; nobody else waits")
    watched = [id_ for lot in others for id_ in lot.members]
    solver = Solver(scene.engine, watched, min(lot.priority for lot in others))
    own_queue = _own_queue(scene, name)
    hold: tuple[tuple[ActionName, dict[str, Any]], ...] = ()
    if len(queued) > MAX_HELD and own_queue:
        hold = (("hold_queue", {"queues": (own_queue,)}),)
    elif queued:
        hold = (("hold", {"workloads": tuple(queued[:MAX_HELD])}),)

    def option(suspended: int) -> DraftOption:
        suspend = (("suspend", {"workloads": tuple(running[:suspended])}),) if suspended else ()
        what = [
            text
            for text, there in (
                (f"hold the waiting work of tenant {name}", hold),
                (f"suspend its {suspended} newest", suspended),
            )
            if there
        ]
        return DraftOption(
            text=" and ".join(what), steps=(*hold, *suspend),
            harms="Suspended work loses its progress since the last checkpoint." if suspended else
            f"Held work of {name} waits until somebody releases it.",
        )  # fmt: skip

    low = 0 if hold else 1
    high = min(MAX_SUSPENDED, len(running))
    if high < low:
        return None
    result = solver.least(low, high, option, 5 * 60_000)
    if not result.gain:
        why = f"{symptom.text}; holding or suspending its newest work lets none of them start"
        return RuleAnswer(option=None, why=why,
                          tried=tuple(solver.tried))  # fmt: skip
    return RuleAnswer(option=result.option, why=symptom.text, tried=tuple(solver.tried), risks=(result.option.harms,),
                      questions=(f"Did {name} agree this with anybody?",), starts=tuple(sorted(result.started))[:2],
                      ahead_ms=result.ahead_ms,
                      partial=result.started != solver.watched)  # fmt: skip


def _own_queue(scene: CellScene, tenant: str) -> str:
    """The queue that all its waiting work is in, and nobody else's."""
    queues = {lot.queue for lot in scene.lots if tenant in lot.tenants}
    alone = all(lot.tenants == (tenant,) for lot in scene.lots if lot.queue in queues)
    return queues.pop() if len(queues) == 1 and alone else ""


def idle_sizes(scene: CellScene) -> list[Symptom]:
    """Pools that never shrink below more than is used of them: by their least, or by what is set for now."""
    found = []
    for name, size in scene.sizes.items():
        if size.scaling is None or name not in scene.pools or size.ready <= size.asked or awaited(scene, name):
            continue
        kept = max(size.scaling.least, set_now(scene, name))
        if size.scaling.headroom and size.asked + size.scaling.headroom > kept:
            kept = size.asked + size.scaling.headroom
        if kept > size.asked and scene.pools[name].price_microusd_hour:
            text = f"pool {name} keeps at least {kept:,} nodes, and {size.asked:,} would do now"
            found.append(Symptom(kind="idle_pool", of="pool", subject=name, weight=size.ready - size.asked, text=text))
    return found


def awaited(scene: CellScene, pool: str) -> int:
    """Workloads that may use the pool and will want it: those whose time has not come, or whose turn has not, and those
    that somebody has put aside; and reservations of its nodes."""
    state = scene.state
    w, row = state.workloads, int(state.capacity.pool_of[pool])
    if not w.ids:
        return 0
    c, states, to_come = state.capacity, view(w.state), 0
    for one in np.flatnonzero(states == WorkloadState.WAITING).tolist():
        to_come += any(row in shape.pool_set for shape in w.class_at(one).shapes)
    for one in np.flatnonzero(np.isin(states, (WorkloadState.HELD, WorkloadState.SUSPENDED))).tolist():
        to_come += all(set(shape.pool_set) == {row} for shape in w.class_at(one).shapes)
    booked = (id_ for each in state.bookings.reservations for id_ in each.spec.nodes)
    return to_come + sum(c.pool[c.row_of[id_]] == row for id_ in booked if id_ in c.row_of)


def set_now(scene: CellScene, pool: str) -> int:
    """Nodes that people have set for this time."""
    return max([(0, 0), *(one for one in scene.sizes[pool].set_for if one[0] <= scene.now_ms)])[1]


def idle_pool(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer that lowers the bound that keeps an idle pool: its least, its headroom, or its targets. The autoscaler
    then gives back the rest."""
    size = scene.sizes[symptom.subject]
    set_for = set_now(scene, symptom.subject)
    if size.scaling is not None and size.scaling.headroom and max(size.scaling.least, set_for) <= size.asked:
        return no_headroom(scene, symptom)
    if size.scaling is not None and size.scaling.least <= size.asked:
        option = DraftOption(
            text=f"set pool {symptom.subject} to {size.asked:,} nodes, instead of its setting",
            steps=(("scale_pool", {"pool": symptom.subject, "nodes": size.asked}),),
            harms="New work has to wait for machines to boot.",
        )  # fmt: skip
        return unless_harmful(scene, option, symptom.text)
    return least(scene, symptom.subject, size.asked, symptom.text)


def no_headroom(scene: CellScene, symptom: Symptom) -> RuleAnswer | None:
    option = DraftOption(
        text=f"let pool {symptom.subject} keep no empty nodes",
        steps=(("set_scaling", {"pool": symptom.subject, "headroom": 0}),),
        harms="Sudden work has to wait for machines to boot.",
    )  # fmt: skip
    return unless_harmful(scene, option, symptom.text, "Does anybody rely on it?")


def least(scene: CellScene, pool: str, to: int, why: str) -> RuleAnswer | None:
    option = DraftOption(
        text=f"let pool {pool} shrink to {to:,} nodes", steps=(("set_scaling", {"pool": pool, "least": to}),),
        harms="New work has to wait for machines to boot.",
    )  # fmt: skip
    return unless_harmful(scene, option, why)


MAX_AHEAD_MS = 40 * 60_000
"""However long machines boot."""
MAX_NODES = 100
"""Returned or added in one draft."""


def uncordoned(case: Case) -> Iterator[Family]:
    """As few as it takes of the healthy nodes that are out of use, of pools that it may use."""
    c = case.state.capacity
    names = {pool.name for pool in case.pools()}
    fit = [id_ for id_ in case.scene.healthy_cordoned if c.pools[c.pool[c.row_of[id_]]].name in names]
    empty = [id_ for id_ in fit if case.scene.is_idle(c.row_of[id_])][:MAX_NODES]
    if not empty:
        return

    def option(count: int) -> DraftOption:
        ids = tuple(empty[:count])
        return DraftOption(
            text=f"return {counted(count, 'node')} that {'is' if count == 1 else 'are'} cordoned, healthy and empty",
            steps=(("uncordon", {"nodes": ids}),),
            runbook="hand-back-nodes" if count <= 12 else "",
            inputs={"nodes": ",".join(ids)},
            harms=why_out(case.scene, ids),
        )

    domain = _in_one_domain(case, set(empty))
    if domain is not None:
        yield Family(1, 1, lambda _: domain)
    yield Family(1, len(empty), option)


def _in_one_domain(case: Case, healthy: set[str]) -> DraftOption | None:
    """Nodes of one domain, for work that must be in one; of what would start it otherwise nothing is taken."""
    if case.symptom.kind != f"wait_{pending_reasons.SCATTERED}":
        return None
    found_ = verified(case.scene.engine, case.first.id).found
    if found_ is None or found_.kind != "uncordon":
        return None
    ids = tuple(id_ for edit in found_.edits for id_ in edit.get("ids", ()))
    if not ids or not healthy.issuperset(ids):
        return None
    return DraftOption(
        text=f"return {counted(len(ids), 'node')} of one domain, cordoned, healthy and empty",
        steps=(("uncordon", {"nodes": ids}),),
        runbook="hand-back-nodes" if len(ids) <= 12 else "",
        inputs={"nodes": ",".join(ids)},
        harms=why_out(case.scene, ids),
    )


def consolidated(case: Case) -> Iterator[Family]:
    """Moves that make room for the largest of them."""
    largest = max(case.lots, key=lambda lot: (lot.gpu_milli, lot.cpu_milli, lot.wait_ms))
    option = DraftOption(
        text=f"move small work together so that {largest.id} fits",
        steps=(("consolidate", {"unblock": largest.id, "max_moves": 6}),),
        runbook="fragmented-gang" if case.symptom.kind == f"wait_{pending_reasons.FRAGMENTED}" else "",
        inputs={"gang": largest.id},
        harms="Moved work restarts from its last checkpoint.",
    )
    yield Family(1, 1, lambda _: option, 60_000)


def larger_pools(case: Case) -> Iterator[Family]:
    """Pools that grow by themselves and have come to their most; or that would, if the autoscaler were not off."""
    enabled = case.state.settings.autoscaling.enabled
    for pool in growing(case):
        size = case.scene.sizes[pool.name]
        there = size.ready + size.booting + size.other + size.ordered
        scaling = pool.scaling
        if scaling is None or case.scene.state.orders.backed_off_ms.get(pool_row(case, pool), -1) > case.scene.now_ms:
            continue
        low, high = _nodes_for(case, pool), min(MAX_NODES, max(scaling.most, 8))
        if not 0 < low <= high:
            continue
        ahead_ms = min(scaling.boot_ms[1] + 3 * 60_000, MAX_AHEAD_MS)
        if not enabled and there < scaling.most:
            room = scaling.most - there
            yield Family(min(low, room), room, _added(pool), ahead_ms)
        elif there + low > scaling.most:
            short = there + low - scaling.most
            yield Family(short, min(short + 8, high), _higher(pool, scaling.most), ahead_ms)


def _added(pool: PoolSpec) -> Callable[[int], DraftOption]:
    return lambda more: DraftOption(
        text=f"add {counted(more, 'node')} to pool {pool.name}",
        steps=(("scale_pool", {"pool": pool.name, "add_nodes": more}),),
        harms=f"{usd(more * pool.price_microusd_hour)} an hour, from when they boot.",
    )


def _higher(pool: PoolSpec, most: int) -> Callable[[int], DraftOption]:
    return lambda more: DraftOption(
        text=f"let pool {pool.name} grow to {most + more:,} nodes, {more:,} more",
        steps=(("set_scaling", {"pool": pool.name, "most": most + more}),),
        harms=f"Up to {usd(more * pool.price_microusd_hour)} an hour more, while there is work for them.",
    )


def growing(case: Case) -> list[PoolSpec]:
    """Pools that grow, or are kept from it, and would do for what is late: those that are named, then those that grow,
    then the cheapest; those on demand before spot of the same price."""
    w = case.state.workloads
    shapes = [shape for lot in case.lots for shape in w.class_at(lot.row).shapes]
    pools = [pool for pool in case.pools() if pool.scaling is not None and any(suits(pool, s) for s in shapes)]
    named = case.question.names("pool")

    def key(pool: PoolSpec) -> tuple[bool, bool, int, bool, str]:
        return pool.name not in named, not grows(pool), pool.price_microusd_hour, pool.spot, pool.name

    return sorted(pools, key=key)


def _nodes_for(case: Case, pool: PoolSpec) -> int:
    """Nodes of the pool that all that is late would take, beside what is free."""
    need = 0
    for lot in case.lots:
        for shape, tasks in zip(
            case.state.workloads.class_at(lot.row).shapes, case.state.workloads.class_at(lot.row).least, strict=True
        ):
            per_node = shape.most_on(pool)
            if per_node:
                need += -(-max(0, tasks * lot.count - case.state.capacity.slots(shape)) // per_node)
    return max(need, 1)


def pool_row(case: Case, pool: PoolSpec) -> int:
    return int(case.state.capacity.pool_of[pool.name])


def boot_ms(case: Case) -> int:
    """The time that machines ordered by the autoscaler may take to boot."""
    if not case.state.settings.autoscaling.enabled:
        return 0
    boots = [pool.scaling.boot_ms[1] for pool in growing(case) if pool.scaling is not None]
    return min(max(boots, default=0) + 2 * 60_000, MAX_AHEAD_MS) if boots else 0
