"""What work would cost, as sections: the options side by side, each with when it starts and what it costs as a range.
No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from console.charts import interval
from console.cost import asked_words, option_names, option_notes, quantile_words, start_words
from console.details import Line, Section, text_line
from console.query import quoted
from console.text import duration, fit, money, printable, wrap

if TYPE_CHECKING:
    from recommender.quotes import Quantiles, Quote, QuoteOption, QuoteRequest

KEY = "├ p10  ● p50  ┤ p90  ▸ later than was looked"
Range = tuple[int | None, int | None, int | None, str]
"""p10, p50 and p90, None where it is not known, and the three in words."""
_TONES = {"now": "ok", "later": "info", "pool": "", "list": "dim"}


def compared(found: Quote, request: QuoteRequest, width: int) -> list[Section]:
    """Start and cost of every option, on one scale each."""
    options = found.options
    if not options:
        return [Section("Options", tuple(text_line(line, "warn") for text in found.warnings
                                         for line in wrap(printable(text), width)))]  # fmt: skip
    starts = [_start(each, found.at_ms) for each in options]
    costs = [_cost(each.cost_microusd) for each in options]
    names = [" · ".join(part for part in option_names(each) if part) for each in options]
    rows = list(zip(options, names, strict=True))
    return [
        Section("When it starts", tuple(_rows(rows, starts, width)), asked_words(found, request)),
        Section("What it costs", tuple(_rows(rows, costs, width)), KEY),
    ]


def _start(option: QuoteOption, now_ms: int) -> Range:
    """From now."""
    at = option.start_ms
    low, mid, high = (None if each is None else max(0, each - now_ms) for each in (at.p10, at.p50, at.p90))
    if low is None and option.seeds:
        # Not before that: as far as was looked.
        low = max(option.looked_ms, option.asked_start_ms - now_ms)
    return low, mid, high, ", ".join(_once(start_words(option, now_ms)))


def _cost(values: Quantiles) -> Range:
    return values.p10, values.p50, values.p90, ", ".join(_once(quantile_words(values, money)))


def _once(words: Sequence[str]) -> Sequence[str]:
    """Three that are the same are one."""
    return words[:1] if len(set(words)) == 1 else words


def _rows(
    rows: Sequence[tuple[QuoteOption, str]],
    values: Sequence[Range],
    width: int,
) -> list[Line]:
    """One scale for all: from 0 to the most that is known."""
    top = max((value for *quantiles, _ in values for value in quantiles if value is not None), default=1)
    words = max(cell_len(each[3]) for each in values)
    name = min(max(cell_len(title) for _, title in rows), max(10, width // 3))
    bar = width - name - words - 4
    lines = []
    for (option, title), (low, mid, high, text) in zip(rows, values, strict=True):
        link = f"nodes pool:{quoted(printable(option.pool))}" if option.pool else ""
        drawn = interval(low, mid, high, bar, top) if bar >= 8 else ""
        spans = (
            (fit(title, name) + "  ", "link" if link else ""),
            (drawn + "  " if drawn else "", _TONES[option.kind]),
            (text, ""),
        )
        lines.append(Line(spans, link))
    return lines


def pages(found: Quote, further: str, width: int) -> tuple[list[Section], list[Section]]:
    """Left: each option in words. Right: what was not reached, and what it rests on. `further`: how the search for
    starts that were not reached stands; empty: it needs none."""
    left = [_option(option, width) for option in found.options]
    right = []
    if further or found.warnings:
        lines = [
            text_line(line, "warn") for text in (further, *found.warnings) for line in wrap(printable(text), width)
        ]
        right.append(Section("Not reached", tuple(lines)))
    right.append(Section("Rests on", tuple(_listed(found.assumptions, width)), f"{found.took_ms / 1000:.1f} s"))
    return left, right


def _option(option: QuoteOption, width: int) -> Section:
    name, where = option_names(option)
    runs = ", ".join(_once(quantile_words(option.duration_ms, duration)))
    return Section(f"{name} · {where}", tuple(_listed([f"runs {runs}", *option_notes(option)], width)))


def _listed(texts: Sequence[str], width: int) -> list[Line]:
    lines = []
    for text in texts:
        first, *rest = wrap(printable(text), width - 2)
        lines += [Line((("· ", "faint"), (first, ""))), *(Line((("  " + line, ""),)) for line in rest)]
    return lines


def asking(words: str, said: str, width: int) -> list[Section]:
    """While there is no answer, or when it is refused."""
    lines = tuple(text_line(line, "dim") for line in wrap(printable(said), width))
    return [Section("What it would cost", lines, printable(words))]
