"""Charts made of text: each reads without colour, at any width.

The lowest row stands for 0, the highest for `top`. A value is drawn in the nearest row, and above `top` as an arrow in
the highest. None is a gap. Curves are drawn in the dots of braille, of which a cell has two beside each other and four
on top of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len

from console.text.terminal_text import cut, fit, timestamp

if TYPE_CHECKING:
    from console.views.lists import Span

Values = Sequence[int | None]
Spans = tuple["Span", ...]

_EIGHTHS = " ▁▂▃▄▅▆▇█"
BAND, ABOVE, LIMIT, NOW, MARK, BEYOND = "⡂", "⡪", "╌", "│", "┊", "▴"
"""Signs of a ribbon besides its line, as a legend has them: the band, the band above the limit, the limit, the columns
of now and of the mark, and a value above the scale."""
CHANGE = "▲"
"""Sign on the axis of time where something was changed."""
FILLS = "█▒░╳+o·=:"
"""Signs of the parts of a stack, from the lowest on."""
_STEPS_MS = tuple(n * 60_000 for n in (1, 5, 15, 30, 60, 180, 360, 720, 1440, 2880, 10_080, 20_160, 43_200, 129_600))
_DAY_MS = 86_400_000
_LABEL = 5
"""Cells of a label of the time axis: "06:00" or "11-22"."""


def length(count: int, most: int, width: int) -> str:
    """A line as long as a count is large, for comparing counts below each other."""
    return "━" * max(1 if count else 0, count * width // max(1, most)) if width > 0 else ""


def spark(values: Values, width: int) -> str:
    """A line of values, newest last, at most `width` cells: ▁ is the least, █ the largest of them; ─ all the way where
    they are one; a gap is a space."""
    if width < 1 or not values:
        return ""
    shown = spread(values, min(width, len(values)))
    known = [value for value in shown if value is not None]
    least, most = min(known, default=0), max(known, default=0)
    return "".join(
        " " if value is None else "─" if least == most else _EIGHTHS[1 + row_of(value - least, most - least, 8)]
        for value in shown
    )


def scale_of(least: int, most: int, height: int = 0) -> tuple[int, int]:
    """(lowest, height) of a scale for values between these: from 0 on, or close to what varies by less than half. It is
    at least `height` high, so that noise looks like noise."""
    if least <= most // 2 or least == most:
        return 0, round_top(most)
    span = round_top(max(most - least, height))
    base = least // span * span
    return base, max(span, round_top(most - base))


def row_of(value: int, top: int, height: int) -> int:
    """The row a value is drawn in."""
    top, most = max(1, top), max(0, height - 1)
    return min(most, max(0, (2 * value * most + top) // (2 * top)))


def spread(values: Values, width: int, pick: Callable[[list[int]], int] | None = None) -> list[int | None]:
    """A value for each of `width` columns: `pick` of those that fall into it (their mean), or the one it is part of."""
    count = len(values)
    if not count or width < 1:
        return [None] * max(0, width)
    found: list[int | None] = []
    for column in range(width):
        first = column * count // width
        known = [value for value in values[first : max((column + 1) * count // width, first + 1)] if value is not None]
        found.append((pick(known) if pick else sum(known) // len(known)) if known else None)
    return found


def ribbon(
    low: Values,
    mid: Values,
    high: Values,
    width: int,
    height: int,
    top: int,
    *,
    mark: int | None = None,
    now: int | None = None,
    limit: int | Values | None = None,
) -> list[Spans]:
    """Quantiles over time, later to the right: `height` lines of `width` cells, the highest first. The middle is a
    line, what lies between low and high is dotted; `limit` is a level, or one for each value: a broken line above which
    the dots are denser. `now` and `mark` are columns of `width`. Where columns of dots are fewer than values, the band
    holds all of them."""
    if width < 1 or height < 1:
        return []
    across, rows = 2 * width, 4 * height
    mids = spread(mid, across)
    limits = [limit] * across if limit is None or isinstance(limit, int) else spread(limit, across)
    below, above = _band(spread(low, across, min), spread(high, across, max), limits, top, rows)
    cells: list[list[tuple[str, str]]] = [[(" ", "")] * width for _ in range(height)]
    _put(cells, below, "faint")
    _put(cells, above, "warn")
    _put(cells, _broken(limits, top, rows), "info")
    for column, sign in ((now, NOW), (mark, MARK)):
        if column is not None and 0 <= column < width:
            for line in cells:
                line[column] = (sign, "accent")
    _put(cells, _joined(mids, top, rows), "bar")
    for column, value in enumerate(mids):
        if value is not None and value > max(1, top):
            cells[-1][column // 2] = (BEYOND, "bar")
    return [_spans(line) for line in reversed(cells)]


# A column of dots is a number: its lowest bit is the lowest dot.

_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a sign of braille, for its left and its right column, from the lowest dot on."""
_LEFT, _RIGHT = (
    tuple(sum(bit for row, bit in enumerate(column) if dots >> row & 1) for dots in range(16)) for column in _DOTS
)


def _put(cells: list[list[tuple[str, str]]], columns: Sequence[int], tone: str) -> None:
    """Draw columns of dots over what is there."""
    for at in range(0, len(columns), 2):
        left, right = columns[at : at + 2]
        dots = left | right
        if not dots:
            continue
        for row in range((dots & -dots).bit_length() - 1 >> 2, dots.bit_length() + 3 >> 2):
            bits = _LEFT[left >> 4 * row & 15] | _RIGHT[right >> 4 * row & 15]
            if bits:
                cells[row][at // 2] = (chr(0x2800 + bits), tone)


def _from_to(first: int, last: int) -> int:
    """Dots from one row to another."""
    return (2 << last) - (1 << first)


def _band(lows: Values, highs: Values, limits: Values, top: int, rows: int) -> tuple[list[int], list[int]]:
    """Dots between low and high: thinly below the limit, and densely above it."""
    thin = sum(1 << row for row in range(0, rows, 2))
    below, above = [0] * len(lows), [0] * len(lows)
    for at, (low, high, limit) in enumerate(zip(lows, highs, limits, strict=True)):
        if low is None or high is None or low == high:
            continue
        every = _from_to(row_of(min(low, high), top, rows), row_of(max(low, high), top, rows))
        under = _from_to(0, rows if limit is None else row_of(limit, top, rows))
        above[at] = every & ~under & (thin << at % 2)
        if not at % 2:
            below[at] = every & under & thin
    return below, above


def _broken(levels: Values, top: int, rows: int) -> list[int]:
    """Levels within the scale, in every other cell."""
    drawn = [0] * len(levels)
    for at, level in enumerate(levels):
        if level is not None and 0 <= level <= max(1, top) and not at & 2:
            drawn[at] = 1 << row_of(level, top, rows)
    return drawn


def _joined(values: Values, top: int, rows: int) -> list[int]:
    """A line from value to value: each column of dots ends in the row of its value."""
    drawn, before = [0] * len(values), None
    for at, value in enumerate(values):
        row = None if value is None else row_of(value, top, rows)
        if row is not None:
            nearest = row if before is None or before == row else before + (1 if row > before else -1)
            drawn[at] = _from_to(min(row, nearest), max(row, nearest))
        before = row
    return drawn


def stack(
    columns: Sequence[Sequence[int]], width: int, height: int, top: int, tones: Sequence[str] = ()
) -> list[Spans]:
    """Columns side by side, each of parts on top of each other, the first the lowest: `height` lines of at most
    `width` cells, the highest first. Every part has a fill of its own, and reaches to the row of what it and those
    below it come to. More columns than cells are added up by neighbours, and so must be `top`: see `stack_top`."""
    columns = _neighbours(columns, width)
    if not columns or height < 1:
        return []
    wide, gap = _column_width(len(columns), width)
    cells: list[list[tuple[str, str]]] = [[] for _ in range(height)]
    for parts in columns:
        edges = _edges(parts, top, height)
        for row, line in enumerate(cells):
            part = next((index for index, edge in enumerate(edges) if row < edge), None)
            line.extend([_fill(part, tones)] * wide + [(" ", "")] * gap)
    return [_spans(line[:width]) for line in reversed(cells)]


def stack_top(columns: Sequence[Sequence[int]], width: int) -> int:
    """The largest sum of a column, as `stack` shows them in this width."""
    return max((sum(parts) for parts in _neighbours(columns, width)), default=0)


def _neighbours(columns: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    if width < 1:
        return []
    if len(columns) <= width:
        return [list(parts) for parts in columns]
    edges = [index * len(columns) // width for index in range(width + 1)]
    return [[sum(each) for each in zip(*columns[a:b], strict=True)] for a, b in pairwise(edges)]


def _column_width(count: int, width: int) -> tuple[int, int]:
    """Cells of a column, and of the gap behind it."""
    each = max(1, min(12, width // count))
    return (each - 1, 1) if each > 2 else (each, 0)


def _edges(parts: Sequence[int], top: int, height: int) -> list[int]:
    """The row that each part ends below."""
    top, total, edges = max(1, top), 0, []
    for part in parts:
        total += max(0, part)
        edges.append(min(height, (2 * total * height + top) // (2 * top)))
    return edges


def _fill(part: int | None, tones: Sequence[str]) -> tuple[str, str]:
    if part is None:
        return " ", ""
    return FILLS[part % len(FILLS)], tones[part % len(tones)] if tones else ""


def interval(low: int | None, mid: int | None, high: int | None, width: int, top: int, ends: str = "├┤") -> str:
    """A distribution in one line of exactly `width` cells, from 0 to `top`: ├ at its p10, ● at its p50, ┤ at its p90,
    or ▸ where that is not known. Empty where even p10 is not. `ends`: other signs for the two ends."""
    if width < 1 or low is None:
        return " " * max(0, width)
    last = width - 1
    start = row_of(low, top, width)
    middle = None if mid is None else row_of(mid, top, width)
    end = last if high is None else row_of(high, top, width)
    line = [" "] * start + ["─"] * (end - start + 1) + [" "] * (last - end)
    line[start] = ends[0]
    line[end] = "▸" if high is None else ends[1]
    if middle is not None:
        line[middle] = "●"
    return "".join(line)


def shares(parts: Sequence[int], width: int) -> str:
    """A bar of exactly `width` cells, divided as the parts are; each with a fill of its own. Blank when all are 0."""
    total = sum(max(0, part) for part in parts)
    if width < 1 or not total:
        return " " * max(0, width)
    edges = [0, *_edges(parts, total, width)]
    return "".join(FILLS[index % len(FILLS)] * (b - a) for index, (a, b) in enumerate(pairwise(edges)))


# -- axes -------------------------------------------------------------------------------------------------------------


def round_top(value: int) -> int:
    """The least round number from `value` on, so that half and whole of a scale read well."""
    if value <= 1:
        return 1
    power: int = 10 ** (len(str(value)) - 1)
    steps = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100) if power > 1 else (10, 20, 40, 50, 60, 80, 100)
    return next(step * power // 10 for step in steps if step * power >= 10 * value)


def gutter(top: int, text: Callable[[int], str]) -> int:
    """Cells that the axis of values takes to the left of a chart."""
    return max(len(text(value)) for value in (0, top // 2, top)) + 2


def framed(lines: Sequence[Spans], top: int, text: Callable[[int], str]) -> list[Spans]:
    """The lines of a chart with an axis of values to their left: 0, `top`, and the half where there is a row for it."""
    wide, height = gutter(top, text) - 2, len(lines)
    labels = {height - 1: text(0), 0: text(top)}
    if height >= 5 and height % 2:
        labels[height // 2] = text(top // 2)
    return [
        ((f"{labels.get(row, ''):>{wide}} ", "dim"), ("┤" if row in labels else "│", "faint"), *line)
        for row, line in enumerate(lines)
    ]


def time_axis(begin_ms: int, end_ms: int, width: int, indent: int, changes: Sequence[int] = ()) -> list[Spans]:
    """Two lines below a chart of `width` columns whose axis of values takes `indent` cells: ticks at round times (UTC),
    and what they are: the time of day, or the date at midnight. Columns of `changes` have a sign of their own."""
    if width < 1 or end_ms <= begin_ms:
        return []
    ticks, labels = ["─"] * width, [" "] * width
    free = 0
    for at_ms in _round_times(begin_ms, end_ms, width):
        column = (at_ms - begin_ms) * width // (end_ms - begin_ms)
        ticks[column] = "┬"
        if column >= free and column + _LABEL <= width:
            label = timestamp(at_ms)[5:10] if at_ms % _DAY_MS == 0 else timestamp(at_ms)[11:16]
            labels[column : column + _LABEL] = label
            free = column + _LABEL + 1
    for column in changes:
        ticks[column] = CHANGE
    zone = fit("UTC", indent - 1, right=True) if indent > 3 else ""
    return [
        (
            (" " * max(0, indent - 1) + ("└" if indent else ""), "faint"),
            *_spans([(tick, "accent" if tick == CHANGE else "faint") for tick in ticks]),
        ),
        ((fit(zone, indent), "dim"), ("".join(labels), "dim")),
    ]


def _round_times(begin_ms: int, end_ms: int, width: int) -> list[int]:
    """Round times in the span, so many that their labels have room."""
    most = max(1, width // (_LABEL + 2))
    span = end_ms - begin_ms
    step = next((each for each in _STEPS_MS if span <= each * most), max(_STEPS_MS[-1], span // most))
    return list(range(-(-begin_ms // step) * step, end_ms, step))


def column_at(at_ms: int, begin_ms: int, end_ms: int, width: int) -> int | None:
    """The column of a time, None outside of the span."""
    if not begin_ms <= at_ms < end_ms:
        return None
    return (at_ms - begin_ms) * width // (end_ms - begin_ms)


def legend(parts: Sequence[Span], width: int) -> list[Spans]:
    """Pieces three cells apart, in as many lines as they take."""
    lines: list[Spans] = []
    line: list[Span] = []
    used = 0
    for text, tone in parts:
        text = cut(text, width)
        if line and used + 3 + cell_len(text) > width:
            lines.append(tuple(line))
            line, used = [], 0
        if line:
            line.append(("   ", ""))
            used += 3
        line.append((text, tone))
        used += cell_len(text)
    return [*lines, tuple(line)] if line else lines


def _spans(cells: Sequence[tuple[str, str]]) -> Spans:
    """Neighbours of one tone as one piece."""
    return tuple(("".join(text for text, _ in run), tone) for tone, run in groupby(cells, key=lambda cell: cell[1]))
