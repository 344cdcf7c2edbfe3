"""`make bench-console`: the real console in a real pseudo-terminal, on a large cell whose engine schedules meanwhile.

Prints a table with the budgets, and says which are missed (then the exit code is 1); JSON with `--json FILE`. Times are
what a person sees: from the key to the frame that answers it, read back from the terminal.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import console_idle
from console_keys import Fingers, Pressed, acts, titled

from tests.support.pseudo_terminal import PseudoTerminal

ROOT = Path(__file__).resolve().parents[2]
MUSTER = str(Path(sys.executable).with_name("muster"))
NODES, WORKLOADS = 130_000, 1_000_000
SIZES = ((140, 45), (80, 24))
PAGES = {"1": "overview", "2": "queues", "3": "workloads", "4": "nodes", "5": "events"}
RUNS = 7
START_S = 600.0
IDLE_S = 10.0
SETTLE_S = 3.0
"""Before it is measured what a page costs while nobody touches it."""


@dataclass(frozen=True)
class Budget:
    most: float
    unit: str


BUDGETS = {
    "first paint": Budget(500, "ms"),
    "key p50": Budget(16, "ms"),
    "key p99": Budget(50, "ms"),
    "memory": Budget(150, "MB"),
    "idle CPU": Budget(2, "%"),
    "bytes per move": Budget(1024, "B"),
    "bytes per page": Budget(15_360, "B"),
}


@dataclass
class Figure:
    """One number beside its budget."""

    what: str
    value: float
    budget: str
    """Name of its budget; empty for a figure that has none."""
    at: str = ""
    unit: str = "B/s"
    """Of a figure that has no budget."""

    @property
    def missed(self) -> bool:
        return bool(self.budget) and self.value > BUDGETS[self.budget].most

    def line(self) -> str:
        limit = BUDGETS.get(self.budget)
        unit = limit.unit if limit else self.unit
        told = f"< {limit.most:,g} {unit}" if limit else ""
        return f"{self.what:<34}{self.at:<26}{self.value:>12,.1f} {unit:<4}{told:<14}{'MISSED' if self.missed else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--workloads", type=int, default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=6, help="how often everything is done in each terminal")
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="S", help="seconds of doing nothing on each page")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="mu-") as folder:
        state = Path(folder)
        with engine(state, options.nodes, options.workloads) as path:
            print(f"console on {options.nodes:,} nodes and {options.workloads:,} workloads, the engine scheduling")
            print(f"{platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
            figures += told(first_paint(path, state))
            pressed: dict[str, list[Pressed]] = {}
            for width, height in SIZES:
                at = f"{width}x{height}"
                with console(path, state, width, height) as terminal:
                    fingers = Fingers(terminal)
                    used = console_idle.cpu_s(terminal.pid)
                    fingers.act(options.rounds)
                    used = console_idle.cpu_s(terminal.pid) - used
                    pressed[at] = fingers.pressed
                    print_acts(at, fingers.pressed)
                    figures += told(of_keys(at, fingers.pressed))
                    figures += told(of_cpu(at, fingers.pressed, used))
                    figures += told(of_memory(at, terminal))
            figures += told(idle_pages(path, state, options.idle))
        with engine(state, options.nodes, options.workloads, per_second=0) as path:
            figures += told(still(path, state, options.idle))
    missed = [figure for figure in figures if figure.missed]
    print("\nall budgets are met" if not missed else f"\n{len(missed)} missed: {', '.join(f.what for f in missed)}")
    if options.json:
        every = {at: [asdict(one) for one in found] for at, found in pressed.items()}
        document = {"nodes": options.nodes, "workloads": options.workloads, "figures": [asdict(f) for f in figures]}
        Path(options.json).write_text(json.dumps(document | {"keys": every}, indent=1), encoding="utf-8")
    return 1 if missed else 0


def told(figures: Iterator[Figure]) -> Iterator[Figure]:
    """The same, each printed as soon as it is there."""
    for figure in figures:
        print(figure.line(), flush=True)
        yield figure


# --- what runs


@contextmanager
def engine(state: Path, nodes: int, workloads: int, *, per_second: int = 200) -> Iterator[Path]:
    """The socket of an engine with so much in it, and so much coming every second; with nothing coming, time stands."""
    path = state / f"{per_second}.sock"
    command = [sys.executable, "-m", "tests.support.large_cells", str(path)]
    command += ["--nodes", str(nodes), "--workloads", str(workloads), "--per-second", str(per_second)]
    yield from _run_engine(command, path, environment(state))


def _run_engine(command: Sequence[str], path: Path, around: dict[str, str]) -> Iterator[Path]:
    process = subprocess.Popen(command, env=around, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        asking = [MUSTER, "overview", "--connect", str(path)]
        while subprocess.run(asking, env=around, capture_output=True, check=False).returncode:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the engine does not answer: {' '.join(command)}")
            time.sleep(0.2)
        yield path
    finally:
        process.terminate()
        process.wait()


_NOT_OURS = ("NO_COLOR", "TMUX", "PYTHONDONTWRITEBYTECODE")
"""Without cached bytecode the console starts two to three times slower."""


def environment(state: Path) -> dict[str, str]:
    """A terminal of today, and folders of its own."""
    mine = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    mine |= {f"XDG_{kind}": str(state) for kind in ("STATE_HOME", "CONFIG_HOME", "DATA_HOME", "RUNTIME_DIR")}
    return mine | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


@contextmanager
def console(path: Path, state: Path, width: int = 140, height: int = 45) -> Iterator[PseudoTerminal]:
    """A console that shows data, of somebody who was never there before: it opens with the overview."""
    command = [MUSTER, "--connect", str(path)]
    around = environment(Path(tempfile.mkdtemp(prefix="p", dir=state)))
    terminal = PseudoTerminal(command, around, width=width, height=height)
    try:
        terminal.shows("nodes ready", seconds=60)
        yield terminal
    finally:
        terminal.close()


# --- what is measured


def first_paint(path: Path, state: Path) -> Iterator[Figure]:
    """From exec to the frame, and to data in it."""
    frames, filled = [], []
    for _ in range(RUNS):
        around = environment(Path(tempfile.mkdtemp(prefix="p", dir=state)))
        terminal = PseudoTerminal([MUSTER, "--connect", str(path)], around, width=140, height=45)
        try:
            frames.append((terminal.shows("overview") - terminal.begun) * 1000)
            filled.append((terminal.shows("nodes ready", seconds=60) - terminal.begun) * 1000)
        finally:
            terminal.close()
    yield Figure("first paint, median", statistics.median(frames), "first paint", "140x45")
    yield Figure("first paint, worst", max(frames), "first paint", f"140x45, of {RUNS}")
    print(f"{'with data':<34}{'140x45':<26}{statistics.median(filled):>12,.1f} ms  worst {max(filled):,.1f} ms")


def of_keys(at: str, pressed: Sequence[Pressed]) -> Iterator[Figure]:
    painted = [one.painted_ms for one in pressed if one.frame_bytes]
    yield Figure("key to paint, p50", quantile(painted, 0.5), "key p50", f"{at}, {len(painted)} keys")
    yield Figure("key to paint, p99", quantile(painted, 0.99), "key p99", f"{at}, {len(painted)} keys")
    moves = [one.frame_bytes for one in pressed if one.act == "move"]
    pages = [one.frame_bytes for one in pressed if one.act in ("page", "ends")]
    yield Figure("bytes per cursor move, median", statistics.median(moves), "bytes per move", at)
    yield Figure("bytes per page, median", statistics.median(pages), "bytes per page", at)


def of_cpu(at: str, pressed: Sequence[Pressed], used_s: float) -> Iterator[Figure]:
    """What a key costs of a core, however busy the machine is."""
    used = [one.cpu_ms for one in pressed if one.frame_bytes]
    yield Figure("CPU of drawing, key to paint, p50", quantile(used, 0.5), "", at, "ms")
    yield Figure("CPU of drawing, key to paint, p99", quantile(used, 0.99), "", at, "ms")
    yield Figure("CPU per key, all processes", used_s * 1000 / len(pressed), "", at, "ms")


def of_memory(at: str, terminal: PseudoTerminal) -> Iterator[Figure]:
    yield Figure("memory, all processes", console_idle.memory_mb(terminal.pid), "memory", at)
    yield Figure("memory, largest process (RSS)", console_idle.largest_mb(terminal.pid), "memory", at)


def idle_pages(path: Path, state: Path, seconds: float) -> Iterator[Figure]:
    """Each page in turn, left alone on the live cell."""
    near = state / "counted.sock"
    with console_idle.counting(path, near) as counted, console(near, state) as terminal:
        for key, name in PAGES.items():
            terminal.press(key)
            terminal.until(titled(name), name)
            terminal.settle(0.3, SETTLE_S)
            before = counted.answered
            cpu, written = console_idle.idle(terminal, seconds)
            answered = (counted.answered - before) / seconds
            yield Figure(f"idle CPU, live, {name}", cpu * 100, "idle CPU", f"{seconds:g} s")
            yield Figure("   bytes/s to the terminal", written, "")
            yield Figure("   bytes/s from the engine", answered, "")


def still(path: Path, state: Path, seconds: float) -> Iterator[Figure]:
    """On a cell in which nothing happens, nothing is to be done."""
    with console(path, state) as terminal:
        for key in ("1", "3"):
            terminal.press(key)
            terminal.until(titled(PAGES[key]), PAGES[key])
            terminal.settle(0.3, SETTLE_S)
            cpu, written = console_idle.idle(terminal, seconds)
            yield Figure(f"idle CPU, still, {PAGES[key]}", cpu * 100, "idle CPU", f"{seconds:g} s")
            yield Figure("   bytes/s to the terminal", written, "")


# --- how it is told


def print_acts(at: str, pressed: list[Pressed]) -> None:
    """A row for every act: how long until the answer was painted, and until the engine's data were there."""
    titles = "".join(f"{title:>8}" for title in ("p50", "p95", "p99", "max", "bytes", "", "p50", "p95", "max"))
    print(f"\n{at}: ms from key to paint{'':<15}{'n':>5}{titles}   (until data are there)")
    for name, found in [*acts(pressed), ("all keys", [one for one in pressed if one.frame_bytes])]:
        painted = [one.painted_ms for one in found]
        filled = [one.filled_ms for one in found if one.filled_ms is not None]
        count = statistics.median(one.frame_bytes for one in found)
        cells = [*_cells(painted, (0.5, 0.95, 0.99, 1)), f"{count:>8,.0f}{'':>8}"]
        cells += _cells(filled, (0.5, 0.95, 1)) if filled else []
        print(f"  {name:<36}{len(found):>5}{''.join(cells)}")
    print()


def _cells(values: list[float], at: Sequence[float]) -> list[str]:
    return [f"{quantile(values, share):>8.1f}" for share in at]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


if __name__ == "__main__":
    raise SystemExit(main())
