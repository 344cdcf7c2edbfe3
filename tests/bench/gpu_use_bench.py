"""What following GPU use costs: CPU time and memory of a step, and of a look for idle GPUs.

    python tests/bench/gpu_use_bench.py --nodes 5000 --steps 12

A server in another process answers as a Prometheus with eight GPUs a node would: DCGM's labels, gzip when asked for.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import multiprocessing
import resource
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs

import numpy as np

from engine.journal.side_tables import Records
from recommender.findings.idle_devices import idle_devices
from recommender.history.gpu_use import SLOT_MS, GpuUse, HeldDevices, Holdings
from recommender.history.metrics import OutsideNames, Retention
from recommender.history.node_figures import NodeFigures
from recommender.history.prometheus import Prometheus
from recommender.history.telemetry import Telemetry

GPUS = 8
STEP_MS = 60_000


def answer(question: str, nodes: int, at_s: int) -> bytes:
    """The series of one question at one time."""
    if "mode=" in question or "node_" in question or ("Hostname, node" in question and "group by" not in question):
        rows = [
            f'{{"metric":{{"Hostname":"n{n}","instance":"n{n}:9400"}},"values":[[{at_s},"12.5"]]}}'
            for n in range(nodes)
        ]
    elif "XID" in question:
        rows = []
    elif "group by" in question:
        rows = [
            f'{{"metric":{{"UUID":"GPU-604ac76c-d9cf-fef3-62e9-{n:06d}{g:06d}","gpu":"{g}","Hostname":"n{n}",'
            f'"instance":"10.0.0.1:9400","namespace":"team","pod":"train-{n}-{g}"}},"values":[[{at_s},"1"]]}}'
            for n in range(nodes)
            for g in range(GPUS)
        ]
    else:
        rows = [
            f'{{"metric":{{"UUID":"GPU-604ac76c-d9cf-fef3-62e9-{n:06d}{g:06d}"}},'
            f'"values":[[{at_s},"{(n * 7 + g * 13 + at_s // 60) % 1000 / 10}"]]}}'
            for n in range(nodes)
            for g in range(GPUS)
        ]
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(rows)}]}}}}'.encode()


def serve(port: multiprocessing.queues.Queue[int], nodes: int, packed: bool) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            content = answer(asked["query"][0], nodes, int(asked["end"][0]))
            content = gzip.compress(content, 1) if packed else content
            self.send_response(200)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        port.put(served.server_port)
        served.serve_forever()


def holdings(nodes: int, now_ms: int, pods: bool) -> Holdings:
    """Work of one, two, four and eight GPUs."""
    work, work_at, node_at, masks = [], [], [], []
    names = {}
    for n in range(nodes):
        size = (1, 2, 4, 8)[n % 4]
        for first in range(0, GPUS, size):
            at = len(work)
            work.append(HeldDevices(f"w{at}", f"tenant-{at % 200}", now_ms - 86_400_000, size, False, False, 2_500_000))
            work_at.append(at)
            node_at.append(n)
            masks.append(((1 << size) - 1) << first)
            names |= {("team", f"train-{n}-{g}"): f"w{at}" for g in range(first, first + size)}
    columns = (np.array(each, np.int64) for each in (work_at, node_at, masks))
    return Holdings(
        now_ms, work, [f"n{n}" for n in range(nodes)], *columns, True, OutsideNames(pods=names if pods else {})
    )


def measured(what: str, began: float, count: int = 1) -> None:
    print(f"{what:<44}{(time.process_time() - began) / count:8.3f} CPU s")


def run(nodes: int, steps: int, packed: bool, pods: bool) -> None:
    port: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(port, nodes, packed), daemon=True)
    server.start()
    now_ms = time.time_ns() // 1_000_000 // SLOT_MS * SLOT_MS
    with TemporaryDirectory() as folder, closing(Prometheus(f"http://127.0.0.1:{port.get()}")) as asked:
        records = Records(Path(folder) / "journal.db")
        use, telemetry = GpuUse(records), Telemetry(records, Retention(series=200_000))
        use.until_ms = use.since_ms = now_ms - 12 * SLOT_MS
        held = holdings(nodes, now_ms, pods)
        figures = NodeFigures(telemetry, asked.source)
        while use.follow(asked, held, STEP_MS, now_ms):
            pass
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        for step in range(1, steps + 1):
            asked.allow(600)
            use.follow(asked, held, STEP_MS, now_ms + step * STEP_MS)
        measured(f"devices of a step ({nodes * GPUS:,})", began, steps)
        while figures.follow(asked, held.nodes, now_ms):
            pass
        # Each figure comes around once in fifteen minutes, or more often in a smaller cell.
        began = time.process_time()
        for step in range(1, 31):
            asked.allow(600)
            figures.follow(asked, held.nodes, now_ms + step * STEP_MS)
        measured(f"nodes of a step ({nodes:,}), mean of 30", began, 30)
        began = time.process_time()
        found = idle_devices(use, held, lambda *_: None, 0)
        measured(f"look for idle GPUs ({len(found.suggestions)} found)", began)
        began = time.process_time()
        again = GpuUse(records)
        again.open()
        measured("read after a restart (13 slots or so)", began)
        columns = sum(column.nbytes for column in use._columns) / 2**20
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"window of a day {columns:.0f} MiB; disk {size:.0f} MiB")
        print(f"peak of the process {peak / 1024:.0f} MiB, {before_kib / 1024:.0f} of it after catching up")
        records.close()
    server.terminate()
    server.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--packed", action="store_true", help="answers by gzip")
    parser.add_argument("--pods", action="store_true", help="joined by labels of pods")
    given = parser.parse_args()
    run(given.nodes, given.steps, given.packed, given.pods)
