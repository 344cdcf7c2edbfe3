"""The table of runs from before a cell looked on (`engine.model.accounting_history`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from engine.model.accounting_history import PastRun
from engine.tables.columns import Table


class PastRuns(Table):
    columns = ("runs", "until_ms")

    def __init__(self) -> None:
        self.runs: list[Any] = []
        """Of PastRun, in the order in which they ended."""
        self.until_ms = 0
        """What ended later is not among them; 0: nothing was told."""

    def derive(self) -> None:
        self.runs = [msgspec.convert(run, PastRun) for run in self.runs]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"runs": msgspec.to_builtins(self.runs)}

    def tell(self, runs: Iterable[PastRun], until_ms: int) -> None:
        """In place of all that was told before."""
        self.runs, self.until_ms = list(runs), until_ms
