"""How well a fleet routes: a load is submitted to it as time passes, over three cells that others use too.

Cells, fleet and clients are processes and threads of their own; cells run at `speed` cell seconds a second. Afterwards
every cell is run once more in memory with the true run times (`tests.bench.fleet_truth`): as it was, with one
submission moved to it from elsewhere, and with the same load sent to the cells in turn, or to the largest alone.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from console.client.remote import RemoteClient
from console.fleet.queries import FleetClient, FleetPaths
from engine.model.commands import Submit
from engine.model.errors import MusterError
from engine.model.list_queries import Query
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from tests.bench.fleet_chaos import Kept, _all_up, _await
from tests.bench.fleet_truth import Arrival, cell_in, starts

MINUTE_MS = 60_000
NODES = {"large": 16, "middle": 8, "small": 8}
OTHERS = {"large": 0.55, "middle": 0.15, "small": 0.4}
"""Part of each cell that work uses which does not come through the fleet."""
LOAD = 0.92
"""Of all cells together, with that of others."""
GPUS, WEIGHTS = (1, 2, 4, 8, 16), (30, 25, 20, 18, 7)
MEAN_RUN_MS = 60 * MINUTE_MS
CLIENTS = 24
SAMPLE = 120
"""Submissions whose start in the other cells is worked out."""
SETTLED_S = 240.0
CELL = """\
pools:
  - {{name: gpu, nodes: {nodes}, capacity: {{cpu: 64, memory: 512GiB, gpu: 8}}, gpu_model: H100}}
queues:
  - {{name: research}}
priority_classes:
  - {{name: normal, value: 500}}
"""
FLEET = """\
name: bench
cells:
{cells}
routing: {{bind_within: 24h, bind_after: 0s, crowded: 100%, answer_within: 4s}}
"""


class Sent(NamedTuple):
    """A submission as its client saw it."""

    at_ms: int
    """Of cell time, since the bench began."""
    took_ms: float
    """Until it was known where it goes."""
    cell: str


def load(draw: random.Random, head: str, gpus: float) -> Iterator[Arrival]:
    """Work that uses so many GPUs on average, without end. Its users say more than it takes: 1 to 3 times."""
    mean_gpus = sum(each * weight for each, weight in zip(GPUS, WEIGHTS, strict=True)) / sum(WEIGHTS)
    at_ms = 0.0
    for i in itertools.count():
        at_ms += draw.expovariate(gpus / (mean_gpus * MEAN_RUN_MS))
        yield Arrival(round(at_ms), _job(draw, f"{head}{i}"))


def _job(draw: random.Random, name: str) -> WorkloadSpec:
    (size,) = draw.choices(GPUS, WEIGHTS)
    run_ms = min(max(round(draw.lognormvariate(0, 1) * MEAN_RUN_MS / 1.65), MINUTE_MS), 8 * MEAN_RUN_MS)
    request = Resources(cpu_milli=min(size, 8) * 4000, memory_mib=1000, gpu_milli=min(size, 8) * 1000)
    estimate_ms = round(run_ms * draw.uniform(1, 3) / MINUTE_MS + 1) * MINUTE_MS
    return WorkloadSpec(
        id=name, queue="research", groups=(TaskGroup(count=max(size // 8, 1), request=request),),
        estimate_ms=estimate_ms, simulated_runtime_ms=run_ms,
    )  # fmt: skip


def measured(folder: Path, jobs: int, seed: int, speed: float) -> Iterator[tuple[str, str]]:
    """What, and how much, as soon as it is known."""
    draw = random.Random(seed)
    total = 8 * sum(NODES.values())
    of_others = sum(8 * NODES[name] * part for name, part in OTHERS.items())
    wanted = list(itertools.islice(load(draw, "f", LOAD * total - of_others), jobs))
    until_ms = wanted[-1].at_ms
    others = {
        name: list(
            itertools.takewhile(lambda each: each.at_ms < until_ms, load(draw, f"{name}-", 8 * NODES[name] * part))
        )
        for name, part in OTHERS.items()
    }
    live = Live(folder, wanted, others, speed)
    sent, where, shapes_s = live.run(seed)
    yield ("cell seconds a second", f"{speed:g}")
    yield from _routing(sent, where, shapes_s)
    truth = Truth(folder, wanted, others, sent, speed)
    yield from truth.rows(draw)


class Live:
    """The processes, and who submits."""

    def __init__(self, folder: Path, wanted: list[Arrival], others: dict[str, list[Arrival]], speed: float) -> None:
        self.folder, self.wanted, self.others, self.speed = folder, wanted, others, speed
        self.paths = FleetPaths(folder / "f", folder / "f/fleet.db", folder / "f/fleet.sock", folder / "f/fleet.pid")

    def run(self, seed: int) -> tuple[dict[str, Sent], dict[str, list[str]], float]:
        """What became of each; id -> cells that have it; and how long a batch of fifty shapes took."""
        processes = [self._cell(name, nodes) for name, nodes in NODES.items()]
        lines = "\n".join(f"  - {{name: {name}, connect: {self._socket(name)}}}" for name in NODES)
        (self.folder / "fleet.yaml").write_text(FLEET.format(cells=lines))
        words = ["fleet", "serve", "--file", str(self.folder / "fleet.yaml"), "--fleet", str(self.paths.folder)]
        processes.append(Kept("fleet", words, self.folder / "fleet.log"))
        try:
            _await(self.paths, _all_up, 120)
            began = time.monotonic()
            feeding = [threading.Thread(target=self._feed, args=(name, began)) for name in NODES]
            for thread in feeding:
                thread.start()
            sent: dict[str, Sent] = {}
            with ThreadPoolExecutor(CLIENTS) as clients:
                for each in self.wanted:
                    self._wait_until(began, each.at_ms)
                    clients.submit(self._submit, each.spec, began, sent)
            for thread in feeding:
                thread.join()
            _await(self.paths, lambda view: not {"waiting", "sending"} & view.counts.keys(), SETTLED_S)
            where: dict[str, list[str]] = {}
            for name in NODES:
                for workload in self._ids(name):
                    where.setdefault(workload, []).append(name)
            return sent, {each.spec.id: where.get(each.spec.id, []) for each in self.wanted}, self._shapes(seed)
        finally:
            for process in processes:
                process.stop()

    def _socket(self, name: str) -> Path:
        return self.folder / name / "engine.sock"

    def _cell(self, name: str, nodes: int) -> Kept:
        (self.folder / f"{name}.yaml").write_text(CELL.format(nodes=nodes))
        words = ["serve", "--cell", name, "--cell-file", str(self.folder / f"{name}.yaml"), "--approval", "solo"]
        words += ["--speed", str(self.speed), "--data", str(self.folder / name)]
        return Kept(name, words, self.folder / f"{name}.log")

    def _feed(self, name: str, began: float) -> None:
        """What others submit to a cell itself."""
        with closing(RemoteClient(str(self._socket(name)))) as client:
            for each in self.others[name]:
                self._wait_until(began, each.at_ms)
                client.command(Submit(workloads=(each.spec,)))

    def _submit(self, spec: WorkloadSpec, began: float, sent: dict[str, Sent]) -> None:
        """Until it is known where it goes."""
        asked = time.monotonic()
        with closing(FleetClient(self.paths.socket, patience_s=60)) as client:
            while True:
                try:
                    (found,) = client.submit([spec])
                    while not found.cell:
                        time.sleep(0.05)
                        found = client.submission(spec.id)
                    break
                except MusterError:
                    time.sleep(0.2)  # the same again is safe
        at_ms = round((asked - began) * 1000 * self.speed)
        sent[spec.id] = Sent(at_ms, (time.monotonic() - asked) * 1000, found.cell)

    def _ids(self, name: str) -> set[str]:
        with closing(RemoteClient(str(self._socket(name)))) as client:
            rows = client.query(Query(kind="workloads", columns=("id",), limit=10_000)).rows
        return {row[0] for row in rows}

    def _wait_until(self, began: float, at_ms: int) -> None:
        time.sleep(max(0.0, began + at_ms / 1000 / self.speed - time.monotonic()))

    def _shapes(self, seed: int) -> float:
        """Seconds until fifty shapes of one batch are in cells."""
        draw = random.Random(seed + 1)
        specs = [_job(draw, f"s{i}") for i in range(50)]
        specs = [msgspec.structs.replace(spec, estimate_ms=spec.estimate_ms + i) for i, spec in enumerate(specs)]
        began = time.monotonic()
        with closing(FleetClient(self.paths.socket, patience_s=90)) as client:
            client.submit(specs)
            while any(client.submission(spec.id).state in ("waiting", "sending") for spec in specs):
                time.sleep(0.05)
        return time.monotonic() - began


def _routing(sent: dict[str, Sent], where: dict[str, list[str]], shapes_s: float) -> list[tuple[str, str]]:
    took = sorted(each.took_ms for each in sent.values())
    cells = {name: sum(each.cell == name for each in sent.values()) for name in NODES}
    once = sum(len(there) == 1 for there in where.values())
    return [
        ("submissions", f"{len(sent):,}: " + ", ".join(f"{name} {count:,}" for name, count in cells.items())),
        ("exactly once", f"{once:,} of {len(where):,}, lost {sum(not there for there in where.values())}, "
                         f"in two cells {sum(len(there) > 1 for there in where.values())}"),
        ("until it is known where one goes", f"p50 {_at(took, 0.5):,.0f} ms, p99 {_at(took, 0.99):,.0f} ms"),
        ("fifty shapes in one batch, all in cells", f"{shapes_s:.1f} s"),
    ]  # fmt: skip


class Truth:
    """The cells once more, with what really was."""

    def __init__(
        self, folder: Path, wanted: list[Arrival], others: dict[str, list[Arrival]], sent: dict[str, Sent], speed: float
    ) -> None:
        self.speed = speed
        self.cells = {name: cell_in(folder / f"{name}.yaml") for name in NODES}
        self.others, self.sent = others, sent
        self.jobs = [Arrival(sent[each.spec.id].at_ms, each.spec) for each in wanted]

    def rows(self, draw: random.Random) -> Iterator[tuple[str, str]]:
        routed = {name: each.cell for name, each in self.sent.items()}
        took = {name: round(each.took_ms * self.speed) for name, each in self.sent.items()}
        names = [each.spec.id for each in self.jobs]
        in_turn = {name: list(NODES)[i % len(NODES)] for i, name in enumerate(names)}
        one = max(NODES, key=lambda name: NODES[name])
        for what, cells, late_ms in (
            ("waiting, as the fleet routed", routed, took),
            ("waiting, the same without the time routing took", routed, {}),
            ("waiting, to the cells in turn", in_turn, {}),
            ("waiting, in turn by size", self._by_size(names), {}),
            (f"waiting, all to {one}", dict.fromkeys(names, one), {}),
        ):
            yield what, _told([each / MINUTE_MS for each in self._waits(cells, late_ms).values()])
        regret, best = self._regret(draw.sample(names, min(SAMPLE, len(names))), routed)
        yield "later than in the best cell in truth", _told([each / MINUTE_MS for each in regret])
        yield "sent to the best, or within a minute of it", f"{best:.0%} of {len(regret)} that were worked out"

    def _by_size(self, names: list[str]) -> dict[str, str]:
        """In turn, each cell as often as it is large."""
        turns = [name for name, nodes in NODES.items() for _ in range(nodes)]
        random.Random(0).shuffle(turns)
        return {name: turns[i % len(turns)] for i, name in enumerate(names)}

    def _waits(self, cells: dict[str, str], late_ms: dict[str, int]) -> dict[str, int]:
        """Id -> how long it waits from its submission on."""
        found: dict[str, int] = {}
        for name in NODES:
            mine = [each for each in self.jobs if cells[each.spec.id] == name]
            given = [Arrival(each.at_ms + late_ms.get(each.spec.id, 0), each.spec) for each in mine]
            started = starts(self.cells[name], [*self.others[name], *given], [each.spec.id for each in mine])
            found |= {each.spec.id: started[each.spec.id] - each.at_ms for each in mine}
        return found

    def _regret(self, sample: list[str], routed: dict[str, str]) -> tuple[list[int], float]:
        """How much later each started than in the cell where it would have started soonest, all else being as it was;
        and the part of those that were sent there."""
        regret = []
        for name in sample:
            (mine,) = (each for each in self.jobs if each.spec.id == name)
            found = {}
            for cell in NODES:
                there = [each for each in self.jobs if routed[each.spec.id] == cell and each.spec.id != name]
                found[cell] = starts(self.cells[cell], [*self.others[cell], *there, mine], [name])[name]
            regret.append(found[routed[name]] - min(found.values()))
        return regret, sum(each <= MINUTE_MS for each in regret) / len(regret)


def _at(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def _told(minutes: list[float]) -> str:
    ordered = sorted(minutes)
    return (
        f"mean {statistics.fmean(ordered):.1f} min, p50 {_at(ordered, 0.5):.1f}, p90 {_at(ordered, 0.9):.1f}, "
        f"p99 {_at(ordered, 0.99):.1f}"
    )
