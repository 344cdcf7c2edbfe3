"""What a `muster` command costs beside a running engine: run by a command server, by its own process, and beside a
Python that does nothing; and 200 short jobs on this machine, one command each, until the last has ended.

    python tests/bench/run.py commands

CPU is that of the command's process and of the process that ran it for it, not of the engine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROUNDS = 12
JOBS = 200
BEFORE = 20
"""Jobs that are submitted without a command server; what 200 take is reckoned from them."""
SERVED = [sys.executable, "-c", "from console.cli.entry import main; main()"]
ALONE = [sys.executable, "-m", "console.cli.main"]
NOTHING = [sys.executable, "-c", "pass"]
COMMANDS = {
    "overview": ["overview"],
    "get workloads": ["get", "workloads"],
    "run -- true": ["run", "--memory", "64MiB", "--", "true"],
}
TICKS_S = os.sysconf("SC_CLK_TCK")


def commands() -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        (run := Path(folder, "run")).mkdir(mode=0o700)
        places = {"XDG_RUNTIME_DIR": str(run), "XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": f"{folder}/config"}
        environment = os.environ | places
        engine = _engine(environment, Path(folder, "log"))
        try:
            yield from _measured(environment, engine.pid)
        finally:
            engine.terminate()
            engine.wait()


def _engine(environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        engine = subprocess.Popen([*ALONE, "serve", "--here"], env=environment, stdout=file, stderr=file)
    while b"ready" not in log.read_bytes():
        if engine.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.05)
    return engine


def _measured(environment: Mapping[str, str], engine: int) -> Iterator[dict[str, object]]:
    _run([*SERVED, "overview"], environment)  # loads the server
    server = _child(engine)
    for name, words in COMMANDS.items():
        costs: dict[str, list[tuple[float, float]]] = {"served": [], "alone": [], "nothing": []}
        for _ in range(ROUNDS):
            costs["served"].append(_cost([*SERVED, *words], environment, server))
            costs["alone"].append(_cost([*ALONE, *words], environment, server))
            costs["nothing"].append(_cost(NOTHING, environment, server))
        cpu = {kind: statistics.median(each[0] for each in found) for kind, found in costs.items()}
        wall = {kind: statistics.median(each[1] for each in found) for kind, found in costs.items()}
        yield {
            "at": name,
            "result": f"{cpu['served']:.3f} CPU s, {wall['served']:.3f} s",
            "reference": f"its own process {cpu['alone']:.3f} CPU s, {wall['alone']:.3f} s; "
            f"Python alone {cpu['nothing']:.3f} CPU s, {wall['nothing']:.3f} s",
            "ratio": cpu["alone"] / cpu["served"],
        }
    before, now = _jobs(ALONE, BEFORE, environment) * JOBS / BEFORE, _jobs(SERVED, JOBS, environment)
    yield {
        "at": f"{JOBS} jobs of `true`, from the first command to the end of the last",
        "result": f"{now:.1f} s",
        "reference": f"commands as their own processes {before:.0f} s, reckoned from {BEFORE}",
        "ratio": before / now,
    }
    yield {"at": "the command server", "result": f"{_private_mib(server):.0f} MiB of its own", "reference": ""}


def _jobs(command: list[str], count: int, environment: Mapping[str, str]) -> float:
    """Seconds from the first submission of so many to the end of the last."""
    began = time.perf_counter()
    for _ in range(count):
        _run([*command, "run", "--memory", "64MiB", "--", "true"], environment)
    left = [*SERVED, "get", "workloads", "-f", "state:queued,held,waiting,placed,running", "-o", "csv"]
    while len(_run(left, environment).splitlines()) > 1:
        time.sleep(0.05)
    return time.perf_counter() - began


def _run(command: list[str], environment: Mapping[str, str]) -> bytes:
    return subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout


def _cost(command: list[str], environment: Mapping[str, str], server: int) -> tuple[float, float]:
    """(CPU seconds, seconds) of a command, with what the server and its processes did for it."""
    cpu, wall = _used() + _used_by(server), time.perf_counter()
    _run(command, environment)
    wall = time.perf_counter() - wall
    time.sleep(0.05)  # until its process is counted
    return _used() + _used_by(server) - cpu, wall


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _used_by(process: int) -> float:
    """CPU seconds of a process and of those that it waited for, to 10 ms."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_S


def _child(engine: int) -> int:
    for task in Path(f"/proc/{engine}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"command_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise RuntimeError("the engine has no command server")


def _private_mib(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
