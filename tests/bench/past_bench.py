"""What it takes to look back: the first time, a step, a difference; and what the live engine's turns take meanwhile."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engine_bench

from console.cli import demo_cell
from engine.control import Engine
from engine.journal.past_states import PastState
from engine.loop import EngineLoop
from engine.model.commands import Define, Submit
from engine.model.specs import TaskGroup, WorkloadSpec
from engine.past.process import PastRequest
from engine.past.replicas import PastReplicas

DAYS = int(os.environ.get("PAST_BENCH_DAYS", "3"))
MINUTE_MS = 60_000
PATIENCE_S = 600.0


def past() -> Iterator[dict[str, Any]]:
    """Of a demo of 400 nodes over some cell days, and of a journal of a million events."""
    with tempfile.TemporaryDirectory() as folder:
        for name, made in (("400 nodes", _demo(Path(folder))), ("5,000 nodes", _million(Path(folder)))):
            yield from _looked_back(made, f"{made.version:,} events, {name}")


def _demo(folder: Path) -> Engine:
    engine = Engine.open(folder / "demo.db", seed=1)
    engine.advance(demo_cell.START_MS)
    engine.command(Define(cell=demo_cell.cell(400)))
    engine.cycle_every_ms = 100
    until_ms = demo_cell.START_MS + DAYS * 24 * 60 * MINUTE_MS
    for at_ms, what in demo_cell.feed(engine, 1):
        if at_ms > until_ms:
            break
        engine.advance(max(at_ms, engine.now_ms))
        engine.commands([Submit(workloads=(what,)) if isinstance(what, WorkloadSpec) else what])
    engine.advance(until_ms)
    return engine


def _million(folder: Path) -> Engine:
    engine = Engine.open(folder / "million.db", cell=engine_bench.cell(5000))
    rng = random.Random(2)
    groups = [(TaskGroup(request=request),) for request in engine_bench.requests(rng, 64)]
    batch = 0
    while engine.version < 1_000_000:
        engine.command(Submit(workloads=engine_bench.singles(rng, f"w{batch}", 2000, groups)))
        engine.advance(engine.now_ms + 20_000)
        batch += 1
    return engine


def _looked_back(engine: Engine, at: str) -> Iterator[dict[str, Any]]:
    loop, replicas = EngineLoop(engine), PastReplicas(engine.place)
    loop.start()
    try:
        found = replicas.span()
        length = found.newest_ms - found.earliest_ms
        half = found.earliest_ms + length // 2
        step = min(MINUTE_MS, length // 100)
        for name, at_ms in (("half-way", half), ("the end", found.newest_ms)):
            state, begun = PastState(engine.place), time.process_time()
            state.seek(at_ms)
            cpu_s = time.process_time() - begun
            yield {"at": f"folded up to {name}, {at}", "result": f"{cpu_s:.2f} CPU s", "cpu_seconds": cpu_s,
                   "reference": f"{state.state.version:,} events, the journal's snapshots used"}  # fmt: skip
            state.close()
        alone = _turns_ms(loop, lambda: time.sleep(3.0))
        shown: dict[str, tuple[float, float]] = {}
        meanwhile = 0.0
        for name, request in (
            ("first look, half-way back", PastRequest(half)),
            ("a step back", PastRequest(half - step)),
            ("a step on", PastRequest(half)),
            ("a jump to the end", PastRequest(found.newest_ms)),
            ("a jump back to half-way", PastRequest(half + step)),
            ("difference of the last quarter", PastRequest(found.newest_ms, found.newest_ms - length // 4)),
        ):
            begun = time.monotonic()
            turns = _turns_ms(loop, lambda request=request: replicas.status(request, engine.now_ms, PATIENCE_S))
            shown[name] = time.monotonic() - begun, turns
            if shown[name][0] > 1:
                meanwhile = max(meanwhile, turns)
        for name, (seconds, turns) in shown.items():
            yield {"at": f"{name}, {at}", "result": f"{seconds:.2f} s", "seconds": seconds,
                   "reference": f"p95 of a turn meanwhile {turns:.1f} ms, alone {alone:.1f} ms"}  # fmt: skip
        yield {"at": f"a live turn's p95 meanwhile, {at}", "result": f"{meanwhile / alone:.2f} x alone",
               "ratio": meanwhile / alone, "reference": f"alone {alone:.1f} ms"}  # fmt: skip
    finally:
        replicas.close()
        loop.stop()
        engine.close()


def _turns_ms(loop: EngineLoop, do: Callable[[], object]) -> float:
    """Time that a call waits for the engine's thread and is answered, p95, milliseconds, while something is done."""
    over, waits = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            begun = time.perf_counter()
            loop.call(lambda engine: engine.now_ms)
            waits.append((time.perf_counter() - begun) * 1000)
            time.sleep(0.005)

    asking = threading.Thread(target=ask)
    asking.start()
    do()
    over.set()
    asking.join()
    return sorted(waits)[len(waits) * 95 // 100]
