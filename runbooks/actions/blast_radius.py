"""How much an act touches: nodes taken out of use, work that is stopped, whose that is, and what it may cost.

It is what limits are counted in, so it never says less than what is touched: where it cannot be known beforehand how
much that is, the most that may be is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from runbooks.actions.catalogue import find
from runbooks.actions.risk import loses_work
from runbooks.plans.typed_plan import Act, Blast, Target

MAX_PLACES = 1_000
"""Nodes of a workload that the engine names; one that lies on more may lie anywhere."""


def blast_of(act: Act, shown: tuple[Target, ...], stops: Sequence[Target] = ()) -> Blast:
    """Of one act. `shown`: its targets before it; `stops`: the workloads that it stops besides its targets.

    A node counts when it is newly taken out of use: by name where it is known which, else as one of its pool. Work
    counts where it is stopped. A GPU counts once: those of the nodes, and those of stopped work that are not on them.
    """
    row = find(act.action)
    nodes = {id_: (pool, gpu) for id_, pool, gpu in taken(act, shown)}
    work = {target.id: target for target in (*shown, *stops) if loses_work(row, target)}
    holds = {(id_, node): gpu for id_, target in work.items() for node, gpu in target.holds}
    unnamed, unnamed_gpu = given_back(act, shown)
    return _blast(
        nodes,
        {id_: 0 if lies_on(target, nodes) else target.gpu_milli for id_, target in work.items()},
        holds,
        Counter(pool for pool, _ in nodes.values()) + unnamed,
        unnamed_gpu,
        workloads=len(work),
        tenants={target.tenant for target in work.values() if target.tenant},
        cost_microusd_hour=dearer(act, shown),
    )


def lies_on(work: Target, nodes: Mapping[str, object]) -> bool:
    """Whether all of a workload is on these nodes, as far as its nodes are known."""
    return 0 < len(work.nodes) < MAX_PLACES and nodes.keys() >= set(work.nodes)


def total(blasts: Iterable[Blast]) -> Blast:
    """Of several acts together. A node, a workload and a GPU that several of them touch counts once."""
    every = tuple(blasts)
    nodes = {id_: (pool, gpu) for blast in every for id_, pool, gpu in blast.named_nodes}
    devices: dict[str, int] = {}
    holds: dict[tuple[str, str], int] = {}
    unnamed: Counter[str] = Counter()
    unnamed_gpu = 0
    for blast in every:
        holds |= {(id_, node): gpu for id_, node, gpu in blast.named_holds}
        own = _lying({(id_, node): gpu for id_, node, gpu in blast.named_holds}, {id_ for id_, *_ in blast.named_nodes})
        for id_, gpu in blast.named_work:
            devices[id_] = max(gpu + own[id_], devices.get(id_, 0))
        unnamed.update(dict(blast.nodes))
        unnamed.subtract(pool for _, pool, _ in blast.named_nodes)
        unnamed_gpu += blast.gpu_milli - sum(gpu for _, _, gpu in blast.named_nodes)
        unnamed_gpu -= sum(gpu for _, gpu in blast.named_work)
    return _blast(
        nodes,
        devices,
        holds,
        Counter(pool for pool, _ in nodes.values()) + unnamed,
        unnamed_gpu,
        workloads=len(devices) + sum(blast.workloads - len(blast.named_work) for blast in every),
        tenants={tenant for blast in every for tenant in blast.tenants},
        cost_microusd_hour=sum(blast.cost_microusd_hour for blast in every),
    )


def _blast(
    nodes: Mapping[str, tuple[str, int]],
    devices: Mapping[str, int],
    holds: Mapping[tuple[str, str], int],
    counted: Mapping[str, int],
    unnamed_gpu: int,
    *,
    workloads: int,
    tenants: Collection[str],
    cost_microusd_hour: int,
) -> Blast:
    """`nodes` (node -> pool, milli-GPU), `devices` (workload -> milli-GPU) and what of those lies where (`holds`):
    what lies on the nodes counts as theirs."""
    on_nodes = _lying(holds, nodes)
    left = {id_: max(0, gpu - on_nodes[id_]) for id_, gpu in devices.items()}
    return Blast(
        gpu_milli=sum(gpu for _, gpu in nodes.values()) + sum(left.values()) + unnamed_gpu,
        nodes=tuple(sorted((pool, count) for pool, count in counted.items() if count)),
        workloads=workloads,
        tenants=tuple(sorted(tenants)),
        cost_microusd_hour=cost_microusd_hour,
        named_nodes=tuple((id_, pool, gpu) for id_, (pool, gpu) in sorted(nodes.items())),
        named_work=tuple(sorted(left.items())),
        named_holds=tuple((id_, node, gpu) for (id_, node), gpu in sorted(holds.items())),
    )


def _lying(holds: Mapping[tuple[str, str], int], nodes: Collection[str]) -> Counter[str]:
    """Workload -> milli-GPU that it holds on these nodes."""
    found: Counter[str] = Counter()
    for (id_, node), gpu in holds.items():
        if node in nodes:
            found[id_] += gpu
    return found


def taken(act: Act, shown: tuple[Target, ...]) -> tuple[tuple[str, str, int], ...]:
    """(node, pool, milli-GPU) of what it takes out of use and was in use until then."""
    if "takes_nodes" in find(act.action).impact:
        return tuple((target.id, target.pool, target.gpu_milli) for target in shown if target.state == "ready")
    return tuple(place for target in shown for place in target.keeps)


def given_back(act: Act, shown: tuple[Target, ...]) -> tuple[Counter[str], int]:
    """Pool -> nodes that it gives back, or lets the autoscaler give back, without naming them; and their milli-GPU."""
    fewer = find(act.action).fewer
    found: Counter[str] = Counter()
    gpu_milli = 0
    for target in shown:
        if fewer is not None and target.size is not None and (count := fewer(act, target.size)):
            found[target.id] += count
            gpu_milli += count * target.gpu_milli
    return found, gpu_milli


def dearer(act: Act, shown: tuple[Target, ...]) -> int:
    """Micro-USD by which an hour of the cell may cost more."""
    row = find(act.action)
    more = sum(row.dearer(act, target) for target in shown) if row.dearer is not None else 0
    if row.more is not None:
        more += sum(row.more(act, target.size) * target.price_microusd_hour for target in shown if target.size)
    return more
