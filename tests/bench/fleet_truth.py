"""Where and when work of a fleet would have started in truth: each cell once more in memory, with everything that it
got and the run times that nobody knew before, and with one submission moved to it from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from console.forms.documents import read_document
from console.forms.work_files import cell_of
from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import CellSpec, WorkloadSpec

DAY_MS = 86_400_000


class Arrival(NamedTuple):
    """Work that a cell gets."""

    at_ms: int
    """Of the bench's clock, which runs as that of the cells."""
    spec: WorkloadSpec


def cell_in(file: Path) -> CellSpec:
    return cell_of(read_document(str(file)))


def starts(cell: CellSpec, arrivals: Iterable[Arrival], wanted: Sequence[str]) -> dict[str, int]:
    """Id -> when it starts, of these."""
    engine = Engine.open(None, cell=cell)
    due = sorted(arrivals, key=lambda each: (each.at_ms, each.spec.id))
    found: dict[str, int] = {}
    left = set(wanted)

    def look() -> None:
        works = engine.state.workloads
        for name in list(left):
            row = works.row_of.get(name)
            if row is not None and works.started[row] >= 0:
                found[name] = works.started[row] - DAY_MS
                left.discard(name)

    for each in due:
        engine.advance(DAY_MS + each.at_ms)
        engine.command(Submit(workloads=(each.spec,)))
        if len(wanted) == 1:
            look()
            if not left:
                break
    now_ms = DAY_MS + (due[-1].at_ms if due else 0)
    while left:
        look()
        now_ms += DAY_MS // 8
        engine.advance(now_ms)
        if now_ms > 60 * DAY_MS:
            raise RuntimeError(f"never started: {sorted(left)[:5]}")
    engine.close()
    return found
