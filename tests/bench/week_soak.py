"""A demo cell under its live load for a week of cell time: memory, open files, threads and disk of its engine, as the
week goes by, with somebody who looks at it.

    PYTHONPATH=$PWD python tests/bench/week_soak.py --speed 100 --days 7

At speed 100 a week takes 1.7 hours. It ends earlier with `--minutes`, and says how far it came. The engine is another
process, as a console starts it; the first line is of when it has settled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from console.client.remote import RemoteClient
from console.forms.settings import paths_in

DAY_MS = 86_400_000
SETTLED_S = 20.0
LOOKS = 5
"""Between two lines."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", type=float, default=100.0)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--minutes", type=float, default=0.0, help="end after so many, wherever the week is")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--lines", type=int, default=28)
    parser.add_argument("--keep", default="1d", help="how long events are kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as made:
        (run := Path(made, "run")).mkdir(mode=0o700)
        environment = os.environ | {
            "XDG_RUNTIME_DIR": str(run), "MUSTER_STATE_DIR": made, "XDG_CONFIG_HOME": made,
            "MUSTER_KEEP_EVENTS": given.keep,
        }  # fmt: skip
        command = [sys.executable, "-m", "console.cli.main", "serve", "--demo", "--quiet-day"]
        command += ["--nodes", str(given.nodes), "--speed", str(given.speed), "--cell", "week"]
        with open(Path(made, "log"), "wb") as log:
            engine = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            _watch(given, engine, Path(made, "week"), environment)
        finally:
            engine.terminate()
            engine.wait()


def _watch(
    given: argparse.Namespace, engine: subprocess.Popen[bytes], folder: Path, environment: dict[str, str]
) -> None:
    socket = paths_in(folder).socket
    while not socket.exists():
        if engine.poll() is not None:
            raise RuntimeError(folder.with_name("log").read_text())
        time.sleep(0.1)
    time.sleep(SETTLED_S)
    client = RemoteClient(str(socket), False, None)
    begun, first_ms = time.monotonic(), client.overview().now_ms
    pause_s = given.days * DAY_MS / given.speed / 1000 / given.lines / LOOKS
    look = [sys.executable, "-c", "from console.cli.entry import main; main()", "get", "workloads", "--cell", "week"]
    while True:
        overview = client.overview()
        days, minutes = (overview.now_ms - first_ms) / DAY_MS, (time.monotonic() - begun) / 60
        print(f"day {days:5.2f}  {minutes:6.1f} min  {_taken(engine.pid, folder)}", flush=True)
        if days >= given.days or 0 < given.minutes <= minutes:
            return
        for _ in range(LOOKS):
            time.sleep(pause_s)
            subprocess.run(look, env=environment, check=True, stdout=subprocess.DEVNULL)


def _taken(pid: int, folder: Path) -> str:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    files, threads = len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])
    disk = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 2**20
    memory = int(status["VmRSS"].split()[0]) / 1024
    return f"memory {memory:6.0f} MiB  files {files:3}  threads {threads:3}  disk {disk:7.1f} MiB"


if __name__ == "__main__":
    main()
