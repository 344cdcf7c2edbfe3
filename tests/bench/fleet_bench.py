"""How a fleet does: how fast and how well it routes, how many submissions a second it takes and its cells acknowledge,
and how old what its page shows is.

    python -m tests.bench.fleet_bench --jobs 600

Cells, fleet and clients are processes and threads of their own. First a load over three cells that others use too, with
what would have been best in truth (`tests.bench.fleet_routing_bench`). Then two empty cells: clients submit one by one,
or so many at once; `in cells` ends when the last is in a cell's journal. For the age work is given to a cell itself,
and the page is asked until it shows it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from console.client.remote import RemoteClient
from console.fleet.queries import FleetClient, FleetPaths
from engine.model.commands import Submit
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from tests.bench import fleet_routing_bench
from tests.bench.fleet_chaos import CELL, FLEET, Kept, _all_up, _await

CLIENTS = 4
SETTLED_S = 300.0
LOOKS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 100], help="workloads of one submission")
    parser.add_argument("--speed", type=float, default=240.0, help="cell seconds a second while the load comes")
    parser.add_argument("--seed", type=int, default=1, help="of the load")
    parser.add_argument("--only", choices=("routing", "rates"), default="", help="this part alone")
    arguments = parser.parse_args()
    if arguments.only != "rates":
        with tempfile.TemporaryDirectory(prefix="fr-") as folder:
            _tell(fleet_routing_bench.measured(Path(folder), arguments.jobs, arguments.seed, arguments.speed))
    if arguments.only != "routing":
        with tempfile.TemporaryDirectory(prefix="fb-") as folder:
            _tell(measured(Path(folder), arguments.jobs, arguments.at_once))


def _tell(rows: Iterable[tuple[str, str]]) -> None:
    for what, found in rows:
        print(f"{what:48}  {found}", flush=True)


def measured(folder: Path, jobs: int, sizes: list[int]) -> list[tuple[str, str]]:
    cells = {}
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(CELL.format(nodes=400))
        words = ["serve", "--cell", name, "--cell-file", str(folder / f"{name}.yaml"), "--approval", "solo"]
        cells[name] = Kept(name, [*words, "--data", str(folder / name)], folder / f"{name}.log")
    lines = "\n".join(f"  - {{name: {name}, connect: {folder / name / 'engine.sock'}}}" for name in cells)
    (folder / "fleet.yaml").write_text(FLEET.format(cells=lines))
    paths = FleetPaths(folder / "f", folder / "f/fleet.db", folder / "f/fleet.sock", folder / "f/fleet.pid")
    fleet = Kept("fleet", ["fleet", "serve", "--file", str(folder / "fleet.yaml"), "--fleet", str(paths.folder)],
                 folder / "fleet.log")  # fmt: skip
    try:
        _await(paths, _all_up, 60)
        rates = [
            (f"{jobs:,} equal ones by {CLIENTS} clients, {size} at once", _rate(paths, f"s{size}-", jobs, size))
            for size in sizes
        ]
        return [*rates, ("age of what is shown", _ages(paths, folder / "a/engine.sock"))]
    finally:
        for process in (fleet, *cells.values()):
            process.stop()


def _rate(paths: FleetPaths, head: str, jobs: int, size: int) -> str:
    request = Resources(cpu_milli=100, memory_mib=100)
    specs = [
        WorkloadSpec(id=f"{head}{i}", queue="research", groups=(TaskGroup(request=request),), estimate_ms=86_400_000)
        for i in range(jobs)
    ]
    parts = [specs[at : at + size] for at in range(0, jobs, size)]
    took_ms: list[float] = []

    def submit(mine: list[list[WorkloadSpec]]) -> None:
        with closing(FleetClient(paths.socket, patience_s=60)) as client:
            for part in mine:
                began = time.perf_counter()
                client.submit(part)
                took_ms.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    threads = [threading.Thread(target=submit, args=(parts[at::CLIENTS],)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    acknowledged_s = time.perf_counter() - began
    _await(paths, lambda view: not {"waiting", "sending"} & view.counts.keys(), SETTLED_S)
    there_s = time.perf_counter() - began
    return (
        f"{jobs / acknowledged_s:,.1f}/s acknowledged, {jobs / there_s:,.1f}/s in cells; "
        f"a submission p50 {statistics.median(took_ms):,.0f} ms, longest {max(took_ms):,.0f} ms"
    )


def _ages(paths: FleetPaths, cell: Path) -> str:
    """Seconds from when a cell has taken work until the fleet says that more of it is in use; and how old the page says
    that its figures are."""
    after: list[float] = []
    shown: list[float] = []
    request = Resources(cpu_milli=1000, memory_mib=100)
    with closing(RemoteClient(str(cell))) as there, closing(FleetClient(paths.socket, patience_s=20)) as client:
        for i in range(LOOKS):
            before = _used(client)
            spec = WorkloadSpec(id=f"own-{i}", queue="research", groups=(TaskGroup(request=request),))
            there.command(Submit(workloads=(spec,)))
            began = time.perf_counter()
            while _used(client) == before:
                time.sleep(0.02)
            after.append(time.perf_counter() - began)
            view = client.view()
            shown.append(max(view.now_ms - each.seen_ms for each in view.cells) / 1000)
    return (
        f"a change is shown after {statistics.median(after):.2f} s, at the longest {max(after):.2f} s; "
        f"told to be at most {max(shown):.2f} s old"
    )


def _used(client: FleetClient) -> int:
    return next(cell for cell in client.view().cells if cell.name == "a").used.get("cpu_milli", 0)


if __name__ == "__main__":
    main()
