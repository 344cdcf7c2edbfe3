"""Cells of a size that hurts: tens of thousands of nodes, all of them busy, and a long queue of work behind.

    engine = large_engine(130_000, 1_000_000)
    loop = EngineLoop(engine, feed=steady_feed(engine))

Or as a process that serves one: `python -m tests.support.large_cells SOCKET --nodes 130000 --workloads 1000000`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import text

from engine.control import Engine
from engine.journal.event_journal import Journal
from engine.loop import CYCLE_EVERY_MS, Feed
from engine.model.commands import Define, Submit
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
)
from engine.state.cell_state import State

START_MS = 1_776_072_600_000
"""2026-04-13 09:30 UTC."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LOT = 20_000
"""Workloads of one submission."""
COME_EVERY_MS = 100
"""Between submissions of the feed, as of clients that send what they have ten times a second."""
POOLS = (
    PoolSpec(
        name="h100", capacity=Resources(cpu_milli=192_000, memory_mib=2_000_000, gpu_milli=8000), gpu_model="H100",
        price_microusd_hour=24_000_000,
    ),
    PoolSpec(
        name="a100", capacity=Resources(cpu_milli=96_000, memory_mib=1_000_000, gpu_milli=4000), gpu_model="A100",
        price_microusd_hour=9_000_000,
    ),
    PoolSpec(
        name="cpu", capacity=Resources(cpu_milli=64_000, memory_mib=256_000), price_microusd_hour=1_500_000,
    ),
)  # fmt: skip
PARTS = ("research", "product", "platform", "batch")
TEAMS = ("vision", "speech", "search", "ads", "robots", "maps", "safety", "infra")
WHAT = ("train", "finetune", "eval", "etl", "sweep", "serve", "index", "render")
_SIZES = ((8000, 96_000, 900), (8000, 192_000, 1900), (4000, 48_000, 450), (4000, 96_000, 990), (1000, 12_000, 110))
"""milli-GPU, milli-CPU, GiB of a task; each takes a good part of a node, so that nodes are soon full."""


def large_cell(nodes: int) -> CellSpec:
    """Zones of 8 blocks of 16 racks of 32 nodes; a tree of 32 queues in 4 cohorts, without limits on GPU."""
    queues = [QueueSpec(name="root"), *(QueueSpec(name=part, parent="root") for part in PARTS)]
    queues += [QueueSpec(name=f"{part}/{team}", parent=part) for part in PARTS for team in TEAMS]
    return CellSpec(
        name="large",
        pools=POOLS,
        nodes=tuple(_node(i) for i in range(nodes)),
        queues=tuple(queues),
        priority_classes=(
            PriorityClassSpec(name="low", value=-100),
            PriorityClassSpec(name="normal", value=0),
            PriorityClassSpec(name="high", value=100),
        ),
    )


def _node(i: int) -> NodeSpec:
    rack, block, zone = i // 32, i // 512, i // 4096
    pool = POOLS[(0, 1, 0, 2)[rack % 4]].name
    return NodeSpec(
        id=f"{pool}-{i:06d}", pool=pool, zone=f"z{zone}", block=f"z{zone}-b{block}", rack=f"b{block}-r{rack}"
    )


def work(rng: random.Random, number: int, *, runs_ms: int) -> WorkloadSpec:
    """One workload of a mix: single tasks, one gang in sixteen. `runs_ms`: about how long it runs, once it does."""
    part, team = rng.choice(PARTS), rng.choice(TEAMS)
    count = rng.choice((2, 4, 8)) if number % 16 == 0 else 1
    what = rng.choice(WHAT)
    return WorkloadSpec(
        id=f"{what[:2]}-{number:07d}",
        name=f"{team}-{what}-{rng.randrange(1_000_000):06x}",
        queue=f"{part}/{team}",
        groups=_GROUPS[rng.randrange(len(_SIZES)), count],
        priority_class=rng.choice(("low", "normal", "normal", "normal", "high")),
        tenant=part,
        team=team,
        estimate_ms=HOUR_MS,
        topology=TopologyRequest(preferred="rack") if count > 1 else None,
        simulated_runtime_ms=max(1000, int(runs_ms * rng.uniform(0, 2))),
    )


_GROUPS = {
    (i, count): (
        TaskGroup(count=count, request=Resources(cpu_milli=cpu, memory_mib=gib * 1024, gpu_milli=gpu)),
    )
    for i, (gpu, cpu, gib) in enumerate(_SIZES)
    for count in (1, 2, 4, 8)
}  # fmt: skip


def large_engine(nodes: int, workloads: int, *, journal: Path | None = None, kept: Path | None = None) -> Engine:
    """A cell whose nodes are full: a fifth of the workloads has run and ended, some run, the rest waits. A million
    take a minute and a half to make; from the file `kept`, where they are put, it is a few seconds."""
    state = None if kept is None or not kept.exists() else _read(kept)
    if state is not None and journal is not None:
        _record(state, journal)
        return Engine.open(journal)
    if state is not None:
        engine = Engine(state)
        engine.settle()
        return engine
    engine = Engine.open(journal)
    _fill(engine, nodes, workloads)
    if kept is not None:
        kept.write_bytes(msgspec.msgpack.encode(engine.state.dump()))
    gc.collect()
    return engine


def _read(kept: Path) -> State | None:
    """None where it is of other code than ours."""
    state = State()
    try:
        state.load(msgspec.msgpack.decode(kept.read_bytes()))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    return state


def _record(state: State, path: Path) -> None:
    """A new journal that begins with a snapshot of the state."""
    journal = Journal(path, 0)
    journal.transact(lambda db: db.execute(text("UPDATE head SET last_version = :last"), {"last": state.version}))
    journal.close()
    journal = Journal(path, 0)
    journal.write_snapshot(state.dump(), state.version)
    journal.close()


def _fill(engine: Engine, nodes: int, workloads: int) -> None:
    engine.cycle_every_ms = CYCLE_EVERY_MS
    engine.advance(START_MS)
    engine.command(Define(cell=large_cell(nodes)))
    rng, gone = random.Random(1), workloads // 5
    # As many as have room at once, each lot ended before the next comes.
    for numbers in _lots(range(gone), min(LOT, max(nodes // 4, 100))):
        engine.command(Submit(workloads=tuple(work(rng, i, runs_ms=500) for i in numbers)))
        engine.advance(engine.now_ms + 3000)
    # Then longer work than there is room for: its ends are spread so that a part of the nodes is freed each second.
    for numbers in _lots(range(gone, workloads), LOT):
        engine.command(Submit(workloads=tuple(work(rng, i, runs_ms=10 * MINUTE_MS) for i in numbers)))


def steady_feed(engine: Engine, per_s: int = 200, *, seed: int = 2) -> Feed:
    """Submissions from now on, ten times a cell second. What ends lets others start; both go on for hours."""
    rng, begun = random.Random(seed), engine.now_ms
    first = len(engine.state.workloads.ids)
    for i in itertools.count():
        at_ms = begun + i * 1000 // per_s // COME_EVERY_MS * COME_EVERY_MS
        yield at_ms, work(rng, first + i, runs_ms=10 * MINUTE_MS)


def _lots(numbers: range, size: int) -> Iterator[Sequence[int]]:
    return (numbers[at : at + size] for at in range(0, len(numbers), size))


def main(arguments: Sequence[str] | None = None) -> None:
    from console.client.sockets import bind_unix
    from console.server.engine_process import SWITCH_S, keep_state, new_event_loop, run_server
    from console.service.advisor import Advisor
    from console.service.local_client import LocalClient
    from engine.loop import EngineLoop
    from tests.support.gates import gate_of

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket", type=Path)
    parser.add_argument("--nodes", type=int, default=130_000)
    parser.add_argument("--workloads", type=int, default=1_000_000)
    parser.add_argument("--per-second", type=int, default=200, help="submissions; 0: an engine with nothing to do")
    parser.add_argument("--journal", type=Path, help="a new file; left out: in memory")
    options = parser.parse_args(arguments)
    kept = Path(tempfile.gettempdir()) / f"muster-large-{options.nodes}-{options.workloads}.state"
    engine = large_engine(options.nodes, options.workloads, journal=options.journal, kept=kept)
    feed = steady_feed(engine, options.per_second) if options.per_second else None
    sys.setswitchinterval(SWITCH_S)
    keep_state()
    loop = EngineLoop(engine, feed=feed)
    client = LocalClient(loop, gate_of(engine), Advisor(loop), name="large")
    loop.paused = feed is None
    loop.start()
    try:
        sockets = [bind_unix(options.socket)]
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run_server(client, loop, sockets, lambda: print("ready", flush=True)))
    finally:
        loop.stop()
        engine.close()


if __name__ == "__main__":
    main()
