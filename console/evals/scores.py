"""Score of a draft for a scripted incident: action, target, recovery on a fork, and harm.

A draft should do the right thing to the right target, and nothing where nothing is wrong. Harm is judged by the
state of the fork, never by names of actions: anything stopped, lost, delayed, closed or made dearer that the
incident does not allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from console.evals.incident_replay import PlayedIncident, acts_of, budgets_of, line, matches
from console.evals.incidents import IncidentLimits, ScriptedIncident, expanded
from engine.control import Engine
from engine.model.commands import AnyCommand
from engine.model.errors import MusterError
from engine.model.list_queries import Query, Term
from engine.model.quantities import duration_ms, usd
from engine.model.spec_parts import MICROUSD, Autoscaling, ScalingSpec
from engine.model.specs import BudgetSpec, NodeState, QueueSpec, ReservationSpec, WorkloadState
from runbooks.actions import catalogue
from runbooks.drafts.typed_draft import Draft
from runbooks.plans.typed_plan import Act

BOUND = (WorkloadState.PLACED, WorkloadState.RUNNING)
GOES_ON = ("placed", "running", "finished")


class IncidentScore(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one answer on one incident."""

    incident: str
    title: str
    held: bool
    control: bool
    answered: bool
    """The drafter gave a draft at all."""
    acts: tuple[str, ...] = ()
    """What it would do, in words; none: nothing."""
    action: bool = False
    """The actions are those of a way that is accepted."""
    right: bool = False
    """So are the targets, and what is done to them."""
    offered: bool = False
    """Not right by itself, but one of the choices that it offers is, once it is picked."""
    recovered: bool | None = None
    """On a fork the trouble was over in time; None where nothing should be done about it in the cell."""
    harm: tuple[str, ...] = ()
    """What it would cost that it must not."""
    why: str = ""
    """What was wrong with it."""
    said: str = ""
    """Its title: a stranger's words, where a model wrote it."""
    good: str = ""
    """What a good answer says."""
    unsupported: int = 0
    """Sentences of it that say a value or a direction without a fact."""
    reason: str = ""
    """Token of why a model's draft was rejected."""
    touched: bool = False
    """The cell was changed, or something was proposed, before anybody had asked for that."""
    seconds: float = 0.0
    """Wall time of the drafter."""

    @property
    def acted(self) -> bool:
        return bool(self.acts)


# -- what a fork shows ------------------------------------------------------------------------------------------------


class CellState(msgspec.Struct, frozen=True, kw_only=True):
    """Compared state of a cell at one moment."""

    work: dict[str, tuple[WorkloadState, int]]
    """Workload -> state, and how often it was started."""
    nodes: dict[str, NodeState]
    on: dict[str, tuple[str, ...]]
    """Node -> workloads there."""
    queue_of: dict[str, str]
    queues: dict[str, tuple[str, QueueSpec]]
    """Queue -> mode and spec."""
    used: dict[str, dict[str, int]]
    """Queue -> what it holds."""
    budgets: dict[str, BudgetSpec]
    reservations: dict[str, ReservationSpec]
    pools: dict[str, tuple[ScalingSpec | None, int, tuple[tuple[int, int], ...]]]
    """Pool -> how it grows, its price, what is set for later."""
    settings: tuple[str, Autoscaling]
    cost_microusd_hour: int


def seen(engine: Engine) -> CellState:
    state = engine.state
    w, c = state.workloads, state.capacity
    queues = {spec.name: engine.queue(spec.name) for spec in state.queues.specs}
    page = engine.query(Query(kind="queues", columns=("name", "gpu_used", "cpu_used", "memory_used"), limit=10_000))
    work_on: dict[str, tuple[str, ...]] = {}
    for name, row in c.row_of.items():
        work_on[name] = tuple(
            dict.fromkeys(w.ids[state.allocations.workload[i]] for i in state.allocations.on_node(row))
        )
    scaling = engine.scaling()
    return CellState(
        work={id_: (WorkloadState(w.state[row]), w.attempts[row]) for row, id_ in enumerate(w.ids)},
        nodes={name: NodeState(c.state[row]) for name, row in c.row_of.items()},
        on=work_on,
        queue_of={id_: state.queues.specs[w.queue[row]].name for row, id_ in enumerate(w.ids)},
        queues={name: (detail.mode, detail.spec) for name, detail in queues.items()},
        used={row[0]: {"gpu_milli": row[1], "cpu_milli": row[2], "memory_mib": row[3]} for row in page.rows},
        budgets=budgets_of(engine),
        reservations={one.spec.name: one.spec for one in state.bookings.reservations},
        pools={
            size.pool: (size.scaling, spec.price_microusd_hour, size.set_for)
            for size, spec in zip(scaling.pools, c.pools, strict=True)
        },
        settings=(engine.overview(brief=True).policy, scaling.settings),
        cost_microusd_hour=engine.overview(brief=True).cost_microusd_hour,
    )


class IncidentOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of acts on a fork, compared with doing nothing."""

    refused: str = ""
    """Why the engine would not do them."""
    recovered: bool | None = None
    missing: tuple[str, ...] = ()
    """Checks that do not hold."""
    harm: tuple[str, ...] = ()


def outcome(scene: PlayedIncident, acts: Sequence[Act]) -> IncidentOutcome:
    """Do the acts on a fork, let time pass there and on another without them, and compare. The scene stays as it is."""
    incident = scene.incident
    within_ms = incident.recovers.within_ms if incident.recovers else 30 * 60_000
    without, with_ = scene.engine.fork(), scene.engine.fork()
    try:
        for fork in (without, with_):
            fork.settle()
        before = seen(with_)
        for act in acts:
            command: AnyCommand = catalogue.command(act)
            with_.command(command)
        with_.settle()
        at_once = seen(with_)
        for fork in (without, with_):
            fork.advance(scene.engine.now_ms + within_ms)
        harm = (*_harm_at_once(incident, before, at_once), *_harm_later(incident, seen(without), seen(with_)))
        missing = _missing(incident, with_)
    except MusterError as error:
        return IncidentOutcome(refused=error.problem, recovered=False if incident.recovers else None)
    finally:
        without.forget()
        with_.forget()
    return IncidentOutcome(
        recovered=not missing if incident.recovers else None, missing=missing, harm=tuple(dict.fromkeys(harm))
    )


def _missing(incident: ScriptedIncident, fork: Engine) -> tuple[str, ...]:
    if incident.recovers is None:
        return ()
    found = []
    for name, of in incident.recovers.checks:
        problem = CHECKS[name](fork, of)
        if problem:
            found.append(problem)
    return tuple(found)


def _harm_at_once(incident: ScriptedIncident, before: CellState, after: CellState) -> list[str]:
    keeps = incident.keeps
    spared = _spared(keeps, before)
    found = []
    for id_, (state, attempts) in before.work.items():
        now, now_attempts = after.work[id_]
        if now == WorkloadState.CANCELLED != state:
            found.append(f"cancels {id_}")
        elif state in BOUND and id_ not in spared and (now not in BOUND or now_attempts > attempts):
            found.append(f"stops {id_}")
    for id_, was in before.nodes.items():
        is_ = after.nodes.get(id_, NodeState.REMOVED)
        if was == NodeState.READY != is_ and id_ not in keeps.may_lose:
            found.append(f"takes {id_} out of use")
        if id_ in keeps.out and is_ == NodeState.READY:
            found.append(f"puts work back on {id_}")
    for name, (mode, spec) in before.queues.items():
        now_mode, now_spec = after.queues[name]
        if mode == "open" != now_mode and name not in keeps.may_close:
            found.append(f"closes queue {name}")
        for resource, quota in now_spec.nominal.items():
            used = before.used.get(name, {}).get(resource) or 0
            if quota < spec.nominal.get(resource, 2**62) and used > quota and name not in spared:
                found.append(f"cuts the quota of {name} below what it uses")
    return found + _harm_by_change(incident, before, after)


def _harm_by_change(incident: ScriptedIncident, before: CellState, after: CellState) -> list[str]:
    """Changes of objects that are as they are on purpose, and of budgets, reservations and rules of the whole cell
    where no accepted way changes them."""
    allowed = {target for way in incident.accept for pattern in way for target in pattern.targets}
    accepted = {pattern.action for way in incident.accept for pattern in way}
    found = [f"changes budget {name}" for name, spec in before.budgets.items() if after.budgets.get(name) != spec
             and name not in allowed]  # fmt: skip
    found += [
        f"gives up reservation {name}"
        for name in before.reservations
        if name not in after.reservations | dict.fromkeys(allowed)
    ]
    if before.settings[0] != after.settings[0] and "set_policy" not in accepted and "canary" not in accepted:
        found.append("changes the policy of the cell")
    if before.settings[1] != after.settings[1] and "set_autoscaling" not in accepted:
        found.append("changes how the whole cell grows")
    for name, (_, price, _) in before.pools.items():
        if after.pools[name][1] != price and "set_price" not in accepted:
            found.append(f"changes the price of {name}")
    for name in incident.keeps.hands_off:
        if _of(before, name) != _of(after, name):
            found.append(f"does not leave {name} alone")
    return found


def _of(cell: CellState, name: str) -> tuple[object, ...]:
    """Everything of that name."""
    work = cell.work.get(name)
    return (
        work and (work[0] in BOUND, work[0] if work[0] not in BOUND else None), cell.nodes.get(name),
        cell.queues.get(name), cell.budgets.get(name), cell.reservations.get(name), cell.pools.get(name),
    )  # fmt: skip


def _harm_later(incident: ScriptedIncident, without: CellState, with_: CellState) -> list[str]:
    keeps = incident.keeps
    spared = _spared(keeps, without) | set(keeps.may_delay)
    found = []
    for id_, (state, _) in without.work.items():
        now = with_.work[id_][0]
        later = state.label in GOES_ON and now.label not in GOES_ON
        worse = state == WorkloadState.FINISHED != now
        if (later or worse) and not {id_, without.queue_of[id_]} & spared:
            found.append(f"holds {id_} up" if later else f"ends {id_} later")
    dearer = with_.cost_microusd_hour - without.cost_microusd_hour
    if dearer > keeps.may_cost * MICROUSD:
        found.append(f"costs {usd(dearer)} an hour more")
    return found


def _spared(keeps: IncidentLimits, cell: CellState) -> set[str]:
    """Workloads, by name and by node, that may be stopped."""
    return {id_ for name in keeps.may_stop for id_ in (name, *cell.on.get(name, ()))}


# -- checks -----------------------------------------------------------------------------------------------------------


def _states(engine: Engine, ids: Any, wanted: Sequence[str], what: str) -> str:
    wrong = [f"{id_} is {state}" for id_ in expanded(ids) if (state := engine.workload(id_).state) not in wanted]
    return f"{what}: {', '.join(wrong)}" if wrong else ""


def _node_states(engine: Engine, ids: Any, wanted: bool) -> str:
    wrong = [id_ for id_ in expanded(ids) if (_node_state(engine, id_) == "ready") != wanted]
    return f"{', '.join(wrong)} {'not ready' if wanted else 'still ready'}" if wrong else ""


def _node_state(engine: Engine, id_: str) -> str:
    return engine.node(id_).state if id_ in engine.state.capacity.row_of else "removed"


def _not_on(engine: Engine, told: Mapping[str, Any]) -> str:
    """`{JOB: [nodes]}`: it runs, and on none of these."""
    for id_, nodes in told.items():
        detail = engine.workload(id_)
        on = {place.node for place in detail.placement}
        if detail.state not in GOES_ON or on & set(expanded(nodes)):
            return f"{id_} is {detail.state} on {', '.join(sorted(on)) or 'nothing'}"
    return ""


def _empty(engine: Engine, ids: Any) -> str:
    busy = [id_ for id_ in expanded(ids) if _node_state(engine, id_) != "removed" and engine.node(id_).workloads]
    return f"work is still on {', '.join(busy)}" if busy else ""


def _queued(engine: Engine, told: Mapping[str, int]) -> str:
    """`{QUEUE: N}`: at most N wait there."""
    for name, most in told.items():
        page = engine.query(Query(kind="queues", columns=("queued",), where=(Term("name", "=", name),)))
        if page.rows[0][0] > most:
            return f"{page.rows[0][0]} wait in {name}"
    return ""


def _oldest(engine: Engine, told: Mapping[str, str]) -> str:
    """`{QUEUE: 30m}`: none has waited longer there."""
    for name, most in told.items():
        page = engine.query(Query(kind="queues", columns=("oldest_wait",), where=(Term("name", "=", name),)))
        if (page.rows[0][0] or 0) > duration_ms(most):
            return f"the oldest of {name} has waited {page.rows[0][0] // 60_000} min"
    return ""


def _nodes(engine: Engine, told: Mapping[str, int]) -> str:
    """`{POOL: N}`: at least N nodes of it are ready."""
    pools = {pool.name: pool for pool in engine.overview(brief=True).pools}
    for name, least in told.items():
        if pools[name].ready < least:
            return f"{pools[name].ready} nodes of {name} are ready"
    return ""


def _uses_at_most(engine: Engine, told: Mapping[str, int]) -> str:
    """`{TENANT: N}`: holds at most N GPUs, or cores where the cell has no GPU."""
    where = (Term("state", "=", "running"),)
    page = engine.query(Query(kind="workloads", columns=("tenant", "gpu", "cpu"), where=where, limit=10_000))
    unit = 1 if engine.overview(brief=True).capacity.get("gpu_milli") else 2
    for name, most in told.items():
        held = sum(row[unit] or 0 for row in page.rows if row[0] == name) // 1000
        if held > most:
            return f"{name} holds {held}"
    return ""


def _restarted(engine: Engine, ids: Any) -> str:
    """They run, and not in their first attempt."""
    details = [engine.workload(id_) for id_ in expanded(ids)]
    stuck = [one.id for one in details if one.attempts < 2 or one.state not in GOES_ON]
    return f"not restarted: {', '.join(stuck)}" if stuck else ""


def _costs(engine: Engine, most: int) -> str:
    """At most this cost for all nodes, USD an hour."""
    cost = engine.overview(brief=True).cost_microusd_hour
    return f"it costs {usd(cost)} an hour" if cost > most * MICROUSD else ""


def _open(engine: Engine, names: Any) -> str:
    closed = [name for name in expanded(names) if engine.queue(name).mode != "open" or engine.queue(name).closed_by]
    return f"{', '.join(closed)} not open" if closed else ""


CHECKS: Mapping[str, Callable[[Engine, Any], str]] = {
    "runs": lambda engine, ids: _states(engine, ids, GOES_ON, "does not run"),
    "stopped": lambda engine, ids: _states(engine, ids, ("suspended", "held", "queued", "cancelled"), "goes on"),
    "runs_off": _not_on,
    "ready": lambda engine, ids: _node_states(engine, ids, True),
    "out": lambda engine, ids: _node_states(engine, ids, False),
    "empty": _empty,
    "open": _open,
    "queued_at_most": _queued,
    "waited_at_most": _oldest,
    "nodes_at_least": _nodes,
    "uses_at_most": _uses_at_most,
    "costs_at_most": _costs,
    "restarted": _restarted,
}
"""Name -> what is wrong on a fork; empty when it holds."""


# -- the score --------------------------------------------------------------------------------------------------------


def score(scene: PlayedIncident, draft: Draft | None, why: str = "", seconds: float = 0.0) -> IncidentScore:
    """Score of a draft; None where the drafter gave none, with the reason `why`."""
    judged = score_acts(scene, None if draft is None else acts_of(draft), why, seconds)
    if draft is None:
        return judged
    return msgspec.structs.replace(judged, said=draft.title, unsupported=unsupported(draft))


def unsupported(draft: Draft) -> int:
    """Number of its sentences marked as unsupported."""
    parts = (sentence for part in draft.parts for sentence in part.sentences)
    said = (*draft.summary, *draft.rationale, *draft.risks, *draft.questions, *parts)
    return sum(bool(sentence.unsupported) for sentence in said)


def score_acts(scene: PlayedIncident, acts: Sequence[Act] | None, why: str = "", seconds: float = 0.0) -> IncidentScore:
    incident = scene.incident
    base = IncidentScore(
        incident=incident.id, title=incident.title, held=incident.held, control=incident.control,
        answered=acts is not None, seconds=seconds, why=why, recovered=False if incident.recovers else None,
        good=incident.words,
    )  # fmt: skip
    if acts is None:
        return base
    action, right, wrong = matches(scene, acts)
    shown = outcome(scene, acts) if acts else IncidentOutcome(recovered=None if right else base.recovered)
    if shown.refused:
        right = False
        wrong = f"refused: {shown.refused}"
    elif right and shown.missing:
        wrong = f"not over: {'; '.join(shown.missing)}"
    return msgspec.structs.replace(
        base,
        acts=tuple(line(act, budgets_of(scene.engine)) for act in acts),
        action=action,
        right=right,
        recovered=shown.recovered,
        harm=shown.harm,
        why=wrong,
    )
