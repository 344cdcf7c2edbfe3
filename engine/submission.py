"""The check of submissions: what is malformed, can never start, or waits for what never existed is refused."""

from __future__ import annotations

import msgspec

from engine import commands as cmd
from engine import events as ev
from engine import mig
from engine.errors import MusterError, SpecError
from engine.model import RESOURCES, Dependency, TaskGroup, WorkloadSpec, check_workload
from engine.naming import ids_of, members_of
from engine.shape import Shape, accepts
from engine.state import State, members


def check_submission(state: State, command: cmd.Submit, now_ms: int) -> tuple[list[ev.AnyEvent], tuple[str, ...]]:
    new: dict[str, int] = {}
    sound: set[tuple[tuple[TaskGroup, ...], str, bool]] = set()
    changed: list[str] = []
    charged: list[WorkloadSpec] = []
    for i, given in enumerate(command.workloads):
        where = f"workloads[{i}]" if len(command.workloads) > 1 else "workload"
        spec = _with_mig_charges(state, given, where)
        charged.append(spec)
        check_workload(spec, where)
        own = _ids_of(spec)
        for name in own if spec.array is None else (spec.id, *own):
            if name in state.workloads.row_of or name in state.workloads.array_names.index or name in new:
                raise SpecError(f"{where}.id", f"workload '{name}' is there already", "Give each workload its own id")
            new[name] = i
        changed += own
        if spec.priority_class not in state.workloads.priority_of:
            known = ", ".join(sorted(state.workloads.priority_of)) or "none is defined"
            raise SpecError(f"{where}.priority_class", f"there is no '{spec.priority_class}'", f"Use one of: {known}")
        # Equal requests need looking at once only.
        if (spec.groups, spec.queue, spec.elastic) not in sound:
            _check_place(state, spec, where)
            sound.add((spec.groups, spec.queue, spec.elastic))
        if spec.deadline_ms or spec.reservation:
            _check_times(state, spec, where, now_ms)
    depending = [i for i, spec in enumerate(command.workloads) if spec.after]
    workloads = _in_order(state, charged, new) if depending else charged
    return [ev.Submitted(spec) for spec in workloads], tuple(changed)


def _with_mig_charges(state: State, spec: WorkloadSpec, where: str) -> WorkloadSpec:
    """The spec with what MIG instances count as in each request, which need not be said."""
    if not any(group.mig for group in spec.groups):
        return spec
    capacity = state.capacity
    pools = [pool for i, pool in enumerate(capacity.pools) if capacity.pool_nodes[i]]
    groups = (mig.charged(group, pools, f"{where}.groups[{i}]") for i, group in enumerate(spec.groups))
    return msgspec.structs.replace(spec, groups=tuple(groups))


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
    """What others wait for first, otherwise as given; dependencies on an array become dependencies on its members.

    Raises SpecError for a dependency on what never existed, on itself, and for cycles.
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
                    f"they wait for each other: {' -> '.join([*ring, ring[0]])}",
                    "Take one dependency of the ring out",
                )
            stack.append(ahead[0])
    return ordered


def _target(state: State, spec: WorkloadSpec, new: dict[str, int], j: int) -> int | None:
    """Which of the new workloads a dependency is on; None for one that is there already."""
    name = spec.after[j].id
    if name in new:
        return new[name]
    if name in state.workloads.row_of or name in state.workloads.array_names.index:
        return None
    raise SpecError(
        f"workload '{spec.id}'.after[{j}].id",
        f"there never was a workload '{name[:64]}'",
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


def _check_place(state: State, spec: WorkloadSpec, where: str) -> None:
    """Refuse what could never start: unknown, inner or draining queue, no fitting node, larger than cell or quota."""
    try:
        queue = state.queues.leaf(spec.queue)
    except MusterError as error:
        raise SpecError(f"{where}.queue", error.problem, error.remedy) from error
    if not state.queues.takes_work(queue):
        raise SpecError(f"{where}.queue", f"queue '{spec.queue}' is draining", "Use another queue, or open it again")
    for i, group in enumerate(spec.groups):
        _check_group(state, group, queue, f"{where}.groups[{i}]")
    total = [0, 0, 0, 0]
    for group in spec.groups:
        for i, wanted in enumerate(group.request.vector()):
            total[i] += wanted * (group.min_count or group.count)
    for i, wanted in enumerate(total):
        if wanted > state.capacity.totals[i]:
            raise SpecError(
                f"{where}.groups",
                f"ask for {wanted} {RESOURCES[i]} in all, but the whole cell has {state.capacity.totals[i]}",
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


def _check_group(state: State, group: TaskGroup, queue: int, where: str) -> None:
    pools = state.capacity.pools
    for name in group.pools:
        if name not in state.capacity.pool_of:
            raise SpecError(f"{where}.pools", f"there is no pool '{name}'", f"Use: {', '.join(p.name for p in pools)}")
    named = state.queues.flavors_of(queue)
    eligible = [
        i
        for i, pool in enumerate(pools)
        if state.capacity.pool_nodes[i] and accepts(group, pool) and (not named or pool.name in named)
    ]
    if not eligible:
        raise SpecError(f"{where}.request", "no node of this cell could ever run one such task", _largest(state, group))
    shape = Shape(group, pools)
    rooms = [shape.most_on(pools[i]) * state.capacity.pool_nodes[i] for i in eligible]
    # With quotas by pool a group goes to one pool.
    most = max(rooms) if state.queues.flavored(queue) else sum(rooms)
    if (group.min_count or group.count) > most:
        raise SpecError(
            f"{where}.count",
            f"a gang of {group.min_count or group.count} tasks is larger than the cell, which has room for {most} when "
            "empty",
            "Ask for fewer or smaller tasks",
        )


def _largest(state: State, group: TaskGroup) -> str:
    """What the cell's largest nodes offer, for the resources the group asks for."""
    if not state.capacity.node_ids:
        return "The cell has no nodes yet"
    parts = []
    for i, wanted in enumerate(group.request.vector()):
        if wanted:
            best = max(
                p.capacity.vector()[i] for n, p in enumerate(state.capacity.pools) if state.capacity.pool_nodes[n]
            )
            parts.append(f"{RESOURCES[i]} {wanted} asked, {best} on the largest node")
    models = sorted({p.gpu_model for p in state.capacity.pools if p.gpu_model})
    if group.gpu_models:
        parts.append(f"device model {' or '.join(group.gpu_models)} asked, there are {', '.join(models) or 'none'}")
    return "; ".join(parts)
