"""Reports on the cell: fairness, fragmentation and heat, sizes of pools, money and goodput. Types only."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.spec_parts import Autoscaling, BudgetSpec, ScalingSpec


class BurstReport(msgspec.Struct, frozen=True, kw_only=True):
    state: Literal["idle", "burst", "cooldown"]
    ends_in_ms: int = 0
    """Cell time until the window or the cool-down ends; 0 when idle."""
    excess: dict[str, int] = {}
    """Use above the ceiling: in a cool-down, what is reclaimed first."""


class VertexReport(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the queue tree. Keys of dictionaries are resource names for all pools together and `pool/resource`
    for one pool; what is zero is left out, but for `guaranteed`."""

    name: str
    parent: str
    weight: int
    used: dict[str, int]
    guaranteed: dict[str, int]
    """Its nominal quota and what the vertices below lend it. A key that is missing is not limited in this tree."""
    borrowed: dict[str, int]
    """Draw above that."""
    lent: dict[str, int]
    """Use of its idle quota by its siblings. They use up the quota of the cohort itself first. Use beyond that counts
    for all with idle quota, in proportion.
    """
    burst: BurstReport | None
    """None when it has no burst quota."""
    share_ppb: int
    """Weighted dominant share of what it draws now."""
    past_share_ppb: int
    """The same of its average draw over the past."""
    deserved: dict[str, int]
    """Its holding if the cell were divided afresh among all with demand."""


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a workload went first: its place in the order beside that of the next one."""

    at_ms: int
    workload: str
    queue: str
    band: int
    shares_ppb: tuple[int, ...]
    """Weighted dominant shares from the root of its tree down to its queue, as they were before it started; empty when
    it had waited so long that shares did not count."""
    priority: int
    next_workload: str = ""
    """Empty when nothing else was a candidate."""
    next_queue: str = ""
    next_band: int = 0
    next_shares_ppb: tuple[int, ...] = ()
    next_priority: int = 0
    rule: Literal["alone", "band", "waited", "share", "priority", "age"]
    """The rule that decided between the two."""


class FairnessReport(msgspec.Struct, frozen=True, kw_only=True):
    """Each queue's present and deserved holding, and the reasons for the order of the last starts."""

    version: int
    now_ms: int
    half_life_ms: int
    """Past use counts half as much for every such time that has passed."""
    past_counts: bool
    """True if past use counts in the order; else it is only shown."""
    queues: tuple[VertexReport, ...]
    decisions: tuple[DecisionReport, ...]
    """The last starts, newest first. Not kept over a restart."""


class PoolFragmentation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    free_milli: int
    """Free milli-GPU on nodes that take anybody's work."""
    ppm: int | None
    """Fragmentation as for the cell; None when no task of the mix may go there."""


class ShapeFragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of tasks in the live mix, by what one of them asks for."""

    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    disk_mib: int
    pools: tuple[str, ...]
    """The pools it may use, in order of preference."""
    waiting: int
    running: int
    free_milli: int
    """Free in these pools."""
    usable_milli: int
    """The part of that on devices that such a task could be put on now."""
    unusable_ppm: int
    """Share of it that is lost to such a task."""
    fits: int
    """Such tasks that fit now, all together."""
    fits_in_one_piece: int
    """Such tasks that would fit if all that is free there were in one piece."""


class FragmentationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The free GPU that the work of this cell could not use, because it lies in the wrong pieces. The mix is the
    waiting and the running work, by number of tasks.
    """

    version: int
    now_ms: int
    ppm: int | None
    """Share of the free GPU that is lost to a task drawn from the mix, in parts per million, on average. None when no
    task that asks for GPU waits or runs."""
    published_ppm: int | None
    """The same by the rule of the paper it comes from, which counts tasks without GPU, and pools that a task may not
    use, as fragmentation too."""
    free_milli: int
    """Free milli-GPU on nodes that take anybody's work."""
    mix_tasks: int
    """Tasks in the mix, those without GPU too."""
    covered_tasks: int
    """Tasks that the figure is worked out from: of the most frequent kinds that ask for GPU."""
    pools: tuple[PoolFragmentation, ...]
    shapes: tuple[ShapeFragmentation, ...]
    """The most frequent kinds first."""


HeatLevel = Literal["zone", "block", "rack", "node"]


class HeatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of the cell to show as a map, and the level of its tiles."""

    level: HeatLevel
    """The level of one tile."""
    within: dict[str, str] = {}
    """zone, block or rack -> its name; empty names are places that are not known. Only nodes in all of them."""
    offset: int = 0
    limit: int = 2_000
    """Tiles of one answer."""


class HeatTile(msgspec.Struct, frozen=True, kw_only=True):
    """A domain of the topology, or one node."""

    name: str
    """Empty for nodes of which it is not known where they are."""
    zone: str
    block: str
    rack: str
    """Its location at wider levels than its own; its own name at its own level."""
    nodes: int
    states: dict[str, int]
    """Node state -> nodes, of those there are."""
    use_permille: int
    """Allocated share of its scarcest resource."""
    gpu_milli: int
    gpu_free_milli: int
    split_milli: int
    """The part of the free GPU on nodes with other devices, or other parts of a device, in use."""
    price_microusd_hour: int
    """Price of all its nodes."""
    spot: int
    """Nodes that their provider may take back."""
    pool: str = ""
    """Pool of a node."""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """Tiles by place, in the order of their names; nodes in the order in which they came to their rack."""

    version: int
    now_ms: int
    level: HeatLevel
    within: dict[str, str]
    offset: int
    total: int
    """Tiles there are."""
    tiles: tuple[HeatTile, ...]
    dearest_microusd_hour: int
    """The highest price of one node in the cell."""


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, in nodes."""

    pool: str
    scaling: ScalingSpec | None
    """None: it does not grow by itself."""
    ready: int
    booting: int
    other: int
    """Cordoned, draining, down or not heard of."""
    ordered: int
    """Asked for and not granted yet."""
    asked: int
    """Nodes that running work fills and waiting work, as far as quota allows, would fill."""
    wanted: int
    """Nodes it should have in any case: the largest of its minimum, its target and its forecast."""
    set_for: tuple[tuple[int, int], ...] = ()
    """(cell ms, nodes) that people have set."""
    noted_hours: int = 0
    """Hours of demand that a forecast can go by."""


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    settings: Autoscaling
    pools: tuple[PoolSize, ...]
    forecast: str = ""
    """The source of the demand forecast, in words."""


GROUPINGS = ("tenant", "team", "queue", "pool")


TAG = "tag:"


class ShowbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    by: str = "tenant"
    """One of GROUPINGS, or `tag:KEY`."""
    since_ms: int = 0
    """Cell time; rounded down to the beginning of its day (UTC)."""
    until_ms: int | None = None
    """Cell time, rounded up to the end of its day; not given, or in the future: now."""


class ShowbackLine(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["group", "downtime", "idle"]
    """`downtime`: what no work used while no engine decided; there is such a line only where there was such a time."""
    name: str
    """Name of the group; empty for work that names none, for downtime and for idle."""
    microusd: int
    permille: int
    """Part of the whole, rounded down."""


class Showback(msgspec.Struct, frozen=True, kw_only=True):
    """Dearest first, then downtime, idle last. Lines add up to the total, to the last micro-USD."""

    version: int
    now_ms: int
    by: str
    since_ms: int
    until_ms: int
    total_microusd: int
    """Cost of all nodes in the window, rounded down."""
    lines: tuple[ShowbackLine, ...]


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    spec: BudgetSpec
    stage: str
    """`open`, `warned` or `spent`, in the present window."""
    spent_microusd: int
    rate_microusd_hour: int
    window_start_ms: int
    window_end_ms: int
    forecast_microusd: int
    """At the window's end, if the rate stays as it is."""
    spent_at_ms: int | None
    """Cell time at which all is spent at this rate; null when not within the window."""
    waiting: int
    """Queued workloads that wait for it."""


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    budgets: tuple[BudgetLine, ...]


class PoolGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of one pool over the whole life of the cell."""

    pool: str
    spot: bool
    nodes: int
    ending: int
    """Those of them with notice."""
    taken: int
    """Nodes that have had notice, those that are gone among them."""
    interruptions_ppm_hour: int
    """Expected of one node in an hour, in millionths: as the pool says, else as measured."""
    cost_microusd: int
    used_microusd: int
    """The part of that charged to work."""


class TenantGoodput(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    """Empty for work that names none."""
    finished: int
    charged_microusd: int
    wasted_microusd: int
    """The part of that for work that was lost, or whose workload failed or was cancelled."""
    per_finished_microusd: int | None
    """Charged, by finished workload; null before any has."""


class GoodputReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    cost_microusd: int
    """Cost of all nodes."""
    charged_microusd: int
    downtime_microusd: int = 0
    """Their cost without work while no engine decided; with `charged` and the idle part it is `cost`."""
    wasted_microusd: int
    goodput_permille: int
    finished: int
    per_finished_microusd: int | None
    """Cost of all nodes, idle ones too, by finished workload; null before any has."""
    turned: int
    """Workloads that have not ended and turned to on-demand machines because their slack ran out."""
    pools: tuple[PoolGoodput, ...]
    tenants: tuple[TenantGoodput, ...]
    """Dearest first."""
