"""Random cells and what may happen to them, as hypothesis strategies; and the player of such lives, who checks them.

The cells are small enough that everything is contended.

Operations name workloads, nodes and queues by number, taken modulo what there is, and times relative to the clock, so a
sequence keeps its meaning when hypothesis takes parts of it away.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from effort import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from invariants import WatchedEngine, check_found_anew, check_in_time, check_settled, check_state

from engine.control import Engine
from engine.executors.simulated_executor import Faults
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import MusterError
from engine.model.specs import (
    ArraySpec,
    BurstSpec,
    CellSpec,
    Dependency,
    FlavorQuota,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.cell_state import State

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
YEAR_MS = 366 * 24 * HOUR
POLICIES = ("fcfs", "easy", "easy-sjbf", "conservative")


# -- operations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """A workload to be, its id, queue and times still open."""

    spec: WorkloadSpec
    queue: int
    after: tuple[tuple[int, str], ...] = ()
    """(how many submitted workloads back, kind)"""
    start_in_ms: int = 0
    due_in_ms: int = 0
    """Slack of the deadline beyond the estimate; 0: none."""
    reservation: int = -1
    pools: tuple[int, ...] = ()


@dataclass(frozen=True)
class Submit:
    drafts: tuple[Draft, ...]


@dataclass(frozen=True)
class Act:
    """On a workload: Cancel, Hold, Release, Requeue, Preempt, Suspend or Resume."""

    command: Any
    number: int


@dataclass(frozen=True)
class Elsewhere:
    """A workload goes to another queue."""

    number: int
    queue: int


@dataclass(frozen=True)
class Promote:
    """A workload gets another priority class."""

    number: int
    priority_class: int


@dataclass(frozen=True)
class Reorder:
    """A queue, and those after it, get another order."""

    number: int
    count: int
    order: str


@dataclass(frozen=True)
class Turn:
    """A node: Cordon, Uncordon or Drain."""

    command: Any
    number: int


@dataclass(frozen=True)
class Gate:
    """A queue: HoldQueues, DrainQueues or OpenQueues."""

    command: Any
    number: int


@dataclass(frozen=True)
class Change:
    """A queue's spec: these fields, where they make sense for it."""

    number: int
    over: str
    resource: str
    nominal: int | None
    borrowing: int | None
    lending: int | None
    order: str
    reclaim: str
    weight: int


@dataclass(frozen=True)
class Book:
    nodes: tuple[int, ...]
    start_in_ms: int
    length_ms: int
    queues: tuple[int, ...]


@dataclass(frozen=True)
class Unbook:
    number: int


@dataclass(frozen=True)
class Pass:
    milliseconds: int


@dataclass(frozen=True)
class Adopt:
    """Another policy, or other settings."""

    command: cmd.SetPolicy | cmd.SetSettings


@dataclass(frozen=True)
class Grow:
    """One more node of a pool."""

    pool: int


@dataclass(frozen=True)
class Restart:
    use_snapshot: bool


@dataclass(frozen=True)
class Fork:
    """A twin on which this happens, and then a look at the future of an untouched one."""

    operations: tuple[Any, ...]
    milliseconds: int


@dataclass(frozen=True)
class Life:
    """A cell, and all that happens to it."""

    cell: CellSpec
    policy: str
    faults: Faults | None
    seed: int
    operations: tuple[Any, ...]

    @property
    def durable(self) -> bool:
        return any(isinstance(operation, Restart) for operation in self.operations)


# -- from numbers to names --------------------------------------------------------------------------------------------


@dataclass
class Names:
    """What there is to name."""

    leaves: list[str]
    queues: list[QueueSpec]
    pools: list[str]
    nodes: list[str]
    workloads: list[str] = field(default_factory=list)
    drafts: int = 0
    reservations: int = 0

    @classmethod
    def of(cls, cell: CellSpec) -> Names:
        parents = {queue.parent for queue in cell.queues}
        return cls(
            [queue.name for queue in cell.queues if queue.name not in parents],
            list(cell.queues),
            [pool.name for pool in cell.pools],
            [node.id for node in cell.nodes],
        )

    def copy(self) -> Names:
        return Names(
            self.leaves,
            list(self.queues),
            self.pools,
            list(self.nodes),
            list(self.workloads),
            self.drafts,
            self.reservations,
        )

    def commands(self, operation: Any, now_ms: int) -> list[cmd.AnyCommand]:
        """What an operation stands for, to be done in one turn; nothing when there is nothing to do it to."""
        if isinstance(operation, Submit):
            return [cmd.Submit(workloads=(self._workload(draft, now_ms),)) for draft in operation.drafts]
        if isinstance(operation, Act | Elsewhere | Promote) and not self.workloads:
            return []
        return [self._command(operation, now_ms)]

    def _command(self, operation: Any, now_ms: int) -> cmd.AnyCommand:
        if isinstance(operation, Act):
            return operation.command(ids=(self.workloads[operation.number % len(self.workloads)],))
        if isinstance(operation, Elsewhere):
            queue = self.queues[operation.queue % len(self.queues)].name
            return cmd.MoveToQueue(ids=(self.workloads[operation.number % len(self.workloads)],), queue=queue)
        if isinstance(operation, Promote):
            name = CLASS_NAMES[operation.priority_class % len(CLASS_NAMES)]
            return cmd.SetPriority(ids=(self.workloads[operation.number % len(self.workloads)],), priority_class=name)
        if isinstance(operation, Reorder):
            names = {self.queues[(operation.number + i) % len(self.queues)].name: None for i in range(operation.count)}
            return cmd.OrderQueues(names=tuple(names), order=operation.order)  # type: ignore[arg-type]
        if isinstance(operation, Turn):
            return operation.command(ids=(self.nodes[operation.number % len(self.nodes)],))
        if isinstance(operation, Gate):
            return operation.command(names=(self.queues[operation.number % len(self.queues)].name,))
        if isinstance(operation, Change):
            spec = changed(self.queues[operation.number % len(self.queues)], operation)
            return cmd.ChangeQueue(queue=spec, over=operation.over)
        if isinstance(operation, Book):
            self.reservations += 1
            return cmd.Reserve(
                reservation=ReservationSpec(
                    name=f"r{self.reservations - 1}",
                    nodes=tuple(dict.fromkeys(self.nodes[i % len(self.nodes)] for i in operation.nodes)),
                    start_ms=now_ms + operation.start_in_ms,
                    end_ms=now_ms + operation.start_in_ms + operation.length_ms,
                    queues=tuple(
                        dict.fromkeys(self.queues[i % len(self.queues)].name for i in operation.queues),
                    ),
                )
            )
        if isinstance(operation, Unbook):
            return cmd.Unreserve(names=(f"r{max(0, self.reservations - 1 - operation.number)}",))
        if isinstance(operation, Grow):
            pool = self.pools[operation.pool % len(self.pools)]
            return cmd.AddNodes(nodes=(NodeSpec(id=f"{pool}-n{len(self.nodes)}", pool=pool),))
        return operation.command

    def accepted(self, command: cmd.AnyCommand, changed_ids: tuple[str, ...]) -> None:
        """Remember what an accepted command made."""
        if isinstance(command, cmd.Submit):
            self.workloads += changed_ids
        elif isinstance(command, cmd.AddNodes):
            self.nodes += [node.id for node in command.nodes]
        elif isinstance(command, cmd.ChangeQueue):
            at = [queue.name for queue in self.queues].index(command.queue.name)
            self.queues[at] = command.queue
        elif isinstance(command, cmd.OrderQueues):
            self.queues[:] = [
                msgspec.structs.replace(queue, order=command.order) if queue.name in command.names else queue
                for queue in self.queues
            ]

    def _workload(self, draft: Draft, now_ms: int) -> WorkloadSpec:
        name = f"w{self.drafts}"
        self.drafts += 1
        spec = draft.spec
        if draft.pools:
            wanted = tuple(dict.fromkeys(self.pools[i % len(self.pools)] for i in draft.pools))
            groups = tuple(msgspec.structs.replace(group, pools=wanted) for group in spec.groups)
            spec = msgspec.structs.replace(spec, groups=groups)
        known = self.workloads
        after = {known[-1 - back % len(known)]: kind for back, kind in draft.after} if known else {}
        start = now_ms + draft.start_in_ms if draft.start_in_ms else 0
        return msgspec.structs.replace(
            spec,
            id=name,
            queue=self.leaves[draft.queue % len(self.leaves)],
            after=tuple(Dependency(id=target, on=kind) for target, kind in after.items()),
            not_before_ms=start,
            deadline_ms=max(start, now_ms) + spec.estimate_ms + draft.due_in_ms if draft.due_in_ms else 0,
            reservation=f"r{self.reservations - 1}" if draft.reservation >= 0 and self.reservations else "",
        )


def changed(spec: QueueSpec, change: Change) -> QueueSpec:
    """The spec with what the change says, as far as such a queue can have it."""

    def put(given: dict[str, int], value: int | None) -> dict[str, int]:
        rest = {name: quantity for name, quantity in given.items() if name != change.resource}
        return rest if value is None else rest | {change.resource: value}

    nominal = put(spec.nominal, change.nominal)
    borrowing = put(spec.borrowing_limit, change.borrowing) if spec.parent else {}
    lending = put(spec.lending_limit, change.lending) if spec.parent else {}
    burst = spec.burst
    if burst is not None and spec.parent:
        borrowing = dict.fromkeys(burst.limit, 0) | borrowing
    if burst is not None:
        least = {name: nominal.get(name, 0) + borrowing.get(name, 0) for name in burst.limit}
        burst = msgspec.structs.replace(
            burst, limit={name: max(limit, least[name]) for name, limit in burst.limit.items()}
        )
    return msgspec.structs.replace(
        spec,
        nominal=nominal,
        borrowing_limit=borrowing,
        lending_limit=lending,
        burst=burst,
        order=change.order,
        reclaim=change.reclaim,
        weight=change.weight,
    )


# -- strategies: the cell ---------------------------------------------------------------------------------------------

PRIORITY_CLASSES = (
    PriorityClassSpec(name="low", value=100),
    PriorityClassSpec(name="normal", value=500, preemption="lower"),
    PriorityClassSpec(name="steady", value=500, preemptible=False),
    PriorityClassSpec(name="fair", value=700, preemption="lower", band=500),
    PriorityClassSpec(name="high", value=900, preemption="lower"),
)
CLASS_NAMES = tuple(spec.name for spec in PRIORITY_CLASSES)
CAPACITIES = (
    Resources(cpu_milli=8000, memory_mib=16_000, gpu_milli=4000, disk_mib=1000),
    Resources(cpu_milli=8000, memory_mib=16_000, gpu_milli=2000, disk_mib=1000),
    Resources(cpu_milli=6000, memory_mib=8000, disk_mib=1000),
)
"""The last has no devices."""
quotas = st.sampled_from([4000, 8000, 2000, 0, 1000, 3000, 6000, 16_000])
maybe_quotas = st.one_of(st.none(), quotas)
limited_sets = st.sampled_from([(), ("gpu_milli",), ("gpu_milli",), ("cpu_milli",), ("gpu_milli", "cpu_milli")])
durations = st.sampled_from([1, 900, SECOND, 5 * SECOND, MINUTE, 10 * MINUTE])
orders = st.sampled_from(["best_effort", "best_effort", "strict_fifo", "fair"])
reclaims = st.sampled_from(["any", "any", "lower_priority", "never"])


@st.composite
def quota(draw: st.DrawFn, limited: tuple[str, ...], cohort: bool) -> dict[str, dict[str, int]]:
    """Nominal quota and limits of a vertex or one of its flavors."""
    given: dict[str, dict[str, int]] = {"nominal": {}, "borrowing_limit": {}, "lending_limit": {}}
    for resource in limited:
        for name in ("nominal", "borrowing_limit", "lending_limit") if cohort else ("nominal",):
            value = draw(maybe_quotas)
            if value is not None:
                given[name][resource] = value
    return given


@st.composite
def vertices(draw: st.DrawFn, name: str, parent: str, pools: tuple[str, ...], limited: tuple[str, ...]) -> QueueSpec:
    given = draw(quota(limited, bool(parent)))
    burst = None
    if limited and draw(st.integers(0, 3)) == 0:
        resource = draw(st.sampled_from(limited))
        if parent:
            given["borrowing_limit"].setdefault(resource, 0)
        least = given["nominal"].get(resource, 0) + given["borrowing_limit"].get(resource, 0)
        burst = BurstSpec(
            limit={resource: least + draw(quotas)},
            window_ms=draw(st.sampled_from([1, 5 * SECOND, MINUTE])),
            cooldown_ms=draw(st.sampled_from([1, 30 * SECOND, 10 * MINUTE])),
        )
    flavors: tuple[FlavorQuota, ...] = ()
    if pools and limited and draw(st.booleans()):
        named = draw(st.permutations(pools))[: draw(st.integers(1, len(pools)))]
        flavors = tuple(FlavorQuota(pool=pool, **draw(quota(limited, bool(parent)))) for pool in named)
    return QueueSpec(
        name=name,
        parent=parent,
        **given,
        flavors=flavors,
        weight=draw(st.sampled_from([1, 1, 2, 5])),
        order=draw(orders),
        burst=burst,
        reclaim=draw(reclaims),
        min_runtime_ms=draw(st.sampled_from([0, 0, 0, 2 * SECOND, MINUTE])),
        disruptions=draw(st.sampled_from([-1, -1, -1, 0, 1, 2])),
        disruption_window_ms=draw(st.sampled_from([SECOND, MINUTE, HOUR])),
    )


@st.composite
def trees(draw: st.DrawFn, pools: tuple[str, ...]) -> tuple[QueueSpec, ...]:
    """One or two trees, up to three levels and eight vertices in all."""
    queues: list[QueueSpec] = []
    for _ in range(draw(st.integers(1, 2))):
        limited = draw(limited_sets)
        flavored = pools if draw(st.integers(0, 3)) == 0 else ()
        level = [""]
        for width in draw(st.sampled_from([(1,), (1, 2), (1, 2), (1, 3), (1, 2, 1), (1, 1, 2)])):
            below = []
            for parent in level:
                for _ in range(width):
                    if len(queues) < 8:
                        queues.append(draw(vertices(f"q{len(queues)}", parent, flavored, limited)))
                        below.append(queues[-1].name)
            level = below or level
    return tuple(queues)


all_settings = st.builds(
    Settings,
    fair_half_life_ms=st.sampled_from([0, 0, 10 * SECOND, HOUR]),
    starve_after_ms=st.sampled_from([0, 0, 5 * SECOND, 10 * MINUTE]),
    preempt_after_ms=st.sampled_from([0, 0, SECOND, 30 * SECOND]),
    try_timeout_ms=st.sampled_from([5 * SECOND, 30 * SECOND]),
    reservation_depth=st.sampled_from([1, 2, 100]),
)
all_faults = st.builds(
    Faults,
    delay_ms=st.sampled_from([(0, 0), (0, 2000), (500, 40_000)]),
    parts=st.sampled_from([1, 3]),
    lost=st.sampled_from([0, 0, 200]),
    refused=st.sampled_from([0, 0, 200]),
    duplicated=st.sampled_from([0, 300]),
)


@st.composite
def cells(draw: st.DrawFn) -> CellSpec:
    capacities = [draw(st.sampled_from(CAPACITIES[:2])), *draw(st.lists(st.sampled_from(CAPACITIES), max_size=2))]
    pools = tuple(
        PoolSpec(
            name=f"p{i}",
            capacity=capacity,
            gpu_model="ABC"[i] if capacity.gpu_milli else "",
            price_microusd_hour=(2_000_003, 7_000_001, 599_999)[i],
            spot=i == 2,
        )
        for i, capacity in enumerate(capacities)
    )
    nodes = tuple(
        NodeSpec(id=f"{pool.name}-n{i}", pool=pool.name)
        for pool in pools
        for i in range(draw(st.integers(1, 8 if len(pools) == 1 else 3)))
    )
    return CellSpec(
        name="random",
        pools=pools,
        nodes=nodes,
        queues=draw(trees(tuple(pool.name for pool in pools))),
        priority_classes=PRIORITY_CLASSES,
        settings=draw(all_settings),
    )


# -- strategies: the work ---------------------------------------------------------------------------------------------

requests = st.one_of(
    st.builds(
        Resources,
        cpu_milli=st.sampled_from([0, 500, 1000, 3000]),
        gpu_milli=st.sampled_from([1000, 1000, 2000, 250, 333, 500, 4000]),
    ),
    st.builds(
        Resources,
        cpu_milli=st.sampled_from([1, 1000, 2000, 4000, 6000]),
        memory_mib=st.sampled_from([0, 100, 8000]),
        disk_mib=st.sampled_from([0, 0, 0, 600]),
    ),
)


@st.composite
def task_groups(draw: st.DrawFn) -> tuple[TaskGroup, ...]:
    groups = []
    for i in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        count = draw(st.sampled_from([1, 1, 2, 2, 3, 4, 8]))
        groups.append(
            TaskGroup(
                name=f"g{i}",
                count=count,
                min_count=draw(st.integers(0, count)),
                request=draw(requests),
                gpu_models=draw(st.sampled_from([(), (), (), (), ("A",), ("B", "A")])),
            )
        )
    return tuple(groups)


run_times = st.sampled_from([1, 700, 5 * SECOND, 20 * SECOND, MINUTE, 12 * MINUTE])


@st.composite
def drafts(draw: st.DrawFn, exact: bool = False) -> Draft:
    """`exact`: the estimate is the run time."""
    run = draw(run_times)
    odd = draw(st.integers(0, 7))
    """Few workloads have each of the rarer features, so that sequences shrink to those that matter."""
    spec = WorkloadSpec(
        id="open",
        queue="open",
        groups=draw(task_groups()),
        priority_class=draw(st.sampled_from(CLASS_NAMES)),
        tenant=draw(st.sampled_from(["", "t1", "t2"])),
        estimate_ms=run if exact else draw(st.sampled_from([0, 1000, run, run, 2 * run])),
        simulated_runtime_ms=run,
        checkpoint_interval_ms=draw(st.sampled_from([0, 0, 500, 7 * SECOND])),
        checkpoint_cost_ms=draw(st.sampled_from([0, 0, 0, 1, 3 * SECOND])),
        elastic=draw(st.booleans()),
        max_runtime_ms=draw(st.sampled_from([1, 4 * SECOND, HOUR])) if odd == 1 else 0,
        retries=draw(st.integers(0, 2)) if odd == 2 else 0,
        backoff_ms=draw(st.sampled_from([0, 1, 10 * SECOND])),
        simulated_failures=draw(st.integers(1, 3)) if odd == 2 else 0,
        held=draw(st.booleans()) if odd == 4 else False,
        array=_array(draw) if odd == 6 else None,
    )
    return Draft(
        spec,
        draw(st.integers(0, 7)),
        tuple(draw(st.lists(st.tuples(st.integers(0, 3), kinds), min_size=1, max_size=2))) if odd == 3 else (),
        draw(durations) if odd == 4 else 0,
        draw(durations) if odd == 5 else 0,
        draw(st.integers(0, 2)) if odd == 7 else -1,
        tuple(draw(st.lists(st.integers(0, 2), max_size=2))) if odd in (0, 7) else (),
    )


kinds = st.sampled_from(["finished", "failed", "ended", "started"])


def _array(draw: st.DrawFn) -> Any:
    return ArraySpec(last=draw(st.integers(0, 3)), max_running=draw(st.integers(0, 2)))


# -- strategies: what happens -----------------------------------------------------------------------------------------

numbers = st.integers(0, 11)
submits = st.builds(Submit, st.lists(drafts(), min_size=1, max_size=3).map(tuple))
passes = st.builds(Pass, st.sampled_from([1, 500, SECOND, 4 * SECOND, 15 * SECOND, MINUTE, 10 * MINUTE]))
acts = st.builds(
    Act,
    st.sampled_from([cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue, cmd.Preempt, cmd.Suspend, cmd.Resume]),
    st.integers(0, 30),
)
steers = st.one_of(
    st.builds(Elsewhere, st.integers(0, 30), numbers),
    st.builds(Promote, st.integers(0, 30), numbers),
    st.builds(Reorder, numbers, st.integers(1, 3), orders),
)
turns = st.builds(Turn, st.sampled_from([cmd.Cordon, cmd.Uncordon, cmd.Uncordon, cmd.Drain]), numbers)
gates = st.builds(Gate, st.sampled_from([cmd.HoldQueues, cmd.OpenQueues, cmd.OpenQueues, cmd.DrainQueues]), numbers)
changes = st.builds(
    Change,
    numbers,
    st.sampled_from(["refuse", "keep", "evict"]),
    st.sampled_from(["gpu_milli", "cpu_milli"]),
    maybe_quotas,
    maybe_quotas,
    maybe_quotas,
    orders,
    reclaims,
    st.sampled_from([1, 3]),
)
books = st.builds(
    Book,
    st.lists(numbers, min_size=1, max_size=3).map(tuple),
    st.sampled_from([0, SECOND, 10 * SECOND, MINUTE]),
    st.sampled_from([1, 5 * SECOND, MINUTE, 10 * MINUTE]),
    st.lists(numbers, max_size=2).map(tuple),
)
unbooks = st.builds(Unbook, st.integers(0, 1))
adopts = st.builds(
    Adopt,
    st.one_of(
        st.builds(lambda policy: cmd.SetPolicy(policy=policy), st.sampled_from(POLICIES)),
        st.builds(lambda settings: cmd.SetSettings(settings=settings), all_settings),
    ),
)
grows = st.builds(Grow, st.integers(0, 2))
others = st.one_of(
    passes,
    passes,
    passes,
    passes,
    acts,
    acts,
    acts,
    steers,
    turns,
    gates,
    changes,
    changes,
    books,
    adopts,
)
rare = st.one_of(unbooks, grows)
plain = st.one_of(others, others, submits, submits, rare)
forks = st.builds(Fork, st.lists(plain, max_size=3).map(tuple), st.sampled_from([SECOND, 30 * SECOND, 20 * MINUTE]))
restarts = st.builds(Restart, st.booleans())


@st.composite
def lives(draw: st.DrawFn, durable: bool = False, policies: tuple[str, ...] = POLICIES) -> Life:
    """A random cell, and work and disturbances by turns; a durable one is restarted too."""
    step = st.one_of(others, restarts) if durable else st.one_of(others, rare, forks)
    rounds = st.tuples(st.lists(submits, max_size=4), st.lists(step, max_size=6))
    operations: list[Any] = []
    for _ in range(4):
        arriving, happening = draw(rounds)
        operations += [*arriving, *happening]
    return Life(
        draw(cells()),
        draw(st.sampled_from(policies)),
        draw(st.one_of(st.none(), st.none(), all_faults)),
        draw(st.integers(0, 3)),
        tuple(operations),
    )


# -- playing ----------------------------------------------------------------------------------------------------------

SOME = settings(
    max_examples=examples(100),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
"""How many lives the tests of every day play."""


class Player:
    """Plays the operations of one life, and checks after each."""

    def __init__(self, life: Life, folder: str | None = None) -> None:
        self.life = life
        self.names = Names.of(life.cell)
        self.path = None if folder is None else Path(folder) / "journal.db"
        self.commands: list[Any] = []
        """What was done, in the engine's own terms: a command, a time to advance to, or a name."""
        self.engine: Engine = self.open(cell=life.cell)
        self.ask(cmd.SetPolicy(policy=life.policy))

    def open(self, cell: CellSpec | None = None, *, use_snapshot: bool = True) -> WatchedEngine:
        return WatchedEngine.open(
            self.path,
            seed=self.life.seed,
            cell=cell,
            faults=self.life.faults,
            snapshot_every=40,
            use_snapshot=use_snapshot,
        )

    def play(self) -> None:
        for operation in self.life.operations:
            self.do(operation)
            self.check()

    def do(self, operation: Any) -> None:
        if isinstance(operation, Pass):
            self.advance(self.engine, operation.milliseconds)
        elif isinstance(operation, Fork):
            self.fork(operation)
        elif isinstance(operation, Restart):
            self.restart(operation.use_snapshot)
        else:
            self.ask(*self.names.commands(operation, self.engine.now_ms))

    def advance(self, engine: Engine, milliseconds: int) -> None:
        self.commands.append(engine.now_ms + milliseconds)
        engine.advance(engine.now_ms + milliseconds)

    def ask(self, *commands: cmd.AnyCommand) -> None:
        """All in one turn. A refusal must leave no trace."""
        self.commands.append(commands)
        self.engine.witness.new_turn()
        before = self.engine.state.digest()
        answers = self.engine.commands(commands)
        for command, answer in zip(commands, answers, strict=True):
            if not isinstance(answer, MusterError):
                self.names.accepted(command, answer.changed)
        if all(isinstance(answer, MusterError) for answer in answers):
            assert self.engine.state.digest() == before, f"refused, yet something changed: {answers}"

    def fork(self, operation: Fork) -> None:
        """P10: nothing done to a fork reaches its parent, and one that is left alone is the parent's future."""
        engine, now_ms = self.engine, self.engine.now_ms
        before = engine.state.digest()
        twin, untouched = engine.fork(), engine.fork()
        names = self.names.copy()
        for step in operation.operations:
            if isinstance(step, Pass):
                twin.advance(twin.now_ms + step.milliseconds)
            else:
                commands = names.commands(step, twin.now_ms)
                for command, answer in zip(commands, twin.commands(commands), strict=True):
                    if not isinstance(answer, MusterError):
                        names.accepted(command, answer.changed)
            check_state(twin.state)
        twin.advance(twin.now_ms + operation.milliseconds)
        check_state(twin.state)
        untouched.advance(now_ms + operation.milliseconds)
        assert engine.state.digest() == before, "a fork changed its parent"
        self.advance(engine, operation.milliseconds)
        assert not (off := differences(engine.state, untouched.state)), f"a fork left alone had another future: {off}"

    def restart(self, use_snapshot: bool) -> None:
        """P9: a new process that finds the journal has the same state, from the snapshot and from every event."""
        self.commands.append("restart")
        engine = self.engine
        assert isinstance(engine, WatchedEngine)
        assert engine._journal is not None
        before, now_ms = engine.state.digest(), engine.state.now_ms
        engine._journal.close()
        found = self.open(use_snapshot=not use_snapshot)
        assert found.state.digest() == before, "another way of reading the journal gives another state"
        found._journal.close()
        self.engine = found = self.open(use_snapshot=use_snapshot)
        assert found.state.digest() == before, "the journal gives another state"
        assert found.now_ms == now_ms
        found.witness.history = engine.witness.history
        found.witness.places = engine.witness.places
        found.witness.preempted = engine.witness.preempted

    def check(self) -> None:
        engine = self.engine
        if (due := engine.next_due()) is not None and due <= engine.now_ms:
            # Other settings may have made it due at once.
            engine.advance(engine.now_ms)
        check_state(engine.state)
        check_in_time(engine.state, engine.now_ms)
        check_settled(engine)
        assert engine.state.workloads.ids == self.names.workloads, "a workload appeared or disappeared"
        self.check_stable()

    def check_stable(self) -> None:
        """P5: another cycle on what is unchanged does nothing; nor does one that looks at everything anew, but for what
        EASY leaves to it (`invariants.check_found_anew`)."""
        engine = self.engine
        seen = len(engine.witness.history)
        engine.settle()
        more = [event for event in engine.witness.history[seen:] if type(event) is not ev.Tick]
        assert not more, f"a second cycle found more to do: {more}"
        twin = engine.fork()
        twin.settle()
        check_found_anew(engine, twin)

    def check_replay(self) -> None:
        """P9: the events alone give the state."""
        replayed = State()
        for event in ev.decode(ev.encode(self.engine.witness.history)):
            replayed.apply(event)
        assert not (off := differences(self.engine.state, replayed)), f"the events give another state: {off}"

    # -- P8 -----------------------------------------------------------------------------------------------------------

    def leave_alone(self) -> None:
        """Undo what people did to keep work from running, and let time pass: everything that can end ends."""
        engine = self.engine
        engine.faults = engine.executor.faults = None
        self.ask(cmd.OpenQueues(names=tuple(queue.name for queue in self.names.queues)))
        self.ask(cmd.Uncordon(ids=tuple(self.names.nodes)))
        for state, command in ((WorkloadState.HELD, cmd.Release), (WorkloadState.SUSPENDED, cmd.Resume)):
            rows = [row for row, now in enumerate(engine.state.workloads.state) if now == state]
            if rows:
                self.ask(command(ids=tuple(engine.state.workloads.ids[row] for row in rows)))
        self.advance(engine, 20 * YEAR_MS)
        self.check()
        w = engine.state.workloads
        for row, name in enumerate(w.ids):
            if not WorkloadState(w.state[row]).terminal and not self.can_never_start(row):
                raise AssertionError(f"{name} is {WorkloadState(w.state[row]).label} for ever")

    def can_never_start(self, row: int) -> bool:
        """It waits for what cannot come any more, or even alone it finds no quota or room; or its queue keeps strict
        order, and such a one is in it."""
        state = self.engine.state
        w = state.workloads
        if w.unmet[row]:
            return any(w.hopeless(target, kind) or self.can_never_start(target) for target, kind in w.dependencies(row))
        queue = w.queue[row]
        others = [row]
        if state.policy == "fcfs" or state.queues.specs[queue].order == "strict_fifo":
            others += [other for other, q in enumerate(w.queue) if q == queue]
        return any(not self.starts_alone(other) for other in others if w.state[other] == WorkloadState.QUEUED)

    def starts_alone(self, row: int) -> bool:
        """Whether it starts in a new cell that is otherwise like this one."""
        state = self.engine.state
        w = state.workloads
        if w.class_at(row).reservation:
            return False
        cell = CellSpec(
            pools=tuple(state.capacity.pools),
            nodes=self.engine.witness.places.nodes,
            queues=tuple(state.queues.specs),
            priority_classes=tuple(w.priority_classes),
        )
        alone = Engine.open(None, cell=cell)
        spec = WorkloadSpec(
            id="alone",
            queue=state.queues.specs[w.queue[row]].name,
            groups=tuple(w.class_at(row).groups),
            priority_class=w.priority_classes[w.priority[row]].name,
            simulated_runtime_ms=1,
            topology=w.class_at(row).bonds.topology,
        )
        answer = alone.commands([cmd.Submit(workloads=(spec,))])[0]
        if isinstance(answer, MusterError):
            return False
        alone.advance(YEAR_MS)
        return alone.state.workloads.state[0] == WorkloadState.FINISHED


def differences(one: State, other: State) -> list[str]:
    """Names of the columns that are not equal."""
    a, b = one.dump(), other.dump()
    return [f"{table}.{column}" for table in a for column in a[table] if a[table][column] != b[table][column]]


def live(life: Life) -> Player:
    """The whole life, with all its checks."""
    if life.durable:
        with tempfile.TemporaryDirectory() as folder:
            player = Player(life, folder)
            try:
                _live(player)
            finally:
                player.engine._journal.close()
    else:
        player = Player(life)
        _live(player)
    return player


def _live(player: Player) -> None:
    player.play()
    player.leave_alone()
    player.check_replay()
