"""Fleets: the fleet file, the choice of the cell that a submission goes to, and the order between tenants.

The file names the cells, the places where data stay, the limits of tenants over all cells, and the weights of start
time and cost. Routing is a set of pure functions of that file and of the facts known of each cell. A cell places its
own work; here it is only decided which cell is offered a workload. Each cell estimates the start on its own twin
(`CellOffer`). The result has one row per cell, with its figures or the reason against it, so that a decision can be
read afterwards.

Times are milliseconds of a wall clock, delays milliseconds from now, money micro-USD. Integers only.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from engine.model.errors import SpecError
from engine.model.quantities import MIN_RUNS, usd
from engine.model.spec_parts import HOUR_MS, MINUTE_MS, check_id, check_quantity
from engine.model.specs import RESOURCES, WorkloadSpec, quantity
from engine.model.twin_queries import Options

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
    """The cells that hold it."""
    size_mib: int = 0
    elsewhere: Literal["never", "read"] = "never"
    """`read`: other cells may read it over the network, at the time and price of a transfer."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of reading data of another cell."""

    microusd_gib: int = 0
    mib_s: int = 100


class TenantShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's limits over the fleet."""

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
    """The weights of start time and cost."""

    hour_microusd: int = 5 * MILLION
    """The value of an hour of waiting."""
    crowded_permille: int = 900
    """A cell that is used more than this is passed over for one that is not and starts the work soon too."""
    bind_within_ms: int = 10 * MINUTE_MS
    """A start so near is soon: the work is sent at once."""
    bind_after_ms: int = 5 * MINUTE_MS
    """A submission that no cell starts soon stays in the fleet for this long, for the first cell with room. Then it
    goes to the best cell and waits there. Until then the fleet decides the order between tenants.
    """
    move_after_ms: int = 5 * MINUTE_MS
    """Work that was queued in a cell for so long moves to one that would start it at once."""
    horizon_ms: int = 24 * HOUR_MS
    """The time ahead in which a start is looked for."""
    answer_within_ms: int = 4_000
    """A cell that has not answered by then is passed over this time."""


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells, and what holds for all of them together."""

    name: str = "fleet"
    cells: tuple[CellLink, ...]
    people: str = ""
    """The cell whose tokens and policy say who may use the fleet over the network; empty: nobody."""
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
                raise SpecError(f"tenants[{i}].quota.{name}", "is not a resource", f"Use: {', '.join(RESOURCES)}")
            check_quantity(most, f"tenants[{i}].quota.{name}")
        for cell in (*tenant.cells, *((tenant.home,) if tenant.home else ())):
            known_cell(cell, cells, f"tenants[{i}]")
    if spec.people:
        known_cell(spec.people, cells, "people")
    for i, data in enumerate(spec.datasets):
        check_quantity(data.size_mib, f"datasets[{i}].size_mib")
        for cell in data.cells:
            known_cell(cell, cells, f"datasets[{i}].cells")
    check_quantity(spec.transfer.mib_s, "transfer.mib_s", least=1)
    check_quantity(spec.transfer.microusd_gib, "transfer.microusd_gib")
    check_quantity(spec.routing.crowded_permille, "routing.crowded_permille", least=1, most=1000)
    check_quantity(spec.routing.horizon_ms, "routing.horizon_ms", least=MINUTE_MS, most=7 * 24 * HOUR_MS)
    check_quantity(spec.routing.answer_within_ms, "routing.answer_within_ms", least=100, most=60_000)
    for name in ("hour_microusd", "bind_within_ms", "bind_after_ms", "move_after_ms"):
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


RESIDENCY_TAG, DATASET_TAG, FLEET_TAG = "residency", "dataset", "fleet"
BY_TAG = "fleet-by"
"""Tag with the person behind a submission that a fleet passes on, such as the account "unix:1000". Set by the fleet
alone.
"""
"""Tags of a workload: where it may be, one of several after commas; which data it reads, all of them; and, given by the
fleet, which fleet it is of."""
MIN_SAID = 10_000
"""A difference of less than a cent is none, microdollars."""

# -- what is known of cells and of a submission -----------------------------------------------------------------------


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One cell as it was last seen."""

    link: CellLink
    why_not: str = ""
    """The reason why no work is sent there now: it does not answer, or a person has closed it. Empty: it is open."""
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    """Use, with the submissions sent there since it was last seen."""


class CellOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's answer to a submission: its outcome if it were sent now."""

    p50_ms: int | None = None
    """Delay of the start, the middle of the runs; None: not as far ahead as was looked."""
    p90_ms: int | None = None
    """None too with fewer than MIN_RUNS runs."""
    runs: int = 0
    """Runs of the cell's twin; 0: none."""
    cost_microusd: int | None = None
    """Cost to its end; None: the cell has no prices."""
    reason: str = ""
    """The reason why it would not start at once."""
    refused: str = ""
    """The reason why the cell would refuse it, in the cell's own words."""
    silent: str = ""
    """The reason why there is no estimate; the free capacity is used instead."""


class RoutingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a submission that decide where it may go."""

    tenant: TenantShare
    asked: dict[str, int]
    residency: tuple[str, ...] = ()
    datasets: tuple[Dataset, ...] = ()
    cells: tuple[str, ...] = ()
    """The only cells it may go to; empty: any."""
    left: tuple[str, ...] = ()
    """Cells that it was moved away from."""
    waited_ms: int = 0


class CellRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cell in a decision: its figures, or why not."""

    cell: str
    why_not: str = ""
    for_good: bool = False
    """Waiting does not change that."""
    start_p50_ms: int | None = None
    start_p90_ms: int | None = None
    runs: int = 0
    """As in an Offer."""
    reason: str = ""
    cost_microusd: int | None = None
    data_microusd: int = 0
    data_ms: int = 0
    """Time to read its data from other cells."""
    used_permille: int = 0
    """Use of the resource of which it requests the largest part."""
    crowded: bool = False
    score_microusd: int = 0
    """Cost, where all have prices, and the wait at what it is worth: the least is best."""
    guessed: bool = False
    """Estimated by its free capacity, as its twin gave no answer."""
    note: str = ""


Wait = Literal["", "quota", "room", "cells"]


class RoutingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of a submission."""

    cell: str = ""
    why: str
    waits: Wait = ""
    """The wait for its tenant's quota, for room somewhere, or for the answer of a cell that may take it."""
    never: bool = False
    """True if no cell will ever take it."""
    rows: tuple[CellRow, ...] = ()
    """The best first, then those that cannot."""


def asked_of(spec: WorkloadSpec) -> dict[str, int]:
    """The total request of all its tasks and all members of its array."""
    sums = [0] * len(RESOURCES)
    for group in spec.groups:
        for i, each in enumerate(group.request.vector()):
            sums[i] += each * group.count
    members = (spec.array.last - spec.array.first) // spec.array.step + 1 if spec.array is not None else 1
    return {name: value * members for name, value in zip(RESOURCES, sums, strict=True) if value}


def terms_of(
    spec: WorkloadSpec, fleet: FleetSpec, cells: tuple[str, ...] = (), waited_ms: int = 0, where: str = "workload"
) -> RoutingTerms:
    """Raises SpecError for a dataset or a cell that the fleet does not know."""
    tenant = next((each for each in fleet.tenants if each.name == spec.tenant), TenantShare(name=spec.tenant or "none"))
    known = {data.name: data for data in fleet.datasets}
    names = _words(spec.tags.get(DATASET_TAG, ""))
    for name in names:
        if name not in known:
            told = ", ".join(known) or "none is in the fleet's file"
            raise SpecError(f"{where}.tags.{DATASET_TAG}", f"there is no '{name[:60]}'", f"There are: {told}")
    for cell in cells:
        known_cell(cell, {link.name for link in fleet.cells}, "cells")
    return RoutingTerms(
        tenant=tenant,
        asked=asked_of(spec),
        residency=_words(spec.tags.get(RESIDENCY_TAG, "")),
        datasets=tuple(known[name] for name in names),
        cells=cells,
        waited_ms=waited_ms,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


# -- the decision -----------------------------------------------------------------------------------------------------


def barred(terms: RoutingTerms, cell: CellFacts) -> tuple[str, bool]:
    """The reason not to ask the cell, and True if it is permanent; empty when the cell is to be asked."""
    link = cell.link
    for allowed, whose in ((terms.residency, "it"), (terms.tenant.residency, f"work of {terms.tenant.name}")):
        if allowed and not set(allowed) & set(link.residency):
            here = ", ".join(link.residency) or "nothing that is named"
            return f"residency: {whose} stays in {' or '.join(allowed)}, and this is {here}", True
    for allowed, whose in ((terms.cells, "it was submitted for"), (terms.tenant.cells, f"{terms.tenant.name} has")):
        if allowed and link.name not in allowed:
            return f"{whose} only {', '.join(allowed)}", True
    if link.name in terms.left:
        return "it was moved away from here", True
    for data in terms.datasets:
        if data.elsewhere == "never" and link.name not in data.cells:
            held = ", ".join(data.cells) or "no cell"
            return f"data: {data.name} is in {held} and is not read from elsewhere", True
    return cell.why_not, False


def over_quota(terms: RoutingTerms, held: Mapping[str, int]) -> str:
    """The reason why the tenant's quota over all cells holds it back now; empty when it does not."""
    for i, name in enumerate(RESOURCES):
        most, asked = terms.tenant.quota.get(name), terms.asked.get(name, 0)
        if most is not None and asked and held.get(name, 0) + asked > most:
            return (
                f"{terms.tenant.name} has {quantity(i, held.get(name, 0))} of {quantity(i, most)} in all cells, "
                f"and this asks for {quantity(i, asked)}"
            )
    return ""


def decide(
    terms: RoutingTerms, cells: Sequence[CellFacts], offers: Mapping[str, CellOffer], fleet: FleetSpec
) -> RoutingDecision:
    """Choose the cell, given the answers of all cells that are not barred. A cell without an offer has not answered."""
    rules = fleet.routing
    rows = [_row(terms, cell, offers.get(cell.link.name), fleet) for cell in cells]
    rest = [row for row in rows if row.why_not]
    able = _weighed([row for row in rows if not row.why_not], rules)
    if not able:
        never = all(row.for_good for row in rest)
        first = next((f" ({row.cell}: {row.why_not})" for row in rest), "")
        why = f"no cell accepts it{first}" if never else "no cell that accepts it answers now"
        return RoutingDecision(why=why, waits="" if never else "cells", never=never, rows=tuple(rest))
    soon = [row for row in able if not row.crowded and _soon(row, rules)]
    chosen = next((row for row in soon if row.cell == terms.tenant.home), soon[0] if soon else able[0])
    ordered = (chosen, *(row for row in able if row is not chosen), *rest)
    if not _soon(chosen, rules) and terms.waited_ms < rules.bind_after_ms:
        left = _time(rules.bind_after_ms - terms.waited_ms)
        why = (
            f"no cell starts it within {_time(rules.bind_within_ms)}; waiting for the first cell with room, for {left}"
        )
        return RoutingDecision(why=why, waits="room", rows=ordered)
    return RoutingDecision(cell=chosen.cell, why=_why(chosen, able, terms, rules), rows=ordered)


def _weighed(rows: Sequence[CellRow], rules: Routing) -> list[CellRow]:
    """The rows with their scores, the best first, the emptiest first among equals; estimates without a twin come last.
    Where one of them has no prices, starts alone are compared: no price is not a low one.
    """
    priced = all(row.cost_microusd is not None for row in rows if not row.guessed)
    scored = []
    for row in rows:
        start_ms = rules.horizon_ms if row.start_p50_ms is None else row.start_p50_ms
        waiting = (start_ms + row.data_ms) * rules.hour_microusd // HOUR_MS
        cost = (row.cost_microusd or 0) if priced else 0
        scored.append(msgspec.structs.replace(row, score_microusd=cost + row.data_microusd + waiting))
    return sorted(scored, key=lambda row: (row.guessed, row.score_microusd // MIN_SAID, row.used_permille, row.cell))


def _row(terms: RoutingTerms, cell: CellFacts, offer: CellOffer | None, fleet: FleetSpec) -> CellRow:
    name = cell.link.name
    used = _used_permille(terms.asked, cell)
    why_not, for_good = barred(terms, cell)
    if not why_not and offer is None:
        why_not = f"it did not answer within {_time(fleet.routing.answer_within_ms)}"
    if not why_not and offer is not None and offer.refused:
        why_not, for_good = offer.refused, True
    if why_not or offer is None:
        return CellRow(cell=name, why_not=why_not, for_good=for_good, used_permille=used)
    if offer.silent:
        offer = _by_room(terms.asked, cell, offer)
    away = [data for data in terms.datasets if name not in data.cells]
    data_mib = sum(data.size_mib for data in away)
    data_microusd = data_mib * fleet.transfer.microusd_gib // 1024
    data_ms = data_mib * 1000 // fleet.transfer.mib_s
    notes = [offer.silent and f"by its free capacity alone: {offer.silent}", away and "reads its data from elsewhere"]
    return CellRow(
        cell=name,
        start_p50_ms=offer.p50_ms,
        start_p90_ms=offer.p90_ms,
        runs=offer.runs,
        reason=offer.reason,
        cost_microusd=offer.cost_microusd,
        data_microusd=data_microusd,
        data_ms=data_ms,
        used_permille=used,
        crowded=used > fleet.routing.crowded_permille,
        guessed=bool(offer.silent),
        note="; ".join(note for note in notes if note),
    )


def _by_room(asked: Mapping[str, int], cell: CellFacts, offer: CellOffer) -> CellOffer:
    """A start at once where there is room in all, else none that is known."""
    fits = all(cell.used.get(name, 0) + value <= cell.capacity.get(name, 0) for name, value in asked.items())
    return msgspec.structs.replace(offer, p50_ms=0 if fits else None, p90_ms=None)


def _used_permille(asked: Mapping[str, int], cell: CellFacts) -> int:
    """Use of the cell's resource of which the work takes the largest part."""
    there = [name for name in asked if cell.capacity.get(name)]
    most = max(there, key=lambda name: asked[name] / cell.capacity[name], default="")
    return cell.used.get(most, 0) * 1000 // cell.capacity[most] if most else 0


def _soon(row: CellRow, rules: Routing) -> bool:
    return row.start_p50_ms is not None and row.start_p50_ms + row.data_ms <= rules.bind_within_ms


def _why(chosen: CellRow, able: Sequence[CellRow], terms: RoutingTerms, rules: Routing) -> str:
    """The deciding reason, in a sentence."""
    start = "starts beyond the horizon" if chosen.start_p50_ms is None else f"starts {_delay(chosen.start_p50_ms)}"
    others = [row for row in able if row is not chosen]
    if not others:
        return f"{start}; the only cell that can take it now"
    best = others[0]
    if best.guessed:
        return f"{start}; of {best.cell} only its free capacity is known"
    if chosen.cell == terms.tenant.home and _soon(chosen, rules):
        return f"{start}; home of {terms.tenant.name}, which has room"
    gain = best.score_microusd - chosen.score_microusd
    if abs(gain) < MIN_SAID:
        fuller = best.used_permille > chosen.used_permille
        return f"{start}; {best.cell} would do as well{', and is fuller' if fuller else ''}"
    if gain > 0:
        less = usd(gain)
        return f"{start}; {less} less in cost and waiting than {best.cell}"
    if best.crowded:
        return f"{start}; {best.cell} is {best.used_permille / 10:g}% used"
    later = "beyond the horizon" if best.start_p50_ms is None else _delay(best.start_p50_ms + best.data_ms)
    return f"{start}; {best.cell}, which is cheaper, would start it {later}"


def _delay(ms: int) -> str:
    return "at once" if ms < 1000 else f"in {_time(ms)}"


def _time(ms: int) -> str:
    seconds = max(ms, 0) // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


# -- a submission as a cell gets it, and what its twin says of it -----------------------------------------------------


class CellClock(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's clock as it stood when the wall clock stood at `wall_ms`."""

    wall_ms: int
    cell_ms: int
    speed: float
    """Cell milliseconds per wall millisecond."""


SAME_TIME_MS = 5_000
"""Clocks that differ by less are the same clock, read at different moments."""


def as_of_cell(spec: WorkloadSpec, link: CellLink, fleet: str, clock: CellClock) -> WorkloadSpec:
    """The submission as the cell is given it: with the cell's own name for its queue, the times of the cell's"""
    queue, tags = link.queues.get(spec.queue, spec.queue), {**spec.tags, FLEET_TAG: fleet}
    times = {
        name: clock.cell_ms + round((at_ms - clock.wall_ms) * clock.speed)
        for name in ("not_before_ms", "deadline_ms")
        if (at_ms := getattr(spec, name)) and (clock.speed != 1 or abs(clock.cell_ms - clock.wall_ms) > SAME_TIME_MS)
    }
    return msgspec.structs.replace(spec, queue=queue, tags=tags, **times)


def offer_of(answer: Options, place: int, run_ms: int, speed: float) -> CellOffer:
    """One option of an answer, whose start was looked for: delays as a wall clock has them while the cell's runs
    at `speed`, and the cost of `run_ms` at the rate of where it started. What would wait starts when the cell's own
    forecast says."""
    trial = answer.trials[place]
    delays = sorted(
        round((attempt.started_ms - answer.at_ms) / speed)
        for attempt in trial.attempts
        if attempt.started_ms is not None
    )
    rates = sorted(
        sum(placed.rate_microusd_hour for placed in attempt.placed) for attempt in trial.attempts if attempt.placed
    )
    count = len(trial.attempts)

    def at(permille: int) -> int | None:
        place = (count - 1) * permille // 1000
        return max(0, delays[place]) if place < len(delays) else None

    def of_forecast(at_ms: int | None) -> int | None:
        return None if at_ms is None else max(0, round((at_ms - answer.at_ms) / speed))

    cost = rates[len(rates) // 2] * run_ms // HOUR_MS if rates and rates[-1] else None
    told = trial.forecast
    if told is not None:
        p50_ms, p90_ms = of_forecast(told.p50_ms), of_forecast(told.p90_ms)
    else:
        p50_ms, p90_ms = at(500), at(900) if count >= MIN_RUNS else None
    return CellOffer(p50_ms=p50_ms, p90_ms=p90_ms, runs=count, cost_microusd=cost, reason=trial.reason)


# -- whose turn it is -------------------------------------------------------------------------------------------------


class WaitingSubmission(msgspec.Struct, frozen=True, array_like=True):
    """A submission that waits in the fleet."""

    id: str
    tenant: str
    asked: dict[str, int]
    since_ms: int


def share_ppm(held: Mapping[str, int], capacity: Mapping[str, int], weight: int) -> int:
    """Part of the fleet that a tenant holds of its dominant resource, by its weight, in millionths."""
    return max((held.get(name, 0) * MILLION // (have * weight) for name, have in capacity.items() if have), default=0)


def fair_order(
    waiting: Iterable[WaitingSubmission],
    held: Mapping[str, Mapping[str, int]],
    capacity: Mapping[str, int],
    weights: Mapping[str, int],
) -> list[str]:
    """Ids in the order in which they are to be tried: always next the oldest of the tenant that would hold the least
    of the fleet by its weight, with what came before it counted (DRF over all cells together)."""
    lines: dict[str, list[WaitingSubmission]] = {}
    for each in sorted(waiting, key=lambda each: (each.since_ms, each.id), reverse=True):
        lines.setdefault(each.tenant, []).append(each)
    sums = {tenant: dict(held.get(tenant, {})) for tenant in lines}
    heap = [
        (share_ppm(sums[tenant], capacity, weights.get(tenant, 1)), line[-1].since_ms, tenant)
        for tenant, line in lines.items()
    ]
    heapq.heapify(heap)
    order = []
    while heap:
        _, _, tenant = heapq.heappop(heap)
        line = lines[tenant]
        first = line.pop()
        order.append(first.id)
        for name, value in first.asked.items():
            sums[tenant][name] = sums[tenant].get(name, 0) + value
        if line:
            heapq.heappush(heap, (share_ppm(sums[tenant], capacity, weights.get(tenant, 1)), line[-1].since_ms, tenant))
    return order
