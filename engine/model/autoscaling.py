"""How pools grow and shrink by themselves: what a pool says about its provider, and how eager the cell is.

The two presets differ where published descriptions of the Kubernetes cluster autoscaler differ from its defaults:
`ca` has the defaults of its FAQ, `seed` the figures that are often quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.model.base import HOUR_MS, MINUTE_MS, Spec, check_id, check_quantity
from engine.model.errors import SpecError

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
    """Where new nodes may stand; asked in this order. Empty: in no named zone."""
    project: str = ""
    """What requests for machines are counted against; pools of one project share its quota."""
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
    """When the cell orders nodes and gives them back. Times in milliseconds."""

    enabled: bool = True
    """Nothing is ordered or given back by itself while it is false."""
    scan_every_ms: int = 10_000
    scale_up_after_ms: int = 30_000
    """What has waited less for capacity is not ordered for."""
    order_timeout_ms: int = 15 * MINUTE_MS
    """An order that is not fulfilled by then is cancelled, and its pool backed off."""
    back_off_ms: int = 5 * MINUTE_MS
    """How long a pool that failed to deliver is left alone; doubles each time, up to `most_back_off_ms`."""
    most_back_off_ms: int = 30 * MINUTE_MS
    expanders: tuple[Expander, ...] = ("priority", "least-waste", "price")
    """What chooses between pools that would do, one after the other while several are as good."""
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
    """How long it has been so."""
    settle_after_add_ms: int = 10 * MINUTE_MS
    """Nothing of a pool is given back so soon after it got nodes."""
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
    """As the preset says, or as it was, with these fields changed. Raises SpecError naming the preset or the field."""
    if preset and preset not in PRESETS:
        raise SpecError("preset", f"there is no '{preset[:64]}'", f"Use one of: {', '.join(PRESETS)}")
    for field in changes:
        if field not in Autoscaling.__struct_fields__:
            known = ", ".join(Autoscaling.__struct_fields__)
            raise SpecError(f"changes.{field[:64]}", "is no setting of the autoscaler", f"Settings: {known}")
    try:
        base = msgspec.to_builtins(PRESETS[preset] if preset else was)
        to = msgspec.convert(base | msgspec.to_builtins(changes), Autoscaling)
    except msgspec.ValidationError as error:
        raise SpecError("changes", str(error), "Give numbers, true or false, or names of expanders") from None
    check_autoscaling(to, "autoscaling")
    return to
