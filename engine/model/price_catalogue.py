"""Price catalogues: files with the prices of machine types, and the prices of pools that follow from them.

A catalogue is a CSV file, perhaps gzipped, whose first line names its columns. A machine type and a price per hour are
required; a region, a spot price and a currency are optional, and other columns are ignored. So the price lists of
Karpenter (AWS) and of the cluster autoscaler (GCP) can be read as they are. Amounts are read as decimals, exactly. A
cell counts in one currency: a price in another is refused when it is used.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from engine.model.errors import SpecError, did_you_mean
from engine.model.quantities import money_microusd, shortlist, shown
from engine.model.spec_parts import CURRENCY as CURRENCY
from engine.model.spec_parts import MAX_PRICE
from engine.model.specs import CellSpec, PoolSpec

MAX_BYTES = 64 * 2**20
TYPE = ("machine_type", "instance_type")
REGION = ("region",)
PRICE = ("on_demand_price_per_hour", "on_demand_usd_per_hour", "price_usd_per_hour", "price_per_hour")
SPOT = ("spot_price_per_hour", "spot_usd_per_hour", "preemptible_usd_per_hour", "preemptible_price_per_hour")
CURRENCIES = ("currency",)


class ListPrice(msgspec.Struct, frozen=True, gc=False):
    """The cost of one machine type in one region, millionths of the currency per hour; None where the list has no
    price.
    """

    on_demand: int | None
    spot: int | None
    line: int
    currency: str = CURRENCY


class Catalogue:
    """Prices by machine type and region; the region is empty where the list has none."""

    def __init__(self, name: str, offers: dict[tuple[str, str], ListPrice]) -> None:
        self.name = name
        self._offers = offers
        self._regions: dict[str, list[str]] = {}
        for machine_type, region in offers:
            self._regions.setdefault(machine_type, []).append(region)

    def __len__(self) -> int:
        return len(self._offers)

    def price_of(self, machine_type: str, region: str, where: str, *, spot: bool) -> int:
        """Micro-USD per hour. A list without regions holds for all; one of a single region needs none to be named.
        Raises SpecError: nothing is ever free because it is not listed."""
        regions = self._regions_of(
            machine_type, f"{where}.machine_type", "Add it to the list, or give the pool a price_usd_hour"
        )
        at = f"{where}.{'spot' if spot else 'machine_type'}"
        if regions != [""] and not (region in regions or (not region and len(regions) == 1)):
            few = ", ".join(each or "one without a name" for each in sorted(regions)[:8])
            raise SpecError(
                f"{where}.scaling.region",
                f"{self.name} has no price of {machine_type} in region {shown(region)}"
                if region
                else f"{self.name} has prices of {machine_type} in {len(regions)} regions, and the pool names none",
                f"There are: {few}",
            )
        offer = self._offers[machine_type, region if region in regions else regions[0]]
        self._refuse_foreign(machine_type, [offer], at)
        price = offer.spot if spot else offer.on_demand
        kind = "spot" if spot else "on-demand"
        if price is None:
            raise SpecError(
                at,
                f"{self.name}, line {offer.line}, has no {kind} price of {machine_type}",
                "Give the pool a price_usd_hour, or take another machine type",
            )
        if not price:
            raise SpecError(
                at,
                f"{self.name}, line {offer.line}, says that {machine_type} costs nothing",
                "Correct the list, or give the pool a price_usd_hour",
            )
        return price

    def offers_of(self, machine_type: str, region: str, where: str) -> list[tuple[str, ListPrice]]:
        """(region, offer) in the order of the list; without `region` in all there are. Raises SpecError naming near
        types, the regions there are, or the currencies that are not the cell's."""
        regions = self._regions_of(machine_type, where, "Name one that is on the list")
        found = [each for each in regions if each == region or not region]
        if not found:
            few = ", ".join(each or "one without a name" for each in sorted(regions)[:8])
            raise SpecError(
                where,
                f"{self.name} has no price of {machine_type} in region {shown(region)}",
                f"There are: {few}" if any(regions) else "The list names no regions: leave it out",
            )
        offers = [(each, self._offers[machine_type, each]) for each in found]
        self._refuse_foreign(machine_type, [offer for _, offer in offers], where)
        return offers

    def _refuse_foreign(self, machine_type: str, offers: Sequence[ListPrice], where: str) -> None:
        """Raises SpecError when not all are in the currency of the cell: amounts in two cannot be compared."""
        lines: dict[str, list[int]] = {}
        for offer in offers:
            lines.setdefault(offer.currency, []).append(offer.line)
        if lines.keys() <= {CURRENCY}:
            return
        told = " and ".join(f"in {name} ({_lines(rows)})" for name, rows in sorted(lines.items()))
        own = "" if CURRENCY in lines else f", and the cell counts in {CURRENCY}"
        raise SpecError(
            where,
            f"{self.name} has prices of {machine_type} {told}{own}",
            f"Name a --region whose prices are in {CURRENCY}" if CURRENCY in lines else f"Use a list in {CURRENCY}",
        )

    def _regions_of(self, machine_type: str, where: str, remedy: str) -> list[str]:
        regions = self._regions.get(machine_type)
        if regions is None:
            meant = did_you_mean(machine_type, self._regions, remedy)
            raise SpecError(where, f"{self.name} has no machine type {shown(machine_type)}", meant)
        return regions

    def priced(self, pool: PoolSpec, region: str, where: str) -> PoolSpec:
        """The pool with its price; one that has a price, or names no machine type, stays as it is."""
        if pool.price_microusd_hour or not pool.machine_type:
            return pool
        price = self.price_of(pool.machine_type, region, where, spot=pool.spot)
        return msgspec.structs.replace(pool, price_microusd_hour=price)


def priced_cell(cell: CellSpec, catalogue: Catalogue) -> CellSpec:
    """The cell with prices for its pools. A pool's region is that of its scaling, or the one in which all its nodes
    are. Raises SpecError naming the pool."""
    regions: dict[str, set[str]] = {}
    for node in cell.nodes:
        regions.setdefault(node.pool, set()).add(node.region)
    pools = []
    for i, pool in enumerate(cell.pools):
        region = pool.scaling.region if pool.scaling is not None else ""
        there = regions.get(pool.name, {""})
        pools.append(catalogue.priced(pool, region or (min(there) if len(there) == 1 else ""), f"pools[{i}]"))
    return msgspec.structs.replace(cell, pools=tuple(pools))


def read_catalogue(path: str | Path) -> Catalogue:
    """Raises SpecError naming file, line and column."""
    path = Path(path)
    offers: dict[tuple[str, str], ListPrice] = {}
    rows = _rows(path)
    columns, _ = next(rows, ([], 0))
    at = _Columns(path.name, [name.strip().lower() for name in columns])
    for row, line in rows:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(columns):
            raise _wrong(path.name, line, "", f"has {len(row)} columns, the first line {len(columns)}", "Correct it")
        currency = at.text(row, at.currency).upper() or CURRENCY
        if not (currency.isascii() and currency.isalpha() and len(currency) == 3):
            problem = f"{shown(currency)} is not a currency"
            raise _wrong(path.name, line, columns[at.currency], problem, f"Give a code such as {CURRENCY}")
        machine_type, region = at.text(row, at.type), at.text(row, at.region)
        if not machine_type:
            raise _wrong(path.name, line, columns[at.type], "names no machine type", "Give one, or take the line out")
        if at.region >= 0 and not region:
            raise _wrong(
                path.name,
                line,
                columns[at.region],
                f"names no region for {shown(machine_type)}",
                "Give one; a list that holds everywhere has no such column",
            )
        if (machine_type, region) in offers:
            first = offers[machine_type, region].line
            raise _wrong(
                path.name,
                line,
                columns[at.type],
                f"prices {shown(machine_type)} in {region or 'all regions'} again, as line {first} does",
                "Keep one of them",
            )
        prices = [at.amount(row, column, line, columns) for column in (at.price, at.spot)]
        offers[machine_type, region] = ListPrice(prices[0], prices[1], line, currency)
    if not offers:
        raise SpecError(path.name, "lists no machine type", "Give a CSV file of prices")
    return Catalogue(path.name, offers)


class _Columns:
    """The positions of the columns that count; -1 for those that are missing."""

    def __init__(self, name: str, columns: list[str]) -> None:
        self._name = name
        self._columns = columns
        self.type = self._find(TYPE)
        self.region = self._find(REGION)
        self.price = self._find(PRICE)
        self.spot = self._find(SPOT)
        self.currency = self._find(CURRENCIES)
        for column, names in ((self.type, TYPE), (self.price, PRICE)):
            if column < 0:
                raise _wrong(name, 1, "", f"names no column {' or '.join(names)}", "Name the columns in the first line")

    def _find(self, names: tuple[str, ...]) -> int:
        found = [i for i, column in enumerate(self._columns) if column in names]
        if len(found) > 1:
            both = " and ".join(self._columns[i] for i in found[:2])
            raise _wrong(self._name, 1, both, "say the same thing", "Keep one of them")
        return found[0] if found else -1

    def text(self, row: list[str], column: int) -> str:
        return row[column].strip() if column >= 0 else ""

    def amount(self, row: list[str], column: int, line: int, columns: list[str]) -> int | None:
        """Micro-USD; None where there is nothing."""
        text = self.text(row, column)
        if not text:
            return None
        try:
            price = money_microusd(text)
        except ValueError as error:
            raise _wrong(self._name, line, columns[column], str(error), "Give an amount such as 12.5") from None
        if not 0 <= price <= MAX_PRICE:
            problem = "is negative" if price < 0 else f"is more than {MAX_PRICE // 1_000_000:,}"
            raise _wrong(self._name, line, columns[column], f"{shown(text)} {problem}", "Correct the price")
        return price


def _rows(path: Path) -> Iterator[tuple[list[str], int]]:
    """Each row with the number of its line, from 1 on."""
    try:
        body = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
        if body is not None and body[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
                body = packed.read(MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "cannot be unpacked"
        raise SpecError(str(path), f"cannot be read: {reason}", "Name a CSV file of prices") from error
    if body is None or len(body) > MAX_BYTES:
        raise SpecError(str(path), f"is larger than {MAX_BYTES >> 20} MiB", "Take out what is not needed")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise _wrong(path.name, line, "", "is not UTF-8 text", "Save it as UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield row, reader.line_num
    except csv.Error as error:
        raise _wrong(path.name, reader.line_num, "", str(error), "Correct the line") from None


def _lines(rows: Sequence[int]) -> str:
    return f"line{'s' if len(rows) > 1 else ''} {shortlist([str(row) for row in rows])}"


def _wrong(name: str, line: int, column: str, problem: str, remedy: str) -> SpecError:
    return SpecError(f"{name}, line {line}{f', column {shown(column)}' if column else ''}", problem, remedy)
