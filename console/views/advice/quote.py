"""What work would cost, as sections: the options side by side, each with when it starts and what it costs as a range.
No Textual in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from console.forms.filters import quoted
from console.text.charts import interval
from console.text.terminal_text import duration, fit, money, printable, timestamp, wrap
from console.views.sections import Line, Section, text_line
from engine.model.distributions import MIN_RUNS

if TYPE_CHECKING:
    from recommender.quotes.queries import Quantiles, Quote, QuoteOption, QuoteRequest

KEY = "├ p10  ● p50  ┤ p90  ▸ later than was looked  ○ single estimate  [ ] least, most of few runs"


class DrawnEstimate(NamedTuple):
    """An estimate as it is drawn, and in words. None where it is not known."""

    low: int | None
    mid: int | None
    high: int | None
    measured: bool
    """Low, mid and high are quantiles; else the least and the most of few runs."""
    words: str


_TONES = {"now": "ok", "later": "info", "pool": "", "list": "dim"}


def compared(found: Quote, request: QuoteRequest, width: int) -> list[Section]:
    """Start and cost of every option, on one scale each."""
    options = found.options
    if not options:
        return [Section("Options", tuple(text_line(line, "warn") for text in found.warnings
                                         for line in wrap(printable(text), width)))]  # fmt: skip
    starts = [_start(each, found.at_ms) for each in options]
    costs = [_drawn(each.cost_microusd, estimate_words(each.cost_microusd, money)) for each in options]
    names = [" · ".join(part for part in option_names(each) if part) for each in options]
    rows = list(zip(options, names, strict=True))
    return [
        Section("When it starts", tuple(_rows(rows, starts, width)), asked_words(found, request)),
        Section("What it costs", tuple(_rows(rows, costs, width)), KEY),
    ]


def _start(option: QuoteOption, now_ms: int) -> DrawnEstimate:
    """From now."""
    found = _drawn(option.start_ms, start_words(option, now_ms), now_ms)
    if found.low is None and option.seeds:
        # Not before that: as far as was looked.
        return found._replace(low=max(option.looked_ms, option.asked_start_ms - now_ms))
    return found


def _drawn(values: Quantiles, words: str, zero: int = 0) -> DrawnEstimate:
    measured = values.runs >= MIN_RUNS
    marks = (values.p10, values.p50, values.p90) if measured else (values.least, None, values.most)
    low, mid, high = (None if each is None else max(0, each - zero) for each in marks)
    return DrawnEstimate(low, mid, high, measured, words)


def _rows(
    rows: Sequence[tuple[QuoteOption, str]],
    values: Sequence[DrawnEstimate],
    width: int,
) -> list[Line]:
    """One scale for all: from 0 to the most that is known."""
    top = max((value for each in values for value in each[:3] if value is not None), default=1)
    words = max(cell_len(each.words) for each in values)
    name = min(max(cell_len(title) for _, title in rows), max(10, width // 3))
    bar = width - name - words - 4
    lines = []
    for (option, title), value in zip(rows, values, strict=True):
        link = f"nodes pool:{quoted(printable(option.pool))}" if option.pool else ""
        ends = "├┤" if value.measured else "○○" if value.low == value.high else "[]"
        drawn = interval(value.low, value.mid, value.high, bar, top, ends) if bar >= 8 else ""
        spans = (
            (fit(title, name) + "  ", "link" if link else ""),
            (drawn + "  " if drawn else "", _TONES[option.kind]),
            (value.words, ""),
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
    runs = f"runs {estimate_words(option.duration_ms, duration)}"
    return Section(f"{name} · {where}", tuple(_listed([runs, *option_notes(option)], width)))


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


# -- in words ----------------------------------------------------------------------------------------------------------


def thin_starts(found: Quote) -> bool:
    """Whether the start of an option of the cell is not known, or from too few runs for quantiles."""
    return any(option.seeds and option.start_ms.p50 is None for option in found.options)


def asked_words(found: Quote, request: QuoteRequest) -> str:
    """What is asked for, and when."""
    devices = "" if request.gpus == 0 else f"{'all' if request.gpus is None else request.gpus} "
    of = f" with {devices}{printable(request.model) or 'GPU'}" if request.model or request.gpus else ""
    run = found.run_time
    lasts = duration(run.p50_ms) if run.told else f"about {duration(run.p50_ms)}"
    nodes = f"{request.nodes:,} node{'s' if request.nodes != 1 else ''}"
    return f"{nodes}{of} for {lasts}, asked at {timestamp(found.at_ms)} UTC (v{found.version:,})"


def option_names(option: QuoteOption) -> tuple[str, str]:
    """What the option is called, and where it is."""
    when = {"now": "now", "later": f"at {timestamp(option.asked_start_ms)[5:16]}"}.get(option.label, option.label)
    kind = f"{when}, spot" if option.spot else when
    place = printable(option.pool or option.machine_type)
    if option.kind == "pool":
        place += f" ({printable(option.gpu_model)})"
    return kind, f"{place} {printable(option.region)}".rstrip()


def start_words(option: QuoteOption, now_ms: int) -> str:
    """When it starts, from now; where no run reached its start, how far ahead they looked."""

    def text(at_ms: int) -> str:
        return "now" if at_ms <= now_ms else f"in {duration(at_ms - now_ms)}"

    if not option.seeds:
        assumed = "if it can be bought at once" if option.basis == "list price" else option.basis
        return f"{estimate_words(option.start_ms, text)}, {assumed}"
    asked_in_ms = option.asked_start_ms - now_ms
    if option.looked_ms <= asked_in_ms:
        return (
            f"not known: looked {duration(option.looked_ms)} ahead, and it is asked for {text(option.asked_start_ms)}"
        )
    looked = duration(option.looked_ms)
    return estimate_words(option.start_ms, text, f"over {looked}", f"not within {looked}")


def estimate_words(
    values: Quantiles, text: Callable[[int], str], beyond: str = "not known", never: str = "not known"
) -> str:
    """p50 with p10 and p90; what single runs say where they are too few for that. `beyond`: in place of a value that is
    not known; `never`: where none is."""

    def words(*marks: int | None) -> str:
        """From one to the other."""
        return "..".join(dict.fromkeys(beyond if each is None else text(each) for each in marks))

    if not values.runs:
        return words(values.least)
    of = "one run" if values.runs == 1 else f"{values.runs:,} runs"
    if values.least is None and values.p10 is None:
        return f"{never} ({of})"
    if values.runs < MIN_RUNS:
        return f"{of}: {words(values.least, values.most)}"
    spread = words(values.p10, values.p90)
    middle = words(values.p50)
    return f"{middle} ({of})" if spread == middle else f"{middle} ({spread}; {of})"


def option_notes(option: QuoteOption) -> list[str]:
    """What it costs an hour, odds, why not at once, and what else there is to say."""
    chance = ""
    if 0 < option.started < option.seeds:
        chance = f"starts within {duration(option.looked_ms)} in {option.started:,} of {option.seeds:,} runs"
    odds = "not known" if option.interruption_permille is None else f"{option.interruption_permille / 10:g}%"
    texts = [
        f"{money(option.rate_microusd_hour)} an hour while it runs; {_runs(option)}",
        chance,
        f"not now: {option.reason}" if option.reason else "",
        f"interrupted in its {duration(option.interruption_over_ms)}: {odds} ({option.interruption_basis})",
        *option.notes,
    ]
    return [text for text in texts if text]


def _runs(option: QuoteOption) -> str:
    if not option.seeds:
        return option.basis
    basis = option.basis if option.started else f"run {duration(option.looked_ms)} ahead"
    return f"{basis} in {option.seeds:,} run{'s' if option.seeds != 1 else ''}"
