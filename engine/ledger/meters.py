"""Meters: amounts that grow steadily, and how much of them fell into each day.

An amount is rate x time, kept as the line `rate * t - base`. A change of the rate at time t by d changes base by d * t,
so it costs the same however long the last one is ago, and the order of changes makes no difference: many at once leave
what they would have left one by one. When a meter is first touched in a new period (a day, say), the line that held up
to then is kept; so the amount at every turn of the period stays known exactly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

from engine.tables.columns import Table


class Meters(Table):
    """Meters by row. Rates in whole units per millisecond, amounts in units, exact: they may pass 64 bits."""

    columns = ("period", "rate", "base", "born", "touched", "lines")

    def __init__(self, *, history: bool = True) -> None:
        """`history`: every turn of the period stays known; otherwise only those since the last touch but one."""
        self.history = history
        self.period = array("q")
        self.rate = array("q")
        self.base: list[int] = []
        self.born = array("q")
        """Number of the period in which the meter was set up: nothing was spent before."""
        self.touched = array("q")
        """Number of the period in which its rate changed last."""
        self.lines: dict[int, list[list[Any]]] = {}
        """Row -> [period, rate, base], ascending: the line that held from the touch before up to the beginning of that
        period."""

    def __len__(self) -> int:
        return len(self.base)

    def add(self, period_ms: int, now_ms: int, rate: int = 0, amount: int = 0) -> int:
        """A new meter that stands at `amount`. Returns its row."""
        self.period.append(period_ms)
        self.rate.append(rate)
        self.base.append(rate * now_ms - amount)
        self.born.append(now_ms // period_ms)
        self.touched.append(now_ms // period_ms)
        return len(self.base) - 1

    def remove(self, row: int) -> None:
        """The rows after it move up."""
        for column in (self.period, self.rate, self.base, self.born, self.touched):
            del column[row]
        self.lines = {at - (at > row): lines for at, lines in self.lines.items() if at != row}

    def shift(self, row: int, more: int, at_ms: int) -> None:
        """Change the rate."""
        if at_ms // self.period[row] == self.touched[row]:
            self.rate[row] += more
            self.base[row] += more * at_ms
        else:
            self.shift_many(row, more, more * at_ms, at_ms)

    def shift_many(self, row: int, more: int, moment: int, at_ms: int) -> None:
        """Change the rate several times within one period. `more`: the sum of the changes; `moment`: the sum of each
        times its cell time; `at_ms`: one of the times."""
        turn = at_ms // self.period[row]
        if turn != self.touched[row]:
            line = [turn, self.rate[row], self.base[row]]
            if self.history:
                self.lines.setdefault(row, []).append(line)
            else:
                self.lines[row] = [line]
            self.touched[row] = turn
        self.rate[row] += more
        self.base[row] += moment

    def amount(self, row: int, now_ms: int) -> int:
        return self.rate[row] * now_ms - self.base[row]

    def amount_before(self, row: int, turn: int) -> int:
        """How much it was when that period began: `turn` is its number, one that has begun."""
        if turn <= self.born[row]:
            return 0
        at_ms = turn * self.period[row]
        if turn > self.touched[row]:
            return self.amount(row, at_ms)
        lines = self.lines[row]
        _, rate, base = lines[bisect_left(lines, turn, key=lambda line: line[0])]
        return int(rate * at_ms - base)

    def dump(self) -> dict[str, Any]:
        plain = {
            "base": [str(base) for base in self.base],
            "lines": {
                str(row): [[turn, rate, str(base)] for turn, rate, base in lines] for row, lines in self.lines.items()
            },
        }
        return super().dump() | plain

    def derive(self) -> None:
        self.base = [int(base) for base in self.base]
        self.lines = {
            int(row): [[turn, rate, int(base)] for turn, rate, base in lines] for row, lines in self.lines.items()
        }
