"""Leases of nodes: who was heard of when. Outside the journal and outside the state: a heartbeat changes nothing there.

A heartbeat writes one entry of a few columns. Who has fallen silent is found by a timing wheel: every node is in one
bucket of the wheel, by the time at which its lease would end as far as was known when it was put there. A node is
looked at again only when its bucket is the first, and then goes to a later one if it was heard of in the meantime: once
in the time of a lease, however often it calls (Varghese and Lauck, IEEE/ACM ToN 5(6), 1997, "lazy" variant).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

BUCKET_MS = 1000
"""Cell milliseconds of one bucket: how late a silence may be noticed."""
NEVER = -1
FOREVER = 2**61
Column = np.ndarray[Any, np.dtype[Any]]


class HeartbeatResult(NamedTuple):
    """What became of a batch of heartbeats."""

    renewed: int
    """Leases renewed."""
    repeated: int
    """Heartbeats that came twice, or after a later one of the same node: they renew nothing."""
    refused: Column
    """Where in the batch those stand whose node is gone, unknown, or called by another agent since."""


class Leases:
    """By node row. An agent that registers gets an epoch for its row; only the newest epoch of a row renews."""

    def __init__(self) -> None:
        self.count = 0
        """Nodes that have a lease."""
        self.opened_ms = NEVER
        """Cell time at which this watch began; nobody was heard before."""
        self.after_ms = 0
        """How long a lease lasts."""
        self.seen_ms: Column = np.zeros(0, np.int64)
        """Cell time at which it was last heard of."""
        self.epoch: Column = np.zeros(0, np.int32)
        """0 while no agent is registered for the row."""
        self.number: Column = np.zeros(0, np.int32)
        """Number of its last heartbeat in this epoch."""
        self.skew_ms: Column = np.zeros(0, np.int64)
        """By how much its clock is ahead of ours, as it last said."""
        self.silent: Column = np.zeros(0, bool)
        """Its lease has ended, which was told; it is in no bucket."""
        self._leased: Column = np.zeros(0, bool)
        self._due: Column = np.zeros(0, np.int64)
        """The bucket it is in."""
        self._wheel: dict[int, list[Column]] = {}
        self._order: list[int] = []
        """Heap of the buckets' times."""
        self._sorted = True
        """The first bucket holds only leases that end then."""
        self._back: list[int] = []
        self.epochs = 0
        """The newest that was given."""

    # -- who has one --------------------------------------------------------------------------------------------------

    def open(self, now_ms: int, after_ms: int, first_epoch: int = 0) -> None:
        """Begin anew with nobody. Epochs are above `first_epoch`."""
        self.__init__()  # type: ignore[misc]
        self.opened_ms, self.after_ms, self.epochs = now_ms, after_ms, first_epoch

    def close(self) -> None:
        """Nobody will be heard, which means nothing: nobody is suspected, and nobody lost."""
        self.open(FOREVER, self.after_ms)

    def lease(self, rows: Column, now_ms: int) -> None:
        """Give these nodes a lease from now on, silent ones and those that have one as well."""
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        self.count += int((~self._leased[rows]).sum())
        outside = rows[~self._leased[rows] | self.silent[rows]]
        self._leased[rows] = True
        self.silent[rows] = False
        self.seen_ms[rows] = now_ms
        self._put(outside)
        self._sorted = False

    def silence(self, rows: Column) -> None:
        """Give these nodes a lease that has ended, which is known."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self.count += int((~self._leased[rows]).sum())
            self._leased[rows] = True
            self.silent[rows] = True

    def drop(self, row: int) -> None:
        """The node is gone for good."""
        if row < len(self._leased) and self._leased[row]:
            self.count -= 1
            self._leased[row] = self.silent[row] = False
            self.epoch[row] = 0
            self._sorted = False

    def register(self, rows: Column, now_ms: int) -> Column:
        """New epochs for agents of these nodes, each there once, which call now. Those that had no lease get one."""
        if not len(rows):
            return np.zeros(0, np.int32)
        self._grow(int(rows.max()) + 1)
        self.lease(rows[~self._leased[rows]], now_ms)
        self._heard(rows, now_ms)
        self.epoch[rows] = self.epochs + 1 + np.arange(len(rows), dtype=np.int32)
        self.epochs += len(rows)
        self.number[rows] = 0
        found: Column = self.epoch[rows]
        return found

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def beat(
        self, rows: Column, epochs: Column, numbers: Column, skews_ms: Column | None, now_ms: int
    ) -> HeartbeatResult:
        """Take a batch, all columns of one length: node rows, epochs, and the number of each heartbeat, above 0 and
        rising, within its epoch. `skews_ms`: by how much the agents' clocks are ahead of ours; it is noted, and nothing
        follows from it."""
        known = (rows >= 0) & (rows < len(self.epoch))
        at = np.where(known, rows, 0)
        valid = known & (epochs > 0)
        if len(self.epoch):
            valid &= self.epoch[at] == epochs
        refused = np.flatnonzero(~valid)
        if len(refused):
            rows, numbers = rows[valid], numbers[valid]
            skews_ms = None if skews_ms is None else skews_ms[valid]
        later = numbers > self.number[rows]
        if not later.all():
            rows, numbers = rows[later], numbers[later]
            skews_ms = None if skews_ms is None else skews_ms[later]
        # The same node twice in a batch is one lease renewed, by the later of the two.
        np.maximum.at(self.number, rows, numbers)
        newest = self.number[rows] == numbers
        if not newest.all():
            rows = rows[newest]
            skews_ms = None if skews_ms is None else skews_ms[newest]
        if skews_ms is not None:
            self.skew_ms[rows] = skews_ms
        fresh = np.unique(rows) if len(rows) > 1 else rows
        self._heard(fresh, now_ms)
        return HeartbeatResult(len(fresh), len(known) - len(refused) - len(fresh), refused)

    def _heard(self, rows: Column, now_ms: int) -> None:
        """These nodes, which have leases, are alive."""
        self.seen_ms[rows] = now_ms
        back = rows[self.silent[rows]]
        if len(back):
            self._back += back.tolist()
            self.silent[back] = False
            self._put(back)
            self._sorted = False
        elif self._sorted and self._order and bool((self._due[rows] == self._order[0]).any()):
            self._sorted = False

    def take_back(self) -> list[int]:
        """Nodes that were silent and have been heard of since the last call, in the order in which they were."""
        back, self._back = self._back, []
        return back

    @property
    def anyone_back(self) -> bool:
        return bool(self._back)

    def excuse(self, passed_ms: int) -> None:
        """We were away ourselves for so long and heard nobody: no lease runs meanwhile."""
        self.seen_ms += passed_ms
        self._rebuild()

    def last(self, after_ms: int) -> None:
        """From now on a lease lasts so long."""
        if after_ms != self.after_ms:
            self.after_ms = after_ms
            self._rebuild()

    # -- the wheel ----------------------------------------------------------------------------------------------------

    def next_ms(self, now_ms: int) -> int | None:
        """The cell time at which the next lease ends, if its node is not heard of before; to the next full bucket. It
        may be told too early as long as it is more than a bucket away: only then is the bucket looked through."""
        if not self._sorted and self._order and self._order[0] - now_ms <= BUCKET_MS:
            self._sort_first()
        return self._order[0] if self._order else None

    def ended(self, now_ms: int) -> list[int]:
        """Nodes whose lease has ended by now, ascending. Each is told once, and silent until it is heard of."""
        found: list[int] = []
        while (at := self.next_ms(now_ms)) is not None and at <= now_ms:
            # One that was dropped and has a lease again may be in there twice.
            rows = np.unique(np.concatenate(self._wheel.pop(heappop(self._order))))
            self.silent[rows] = True
            found += rows.tolist()
            self._sorted = False
        return sorted(found)

    def _sort_first(self) -> None:
        """Move on those in the first bucket that were heard of since they were put there, until one has any left."""
        while self._order:
            at = self._order[0]
            rows = np.concatenate(self._wheel[at])
            # Dropped, or put elsewhere since.
            rows = rows[self._leased[rows] & ~self.silent[rows] & (self._due[rows] == at)]
            stays = self._ends(rows) <= at
            left = rows[stays]
            if len(left):
                self._wheel[at] = [left]
            else:
                del self._wheel[at]
                heappop(self._order)
            self._put(rows[~stays])
            if len(left):
                break
        self._sorted = True

    def _ends(self, rows: Column) -> Column:
        """The bucket in which the leases of the rows end."""
        ends: Column = -(-(self.seen_ms[rows] + self.after_ms) // BUCKET_MS) * BUCKET_MS
        return ends

    def _put(self, rows: Column) -> None:
        """Enter the rows, which are in no bucket, by when their leases end."""
        if not len(rows):
            return
        ends = self._ends(rows)
        self._due[rows] = ends
        order = np.argsort(ends, kind="stable")
        rows, ends = rows[order], ends[order]
        starts = np.flatnonzero(np.diff(ends, prepend=ends[0] - 1))
        for at, part in zip(ends[starts].tolist(), np.split(rows, starts[1:]), strict=True):
            if at not in self._wheel:
                self._wheel[at] = []
                heappush(self._order, at)
            self._wheel[at].append(part)

    def _rebuild(self) -> None:
        self._wheel, self._order = {}, []
        self._put(np.flatnonzero(self._leased & ~self.silent))
        heapify(self._order)
        self._sorted = False

    def _grow(self, rows: int) -> None:
        if rows <= len(self.epoch):
            return
        size = max(rows, 2 * len(self.epoch), 64)
        for name in ("seen_ms", "epoch", "number", "skew_ms", "silent", "_leased", "_due"):
            old: Column = getattr(self, name)
            grown = np.zeros(size, old.dtype)
            grown[: len(old)] = old
            setattr(self, name, grown)
