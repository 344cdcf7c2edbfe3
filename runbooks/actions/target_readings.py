"""Readings of a plan's targets: before it is shown, before it is done, and afterwards.

In a cell that another scheduler decides on, an executed step leaves an intent (`engine.state.external_cell`). It is
carried to that scheduler and read back there. A step has succeeded when that reading and the cell as observed since
both show the effect; where the cell does not hold it, the reading alone decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.capacity.node_attributes import OPEN
from engine.model.columns import view
from engine.model.commands import CARRIED, AnyCommand, why_not
from engine.model.details import WorkloadDetail
from engine.model.errors import NotFoundError, RefusedError, SpecError, not_found
from engine.model.list_queries import Query, Term
from engine.model.quantities import shortlist
from engine.model.specs import RESOURCES, NodeState, WorkloadState, check_id
from engine.state.external_cell import Intent, Phase
from runbooks.actions import catalogue
from runbooks.actions.declaration import BOUND, MAX_TARGETS, Action
from runbooks.actions.nodes import AUTOSCALER
from runbooks.actions.queues import changed_meanwhile
from runbooks.actions.workloads import RETURNED
from runbooks.plans.amounts import differences
from runbooks.plans.checks import Verdict
from runbooks.plans.typed_plan import Act, Difference, Target

if TYPE_CHECKING:
    from engine.control import Engine


MAX_ROWS = 10_000
"""Rows asked for at a time."""
STOPS = frozenset((RETURNED, "suspended", "finished", "failed", "cancelled"))
"""What ends an attempt, in a workload's history."""


def difference(row: Action, shown: Target, now: Target) -> Difference | None:
    """The difference between a target as shown and as it is now, in the fields that the action depends on; None when
    there is none."""

    def found(was: str, is_: str, text: str) -> Difference:
        return Difference(what=shown.id, shown=was, now=is_, text=text)

    if shown.queue is not None and now.queue is not None and now.queue != shown.queue:
        changes = tuple(differences(shown.queue, now.queue))
        was, is_ = (", ".join(f"{change.what} {getattr(change, side)}" for change in changes) for side in ("was", "to"))
        return found(was, is_, changed_meanwhile(shown.id, shown.queue, now.queue))
    if (now.price_microusd_hour, now.budget) != (shown.price_microusd_hour, shown.budget):
        return found("another price or budget", "changed", f"{shown.id} has changed")
    if shown.autoscaling != now.autoscaling or (
        shown.size is not None
        and now.size is not None
        and (shown.size.scaling, shown.size.set_for) != (now.size.scaling, now.size.set_for)
    ):
        return found("other settings", "changed", f"{shown.id} has changed")
    if now.reservation != shown.reservation:
        return found("another reservation", "changed", f"{shown.id} was shown as another reservation")
    if "state" in row.depends and now.state != shown.state:
        return found(shown.state, now.state, f"{shown.id} was shown as {shown.state} and is {now.state} now")
    if now.owner != shown.owner:
        return found("another owner", "changed", f"{shown.id} was shown as the work of another person")
    if now.attempts != shown.attempts:
        was, is_ = f"attempt {shown.attempts}", f"attempt {now.attempts}"
        return found(was, is_, f"{shown.id} was shown in {was} and is now in {is_}")
    if "asks" in row.depends and now.asks != shown.asks:
        return found("another request", "changed", f"{shown.id} was shown with another request")
    if "nodes" in row.depends and now.nodes != shown.nodes:
        was, is_ = f"on {shortlist(shown.nodes)}", f"on {shortlist(now.nodes)}"
        return found(was, is_, f"{shown.id} was shown {was} and is {is_} now")
    if now.was != shown.was:
        return found(shown.was, now.was, f"{shown.id} was shown in {shown.was} and is in {now.was} now")
    if "work" in row.depends:
        # Work that left since makes it milder than was approved; work that arrived would be stopped unseen.
        seen = set(shown.work)
        arrived = tuple(id_ for id_ in now.work if id_ not in seen)
        if arrived:
            text = f"{shown.id} now has work that was not shown: {shortlist(arrived)}"
            return found(f"{len(shown.work)} workloads", f"{len(now.work)} workloads", text)
    return None


def checked_targets(row: Action, targets: Sequence[str]) -> tuple[str, ...]:
    """Explicit ids in the order given, without repeats. Patterns are not ids, so "all" cannot be said by accident."""
    if isinstance(targets, str):
        raise SpecError("targets", "is text", "Give a list of ids")
    ids = tuple(dict.fromkeys(targets))
    if not ids:
        raise SpecError("targets", "is empty", f"Give the id of each {row.kind}")
    if len(ids) > MAX_TARGETS:
        raise too_many(len(ids))
    for i, id_ in enumerate(ids):
        check_id(id_, f"targets[{i}]")
    return ids


def members(engine: Engine, row: Action, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The ids with that of an array replaced by those of its members that the action applies to, so that a plan names
    each workload it touches. An array none of whose members it applies to stays, and is refused by name."""
    if row.kind != "workload":
        return ids
    known = read_workloads(engine, ids)
    states = tuple(Term("state", "=", state) for state in sorted(row.states))
    found: dict[str, None] = {}
    for id_ in ids:
        if id_ in known:
            found[id_] = None
            continue
        where = (Term("array", "=", id_), *states)
        page = engine.query(Query(kind="workloads", columns=("id",), where=where, limit=MAX_TARGETS))
        if page.matched > MAX_TARGETS:
            raise SpecError("targets", f"{id_} has {page.matched:,} such members", "Give some of them")
        found |= dict.fromkeys([values[0] for values in page.rows] or [id_])
    if len(found) > MAX_TARGETS:
        raise too_many(len(found))
    return tuple(found)


def too_many(count: int) -> SpecError:
    return SpecError("targets", f"{count:,} targets", f"Give at most {MAX_TARGETS:,} at a time")


def refuse_inapplicable(row: Action, targets: tuple[Target, ...]) -> None:
    found = [text for target in targets if (text := catalogue.why_not(row, target))]
    if found:
        raise RefusedError(f"cannot {row.name}: {'; '.join(found)}", row.otherwise)


def refuse_outdated(row: Action, act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError for targets that the act was not thought out for, or that are so already."""
    if row.refuse is not None:
        row.refuse(act, targets)


def read(engine: Engine, row: Action, act: Act, *, executed: bool = False) -> tuple[Target, ...]:
    """The targets as they are now, in the order given. Raises NotFoundError naming every one that does not exist, and
    RefusedError when the engine refuses what the plan does with a queue. `executed`: the plan is done, and what it
    would do once more does not matter."""
    ids = act.targets
    match row.kind:
        case "policy":
            return (Target(id=ids[0], state=engine.state.policy, work=displaced(engine, act, executed)),)
        case "channel" | "review":
            return tuple(Target(id=id_, state="known") for id_ in ids)
        case "canary" if act.canary is not None and act.canary.policy is not None:
            return read_cell(engine, act, executed)
        case "canary":
            found = read_queues(engine, row, act, executed)
        case "reservation":
            absent_is_well = executed or "not made" in row.states
            return tuple(read_reservation(engine, act, id_, absent_is_well) for id_ in ids)
        case "queue":
            found = read_queues(engine, row, act, executed)
        case "workload":
            found = read_workloads(engine, ids, row)
            if "displaces" in row.impact and all(
                id_ in found and not catalogue.why_not(row, found[id_]) for id_ in ids
            ):
                found[ids[0]] = msgspec.structs.replace(found[ids[0]], work=displaced(engine, act, executed))
        case "node":
            found = read_nodes(engine, ids)
        case "pool":
            nodes = pool_nodes(engine)
            found = {
                pool.name: Target(
                    id=pool.name, state="priced", price_microusd_hour=pool.price_microusd_hour, count=nodes[pool.name]
                )
                for pool in engine.state.capacity.pools
            }
        case "scaling":
            found = read_sizes(engine, row)
        case "budget":
            found = read_budgets(engine, ids)
            if executed or "not set" in row.states:
                found |= {id_: Target(id=id_, state="not set") for id_ in ids if id_ not in found}
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        kind = {"scaling": "pool", "canary": "queue"}.get(row.kind, row.kind)
        raise not_found(kind, missing, _names(engine, kind))
    return tuple(found[id_] for id_ in ids)


def _names(engine: Engine, kind: str) -> Iterable[str]:
    """Names of all things of a kind that the cell has."""
    state = engine.state
    known: dict[str, Iterable[str]] = {
        "workload": state.workloads.row_of, "node": state.capacity.row_of, "queue": state.queues.row_of,
        "pool": state.capacity.pool_of, "budget": state.budgets.row_of,
    }  # fmt: skip
    return known[kind]


def needed(source: Engine, act: Act) -> Act | None:
    """An act of a way back without what has gone, or is as it was; None: nothing is left of it."""
    action = catalogue.find(act.action)
    left = tuple(target for target in still_there(source, action, act) if not catalogue.needless(act, target))
    if action.kind in ("workload", "node", "queue", "reservation", "budget") and not left:
        return None
    if action.kind not in ("workload", "node"):
        return act
    refuse_inapplicable(action, left)
    return msgspec.structs.replace(act, targets=tuple(target.id for target in left))


def still_there(source: Engine, action: Action, act: Act) -> tuple[Target, ...]:
    """The targets that exist: what has gone meanwhile needs no way back."""
    try:
        return read(source, action, act)
    except NotFoundError:
        found: list[Target] = []
        for id_ in act.targets:
            try:
                found += read(source, action, msgspec.structs.replace(act, targets=(id_,)))
            except NotFoundError:
                continue
        return tuple(found)


def read_queues(engine: Engine, row: Action, act: Act, executed: bool) -> dict[str, Target]:
    """Name -> reading, for those that exist."""
    found: dict[str, Target] = {}
    for name in act.targets:
        try:
            queue = engine.queue(name)
        except NotFoundError:
            continue
        work: tuple[str, ...] = ()
        if "stops_residents" in row.impact:
            work = bound_work(engine, queue.leaves)
        elif act.queue is not None and not executed:
            work = tuple(dict.fromkeys((*evicted(engine, act), *displaced(engine, act, executed))))
        elif act.canary is not None and name == act.targets[0]:
            work = displaced(engine, act, executed)
        found[name] = Target(id=name, state=queue.mode, work=work, queue=queue.spec)
    return found


def bound_work(engine: Engine, queues: tuple[str, ...]) -> tuple[str, ...]:
    """Ids of the placed and running workloads of these queues."""
    states = tuple(Term("state", "=", state) for state in BOUND)
    found: list[str] = []
    for name in queues:
        where = (Term("queue", "=", name), *states)
        query = Query(kind="workloads", columns=("id",), where=where, limit=MAX_ROWS)
        page = engine.query(query)
        found += [row[0] for row in page.rows]
        while page.rows and len(found) < page.matched:
            page = engine.query(msgspec.structs.replace(query, offset=len(found)))
            found += [row[0] for row in page.rows]
    return tuple(found)


def evicted(engine: Engine, act: Act) -> tuple[str, ...]:
    """Ids of the workloads that would lose their places to a change of a queue, as a fork finds."""
    fork = engine.fork()
    found = fork.command(catalogue.command(act)).changed[len(act.targets) :]
    fork.forget()
    return found


def displaced(engine: Engine, act: Act, executed: bool) -> tuple[str, ...]:
    """Ids of workloads besides the targets that have to give way because of the act in the next cycle, as two forks
    find: one on which it is done, and one on which it is not."""
    if executed:
        return ()
    gone = gone_after(engine, catalogue.command(act))
    if gone.any():
        gone &= ~gone_after(engine)
    targets = set(act.targets)
    ids = engine.state.workloads.ids
    return tuple(id_ for row in np.flatnonzero(gone).tolist() if (id_ := ids[row]) not in targets)


def gone_after(engine: Engine, *commands: AnyCommand) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """`gave_way`, on a fork that did these and settled."""
    fork = engine.fork()
    for command in commands:
        fork.command(command)
    fork.settle()
    found = gave_way(engine, fork)
    fork.forget()
    return found


def gave_way(engine: Engine, fork: Engine) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A mask by workload row: it held capacity before, and on the fork it holds none, was started anew, or is asked to
    go."""
    before, after = engine.state.workloads, fork.state.workloads
    bound = tuple(WorkloadState[state.upper()] for state in BOUND)
    went: np.ndarray[Any, np.dtype[np.bool_]] = ~np.isin(view(after.state), bound)
    went |= view(after.attempts) != view(before.attempts)
    went |= view(after.preempting) != view(before.preempting)
    return went & np.isin(view(before.state), bound)


def read_cell(engine: Engine, act: Act, executed: bool) -> tuple[Target, ...]:
    """The cell, as what policies are tried on. Raises NotFoundError for another name."""
    cell = engine.state.cell
    if act.targets != (cell,):
        raise NotFoundError(f"'{act.targets[0]}' is not this cell", f"A policy applies to the whole cell: give {cell}")
    return (Target(id=cell, state=engine.state.policy, work=displaced(engine, act, executed)),)


def read_reservation(engine: Engine, act: Act, name: str, absent_is_well: bool) -> Target:
    """The reading of a reservation. Raises NotFoundError when it is not made, unless `absent_is_well`, and when it
    names a node that does not exist."""
    try:
        reservation = engine.reservation(name)
    except NotFoundError:
        if not absent_is_well:
            raise
        wanted = read_nodes(engine, act.reservation.nodes if act.reservation is not None else ())
        keeps = tuple((node.id, node.pool, node.gpu_milli) for node in wanted.values())
        return Target(id=name, state="not made", keeps=keeps)
    return Target(id=name, state="made", reservation=reservation)


def read_workloads(engine: Engine, ids: Sequence[str], row: Action | None = None) -> dict[str, Target]:
    """Id -> reading, for those that exist. `row`: the action that they are read for."""
    found: dict[str, Target] = {}
    for id_ in ids:
        try:
            work = engine.workload(id_)
        except NotFoundError:
            continue
        found[id_] = Target(
            id=id_,
            state=work.state,
            attempts=work.attempts,
            tenant=work.tenant,
            gpu_milli=sum(group.count * group.gpu_milli for group in work.groups),
            cpu_milli=sum(group.count * group.cpu_milli for group in work.groups),
            unsaved_ms=work.loss_ms,
            worked_ms=worked(work),
            nodes=tuple(sorted({place.node for place in work.placement})),
            holds=held(work),
            approved=work.spending_approved,
            asks=tuple((group.name, {name: getattr(group, name) for name in RESOURCES}) for group in work.groups),
            was=row.replaces(work) if row is not None and row.replaces is not None else "",
            owner=work.owner or msgspec.UNSET,
        )
    return found


def held(work: WorkloadDetail) -> tuple[tuple[str, int], ...]:
    """(node, milli-GPU) that it holds, of the nodes that the engine tells."""
    of_task = {group.name: group.gpu_milli for group in work.groups}
    found: Counter[str] = Counter()
    for place in work.placement:
        found[place.node] += place.tasks * of_task.get(place.group, 0)
    return tuple(sorted((node, gpu) for node, gpu in found.items() if gpu))


def worked(work: WorkloadDetail) -> int:
    """Milliseconds a workload has run in all its attempts, by its history."""
    total, since = 0, None
    for item in work.history:
        if item.what in STOPS and since is not None:
            total += item.at_ms - since
            since = None
        elif item.what == "running":
            since = item.at_ms
    return total if since is None else total + work.now_ms - since


def read_nodes(engine: Engine, ids: Sequence[str]) -> dict[str, Target]:
    """Id -> reading, for those that exist."""
    found: dict[str, Target] = {}
    for id_ in ids:
        try:
            node = engine.node(id_)
        except NotFoundError:
            continue
        found[id_] = Target(
            id=id_,
            state=node.state,
            pool=node.pool,
            gpu_milli=node.capacity.get("gpu_milli", 0),
            work=tuple(work for work, _ in node.workloads),
            taints=engine.state.capacity.taints_of(engine.state.capacity.row_of[id_]),
        )
    return found


def read_sizes(engine: Engine, row: Action) -> dict[str, Target]:
    """Name -> reading, of all pools; or of the autoscaler."""
    report = engine.scaling()
    if row.of_cell:
        return {AUTOSCALER: Target(id=AUTOSCALER, state="set", autoscaling=report.settings)}
    pools = {pool.name: pool for pool in engine.overview(brief=True).pools}
    found = {}
    for size in report.pools:
        state = "fixed" if size.scaling is None else "growing"
        found[size.pool] = Target(id=size.pool, state=state, size=size)
        if (pool := pools.get(size.pool)) is not None:
            found[size.pool] = msgspec.structs.replace(
                found[size.pool],
                gpu_milli=pool.capacity.get("gpu_milli", 0) // max(1, pool.nodes),
                price_microusd_hour=pool.price_microusd_hour,
            )
    return found


def read_budgets(engine: Engine, names: Sequence[str]) -> dict[str, Target]:
    """Name -> reading, for those that are set."""
    specs = {line.spec.name: line.spec for line in engine.budgets().budgets}
    return {name: Target(id=name, state="set", budget=specs[name]) for name in names if name in specs}


def read_work(engine: Engine, row: Action, targets: tuple[Target, ...]) -> dict[str, Target]:
    """The workloads that would be stopped besides the targets. A gang on several nodes is read, and counted, once."""
    if not row.stops_others:
        return {}
    return read_workloads(engine, tuple(dict.fromkeys(id_ for target in targets for id_ in target.work)))


def pool_nodes(engine: Engine) -> dict[str, int]:
    """Pool -> nodes that it has."""
    capacity = engine.state.capacity
    return {pool.name: count for pool, count in zip(capacity.pools, capacity.pool_nodes, strict=True)}


def in_service(engine: Engine, node: str) -> bool:
    """True for a node that takes anybody's work: ready, and neither kept for somebody nor about to be."""
    capacity, row = engine.state.capacity, engine.state.capacity.row_of.get(node)
    if row is None or capacity.state[row] != NodeState.READY or capacity.booking[row] != OPEN:
        return False
    return all(node not in reservation.spec.nodes for reservation in engine.state.bookings.reservations)


def bound(engine: Engine) -> int:
    """Workloads that hold capacity."""
    counts = engine.state.workloads.state_counts
    return sum(counts[WorkloadState[state.upper()]] for state in BOUND)


MIN_MS = 180_000
"""Wall time within which an effect must be seen: longer than what is given up takes
(`engine.external.slurm.change_carrier`)."""
STILL = "again after 20 s"
"""When what was read there is read again: `engine.external.slurm.submission_carrier.SAFE_S`."""


def is_outside(engine: Engine) -> bool:
    """True when another scheduler decides on the cell. A fork is a model of that cell and decides itself."""
    return not engine.decides


def refuse_impossible(engine: Engine, acts: Iterable[Act]) -> None:
    """Raises RefusedError naming every action that cannot be asked of whoever decides."""
    found: dict[str, None] = {}
    by = engine.state.settings.decided_by
    for act in acts:
        row = catalogue.find(act.action)
        if row.only_outside and by == "muster":
            raise RefusedError(
                f"not possible in this cell: {act.action}: Muster schedules this cell itself", row.only_outside
            )
        elif is_outside(engine) and row.command:
            catalogue.check(act)
            why = why_not(type(row.express_act(act)), by=by, acts=engine.acts, lacks=engine.lacks)
            if why:
                found[f"{act.action}: {why}"] = None
            elif act.queue is not None and by == "kubernetes":
                from engine.external.kubernetes.queue_quotas import refuse_other_fields

                refuse_other_fields(act.queue.was, act.queue.to)
    if found:
        raise RefusedError(f"not possible in this cell: {'; '.join(found)}", "muster cell mirror shows what is")


def carried(engine: Engine, acts: Iterable[Act]) -> tuple[str, ...]:
    """A line for each kind of act: how it would be carried to the other scheduler now and what shows that it is done,
    or why it cannot be carried. Empty where Muster decides."""
    by = engine.state.settings.decided_by
    lines: dict[str, None] = {}
    for act in acts:
        row = catalogue.find(act.action)
        if not is_outside(engine) or not row.command:
            continue
        command = row.express_act(act)
        name, why = act.action.replace("_", " "), why_not(type(command), by=by, acts=engine.acts, lacks=engine.lacks)
        if why:
            lines[f"{name} cannot be sent now: {why}"] = None
        elif type(command) not in CARRIED[by]:
            lines[f"{name} applies in Muster only"] = None
        else:
            way = engine.ways.get(type(command), "")
            goes = f"by {way} to {engine.far}" if way else f"to {by.capitalize()}, which has not answered yet"
            lines[f"{name} goes {goes}; {_read_back(by, command)}"] = None
            tried = engine.dry_runs.get(msgspec.msgpack.encode(command), ())
            lines |= dict.fromkeys(f"dry run: {each}" for each in tried)
    return tuple(lines)


def _read_back(by: str, command: AnyCommand) -> str:
    if by == "kubernetes":
        from engine.external.kubernetes.change_requests import read_back

        return f"read back there: {read_back(command)}"
    from engine.external.slurm.job_requests import read_back as read_back_from_slurm

    return f"read back there, and {STILL}: {read_back_from_slurm(command)}"


def timeout_ms(engine: Engine, act: Act) -> int:
    """Wall time within which the effect must be seen."""
    return max(catalogue.timeout_ms(act), MIN_MS if is_outside(engine) else 0)


def intent_of(engine: Engine, act: Act, since_ms: int) -> Intent | None:
    """The intent that the act left, not before that cell time; None where it leaves none."""
    wanted = msgspec.msgpack.encode(catalogue.command(act))
    intents = engine.state.intents
    for intent in reversed(intents.open.values()):
        if intent.at_ms < since_ms:
            break
        if intent.command == wanted:
            return msgspec.convert(intent, Intent)
    # Those were settled in another order than they were wanted in.
    settled = [each for each in intents.ended if each.at_ms >= since_ms and each.command == wanted]
    return msgspec.convert(max(settled, key=lambda each: each.number), Intent) if settled else None


def verdict(intent: Intent | None, act: Act, before: Target, now: Target, *, in_time: bool) -> Verdict:
    """The verdict on a target after its intent was carried, or could not be."""
    row = catalogue.find(act.action)
    done = (row.done_outside or row.is_done)(act, before, now)
    if intent is None:
        return "success" if done else "failure"
    phase = Phase(intent.phase)
    if phase in (Phase.REFUSED, Phase.EXPIRED, Phase.IN_DOUBT, Phase.UNDONE, Phase.RETRIED):
        return "failure"
    carried = phase in (Phase.ACCEPTED, Phase.DONE, Phase.NEEDLESS)
    if carried and (done or not row.seen_outside(now)):
        return "success"
    return "inconclusive" if in_time else "failure"


def line(intent: Intent | None, by: str) -> str:
    """The known outcome at the other scheduler, as text. `by`: who decides the cell."""
    if intent is None:
        return ""
    said = f": {intent.text}" if intent.text else ""
    return f"i{intent.number} to {by.capitalize()} is {Phase(intent.phase).label}{said}"
