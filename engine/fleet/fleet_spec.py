"""What the file of a fleet says: which cells there are, where their data stay, what tenants may have of all of them
together, and how start time and cost are weighed (`engine.fleet.routing_policy` goes by it)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from engine.model.base import HOUR_MS, MINUTE_MS, check_id, check_quantity
from engine.model.errors import SpecError
from engine.model.specs import RESOURCES

MAX_CELLS = 200
MILLION = 1_000_000


class CellLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cell, and how it is reached."""

    name: str
    connect: str
    """Path of its Unix socket, or URL."""
    token_file: str = ""
    region: str = ""
    residency: tuple[str, ...] = ()
    """Labels of where its data stay, such as `eu`."""
    queues: dict[str, str] = {}
    """Queue of a submission -> what this cell calls it; others have the same name."""


class Dataset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that work names by a tag."""

    name: str
    cells: tuple[str, ...]
    """That hold it."""
    size_mib: int = 0
    elsewhere: Literal["never", "read"] = "never"
    """Whether other cells may read it over the network, which takes its time and its price."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What reading data of another cell costs."""

    microusd_gib: int = 0
    mib_s: int = 100


class TenantShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may have of the fleet."""

    name: str
    weight: int = 1
    quota: dict[str, int] = {}
    """Resource name -> most that its work may hold or wait for in all cells together; not named: no limit."""
    residency: tuple[str, ...] = ()
    """All its work stays in one of these."""
    cells: tuple[str, ...] = ()
    """Its work goes to these alone; empty: any."""
    home: str = ""
    """Cell that is preferred while it has room and starts the work soon."""


class Routing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How start time and cost are weighed."""

    hour_microusd: int = 5 * MILLION
    """What an hour of waiting is worth."""
    crowded_permille: int = 900
    """A cell that is used more than this is passed over for one that is not and starts the work soon too."""
    bind_within_ms: int = 10 * MINUTE_MS
    """A start so near is soon: the work is sent at once."""
    bind_after_ms: int = 5 * MINUTE_MS
    """What no cell starts soon is kept in the fleet for so long, for whichever has room first; then it is sent where it
    is best, and waits there. Until then whose turn it is, is the fleet's to say."""
    horizon_ms: int = 24 * HOUR_MS
    """How far ahead a start is looked for."""
    answer_within_ms: int = 4_000
    """A cell that has not answered by then is passed over this time."""


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells, and what holds for all of them together."""

    name: str = "fleet"
    cells: tuple[CellLink, ...]
    tenants: tuple[TenantShare, ...] = ()
    datasets: tuple[Dataset, ...] = ()
    transfer: Transfer = Transfer()
    routing: Routing = Routing()


def check_fleet(spec: FleetSpec) -> None:
    """Raises SpecError naming the field."""
    check_id(spec.name, "name")
    if not spec.cells:
        raise SpecError("cells", "is empty", "Give at least one cell with its name and where it is reached")
    if len(spec.cells) > MAX_CELLS:
        raise SpecError("cells", f"has {len(spec.cells)} entries", f"At most {MAX_CELLS}")
    cells = _named("cells", [link.name for link in spec.cells])
    _named("tenants", [tenant.name for tenant in spec.tenants])
    _named("datasets", [data.name for data in spec.datasets])
    for i, link in enumerate(spec.cells):
        if not link.connect:
            raise SpecError(f"cells[{i}].connect", "is empty", "Give the path of a socket, or a URL")
        for label in (*link.residency, *((link.region,) if link.region else ())):
            check_id(label, f"cells[{i}].residency")
    for i, tenant in enumerate(spec.tenants):
        check_quantity(tenant.weight, f"tenants[{i}].weight", least=1, most=MILLION)
        for name, most in tenant.quota.items():
            if name not in RESOURCES:
                raise SpecError(f"tenants[{i}].quota.{name}", "is no resource", f"Use: {', '.join(RESOURCES)}")
            check_quantity(most, f"tenants[{i}].quota.{name}")
        for cell in (*tenant.cells, *((tenant.home,) if tenant.home else ())):
            known_cell(cell, cells, f"tenants[{i}]")
    for i, data in enumerate(spec.datasets):
        check_quantity(data.size_mib, f"datasets[{i}].size_mib")
        for cell in data.cells:
            known_cell(cell, cells, f"datasets[{i}].cells")
    check_quantity(spec.transfer.mib_s, "transfer.mib_s", least=1)
    check_quantity(spec.transfer.microusd_gib, "transfer.microusd_gib")
    check_quantity(spec.routing.crowded_permille, "routing.crowded_permille", least=1, most=1000)
    check_quantity(spec.routing.horizon_ms, "routing.horizon_ms", least=MINUTE_MS, most=7 * 24 * HOUR_MS)
    check_quantity(spec.routing.answer_within_ms, "routing.answer_within_ms", least=100, most=60_000)
    for name in ("hour_microusd", "bind_within_ms", "bind_after_ms"):
        check_quantity(getattr(spec.routing, name), f"routing.{name}")


def _named(where: str, names: Sequence[str]) -> set[str]:
    """The names, each valid and there once."""
    for i, name in enumerate(names):
        check_id(name, f"{where}[{i}].name")
        if name in names[:i]:
            raise SpecError(f"{where}[{i}].name", f"'{name}' is given twice", "Give each its own name")
    return set(names)


def known_cell(cell: str, cells: Collection[str], where: str) -> None:
    """Raises SpecError for a cell that is none of these."""
    if cell not in cells:
        raise SpecError(where, f"there is no cell '{cell[:60]}'", f"There are: {', '.join(sorted(cells))}")
