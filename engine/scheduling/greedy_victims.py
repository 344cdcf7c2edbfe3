"""Greed among possible victims, from both ends: taking who is cheapest, and sparing who costs most for what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from heapq import heapify, heappop, heappush

import numpy as np

from engine.scheduling.victim_candidates import Detail, Piece, VictimLimits
from engine.state.bulk_allocations import Rows

REPRICE = 16
"""Prices are worked out anew when what is missing has shrunk that much."""


def unit_prices(prices: Rows, whole: Rows, missing: list[int]) -> Rows:
    """Price of contributing all that is missing; to contribute more is worth no more."""
    wanted = max(sum(each > 0 for each in missing), 1)
    return np.asarray(prices / np.clip(whole, 1e-12, wanted))


class GreedyWalk:
    """The greedy choice: where a slot costs least first, priced anew as less and less is missing."""

    def __init__(
        self, detail: Detail, missing: list[int], prices: Rows, whole: Rows, limits: VictimLimits | None
    ) -> None:
        self.detail = detail
        self.limits = limits
        self._missing = missing
        self._prices = prices
        self._whole = whole
        self._unit: list[float] = []
        self._banned = bytearray(len(detail.rows))
        """Workloads that would pass a limit."""
        self._on_node: list[list[tuple[int, Piece]]] = [[] for _ in detail.free]
        for gang, pieces in enumerate(detail.pieces):
            for piece in pieces:
                self._on_node[piece[0]].append((gang, piece))
        self._keys: list[float] = []
        """Per node: what a slot costs there at least."""
        self._heap: list[tuple[float, int]] = []

    def choices(self) -> Iterator[int]:
        """Victims one after another, gone when they are named, for as long as there are any: those who would do after
        those who do."""
        detail = self.detail
        left = self._left()
        self._price(left)
        yield from self._for_quota()
        while True:
            for gang in self._for_slots():
                yield gang
                if self._left() * REPRICE < left:
                    left = self._left()
                    self._price(left)
                    break
            else:
                break
        # Counting slots sees no more to gain; several groups that are in each other's way may need more room yet.
        for gang in sorted(range(len(self._unit)), key=lambda g: (self._unit[g], -g)):
            if not detail.gone[gang] and not self._banned[gang] and self._take([gang]):
                detail.remove(gang)
                yield gang

    def instead_of(self, gang: int) -> list[int]:
        """Who would be chosen in the place of one that is gone."""
        detail = self.detail
        detail.restore(gang)
        self._banned[gang] = 1
        before = bytes(detail.gone)
        if not detail.enough():
            next((other for other in self.choices() if detail.enough()), None)
        found = [other for other, gone in enumerate(detail.gone) if gone > before[other]]
        for other in found:
            detail.restore(other)
        self._banned[gang] = 0
        detail.remove(gang)
        return found

    def _left(self) -> float:
        """Largest part of anything that is still missing, but at least one slot."""
        detail = self.detail
        short = (max(need - have, 1) for need, have in zip(detail.needs, detail.have, strict=True))
        return max((now / first for now, first in zip(short, self._missing, strict=True) if first), default=1.0)

    def _for_quota(self) -> Iterator[int]:
        detail = self.detail
        for at, amounts in enumerate(detail.quota_amounts, detail.asks):
            for gang in sorted(range(len(amounts)), key=lambda g: (self._unit[g], -g)):
                if detail.have[at] >= detail.needs[at]:
                    break
                if amounts[gang] and not detail.gone[gang] and not self._banned[gang] and self._take([gang]):
                    detail.remove(gang)
                    yield gang

    def _price(self, left: float) -> None:
        """Work out in vectors what a slot costs on every node: the best among the first one, two, … of its pieces."""
        detail = self.detail
        unit = unit_prices(self._prices, self._whole / left, self._missing)
        self._unit = unit.tolist()
        gone = np.frombuffer(detail.gone, bool)[detail.gang_of]
        live = np.flatnonzero(~gone & ~np.frombuffer(self._banned, bool)[detail.gang_of])
        live = live[np.lexsort((unit[detail.gang_of[live]], detail.node_of[live]))]
        node = detail.node_of[live]
        starts = np.flatnonzero(np.diff(node, prepend=-1))
        keys = np.full(len(detail.free), np.inf)
        if len(live):
            keys[node[starts]] = np.minimum.reduceat(self._ratios(live, node, starts, unit, gone), starts)
            # Shares of one device do not simply add up: such a node is worked out when its turn comes.
            keys[detail.node_of[detail.shares > 0]] = 0.0
        self._keys = keys.tolist()
        order = np.argsort(keys, kind="stable")[: np.count_nonzero(keys < np.inf)]
        self._heap = list(zip(keys[order].tolist(), order.tolist(), strict=True))

    def _ratios(self, live: Rows, node: Rows, starts: Rows, unit: Rows, gone: Rows) -> Rows:
        """Per live piece, sorted by node and unit price: price over gain when it and those before it are gone."""
        detail = self.detail
        size = len(detail.free)

        def running(values: Rows) -> Rows:
            sums = np.cumsum(values)
            return np.asarray(sums - np.repeat(sums[starts] - values[starts], np.diff(starts, append=len(values))))

        now = [
            free + np.bincount(detail.node_of, weights=amount * gone, minlength=size)
            for free, amount in zip(detail.base.T, detail.amounts.T, strict=True)
        ]
        then = [free[node] + running(amount[live]) for free, amount in zip(now, detail.amounts.T, strict=True)]
        gain: Rows = np.zeros(len(live))
        for ask, wants in enumerate(detail.wants):
            if self._missing[ask]:
                before = reduce(np.minimum, (now[dimension] // want for dimension, want in wants))
                after = reduce(np.minimum, (then[dimension] // want for dimension, want in wants))
                gained = (after - before[node]) * detail.usable[node, ask]
                gain += np.minimum(gained, max(detail.needs[ask] - detail.have[ask], 1)) / self._missing[ask]
        price = running(unit[detail.gang_of[live]] * detail.parts[live])
        return np.asarray(np.divide(price, gain, out=np.full(len(live), np.inf), where=gain > 0))

    def _for_slots(self) -> Iterator[int]:
        detail, heap, keys = self.detail, self._heap, self._keys
        one_slot = max(self._missing)
        while heap:
            key, node = heappop(heap)
            if key != keys[node]:
                continue
            ratio, gangs = self._best_on(node)
            keys[node] = ratio
            if not gangs:
                continue
            if (heap and ratio > heap[0][0]) or not self._take(gangs):
                heappush(heap, (ratio, node))
                continue
            for gang in gangs:
                detail.remove(gang)
                for at, _, _, _, part in detail.pieces[gang]:
                    if keys[at] < np.inf:
                        keys[at] = max(keys[at] - self._unit[gang] * part * one_slot, 0.0)
                        heappush(heap, (keys[at], at))
            yield from gangs

    def _best_on(self, node: int) -> tuple[float, list[int]]:
        """(lowest price of a slot there, who has to go for it); infinite and nobody when there is nothing to gain."""
        detail, unit = self.detail, self._unit
        free, now = detail.free[node].copy(), detail.slots[node]
        live = [(unit[g], g, piece) for g, piece in self._on_node[node] if not detail.gone[g] and not self._banned[g]]
        live.sort()
        price, best, enough = 0.0, np.inf, 0
        for count, (each, _, piece) in enumerate(live, 1):
            price += each * piece[4]
            detail.shift(free, piece, 1)
            gain = 0.0
            for ask, slots in enumerate(detail.slots_with(node, free)):
                if slots > now[ask] and self._missing[ask]:
                    lacking = max(detail.needs[ask] - detail.have[ask], 1)
                    gain += min(slots - now[ask], lacking) / self._missing[ask]
            if gain and price < best * gain:
                best, enough = price / gain, count
        return best, list(dict.fromkeys(gang for _, gang, _ in live[:enough]))

    def _take(self, gangs: list[int]) -> bool:
        """Count all of them in, or none."""
        if self.limits is None:
            return True
        rows = self.detail.rows
        for count, gang in enumerate(gangs):
            if not self.limits.take(rows[gang]):
                self._banned[gang] = 1
                for other in gangs[:count]:
                    self.limits.untake(rows[other])
                return False
        return True


class ReverseGreedy:
    """Greed in reverse: everybody is gone, and who costs most for what is lost without them is spared first."""

    def __init__(self, detail: Detail, missing: list[int]) -> None:
        self._detail = detail
        self._missing = missing
        self._on_node: list[dict[int, list[Piece]]] = [{} for _ in detail.free]
        for gang, pieces in enumerate(detail.pieces):
            for piece in pieces:
                self._on_node[piece[0]].setdefault(gang, []).append(piece)
        self._lost: list[dict[int, float]] = [{} for _ in detail.rows]
        """Workload -> node -> what would be lost there if it stayed, in wholes of what is missing."""
        self._total = [self._quota_lost(gang) for gang in range(len(detail.rows))]
        for node in range(len(detail.free)):
            self._note_losses(node)
        self._keys = [self._key(gang) for gang in range(len(detail.rows))]

    def _quota_lost(self, gang: int) -> float:
        asks = self._detail.asks
        given = zip(self._detail.quota_amounts, self._missing[asks:], strict=True)
        return float(sum(amounts[gang] / missing for amounts, missing in given if missing))

    def _note_losses(self, node: int) -> None:
        """Work out anew what those that are gone from the node leave there."""
        detail = self._detail
        now = detail.slots[node]
        for gang, pieces in self._on_node[node].items():
            if detail.gone[gang]:
                free = detail.free[node].copy()
                for piece in pieces:
                    detail.shift(free, piece, -1)
                then = detail.slots_with(node, free)
                lost = sum(
                    (b - a) / missing for a, b, missing in zip(then, now, self._missing, strict=False) if missing
                )
                self._total[gang] += lost - self._lost[gang].get(node, 0.0)
                self._lost[gang][node] = lost

    def _key(self, gang: int) -> float:
        """Minus the cost for a whole; smaller goes first."""
        return -(self._detail.cost[gang] + 1) / max(self._total[gang], 1e-12)

    def run(self) -> None:
        """Spare until nobody can be whose turn has come."""
        detail, keys = self._detail, self._keys
        heap = [(key, gang) for gang, key in enumerate(keys)]
        heapify(heap)
        while heap:
            key, gang = heappop(heap)
            if key != keys[gang] or not detail.gone[gang] or not detail.spare(gang):
                continue
            neighbours: set[int] = set()
            for node in self._lost[gang]:
                self._note_losses(node)
                neighbours.update(self._on_node[node])
            for other in neighbours:
                if detail.gone[other] and keys[other] != (new := self._key(other)):
                    keys[other] = new
                    heappush(heap, (new, other))
