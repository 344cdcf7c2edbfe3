"""Chunks on disk: what one series measured in a span of time, finer or coarser by its age (`retention.TIERS`).

Every change is one transaction of a bounded size on the engine's thread; packing is done on the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from engine.journal.side_tables import Records
from recommender.history import sample_buckets as bk
from recommender.history.metrics import CELL
from recommender.history.retention import TIERS
from recommender.history.sample_buckets import SampleBuckets
from recommender.history.tables import CHUNK, DROP_CHUNK, SERIES, chunk_row, move_chunks, replace_chunks

WRITTEN_AT_ONCE = 100
"""Chunks of one transaction: a few milliseconds of the engine's thread."""
FOLDED_AT_ONCE = 400
"""Chunks that are summed up, or dropped, at a time."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Key = tuple[int, int]
"""(series, begin of the chunk in ms)"""


class SeriesChunks:
    """The chunks beside one journal. Raises RecordsError while the disk fails. Who changes something locks."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.damaged = 0
        """Found damaged since the start."""

    def unpacked(self, tier: int, start_ms: int, body: bytes) -> SampleBuckets:
        """What a chunk holds; nothing where it is damaged, which is counted."""
        try:
            return (
                bk.unpack_samples(body, start_ms)
                if tier == 0
                else bk.unpack_buckets(body, start_ms, TIERS[tier].step_ms)
            )
        except ValueError:
            self.damaged += 1
            return bk.joined([])

    def merge(self, fresh: Sequence[tuple[Key, SampleBuckets]]) -> None:
        """Add samples to chunks of the finest tier. The same samples once more change nothing."""
        for at in range(0, len(fresh), WRITTEN_AT_ONCE):
            part = fresh[at : at + WRITTEN_AT_ONCE]
            with self._records.reading() as connection:
                there = self._there(connection, 0, [key for key, _ in part])
                present = {(number, start): self.unpacked(0, start, body) for number, start, body in there}
            changed = []
            for key, samples in part:
                merged = bk.latest_of_minutes(bk.joined([present[key], samples] if key in present else [samples]))
                changed.append(chunk_row(0, *key, bk.pack_samples(merged, key[1])))
            self._records.write(lambda connection, changed=changed: replace_chunks(connection, changed))  # type: ignore[misc]

    def ended(self, tier: int, before_ms: int, own: bool) -> list[tuple[int, int, bytes]]:
        """(series, begin, body) of the FOLDED_AT_ONCE oldest that ended by then. `own`: those of series that the cell
        measures itself, else of the others."""
        mine = SERIES.c.source == CELL if own else SERIES.c.source != CELL
        old = (
            select(CHUNK.c.series, CHUNK.c.start_ms, CHUNK.c.body)
            .join(SERIES, SERIES.c.id == CHUNK.c.series)
            .where(CHUNK.c.tier == tier, CHUNK.c.start_ms <= before_ms - TIERS[tier].span_ms, mine)
            .order_by(CHUNK.c.start_ms, CHUNK.c.series)
            .limit(FOLDED_AT_ONCE)
        )
        with self._records.reading() as connection:
            return [(number, start, body) for number, start, body in connection.execute(old)]

    def drop(self, tier: int, keys: Sequence[Key]) -> None:
        gone = [{"t": tier, "n": number, "s": start} for number, start in keys]
        if gone:
            self._records.write(lambda connection: connection.execute(DROP_CHUNK, gone))

    def fold(
        self, tier: int, old: Sequence[tuple[int, int, bytes]], summed_ms: Mapping[int, int]
    ) -> Iterator[dict[int, int]]:
        """Move chunks into the next tier. A chunk and what becomes of it are changed in one transaction; after each,
        up to when its series are summed up by now, which was `summed_ms` before."""
        known = dict(summed_ms)
        step, span = TIERS[tier + 1].step_ms, TIERS[tier + 1].span_ms
        targets: dict[tuple[int, int], list[tuple[int, SampleBuckets]]] = {}
        for number, start, body in old:
            target = targets.setdefault((number, start // span * span), [])
            target.append((start, bk.folded(self.unpacked(tier, start, body), step)))
        keys = sorted(targets)
        for at in range(0, len(keys), WRITTEN_AT_ONCE // 2):
            part = keys[at : at + WRITTEN_AT_ONCE // 2]
            with self._records.reading() as connection:
                present = {(n, s): body for n, s, body in self._there(connection, tier + 1, part)}
            new: list[dict[str, Any]] = []
            gone: list[dict[str, Any]] = []
            marks: dict[int, int] = {}
            for key in part:
                pieces = [piece for _, piece in targets[key]]
                if key in present:
                    pieces.append(self.unpacked(tier + 1, key[1], present[key]))
                # The same bucket may be there from before: late samples of a time nobody had summed up.
                merged = bk.folded(bk.joined(pieces), step)
                new.append(chunk_row(tier + 1, *key, bk.pack_buckets(merged, key[1], step)))
                gone += [{"t": tier, "n": key[0], "s": start} for start, _ in targets[key]]
                end_ms = max(start for start, _ in targets[key]) + TIERS[tier].span_ms
                marks[key[0]] = max(end_ms, marks.get(key[0], 0), known[key[0]])
            mark_rows = [{"number": number, "a": end_ms} for number, end_ms in marks.items()]
            self._records.write(
                lambda connection, new=new, gone=gone, mark_rows=mark_rows: move_chunks(
                    connection, new, gone, mark_rows
                )  # type: ignore[misc]
            )
            known |= marks
            yield marks

    def summed_up(self, number: int, times: bk.Times) -> Flags:
        """[time] Whether it is in a bucket of the series already."""
        gone = np.zeros(len(times), np.bool_)
        with self._records.reading() as connection:
            for tier in (1, 2):
                span, step = TIERS[tier].span_ms, TIERS[tier].step_ms
                wanted = [(number, start) for start in np.unique(times // span * span).tolist()]
                for _, start, body in self._there(connection, tier, wanted):
                    gone |= np.isin(times // step * step, self.unpacked(tier, start, body).at_ms)
        return gone

    def _there(
        self, connection: Connection, tier: int, wanted: Sequence[tuple[int, int]]
    ) -> Iterable[tuple[int, int, bytes]]:
        """(series, start, body) of those that exist."""
        for at in range(0, len(wanted), WRITTEN_AT_ONCE):
            part = wanted[at : at + WRITTEN_AT_ONCE]
            numbers, starts, asked = {n for n, _ in part}, {s for _, s in part}, set(part)
            found = select(CHUNK.c.series, CHUNK.c.start_ms, CHUNK.c.body).where(
                CHUNK.c.tier == tier, CHUNK.c.series.in_(sorted(numbers)), CHUNK.c.start_ms.in_(sorted(starts))
            )
            yield from (row for row in connection.execute(found) if (row[0], row[1]) in asked)
