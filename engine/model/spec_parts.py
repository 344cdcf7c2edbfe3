"""The parts of specs and their base: pool growth, node health, service classes, budgets, tasks to run, and replicas.

The base is an immutable struct with checks of single fields, for everything that people or files say to the engine.

Growth has two presets, which differ where published descriptions of the Kubernetes cluster autoscaler differ from its
defaults: `ca` has the defaults of its FAQ, `seed` the figures that are often quoted.

Money has one currency per cell, in millionths (micro-USD).

Service classes say how reliable a request is, how far nodes are overcommitted, and which work a short node evicts
first. A pool's `overcommit` bounds the requests on a node in relation to the node's size. Guaranteed work never runs on
overcommitted capacity: the sum of request / ratio over the work of any node is at most the node's size, with ratio 1 on
every node open to guaranteed work, and the pool's ratio for all work of an overcommitted one.

A task to run for real is a command with its arguments, its environment and its folder. No shell reads any of it, unless
the command itself is one.

Replicas follow the rule of the Kubernetes horizontal pod autoscaler with its defaults: a tolerance of a tenth, 300 s of
stabilisation before a scale-down, a look every 15 s, and silent replicas counted against a change. Source:
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/ (Algorithm details, Stabilization window).
Its limits on the speed of a scale-up are left out: a scale-up happens at once.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.model.errors import SpecError, misfit
from engine.model.quantities import with_unit

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
MAX_QUANTITY = 2**48
"""Largest accepted quantity of one resource; the sum over 30,000 such nodes still fits 64 bits."""
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all specs: unknown fields are an error, equality is by value."""


def check_id(value: str, where: str) -> None:
    """Ids are typed by people and shown on screens: refuse what cannot be typed or could act on a terminal."""
    if not ID_PATTERN.fullmatch(value):
        shown = value[:40].encode("unicode_escape").decode() + ("…" if len(value) > 40 else "")
        raise SpecError(
            where,
            f"'{shown}' is not a valid id",
            "Use 1 to 128 letters, digits, '.', '_', '-' or '/', starting with a letter or digit",
        )


def check_quantity(value: int, where: str, *, least: int = 0, most: int = MAX_QUANTITY) -> None:
    """Refuse negative and absurd sizes before they meet arithmetic."""
    if least <= value <= most:
        return
    given, low, high = (with_unit(where, each) for each in (value, least, most))
    number = "a whole number" if high == str(most) else "a value"
    remedy = f"Give {low} or more" if most == MAX_QUANTITY else f"Give {number} from {low} to {high}"
    raise SpecError(where, f"{given} is {f'below {low}' if value < least else f'above {high}'}", remedy)


MAX_POOL_NODES = 1_000_000
Expander = Literal["priority", "least-waste", "price"]


class ScalingSpec(Spec, frozen=True, kw_only=True):
    """The size of a pool and what its provider does. `stock`, `boot_ms`, `taken_permille_hour` and `notice_ms` are what
    the simulated provider goes by; `boot_ms` is also what the autoscaler expects of a real one."""

    least: int = 0
    """Nodes it never shrinks below."""
    most: int
    """Nodes, those on order among them, that it never grows above."""
    headroom: int = 0
    """Whole nodes that are kept free for what comes next."""
    priority: int = 0
    """Pools of a higher priority are tried first, where the expander goes by it."""
    region: str = ""
    zones: tuple[str, ...] = ()
    """Zones of new nodes, in the order of requests. Empty: no named zone."""
    project: str = ""
    """The project whose quota requests count against; pools of one project share its quota."""
    requests_per_100_s: int = 0
    """Machines that may be asked for in any 100 seconds; 0: no limit. Of pools of one project the least counts."""
    boot_ms: tuple[int, int] = (60_000, 120_000)
    """Median and 95th percentile of the time from grant to ready; lognormal."""
    stock: tuple[tuple[int, int], ...] = ()
    """(cell ms, most machines of each zone that are ours from then on), linear between. Empty: as many as wanted."""
    taken_permille_hour: int = 0
    """Chance of a spot machine to be taken back within an hour."""
    notice_ms: int = 30_000
    """Time between the notice that a spot machine is taken back and its end."""
    max_age_ms: int = 0
    """A machine ends by itself when it is so old, with the same notice; 0: never."""


class Autoscaling(Spec, frozen=True, kw_only=True):
    """The rules by which the cell orders nodes and gives them back. Times in milliseconds."""

    enabled: bool = True
    """While false, no node is ordered or given back automatically."""
    scan_every_ms: int = 10_000
    scale_up_after_ms: int = 30_000
    """Minimum wait for capacity before nodes are ordered for a workload."""
    order_timeout_ms: int = 15 * MINUTE_MS
    """An order that is not fulfilled by then is cancelled, and its pool backed off."""
    back_off_ms: int = 5 * MINUTE_MS
    """Time for which a pool that failed to deliver is left alone; doubles each time, up to `most_back_off_ms`."""
    most_back_off_ms: int = 30 * MINUTE_MS
    expanders: tuple[Expander, ...] = ("priority", "least-waste", "price")
    """Rules that choose between pools that would do, one after the other while several are equal."""
    most_nodes: int = 0
    """Nodes of all pools together; 0: no limit."""
    most_in_batch: int = 5_000
    """Machines asked for in one request to a provider."""
    calls_per_s: int = 0
    """Calls of new machines that the cell's head node takes in one second; a machine above that is not heard, and given
    back with its order. 0: no limit."""
    scale_down_below_permille: int = 500
    """A node whose most used resource is used less than this may go. 0: nodes are never given back."""
    scale_down_after_ms: int = 10 * MINUTE_MS
    """Minimum time in that condition."""
    settle_after_add_ms: int = 10 * MINUTE_MS
    """Minimum time between a pool's new nodes and its next scale-down."""
    most_at_once: int = 10
    """Nodes with work on them given back in one scan. Empty ones are not counted."""
    most_lost_ms: int = 5 * MINUTE_MS
    """Work that would lose more by being moved keeps its node."""
    predict_permille: int = 0
    """Quantile of the demand forecast that pools are sized for ahead of their boot time; 0: only reacts."""


PRESETS: dict[str, Autoscaling] = {
    "seed": Autoscaling(expanders=("priority",), most_nodes=50_000),
    "ca": Autoscaling(scale_up_after_ms=0, expanders=("least-waste",)),
}


def check_scaling(spec: ScalingSpec, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(spec.least, f"{where}.least", most=MAX_POOL_NODES)
    check_quantity(spec.most, f"{where}.most", most=MAX_POOL_NODES)
    if spec.least > spec.most:
        raise SpecError(f"{where}.least", f"{spec.least} is more than most, {spec.most}", "Give at most `most`")
    check_quantity(spec.headroom, f"{where}.headroom", most=MAX_POOL_NODES)
    if spec.headroom > spec.most:
        raise SpecError(f"{where}.headroom", f"{spec.headroom} is more than most, {spec.most}", "Give at most `most`")
    check_quantity(spec.priority, f"{where}.priority", least=-1_000_000, most=1_000_000)
    for name in (spec.region, spec.project):
        if name:
            check_id(name, f"{where}.{'region' if name == spec.region else 'project'}")
    for i, zone in enumerate(spec.zones):
        check_id(zone, f"{where}.zones[{i}]")
        if zone in spec.zones[:i]:
            raise SpecError(f"{where}.zones[{i}]", f"'{zone}' is given twice", "Give each zone once")
    check_quantity(spec.requests_per_100_s, f"{where}.requests_per_100_s")
    check_quantity(spec.boot_ms[0], f"{where}.boot_ms[0]", least=1, most=24 * HOUR_MS)
    check_quantity(spec.boot_ms[1], f"{where}.boot_ms[1]", least=spec.boot_ms[0], most=24 * HOUR_MS)
    for i, (at_ms, machines) in enumerate(spec.stock):
        check_quantity(at_ms, f"{where}.stock[{i}][0]", least=spec.stock[i - 1][0] if i else 0)
        check_quantity(machines, f"{where}.stock[{i}][1]")
    check_quantity(spec.taken_permille_hour, f"{where}.taken_permille_hour", most=999)
    check_quantity(spec.notice_ms, f"{where}.notice_ms", most=24 * HOUR_MS)
    check_quantity(spec.max_age_ms, f"{where}.max_age_ms")


def check_patience(spec: ScalingSpec, settings: Autoscaling, where: str) -> None:
    """Refuses a pool whose orders would as a rule be cancelled before their machines have booted. Raises SpecError."""
    if spec.boot_ms[0] > settings.order_timeout_ms:
        raise SpecError(
            f"{where}.boot_ms",
            f"every other machine boots for more than {spec.boot_ms[0]} ms, and orders are cancelled after "
            f"{settings.order_timeout_ms} ms: it would be ordered and given back over and over",
            "Give the cell a longer order_timeout in settings.autoscaling",
        )


_TIMES = (
    "order_timeout_ms", "back_off_ms", "most_back_off_ms", "scale_down_after_ms", "settle_after_add_ms",
    "scale_up_after_ms", "most_lost_ms", "most_nodes", "calls_per_s",
)  # fmt: skip


def check_autoscaling(settings: Autoscaling, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(settings.scan_every_ms, f"{where}.scan_every_ms", least=100, most=HOUR_MS)
    for field in _TIMES:
        check_quantity(getattr(settings, field), f"{where}.{field}")
    check_quantity(settings.most_in_batch, f"{where}.most_in_batch", least=1, most=MAX_POOL_NODES)
    check_quantity(settings.most_at_once, f"{where}.most_at_once", most=MAX_POOL_NODES)
    check_quantity(settings.scale_down_below_permille, f"{where}.scale_down_below_permille", most=1000)
    check_quantity(settings.predict_permille, f"{where}.predict_permille", most=999)
    if len(set(settings.expanders)) < len(settings.expanders):
        raise SpecError(f"{where}.expanders", "names one twice", "Give each expander once")


def changed_settings(was: Autoscaling, preset: str, changes: Mapping[str, object]) -> Autoscaling:
    """The preset, or the present settings, with these fields changed. Raises SpecError naming the preset or the
    field.
    """
    if preset and preset not in PRESETS:
        raise SpecError("preset", f"there is no '{preset[:64]}'", f"Use one of: {', '.join(PRESETS)}")
    for field in changes:
        if field not in Autoscaling.__struct_fields__:
            known = ", ".join(Autoscaling.__struct_fields__)
            raise SpecError(f"changes.{field[:64]}", "is not a setting of the autoscaler", f"Settings: {known}")
    try:
        base = msgspec.to_builtins(PRESETS[preset] if preset else was)
        to = msgspec.convert(base | msgspec.to_builtins(changes), Autoscaling)
    except msgspec.ValidationError as error:
        wrong = misfit(str(error))
        raise SpecError(f"changes{wrong.path}", wrong.problem, wrong.remedy) from None
    check_autoscaling(to, "autoscaling")
    return to


MAX_FLAPS = 10
"""Losses of one node that are remembered."""


class HealthSettings(Spec, frozen=True, kw_only=True):
    """Times in milliseconds of the cell's clock."""

    heartbeat_every_ms: int = 10_000
    """Interval at which agents are told to call."""
    suspect_after_ms: int = 40_000
    """A node not heard of for so long takes no new work; what runs there goes on."""
    grace_ms: int = 20_000
    """Further silence after which the node is lost and its work goes elsewhere."""
    mass_permille: int = 50
    """Share of watched nodes suspect at once above which it may be the network: then few are declared lost at a
    time.
    """
    mass_lost_permille: int = 10
    """That limit: share of the watched nodes, at least one, in any 10 seconds."""
    flaps: int = 3
    """A node that was lost so often within `flap_window_ms` comes back cordoned. 0: never."""
    flap_window_ms: int = HOUR_MS
    give_back_after_ms: int = 10 * MINUTE_MS
    """A node of an elastic pool that has been down so long leaves the cell, for good. 0: never."""
    repair_ms: tuple[int, int] = (0, 0)
    """Median and 95th percentile of a simulated repair of other nodes that are down; lognormal. (0, 0): they stay down
    until somebody says that they are back."""
    repair_fails_permille: int = 0
    """Chance of a simulated repair to fail."""
    most_repairs: int = 3
    """After so many failed repairs a node stays down until people have looked at it."""


_HEALTH_TIMES = ("grace_ms", "flap_window_ms", "give_back_after_ms")


def check_health(settings: HealthSettings, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(settings.heartbeat_every_ms, f"{where}.heartbeat_every_ms", least=100, most=HOUR_MS)
    check_quantity(settings.suspect_after_ms, f"{where}.suspect_after_ms", least=1000, most=24 * HOUR_MS)
    if settings.suspect_after_ms < 2 * settings.heartbeat_every_ms:
        raise SpecError(
            f"{where}.suspect_after_ms",
            f"{settings.suspect_after_ms} is less than two heartbeats, {2 * settings.heartbeat_every_ms}",
            "One heartbeat that is late must not make a node suspect",
        )
    for field in _HEALTH_TIMES:
        check_quantity(getattr(settings, field), f"{where}.{field}", most=365 * 24 * HOUR_MS)
    for field in ("mass_permille", "repair_fails_permille"):
        check_quantity(getattr(settings, field), f"{where}.{field}", most=1000)
    check_quantity(settings.mass_lost_permille, f"{where}.mass_lost_permille", least=1, most=1000)
    check_quantity(settings.flaps, f"{where}.flaps", most=MAX_FLAPS)
    median, late = settings.repair_ms
    check_quantity(median, f"{where}.repair_ms[0]", most=365 * 24 * HOUR_MS)
    check_quantity(late, f"{where}.repair_ms[1]", least=median, most=365 * 24 * HOUR_MS)
    check_quantity(settings.most_repairs, f"{where}.most_repairs", least=1, most=1000)


MAX_PRICE = 10**12
"""A million an hour for one node, in micro-USD: a price times the milliseconds of an hour still fits 64 bits."""
CURRENCY = "USD"
"""The cell's currency. Amounts in others are refused: they cannot be added up."""
MICROUSD = 1_000_000
"""Millionths in one unit of the currency."""
DAY_MS = 24 * 60 * MINUTE_MS
MAX_WINDOW_MS = 3660 * DAY_MS
Scope = Literal["tenant", "team", "queue"]
BudgetAction = Literal["warn", "hold", "approve"]


class BudgetSpec(Spec, frozen=True, kw_only=True):
    """The spending limit of a tenant, a team, or a queue and all below it in each window. Running work is never stopped
    for it.
    """

    name: str
    scope: Scope
    of: str
    """Name of the tenant, team or queue."""
    limit_microusd: int
    window_ms: int = 30 * DAY_MS
    """Windows follow each other from cell time 0 on."""
    action: BudgetAction = "warn"
    """The effect when all is spent. `warn`: it is shown. `hold`: nothing more of it starts before the next window.
    `approve`: each workload of it waits until a person approves its cost; with a limit of 0, always.
    """
    warn_permille: int = 800
    """Part of the limit from which it is shown that it runs out."""


def check_budget(spec: BudgetSpec, where: str) -> None:
    """Raises SpecError naming the field."""
    check_id(spec.name, f"{where}.name")
    check_id(spec.of, f"{where}.of")
    check_quantity(spec.limit_microusd, f"{where}.limit_microusd")
    check_quantity(spec.window_ms, f"{where}.window_ms", least=MINUTE_MS, most=MAX_WINDOW_MS)
    check_quantity(spec.warn_permille, f"{where}.warn_permille", most=1000)


def check_price(price: int, where: str) -> None:
    """Micro-USD per hour. Raises SpecError naming the field."""
    check_quantity(price, where, most=MAX_PRICE)


Qos = Literal["guaranteed", "burstable", "best_effort"]
OVERCOMMITTED = ("cpu_milli", "memory_mib")
"""Resources that may be promised more than once. A device or a disk that is full cannot be shared out again."""
MAX_OVERCOMMIT = 10_000
EvictionOrder = Literal["kubelet", "qos"]


class Pressure(Spec, frozen=True, kw_only=True):
    """The rules by which a node whose memory runs short evicts work. It checks every `check_every_ms`."""

    evict_at_permille: int = 950
    """Part of its physical memory in use from which it evicts. 0: never."""
    evict_to_permille: int = 900
    """Work is put out until no more than this is in use."""
    order: EvictionOrder = "kubelet"
    """The order of eviction (`engine.executors.node_watch`)."""
    check_every_ms: int = 10_000
    pause_ms: int = 5 * MINUTE_MS
    """Minimum wait of evicted work before it may start again."""


def check_overcommit(overcommit: dict[str, int], where: str) -> None:
    """Permille by resource. Raises SpecError naming the field."""
    for name, permille in overcommit.items():
        if name not in OVERCOMMITTED:
            raise SpecError(
                f"{where}.{name[:64]}", "cannot be overcommitted", f"Resources that can: {', '.join(OVERCOMMITTED)}"
            )
        check_quantity(permille, f"{where}.{name}", least=1000, most=MAX_OVERCOMMIT)


def check_pressure(pressure: Pressure, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(pressure.evict_at_permille, f"{where}.evict_at_permille", most=1000)
    check_quantity(pressure.evict_to_permille, f"{where}.evict_to_permille", most=1000)
    if pressure.evict_at_permille and pressure.evict_to_permille > pressure.evict_at_permille:
        raise SpecError(
            f"{where}.evict_to_permille",
            f"{pressure.evict_to_permille} is above evict_at_permille, {pressure.evict_at_permille}",
            "Give at most evict_at_permille",
        )
    check_quantity(pressure.check_every_ms, f"{where}.check_every_ms", least=100, most=HOUR_MS)
    check_quantity(pressure.pause_ms, f"{where}.pause_ms", most=24 * HOUR_MS)


MAX_WORDS = 4096
MAX_BYTES = 128 * 1024
"""Limit of command and environment together: they are kept in the journal, once for all equal ones."""
OURS = "MUSTER_"
"""Names of variables that begin so are Muster's to set."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RunSpec(Spec, frozen=True, kw_only=True):
    """The same for every task; each is told by its environment which one it is."""

    argv: tuple[str, ...]
    """The program, as a path or as a name to be found in PATH, and its arguments."""
    env: dict[str, str] = {}
    """Variables besides those of whoever owns the engine. They are kept in the journal: no place for secrets."""
    cwd: str = ""
    """Absolute path of the folder it begins in; empty: the home of whoever owns the engine."""
    grace_ms: int = 10_000
    """Between being asked to stop (SIGTERM) and being killed."""

    def __hash__(self) -> int:
        return hash((self.argv, self.cwd, len(self.env)))


def check_run(run: RunSpec, where: str) -> None:
    """Raises SpecError for what the operating system would refuse, or nobody could mean."""
    if not run.argv or not run.argv[0]:
        raise SpecError(f"{where}.argv", "names no program", "Write it like: argv: [python3, train.py]")
    if len(run.argv) > MAX_WORDS:
        raise SpecError(f"{where}.argv", f"has {len(run.argv)} words", f"Give at most {MAX_WORDS}")
    for i, word in enumerate(run.argv):
        _check_text(word, f"{where}.argv[{i}]")
    for name, value in run.env.items():
        if not _NAME.fullmatch(name):
            raise SpecError(f"{where}.env", f"{name[:40]!a} is not a variable name", "Use letters, digits and _")
        if name.startswith(OURS):
            raise SpecError(f"{where}.env.{name[:80]}", f"names that begin with {OURS} are Muster's", "Choose another")
        _check_text(value, f"{where}.env.{name[:80]}")
    size = sum(len(text.encode()) for text in (*run.argv, *run.env, *run.env.values()))
    if size > MAX_BYTES:
        raise SpecError(where, f"has {size} bytes", f"Give at most {MAX_BYTES}; put more into a file that it reads")
    _check_text(run.cwd, f"{where}.cwd")
    if run.cwd and not run.cwd.startswith("/"):
        raise SpecError(f"{where}.cwd", f"{run.cwd[:80]!a} is not an absolute path", "Start it with /")
    check_quantity(run.grace_ms, f"{where}.grace_ms", most=HOUR_MS)


def shown(run: RunSpec | None) -> RunSpec | None:
    """The spec as others may see it: values of the environment may be secrets."""
    return msgspec.structs.replace(run, env=dict.fromkeys(run.env, "")) if run is not None and run.env else run


EXIT_CAUSES = ("", "its memory limit", "its time limit", "it could not be started")
"""Reasons for which Muster itself ended a task."""
TIME_LIMIT = 2


def exit_words(task: int, status: int) -> str:
    """The end of a task for people, from its rank and the status of `engine.model.events.Exited`."""
    cause, code = EXIT_CAUSES[status >> 8], status & 0xFF
    how = f"with code {code}"
    if code > 128:
        with contextlib.suppress(ValueError):
            how = f"by {signal.Signals(code - 128).name}"
    return f"task {task} {how}{f': {cause}' if cause else ''}"


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise SpecError(where, "holds a NUL character", "Remove it: a program argument cannot contain it")
    try:
        text.encode()
    except UnicodeEncodeError:
        remedy = "Give text, or the name of a file that holds the bytes"
        raise SpecError(where, "is not valid Unicode", remedy) from None


LOOK_EVERY_MS = 15_000
"""Between two looks at how busy services are."""
MAX_REPLICAS = 100_000
MAX_POINTS = 10_000


class ServiceSpec(Spec, frozen=True, kw_only=True):
    """Work without an end whose one group has as many tasks (replicas) as keep them busy to the target."""

    least: int = 1
    most: int
    first: int = 0
    """Replicas before anything is known of their load; 0: `least`."""
    target_permille: int = 800
    """CPU in use, of what the replicas ask for, that they should have."""
    tolerance_permille: int = 100
    """The number stays while use is so near to the target, as a part of the target."""
    stabilise_ms: int = 300_000
    """Window of a scale-down: it goes only to the largest number that was wanted during this time."""
    simulated_load: tuple[tuple[int, int], ...] = ()
    """(cell ms, load in permille of one replica's request), linear between: what the simulated executor has the
    replicas share. Empty: by what is reported of them."""


def check_service(spec: ServiceSpec, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(spec.least, f"{where}.least", least=1, most=MAX_REPLICAS)
    check_quantity(spec.most, f"{where}.most", least=1, most=MAX_REPLICAS)
    if spec.least > spec.most:
        raise SpecError(f"{where}.least", f"{spec.least} is more than most, {spec.most}", "Give at most `most`")
    if spec.first and not spec.least <= spec.first <= spec.most:
        raise SpecError(
            f"{where}.first", f"{spec.first} is not from least to most", "Give one between, or leave it out"
        )
    check_quantity(spec.target_permille, f"{where}.target_permille", least=1, most=10_000)
    check_quantity(spec.tolerance_permille, f"{where}.tolerance_permille", most=1000)
    check_quantity(spec.stabilise_ms, f"{where}.stabilise_ms", most=24 * HOUR_MS)
    if len(spec.simulated_load) > MAX_POINTS:
        raise SpecError(f"{where}.simulated_load", f"has {len(spec.simulated_load)} points", f"At most {MAX_POINTS}")
    for i, (at_ms, permille) in enumerate(spec.simulated_load):
        before = spec.simulated_load[i - 1][0] + 1 if i else 0
        check_quantity(at_ms, f"{where}.simulated_load[{i}][0]", least=before)
        check_quantity(permille, f"{where}.simulated_load[{i}][1]", most=MAX_REPLICAS * 10_000)


def load_permille(spec: ServiceSpec, now_ms: int) -> int:
    """The simulated load at that time: before the first point and after the last as there."""
    points = spec.simulated_load
    after = next((i for i, (at_ms, _) in enumerate(points) if at_ms > now_ms), len(points))
    if after in (0, len(points)):
        return points[min(after, len(points) - 1)][1]
    (start, low), (end, high) = points[after - 1], points[after]
    return low + (high - low) * (now_ms - start) // (end - start)


def desired(spec: ServiceSpec, replicas: int, reported: int, use_permille: int) -> int:
    """The wanted number of replicas. There are `replicas`; `reported` of them report their load, and all of those
    together use `use_permille`, in permille of one replica's request.

    ceil(replicas x use / target), unless use is within the tolerance of the target. Silent replicas are assumed idle
    where that would mean more of them, and busy to the target where it would mean fewer; the number stays where that
    turns the sign.
    """
    if not reported:
        return _bounded(spec, replicas)
    ratio_of, target = spec.tolerance_permille, spec.target_permille
    counted = reported
    up = use_permille > target * reported
    if reported < replicas:
        counted = replicas
        use_permille += 0 if up else target * (replicas - reported)
        if up != (use_permille > target * counted):
            return _bounded(spec, replicas)
    if abs(use_permille - target * counted) * 1000 <= ratio_of * target * counted:
        return _bounded(spec, replicas)
    return _bounded(spec, -(-replicas * use_permille // (target * counted)))


def _bounded(spec: ServiceSpec, replicas: int) -> int:
    return min(max(replicas, spec.least), spec.most)
