"""The checks of submissions: a workload that is malformed, can never start, or waits for work that never existed is
refused.

Many usual workloads, which ask for resources alone, are checked and recorded together. That check accepts all of them
or decides nothing; then each is checked by itself, and its error is found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from engine.admission.definitions import ids_of, members_of
from engine.capacity import mig
from engine.capacity.node_attributes import known_labels, known_values
from engine.capacity.task_shapes import Bonds, Shape, accepts, tolerates
from engine.capacity.topology import domain_room, levels_asked, when_empty
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.columns import view
from engine.model.errors import MusterError, RefusedError, SpecError, did_you_mean, listed
from engine.model.quantities import with_unit
from engine.model.specs import (
    ID_PATTERN,
    LEVELS,
    MAX_NAME,
    MAX_QUANTITY,
    RESOURCES,
    SPOT_TYPES,
    Dependency,
    NodeState,
    Qos,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
    check_workload,
    device_memory_mib,
)
from engine.placement.node_choice import could_be, could_close, grows, has_labels, most_totals
from engine.state.cell_state import State, members
from engine.state.workloads import USUAL, SoundRequests

_ID_LINES = re.compile(rf"(?:{ID_PATTERN.pattern}\n)*+")
MAX_REMEMBERED = 1024
"""Requests of which it is remembered that they are sound."""


NO_WISHES: dict[str, Any] = {
    "array": None, "after": (), "held": False, "not_before_ms": 0, "deadline_ms": 0, "max_runtime_ms": 0, "retries": 0,
    "backoff_ms": USUAL.backoff_ms, "reservation": "", "simulated_failures": 0, "hot_swap": False, "topology": None,
    "near": (), "apart": (), "data": (), "restore_ms": 0, "qos": "guaranteed", "service": None,
    "simulated_usage_permille": 0, "run": None, "rerun": "",
}  # fmt: skip
"""The neutral values."""
_wishes = attrgetter(*NO_WISHES)
_NEUTRAL = tuple(NO_WISHES.values())
Columns = dict[str, tuple[Any, ...]]
"""Field -> its value in each of several specs."""


def is_usual(spec: WorkloadSpec) -> bool:
    """True if it requests resources alone: no array, no dependencies, no times, no terms, no bonds."""
    return bool(_wishes(spec) == _NEUTRAL)


def all_sound(state: State, specs: Sequence[WorkloadSpec]) -> bool:
    """True if all are usual and a quick check finds nothing to refuse."""
    w = state.workloads
    values = zip(*map(msgspec.structs.astuple, specs), strict=True)
    columns = dict(zip(WorkloadSpec.__struct_fields__, values, strict=True))
    ids = columns["id"]
    if not (
        is_usual(specs[0])
        and (len(specs) == 1 or all(columns[field].count(value) == len(specs) for field, value in NO_WISHES.items()))
        and _numbers_are_sound(columns)
        and _are_ids(ids)
        and len(set(ids)) == len(ids)
        and w.row_of.keys().isdisjoint(ids)
        and w.array_names.index.keys().isdisjoint(ids)
    ):
        return False
    priorities = set(columns["priority_class"])
    if not priorities <= w.priority_of.keys():
        return False
    names = priorities.union(columns["queue"], columns["tenant"], columns["team"])
    if not all(ID_PATTERN.fullmatch(name) for name in names if name):
        return False
    try:
        _check_requests(state, specs, columns)
    except MusterError:
        return False
    return True


def _are_ids(texts: Sequence[str]) -> bool:
    lines = "\n".join(texts) + "\n"
    return lines.count("\n") == len(texts) and _ID_LINES.fullmatch(lines) is not None


def _check_requests(state: State, specs: Sequence[WorkloadSpec], columns: Columns) -> None:
    """Raise MusterError if one of them could never start. Specs often share their groups, and equal requests need
    looking at once only as long as pools, nodes and queues are as they were."""
    known = state.found_sound
    if known.rules != state.rules or len(known.requests) > MAX_REMEMBERED:
        known = state.found_sound = SoundRequests(state.rules, {}, set(), set())
    keys = zip(map(id, columns["groups"]), columns["queue"], columns["elastic"], strict=True)
    asked = dict(zip(keys, specs, strict=True))
    number_of: dict[int, int] = {}
    for (identity, queue, elastic), spec in asked.items():
        number = number_of.get(identity)
        if number is None:
            number = number_of[identity] = _number_of(known, spec)
        if (number, queue, elastic) not in known.requests:
            row = _queue_of(state, spec, "")
            # Queues that draw on the same pools take the same groups.
            drawn = number, state.queues.flavors_of(row), state.queues.flavored(row)
            if drawn not in known.drawn:
                _check_groups(state, spec, row, "")
                known.drawn.add(drawn)
            _check_total(state, spec, row, "")
            known.requests.add((number, queue, elastic))


def _number_of(known: SoundRequests, spec: WorkloadSpec) -> int:
    """The number of its groups, which are checked when they are new."""
    number = known.groups.get(spec.groups)
    if number is None:
        if any(group.mig or group.on_demand for group in spec.groups):
            raise RefusedError("groups that are rewritten at the door are not rewritten here", "It is done one by one")
        check_workload(spec)
        number = known.groups[spec.groups] = len(known.groups)
    return number


def _numbers_are_sound(columns: Columns) -> bool:
    numbers = ("estimate_ms", "checkpoint_interval_ms", "checkpoint_cost_ms", "simulated_runtime_ms")
    return max(map(len, columns["name"])) <= MAX_NAME and all(
        min(columns[field]) >= 0 and max(columns[field]) <= MAX_QUANTITY for field in numbers
    )


def events_of(specs: Sequence[WorkloadSpec]) -> list[ev.AnyEvent]:
    """One event for each, but one for all usual ones that follow each other."""
    events: list[ev.AnyEvent] = []
    for usual, run in groupby(specs, is_usual):
        together = tuple(run)
        if usual and len(together) > 1:
            events.append(ev.SubmittedMany(together))
        else:
            events += [ev.Submitted(spec) for spec in together]
    return events


def check_submission(state: State, command: cmd.Submit, now_ms: int) -> tuple[list[ev.AnyEvent], tuple[str, ...]]:
    events, changed = _checked(state, command, now_ms)
    if command.owner:
        events.append(ev.Owned(command.owner, len(changed)))
    return events, changed


def _checked(state: State, command: cmd.Submit, now_ms: int) -> tuple[list[ev.AnyEvent], tuple[str, ...]]:
    if command.workloads and all_sound(state, command.workloads):
        changed_ids = tuple([spec.id for spec in command.workloads])
        if len(command.workloads) > 1:
            return [ev.SubmittedMany(command.workloads)], changed_ids
        return [ev.Submitted(command.workloads[0])], changed_ids
    new: dict[str, int] = {}
    sound: set[tuple[tuple[TaskGroup, ...], str, bool, TopologyRequest | None, Qos]] = set()
    changed: list[str] = []
    charged: list[WorkloadSpec] = []
    for i, given in enumerate(command.workloads):
        where = f"workloads[{i}]" if len(command.workloads) > 1 else "workload"
        spec = _with_mig_charges(state, given, where)
        check_workload(spec, where)
        spec = _with_replicas(_with_on_demand_share(spec, where))
        charged.append(spec)
        own = _ids_of(spec)
        for name in own if spec.array is None else (spec.id, *own):
            if name in state.workloads.row_of or name in state.workloads.array_names.index or name in new:
                raise SpecError(f"{where}.id", f"workload '{name}' already exists", "Give each workload its own id")
            new[name] = i
        changed += own
        if spec.priority_class not in state.workloads.priority_of:
            known = ", ".join(sorted(state.workloads.priority_of)) or "none is defined"
            raise SpecError(f"{where}.priority_class", f"there is no '{spec.priority_class}'", f"Use one of: {known}")
        # Equal requests need looking at once only.
        asked = spec.groups, spec.queue, spec.elastic, spec.topology, spec.qos
        if asked not in sound:
            check_place(state, spec, where)
            sound.add(asked)
        if spec.deadline_ms or spec.reservation:
            _check_times(state, spec, where, now_ms)
        if spec.rerun and state.settings.decided_by != "slurm":
            raise SpecError(f"{where}.rerun", "is kept only in a cell that Slurm decides on", "Leave it out")
    depending = [i for i, spec in enumerate(command.workloads) if spec.after]
    workloads = _in_order(state, charged, new) if depending else charged
    return events_of(workloads), tuple(changed)


def _with_mig_charges(state: State, spec: WorkloadSpec, where: str) -> WorkloadSpec:
    """The spec with what MIG instances count as in each request, which need not be said."""
    if not any(group.mig for group in spec.groups):
        return spec
    capacity = state.capacity
    pools = [pool for i, pool in enumerate(capacity.pools) if capacity.pool_nodes[i]]
    groups = (mig.charged(group, pools, f"{where}.groups[{i}]") for i, group in enumerate(spec.groups))
    return msgspec.structs.replace(spec, groups=tuple(groups))


def _with_on_demand_share(spec: WorkloadSpec, where: str) -> WorkloadSpec:
    """The spec with the tasks that are on demand always as a group of their own, there from the start."""
    if not any(group.on_demand for group in spec.groups):
        return spec
    groups: list[TaskGroup] = []
    for i, group in enumerate(spec.groups):
        certain = group.on_demand
        if not certain or group.capacity_type == "on-demand":
            groups.append(msgspec.structs.replace(group, on_demand=0))
        elif certain == group.count:
            groups.append(msgspec.structs.replace(group, on_demand=0, capacity_type="on-demand"))
        else:
            name = f"{group.name}-on-demand"
            if any(other.name == name for other in spec.groups):
                raise SpecError(
                    f"{where}.groups[{i}].on_demand", f"makes a group '{name}', which is there", "Rename that group"
                )
            least = max(group.min_count - certain, 0)
            count = group.count - certain
            groups += [
                msgspec.structs.replace(group, count=count, min_count=least, on_demand=0),
                msgspec.structs.replace(
                    group, name=name, count=certain, min_count=0, on_demand=0, capacity_type="on-demand"
                ),
            ]
    return msgspec.structs.replace(spec, groups=tuple(groups))


def _with_replicas(spec: WorkloadSpec) -> WorkloadSpec:
    """A service can have from the fewest to the most replicas it ever may: the spec with that said of its group."""
    if spec.service is None:
        return spec
    group = msgspec.structs.replace(spec.groups[0], count=spec.service.most, min_count=spec.service.least)
    return msgspec.structs.replace(spec, groups=(group,), elastic=True)


def _ids_of(spec: WorkloadSpec) -> list[str]:
    """Ids of the workloads that the spec makes."""
    return [spec.id] if spec.array is None else [f"{spec.id}/{index}" for index in members(spec.array)]


def _check_times(state: State, spec: WorkloadSpec, where: str, now_ms: int) -> None:
    if spec.deadline_ms:
        if spec.deadline_ms <= now_ms:
            raise SpecError(f"{where}.deadline_ms", "lies in the past", f"Give a time after {now_ms} ms")
        start = max(now_ms, spec.not_before_ms)
        if start + spec.estimate_ms > spec.deadline_ms:
            raise SpecError(
                f"{where}.deadline_ms",
                f"comes before its estimate of {spec.estimate_ms} ms has passed, even if it starts at {start} ms",
                "Give a later deadline or a shorter estimate",
            )
    if spec.reservation and not any(r.spec.name == spec.reservation for r in state.bookings.reservations):
        known = ", ".join(r.spec.name for r in state.bookings.reservations) or "none is made"
        raise SpecError(f"{where}.reservation", f"there is no '{spec.reservation}'", f"Use one of: {known}")


def _in_order(state: State, workloads: list[WorkloadSpec], new: dict[str, int]) -> list[WorkloadSpec]:
    """Dependencies first, otherwise as given; a dependency on an array becomes dependencies on its members.

    Raises SpecError for a dependency on work that never existed, on itself, and for cycles.
    """
    arrays = {spec.id: _ids_of(spec) for spec in workloads if spec.array is not None}
    ordered: list[WorkloadSpec] = []
    done: set[int] = set()
    for first in range(len(workloads)):
        path: list[int] = []
        stack = [first]
        while stack:
            at = stack[-1]
            if at in done:
                stack.pop()
                continue
            if not path or path[-1] != at:
                path.append(at)
            waits_for = [_target(state, workloads[at], new, j) for j in range(len(workloads[at].after))]
            ahead = [other for other in waits_for if other is not None and other not in done]
            if not ahead:
                done.add(at)
                path.remove(at)
                stack.pop()
                ordered.append(_spread(state, workloads[at], arrays))
                continue
            if ahead[0] in path:
                ring = [workloads[i].id for i in path[path.index(ahead[0]) :]]
                raise SpecError(
                    f"workloads[{at}].after",
                    f"dependency cycle: {' -> '.join([*ring, ring[0]])}",
                    "Remove one dependency of the cycle",
                )
            stack.append(ahead[0])
    return ordered


def _target(state: State, spec: WorkloadSpec, new: dict[str, int], j: int) -> int | None:
    """The new workload that a dependency names; None if it names a submitted one."""
    name = spec.after[j].id
    if name in new:
        return new[name]
    if name in state.workloads.row_of or name in state.workloads.array_names.index:
        return None
    raise SpecError(
        f"workload '{spec.id}'.after[{j}].id",
        f"unknown workload '{name[:64]}'",
        "Submit it before or together with this one",
    )


def _spread(state: State, spec: WorkloadSpec, arrays: dict[str, list[str]]) -> WorkloadSpec:
    """The spec with each dependency on an array replaced by one on every member."""
    w = state.workloads
    after: list[Dependency] = []
    for dependency in spec.after:
        if dependency.id in arrays:
            names = arrays[dependency.id]
        elif dependency.id in w.array_names.index:
            names = list(ids_of(state, members_of(state, dependency.id)))
        else:
            names = [dependency.id]
        after += [Dependency(id=name, on=dependency.on) for name in names]
    return msgspec.structs.replace(spec, after=tuple(after))


def check_place(state: State, spec: WorkloadSpec, where: str) -> None:
    """Refuse what could never start: unknown, inner or draining queue, no fitting node, larger than cell or quota."""
    queue = _queue_of(state, spec, where)
    _check_groups(state, spec, queue, where)
    _check_total(state, spec, queue, where)


def _queue_of(state: State, spec: WorkloadSpec, where: str) -> int:
    try:
        queue = state.queues.leaf(spec.queue)
    except MusterError as error:
        raise SpecError(f"{where}.queue", error.problem, error.remedy) from error
    if not state.queues.takes_work(queue):
        raise SpecError(f"{where}.queue", f"queue '{spec.queue}' is draining", "Use another queue, or open it again")
    return queue


def _check_groups(state: State, spec: WorkloadSpec, queue: int, where: str) -> None:
    for i, group in enumerate(spec.groups):
        _check_group(state, group, queue, spec.qos, f"{where}.groups[{i}]")
    if spec.topology is not None:
        _check_topology(state, spec, queue, where)


def _check_total(state: State, spec: WorkloadSpec, queue: int, where: str) -> None:
    total = [0, 0, 0, 0]
    for group in spec.groups:
        for i, wanted in enumerate(group.request.vector()):
            total[i] += wanted * (group.min_count or group.count)
    for i, (wanted, most) in enumerate(zip(total, most_totals(state), strict=True)):
        if wanted > most:
            raise SpecError(
                f"{where}.groups",
                f"ask for {wanted} {RESOURCES[i]} in total, but the whole cell has {most}",
                "Ask for fewer or smaller tasks",
            )
    lack = state.queues.beyond(queue, state.queues.total_charge((total[0], total[1], total[2], total[3])))
    if lack is not None:
        i = lack.slot
        raise SpecError(
            f"{where}.groups",
            f"ask for {total[i]} {RESOURCES[i]} in all, but queue '{state.queues.specs[lack.vertex].name}' can be "
            f"given {total[i] - lack.short} at most",
            "Ask for less, use another queue, or raise the quota",
        )


def _check_group(state: State, group: TaskGroup, queue: int, qos: Qos, where: str) -> None:
    pools = state.capacity.pools
    for name in group.pools:
        if name not in state.capacity.pool_of:
            raise SpecError(f"{where}.pools", f"there is no pool '{name}'", f"Use: {', '.join(p.name for p in pools)}")
    _check_devices(state, group, where)
    named = state.queues.flavors_of(queue)
    eligible = [
        i
        for i, pool in enumerate(pools)
        if (state.capacity.pool_nodes[i] or grows(pool))
        and accepts(group, pool, qos)
        and (not named or pool.name in named)
    ]
    if not eligible and qos == "guaranteed":
        _check_overcommitted(state, group, named, where)
    if not eligible:
        raise SpecError(f"{where}.request", "no node of this cell could run one such task", _largest(state, group))
    shape = Shape(group, pools, Bonds(qos=qos))
    nodes = could_be(state, shape, state.capacity.suited(shape))
    if not any(nodes[i] for i in eligible):
        raise _unsuited(state, shape, eligible, where)
    rooms = [shape.most_on(pools[i]) * nodes[i] for i in eligible]
    # With quotas by pool a group goes to one pool.
    most = max(rooms) if state.queues.flavored(queue) else sum(rooms)
    if (group.min_count or group.count) > most:
        raise SpecError(
            f"{where}.count",
            f"a gang of {group.min_count or group.count} tasks is larger than the cell, which has room for {most} when "
            "empty",
            "Ask for fewer or smaller tasks",
        )


def _check_overcommitted(state: State, group: TaskGroup, named: Collection[str], where: str) -> None:
    """Say so where nothing but overcommitted pools would take guaranteed work."""
    capacity = state.capacity
    shared = [
        pool.name
        for i, pool in enumerate(capacity.pools)
        if capacity.pool_nodes[i] and accepts(group, pool, "burstable") and (not named or pool.name in named)
    ]
    if shared:
        raise SpecError(
            f"{where}.request",
            f"all nodes large enough for one such task are overcommitted: {listed(shared)}; guaranteed work does "
            "not go there",
            "Give it the qos burstable or best_effort, or ask for less",
        )


def _check_devices(state: State, group: TaskGroup, where: str) -> None:
    """Refuse device models that no pool has, and more device memory than any is known to have."""
    pools = [pool for i, pool in enumerate(state.capacity.pools) if state.capacity.pool_nodes[i] or grows(pool)]
    models = sorted({pool.gpu_model for pool in pools if pool.gpu_model})
    asks = group.request.gpu_milli or group.mig
    if group.gpu_models and asks and models and not set(models) & set(group.gpu_models):
        raise SpecError(
            f"{where}.gpu_models",
            f"no node has devices of model {' or '.join(group.gpu_models)}",
            f"{did_you_mean(group.gpu_models[0], models)} There are: {', '.join(models)}".lstrip(),
        )
    memory = {pool.name: device_memory_mib(pool) for pool in pools if pool.capacity.gpu_milli}
    most, silent = max(memory.values(), default=0), [name for name, mib in memory.items() if not mib]
    if group.gpu_memory_mib > most and memory:
        known = f"the largest known is {most} MiB" if most else "of none is it known how much it has"
        more = f"; if devices of {listed(silent)} have it, say so by gpu_memory_mib of the pool" if silent else ""
        raise SpecError(
            f"{where}.gpu_memory_mib",
            f"no device has {group.gpu_memory_mib} MiB of memory: {known}",
            f"Ask for less{more}",
        )


def _unsuited(state: State, shape: Shape, eligible: list[int], where: str) -> SpecError:
    """Labels or taints keep the tasks from every node that is large enough: which?"""
    capacity = state.capacity
    large = np.isin(view(capacity.pool), eligible) & (view(capacity.state) != NodeState.REMOVED)
    new = [capacity.pools[i] for i in eligible if grows(capacity.pools[i])]
    for demand in shape.labels:
        if not (large & capacity.labelled((demand,))).any() and not any(has_labels(pool, [demand]) for pool in new):
            field = "avoid_labels" if demand.avoided else "node_labels"
            wanted = "any value" if demand.any else listed(sorted(demand.values))
            if demand.avoided:
                return SpecError(
                    f"{where}.{field}.{demand.key}",
                    f"every large enough node has the label '{demand.key}' with {wanted}",
                    "Remove the condition, or avoid fewer values",
                )
            values = known_values(capacity, demand.key)
            names = known_labels(capacity)
            wrong = min(demand.values, default="") if values else demand.key
            near = did_you_mean(wrong, values or names)
            known = f"Its values are: {listed(values)}" if values else f"Labels are: {listed(names) or 'none'}"
            return SpecError(
                f"{where}.{field}.{demand.key}",
                f"no large enough node has the label '{demand.key}' with {wanted}",
                f"{near} {known}".lstrip(),
            )
    there = capacity.suited(shape, taints=False)
    if not any(there[i] for i in eligible) and not any(has_labels(pool, shape.labels) for pool in new):
        return SpecError(
            f"{where}.node_labels", "no large enough node has all the labels together", "Ask for fewer of them"
        )
    barring = sorted(
        {
            f"{taint.key}={taint.value}" if taint.value else taint.key
            for taints in (
                *(
                    capacity.taint_sets[row]
                    for row in np.unique(view(capacity.taints)[large & capacity.labelled(shape.labels)]).tolist()
                ),
                *(pool.taints for pool in new if has_labels(pool, shape.labels)),
            )
            for taint in taints
            if taint.effect == "NoSchedule" and not tolerates(shape.tolerations, taint)
        }
    )
    return SpecError(
        f"{where}.tolerations",
        f"every suitable node has a taint that is not tolerated: {listed(barring)}",
        f"Tolerate one of them, such as {{key: {barring[0].partition('=')[0]}}}, if the work may go there",
    )


def _check_topology(state: State, spec: WorkloadSpec, queue: int, where: str) -> None:
    """Refuse a preferred level that the required one makes meaningless, and gangs that no domain could ever hold."""
    asked = spec.topology
    if asked is None or asked.required is None:
        return
    if asked.preferred is not None and LEVELS.index(asked.preferred) < LEVELS.index(asked.required):
        raise SpecError(
            f"{where}.topology.preferred",
            f"'{asked.preferred}' is wider than '{asked.required}', which is required",
            f"Prefer one of: {', '.join(LEVELS[LEVELS.index(asked.required) :])}; or leave it out",
        )
    capacity, pools = state.capacity, state.capacity.pools
    named = state.queues.flavors_of(queue)
    if not capacity.row_of:
        if could_close(state, spec, named):
            return
        raise SpecError(
            f"{where}.topology.required",
            f"the cell has no nodes yet, and no pool that grows could give so many tasks one {asked.required}: of new "
            "nodes only the region and the zone are known",
            "Require a zone, a region or nothing, or ask for fewer tasks",
        )
    known = domain_room(capacity)
    level, _ = levels_asked(known.tree, asked)
    kind = spec.groups, level, named, capacity.totals, spec.qos
    if kind in known.sound:
        return
    least = [group.min_count or group.count for group in spec.groups]
    rooms = []
    for group in spec.groups:
        shape = Shape(group, pools, Bonds(qos=spec.qos))
        usable = [i in shape.pool_set and (not named or pool.name in named) for i, pool in enumerate(pools)]
        most = tuple(shape.most_on(pool) if may else 0 for pool, may in zip(pools, usable, strict=True))
        rooms.append(when_empty(capacity, most, level))
    short = np.maximum(np.array(least)[:, None] - np.array(rooms), 0).sum(axis=0)
    best = int(np.argmin(short))
    if short[best] and not could_close(state, spec, named):
        lacking = next(g for g, room in enumerate(rooms) if room[best] < least[g])
        raise SpecError(
            f"{where}.topology.required",
            f"no {asked.required} could ever hold {least[lacking]} such tasks at once: the largest, "
            f"{known.tree.name(capacity, level, best)}, has room for {int(rooms[lacking][best])} when empty",
            "Ask for fewer tasks, or require a wider level or none",
        )
    known.remember(kind)


def _largest(state: State, group: TaskGroup) -> str:
    """The size of the cell's largest nodes, for the resources the group requests."""
    if not state.capacity.row_of and not any(map(grows, state.capacity.pools)):
        return f"The cell has no nodes{' any more' if state.capacity.node_ids else ' yet'}"
    there = [p for n, p in enumerate(state.capacity.pools) if state.capacity.pool_nodes[n] or grows(p)]
    open_to = [
        p
        for p in there
        if (not group.pools or p.name in group.pools)
        and (not group.capacity_type or p.spot == (group.capacity_type in SPOT_TYPES))
    ]
    limits = [f"pool {' or '.join(group.pools)}"] if group.pools else []
    limits += [f"{group.capacity_type} nodes"] if group.capacity_type else []
    if not open_to:
        return f"It asks for {' and '.join(limits)}, and there are none; pools: {listed([p.name for p in there])}"
    among = f" of {', '.join(limits)}" if limits else ""
    asked = [(i, wanted) for i, wanted in enumerate(group.request.vector()) if wanted]
    best = {i: max(p.offered.vector()[i] for p in open_to) for i, _ in asked}
    beyond = [(i, wanted) for i, wanted in asked if wanted > best[i]] or asked
    parts = [
        f"A task asks for {with_unit(RESOURCES[i], wanted)}{_OF.get(RESOURCES[i], '')}; the largest node{among} has "
        f"{with_unit(RESOURCES[i], best[i])}"
        for i, wanted in beyond
    ]
    models = sorted({p.gpu_model for p in state.capacity.pools if p.gpu_model})
    if group.gpu_models:
        parts.append(f"It asks for {' or '.join(group.gpu_models)}; GPU models: {', '.join(models) or 'none'}")
    return ". ".join(parts)


_OF = {"memory_mib": " of memory", "disk_mib": " of disk"}
