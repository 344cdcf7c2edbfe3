"""Benchmark of quotes: how long `muster cost` waits for an answer, and how much of the twin is in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import twin_bench

from console.service.advisor import Advisor, Quotes
from engine.loop import EngineLoop
from engine.model.specs import HOUR_MS
from engine.twin.forks import Pages
from recommender.estimates.queries import Quote, QuoteRequest


def cost() -> Iterator[dict[str, Any]]:
    """64 nodes for 6 h, now and 12 h later: the first answer after a start, then the median of five more."""
    for size, workloads, gangs in (
        (400, 2_000, True),
        (5_000, 10_000, True),
        (50_000, 100_000, False),
        (130_000, 100_000, False),
    ):
        engine = twin_bench._full_cell(size, workloads, gangs=gangs)
        pages = Pages()
        while not pages.tidy(0.01):
            pass
        loop = EngineLoop(engine)
        loop.start()
        try:
            quotes = Quotes(loop, Advisor(loop))
            nodes = min(64, size // 8)
            at_ms = engine.now_ms
            request = QuoteRequest(
                nodes=nodes, gpus=8, run_ms=6 * HOUR_MS, queue="q1", other_start_ms=at_ms + 12 * HOUR_MS
            )
            took, answers = [], []
            for _ in range(6):
                begun = time.perf_counter()
                answers.append(quotes.quote(request))
                took.append(time.perf_counter() - begun)
        finally:
            loop.stop()
            engine.close()
        warm_s = sorted(took[1:])[2]
        yield {
            "at": f"{size:,} nodes, {workloads:,} workloads",
            "result": f"{warm_s:.2f} s, first {took[0]:.2f} s",
            "warm_s": warm_s,
            "cold_s": took[0],
            "seeds": [option.seeds for option in answers[-1].options],
            "reference": _told(answers[-1]),
        }


def _told(quote: Quote) -> str:
    """What the last answer rests on, option by option."""
    each = []
    for option in quote.options:
        known = "start known" if option.start_ms.p50 is not None else f"looked {option.looked_ms / HOUR_MS:.1f} h ahead"
        arrivals = "with" if option.arrivals else "without"
        each.append(f"{option.label}: {known}, {option.seeds} seeds {arrivals} arrivals")
    return "; ".join(each)
