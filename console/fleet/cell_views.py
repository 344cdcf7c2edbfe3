"""What a fleet shows of its cells and of its tenants, made of what was last seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from console.fleet.cell_connection import NOT_ASKED, CellLine
from console.fleet.queries import CellView, FleetSubmission, TenantView
from engine.fleet.fleet_spec import FleetSpec, TenantShare
from engine.fleet.routing_policy import share_ppm

Held = dict[str, dict[str, int]]
"""Tenant -> resource -> quantity."""


def cell_view(line: CellLine, closed: str | None, here: Sequence[FleetSubmission], spec: FleetSpec) -> CellView:
    """`closed`: why a person has closed it, None: nobody has; `here`: what the fleet has there."""
    seen = line.seen
    view = CellView(
        name=line.link.name,
        state="down" if line.error else "closed" if closed is not None else "up",
        why=line.error or closed or "",
        connect=line.link.connect,
        region=line.link.region,
        residency=line.link.residency,
        datasets=tuple(data.name for data in spec.datasets if line.link.name in data.cells),
        fleet_open=len(here),
        unsettled=sum(each.state == "sending" for each in here),
    )
    if seen is None:
        return msgspec.structs.replace(view, state="unknown" if line.error in ("", NOT_ASKED) else "down")
    of = seen.overview
    return msgspec.structs.replace(
        view,
        state="down" if view.state == "up" and seen.shut else view.state,
        why=view.why or seen.shut,
        decided_by="" if seen.mirror.state == "none" else "slurm",
        seen_ms=seen.wall_ms,
        version=of.version,
        capacity=of.capacity,
        used=of.used,
        nodes=sum(pool.nodes for pool in of.pools),
        ready=sum(pool.ready for pool in of.pools),
        running=of.states.get("running", 0) + of.states.get("placed", 0),
        queued=of.states.get("queued", 0),
        wait_p95_ms=of.wait_p95_ms,
        cost_microusd_hour=of.cost_microusd_hour,
    )


def tenant_views(
    spec: FleetSpec,
    held: Held,
    capacity: Mapping[str, int],
    waiting: Sequence[FleetSubmission],
    lines: Mapping[str, CellLine],
) -> tuple[TenantView, ...]:
    """Those of the fleet's file, then others that hold something."""
    known = {tenant.name: tenant for tenant in spec.tenants}
    names = [*known, *sorted(name for name in held if name not in known)]
    return tuple(_tenant(known.get(name, TenantShare(name=name)), held, capacity, waiting, lines) for name in names)


def _tenant(
    tenant: TenantShare,
    held: Held,
    capacity: Mapping[str, int],
    waiting: Sequence[FleetSubmission],
    lines: Mapping[str, CellLine],
) -> TenantView:
    holds = held.get(tenant.name, {})
    return TenantView(
        name=tenant.name,
        weight=tenant.weight,
        quota=tenant.quota,
        held=holds,
        share_ppm=share_ppm(holds, capacity, tenant.weight),
        waiting=sum(each.tenant == tenant.name for each in waiting),
        by_cell={
            cell: line.seen.overview.tenants[tenant.name]
            for cell, line in lines.items()
            if line.seen is not None and tenant.name in line.seen.overview.tenants
        },
    )
