"""The demand on growing pools and services, and the interface of demand forecasters.

For each growing pool the state keeps the nodes it was asked for hour by hour, the targets that people set for later,
and since when nodes are hardly used. For each running service it keeps the wanted replicas and the recent load.

A series is demand hour by hour, oldest first, without gaps. A forecaster gets past hours alone and answers for one hour
ahead, so it cannot look at the hour it forecasts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from engine.model.columns import Ints, Table, view
from engine.model.spec_parts import HOUR_MS, ServiceSpec

Series = np.ndarray[Any, np.dtype[np.float64]]
DAY, WEEK = 24, 168
"""Hours after which demand is likely to look alike."""
KEPT = 6 * WEEK
"""Hours that are looked back at most."""
JUDGED = WEEK
"""Hours over which the errors of a guess decide how much it counts."""
RESIDUALS = 4 * WEEK
"""Hours whose errors tell how far off the blend may be."""
MIN_JUDGED = 12
"""Errors that must be known of a guess before it counts."""


class Forecaster(Protocol):
    """A forecaster of demand, by which the autoscaler orders ahead."""

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        """Demand in the hour that is `lead` hours (1 or more) after the last of `past`: for each of `permilles` what it
        stays below with that chance in a thousand. In the unit of the series, never below 0; 0 if nothing is known."""
        ...


class SeasonalBaseline:
    """A blend of five simple guesses: as in the last hour known; as at the same hour yesterday, and a week ago; and the
    last hour changed by as much as it changed then, yesterday and a week ago. Each counts with the inverse square of
    its mean absolute error of the week before, as known when the guess is made. The quantile is that of the blend's own
    errors at this lead in the last four weeks. What it has seen for less than two days it does not foretell: it answers
    with the most that was asked for in the last 24 hours.
    """

    def __str__(self) -> str:
        return "built-in: last hours, yesterday and a week ago"

    def quantiles(self, past: Series, lead: int, permilles: Sequence[int]) -> list[float]:
        past = np.asarray(past, np.float64)[-KEPT:]
        if len(past) < 2 * DAY + lead:
            return [float(past[-DAY:].max(initial=0))] * len(permilles)
        blend = blended(past, lead)
        known = blend[:-lead]
        errors = (past - known)[lead + MIN_JUDGED :][-RESIDUALS:]
        off = np.quantile(errors, np.array(permilles) / 1000)
        return [max(float(blend[-1] + error), 0.0) for error in off]


def blended(past: Series, lead: int) -> Series:
    """The baseline's blend of guesses for every hour of `past` and the `lead` hours after it, from the data known
    `lead` hours before.
    """
    hours = len(past) + lead
    guesses = _guesses(past, lead)
    errors = np.abs(guesses[:, : len(past)] - past)
    known = ~np.isnan(errors)
    total = np.cumsum(np.where(known, errors, 0), axis=1)
    count = np.cumsum(known, axis=1)
    # For hour t errors are known up to hour t - lead, which is entry t - lead of the sums.
    since = np.arange(hours) - lead
    before = since - JUDGED

    def within(sums: Series) -> Series:
        window = np.where(since >= 0, sums[:, np.maximum(since, 0)], 0)
        return np.asarray(window - np.where(before >= 0, sums[:, np.maximum(before, 0)], 0))

    judged = within(count)
    # The smallest error that counts: a guess that was never off would else outweigh the others without bound.
    floor = 1e-6 * max(float(np.abs(past).mean()), 1e-9)
    weights = (within(total) / np.maximum(judged, 1) + floor) ** -2
    weights[(judged < MIN_JUDGED) | np.isnan(guesses)] = 0
    sums = weights.sum(axis=0)
    blended = (np.nan_to_num(guesses) * weights).sum(axis=0) / np.where(sums > 0, sums, 1)
    # Before any guess has proved itself: as in the last hour known, or the first.
    found: Series = np.where(sums > 0, blended, np.where(np.isnan(guesses[0]), past[0], guesses[0]))
    return found


def _guesses(past: Series, lead: int) -> Series:
    """[guess, hour]: what each says of every hour of `past` and the `lead` after it; nan where it says nothing."""

    def ago(hours: int) -> Series:
        shifted = np.full(len(past) + lead, np.nan)
        shifted[hours:] = past[: max(len(past) + lead - hours, 0)]
        return shifted

    day, week = -(-lead // DAY) * DAY, -(-lead // WEEK) * WEEK
    last = ago(lead)
    return np.stack([
        last, ago(day), ago(week), last + ago(day) - ago(lead + day), last + ago(week) - ago(lead + week)
    ])  # fmt: skip


NEEDED = -1
"""Mark of a node that is used enough."""


class PoolSizing(Table):
    """Sizes of growing pools, by pool row where not said otherwise."""

    columns = ("demand", "last_hour", "targets", "unneeded")

    def __init__(self) -> None:
        self.demand: dict[int, list[int]] = {}
        """The most that was asked for in each hour, in nodes, oldest first; at most KEPT hours."""
        self.last_hour: dict[int, int] = {}
        """Hour of cell time of the last entry of `demand`."""
        self.targets: dict[int, list[Any]] = {}
        """(cell ms, nodes): from then on the pool has at least so many, until the next. Ascending."""
        self.unneeded = array("q")
        """By node row: cell time since which it is used so little that it may go; NEEDED. Rows beyond the end are."""
        self.derive()

    def derive(self) -> None:
        self.targets = {pool: [tuple(entry) for entry in entries] for pool, entries in self.targets.items()}

    def note_demand(self, pool: int, hour: int, nodes: int) -> None:
        """Record the demand of so many nodes in that hour. Hours without a record count as the one before."""
        demand = self.demand.setdefault(pool, [])
        last = self.last_hour.get(pool, hour)
        if demand and hour == last:
            demand[-1] = max(demand[-1], nodes)
        else:
            gap = min(hour - last - 1, KEPT) if demand else 0
            demand += [demand[-1]] * gap if gap else []
            demand.append(nodes)
            del demand[:-KEPT]
        self.last_hour[pool] = hour

    def past(self, pool: int, now_ms: int) -> tuple[Series, int]:
        """(what was asked for in each hour that is over, the hour after the last of them)"""
        demand, following = self.demand.get(pool, []), self.last_hour.get(pool, -1) + 1
        if demand and following > now_ms // HOUR_MS:
            return np.array(demand[:-1], np.float64), following - 1
        return np.array(demand, np.float64), following

    def target(self, pool: int, since_ms: int, until_ms: int) -> int:
        """The most nodes that are set for any moment between the two."""
        most = standing = 0
        for at_ms, nodes in self.targets.get(pool, ()):
            if at_ms <= since_ms:
                standing = nodes
            elif at_ms <= until_ms:
                most = max(most, nodes)
        return max(most, standing)

    def replace_targets(self, pool: int, targets: tuple[tuple[int, int], ...]) -> None:
        self.targets.pop(pool, None)
        if targets:
            self.targets[pool] = list(targets)

    def mark(self, nodes: array[int], since_ms: int) -> None:
        missing = max(nodes, default=-1) + 1 - len(self.unneeded)
        if missing > 0:
            self.unneeded.extend([NEEDED] * missing)
        view(self.unneeded)[view(nodes)] = since_ms

    def unneeded_since(self, nodes: int) -> Ints:
        """The cell time, or NEEDED, of every node of a cell with so many rows."""
        since = np.full(nodes, NEEDED, np.int64)
        since[: len(self.unneeded)] = view(self.unneeded)
        return since


class Replicas(Table):
    """The replicas and loads of services, by workload row."""

    columns = ("wanted", "seen", "held_ms")

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}
        """Replicas that it should have now."""
        self.seen: dict[int, list[list[int]]] = {}
        """[cell ms, replicas its load took from then on], oldest first, as far back as its stabilisation goes."""
        self.held_ms: dict[int, int] = {}
        """Elastic work of any kind that was shrunk for a node's sake -> cell time before which it does not grow."""
        self.running: set[int] = set()
        """Services that run. Not stored."""

    def enter(self, row: int, spec: ServiceSpec) -> None:
        self.wanted[row] = spec.first or spec.least

    def leave(self, row: int) -> None:
        self.wanted.pop(row, None)
        self.seen.pop(row, None)

    def note(self, row: int, replicas: int, load: int, now_ms: int, stabilise_ms: int) -> None:
        """Set the wanted number of replicas, and the number that its load takes."""
        self.wanted[row] = replicas
        seen = self.seen.setdefault(row, [])
        if not seen or seen[-1][1] != load:
            seen.append([now_ms, load])
        while len(seen) > 1 and seen[1][0] <= now_ms - stabilise_ms:
            del seen[0]

    def most_seen(self, row: int, since_ms: int) -> int:
        """The most that its load has taken at any time after that; 0 when nothing was seen."""
        seen = self.seen.get(row, ())
        ends = [at for at, _ in seen[1:]] + [2**62] if seen else []
        return max((load for (_, load), end in zip(seen, ends, strict=True) if end > since_ms), default=0)
