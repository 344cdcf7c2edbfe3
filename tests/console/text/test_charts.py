"""Charts of text: every value in its row, nothing longer than its width, nothing told by colour alone."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.text import charts
from console.text.terminal_text import printable

WIDTHS = st.integers(1, 200)
HEIGHTS = st.integers(1, 24)
AMOUNTS = st.one_of(st.integers(0, 20), st.integers(0, 10**30))
GAPPY = st.lists(st.one_of(st.none(), AMOUNTS), max_size=60)
HOUR_MS = 3_600_000


def texts(lines: Sequence[charts.Spans]) -> list[str]:
    return ["".join(text for text, _ in spans) for spans in lines]


def dots(lines: Sequence[str]) -> list[set[int]]:
    """The rows of the dots in each column of them, of lines of braille."""
    found: list[set[int]] = [set() for _ in range(2 * len(lines[0]))]
    for row, line in enumerate(reversed(lines)):
        for column, sign in enumerate(line):
            bits = ord(sign) - 0x2800 if sign not in (" ", charts.BEYOND) else 0
            for side, order in enumerate(((6, 2, 1, 0), (7, 5, 4, 3))):
                found[2 * column + side] |= {4 * row + at for at, bit in enumerate(order) if bits >> bit & 1}
    return found


@given(GAPPY, WIDTHS, HEIGHTS, AMOUNTS)
def test_the_line_of_a_ribbon_ends_in_the_row_of_each_value(
    values: list[int | None], width: int, height: int, top: int
) -> None:
    drawn = texts(charts.ribbon([], values, [], width, height, top))
    assert [len(line) for line in drawn] == [width] * height
    shown, before = charts.spread(values, 2 * width), None
    for column, (value, rows) in enumerate(zip(shown, dots(drawn), strict=True)):
        beyond = any(each is not None and each > max(1, top) for each in shown[column // 2 * 2 :][:2])
        assert (drawn[0][column // 2] == charts.BEYOND) == beyond
        if value is None:
            assert not rows
            before = None
            continue
        row = charts.row_of(value, top, 4 * height)
        assert row in rows or beyond
        before = row if before is None else before
        assert all(min(row, before) <= each <= max(row, before) for each in rows)
        before = row


@given(st.integers(0, 10**30), st.integers(1, 10**30), st.integers(2, 50))
def test_a_value_is_drawn_in_the_nearest_row(value: int, top: int, height: int) -> None:
    row = charts.row_of(value, top, height)
    distances = [abs(value * (height - 1) - each * top) for each in range(height)]
    assert distances[row] == min(distances)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=40), WIDTHS, HEIGHTS, AMOUNTS)
def test_the_band_holds_every_value_that_falls_into_its_column(
    quantiles: list[tuple[int, int, int]], width: int, height: int, limit: int
) -> None:
    low, mid, high = (list(each) for each in zip(*(sorted(three) for three in quantiles), strict=True))
    top = max(1, *high)
    drawn = charts.ribbon(low, mid, high, width, height, top, limit=limit)
    rows, edge = 4 * height, charts.row_of(limit, top, 4 * height)
    inked = {tone for spans in drawn for text, tone in spans if text.strip()}
    assert "warn" not in inked or max(high) > limit, "nothing is above a limit that is not passed"
    for column, here in enumerate(dots(texts(drawn))):
        first = column * len(low) // (2 * width)
        part = slice(first, max((column + 1) * len(low) // (2 * width), first + 1))
        span = range(charts.row_of(min(low[part]), top, rows), charts.row_of(max(high[part]), top, rows) + 1)
        line = [
            charts.row_of(value, top, rows) for value in charts.spread(mid, 2 * width)[max(0, column - 1) : column + 1]
        ]
        assert here <= {*span, *range(min(line), max(line) + 1), edge}


def test_a_ribbon_tells_without_colour_what_is_what() -> None:
    drawn = texts(charts.ribbon([2] * 12, [4] * 12, [8] * 12, 6, 5, 8, mark=4, now=1, limit=6))
    assert drawn == [
        "⡪│⡪⡪┊⡪",
        "⠒│⠒⠈┊⠈",
        "⠒⠒⠒⠒⠒⠒",
        "⠂│⠂⠂┊⠂",
        " │  ┊ ",
    ]


def test_a_line_goes_up_and_down_in_the_column_of_the_later_value() -> None:
    values = [0, 0, 7, 7, 3, 3]
    assert texts(charts.ribbon(values, values, values, 3, 2, 7)) == [" ⡏⡆", "⣀⠇⠉"]


@given(GAPPY, st.integers(-2, 120))
def test_a_spark_is_no_longer_than_its_width_and_shows_gap_least_and_most(values: list[int | None], width: int) -> None:
    line = charts.spark(values, width)
    assert len(line) == max(0, min(width, len(values)))
    shown = charts.spread(values, len(line))
    known = [value for value in shown if value is not None]
    for sign, value in zip(line, shown, strict=True):
        assert (sign == " ") == (value is None)
        assert len(set(known)) < 2 or ((value != min(known) or sign == "▁") and (value != max(known) or sign == "█"))
    assert len(set(known)) != 1 or set(line) <= {"─", " "}, "what does not vary is neither low nor high"


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_scale_holds_its_values_and_uses_a_third_of_it_unless_it_is_to_be_higher(
    least: int, more: int, height: int
) -> None:
    most = least + more
    base, top = charts.scale_of(least, most, height)
    assert 0 <= base <= least
    assert most <= base + top
    assert base == 0 or top >= height
    tight_base, tight = charts.scale_of(least, most)
    assert tight_base == 0 or 3 * (most - least) >= tight


@given(
    st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(AMOUNTS, min_size=n, max_size=n), max_size=40)),
    WIDTHS,
    HEIGHTS,
)
def test_stacks_are_as_high_as_their_parts_come_to(columns: list[list[int]], width: int, height: int) -> None:
    top = charts.stack_top(columns, width)
    drawn = texts(charts.stack(columns, width, height, top))
    assert all(len(line) <= width for line in drawn)
    if len(columns) > width or not columns:
        return
    step = len(drawn[0]) // len(columns)
    for index, parts in enumerate(columns):
        here = "".join(line[index * step] for line in reversed(drawn))
        total = sum(parts)
        assert len(here.rstrip()) == (2 * total * height + max(1, top)) // (2 * max(1, top))
        assert sorted(here.rstrip(), key=charts.FILLS.index) == list(here.rstrip()), "the first part is the lowest"


@given(st.lists(st.lists(AMOUNTS, min_size=2, max_size=2), min_size=2, max_size=99), st.integers(1, 30))
def test_columns_that_have_no_room_are_added_up_and_none_is_lost(columns: list[list[int]], width: int) -> None:
    merged = charts._neighbours(columns, width)
    assert [sum(each) for each in zip(*merged, strict=True)] == [sum(each) for each in zip(*columns, strict=True)]


@given(st.lists(AMOUNTS, min_size=1, max_size=9), WIDTHS)
def test_shares_fill_the_bar_and_differ_by_less_than_a_cell_from_what_they_are(parts: list[int], width: int) -> None:
    bar = charts.shares(parts, width)
    assert len(bar) == width
    total = sum(parts)
    for index, part in enumerate(parts if total else []):
        assert abs(bar.count(charts.FILLS[index]) * total - part * width) <= total


@given(AMOUNTS, AMOUNTS, AMOUNTS, WIDTHS, st.booleans())
def test_an_interval_shows_its_quantiles_where_they_are(a: int, b: int, c: int, width: int, known: bool) -> None:
    low, mid, high = sorted((a, b, c))
    line = charts.interval(low, mid, high if known else None, width, c)
    assert len(line) == width
    assert line[charts.row_of(mid, c, width)] == "●"
    end = charts.row_of(high, c, width) if known else width - 1
    assert line.rstrip() == line[: end + 1]
    assert len(line) - len(line.lstrip()) == charts.row_of(low, c, width)


def test_what_did_not_start_in_time_is_an_open_interval() -> None:
    assert charts.interval(2, 5, None, 10, 9) == "  ├──●───▸"
    assert charts.interval(None, None, None, 4, 9) == "    "


@given(st.integers(0, 10**30))
def test_a_round_top_is_round_and_near(value: int) -> None:
    top = charts.round_top(value)
    assert value <= top <= max(1, 2 * value)
    assert str(top).rstrip("0") in {"1", "12", "15", "2", "25", "3", "4", "5", "6", "8"}


@given(st.integers(0, 4 * 10**12), st.integers(1, 3 * 365 * 24 * HOUR_MS), st.integers(1, 220), st.integers(0, 12))
def test_labels_of_the_time_axis_stand_below_their_ticks(begin: int, span: int, width: int, indent: int) -> None:
    ticks, labels = texts(charts.time_axis(begin, begin + span, width, indent))
    assert len(ticks) == len(labels) == width + indent
    assert set(ticks[indent:]) <= {"─", "┬"}
    for start in [i for i in range(indent, len(labels)) if labels[i] != " " and (labels[i - 1] == " " or i == indent)]:
        assert ticks[start] == "┬"
        at = labels[start : start + 5]
        assert at[2] in ":-"


def test_a_day_has_its_hours_and_the_next_its_date() -> None:
    begin = 20_000 * 24 * HOUR_MS + 18 * HOUR_MS
    _, labels = texts(charts.time_axis(begin, begin + 24 * HOUR_MS, 48, 6))
    assert labels.split() == ["UTC", "18:00", "10-05", "06:00", "12:00"]


@given(st.lists(AMOUNTS, min_size=1, max_size=50), st.integers(20, 120), st.integers(1, 15))
def test_a_chart_with_axes_is_never_wider_than_its_page(values: list[int], width: int, height: int) -> None:
    top = charts.round_top(max(values))

    def text(value: int) -> str:
        return f"{value:.0e}"

    plot = width - charts.gutter(top, text)
    lines = charts.framed(charts.ribbon(values, values, values, plot, height, top), top, text)
    lines += charts.time_axis(0, 48 * HOUR_MS, plot, charts.gutter(top, text))
    assert [cell_len(line) for line in texts(lines)] == [width] * (height + 2)
    assert texts(lines[:1])[0].startswith(text(top) if height > 1 else " ") or text(top) in texts(lines[:1])[0]


def test_nothing_in_a_chart_is_rewritten_on_its_way_to_the_screen() -> None:
    for sign in charts._EIGHTHS + charts.FILLS + "⡂⡪⠁⣿╌│┊▴─├●┤▸┬└━":
        assert printable(sign) == sign
        assert cell_len(sign) == 1
