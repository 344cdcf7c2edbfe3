"""`make mutants`: does a test fail for each fault in the code that trust rests on?

Each mutant of `mutants.py` is made in a copy of the packages, and the tests most likely to notice are run, then all
others of tests/runbooks until one fails. Prints a table; a mutant that survives is a test that is missing, and the exit
code 1. Names, or parts of them, select mutants: `run.py limits`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from draft_mutants import DRAFT_MUTANTS
from mutants import MUTANTS, Mutant, path_of

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("engine", "runbooks", "recommender", "console", "tests/support", "tests/runbooks", "tests/hostile",
          "tests/console", "docs", "README.md", "pyproject.toml")  # fmt: skip
AT_A_TIME = 2
MAX_S = 300
"""For all tests of a mutant: one that never ends is found too."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(?:runbooks/)?(?:test_)?(\S+)", re.MULTILINE)


def copy(folder: Path) -> None:
    for name in COPIED:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            # That the mutants are of lines that are there is not what is asked here.
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", "test_mutants.py"))
        else:
            shutil.copy(ROOT / name, target)


def failure(folder: Path, tests: list[str]) -> str:
    """The first test that fails there; empty when none does."""
    marks = "not slow" if any("::" in test for test in tests) else "not slow and not thorough"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "--tb=no", "-p", "no:cacheprovider",
               "-m", marks, *tests]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("TESTS_THOROUGH", None)
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=MAX_S
        )
    except subprocess.TimeoutExpired:
        return f"no end within {MAX_S} s"
    if ran.returncode == 0:
        return ""
    failed = _FAILED.search(ran.stdout)
    return failed[1] if failed else f"pytest ended with {ran.returncode}: {ran.stdout.strip()[-200:]}"


def existing(names: tuple[str, ...], folder: Path) -> list[str]:
    return [path for name in names if (folder / (path := path_of(name)).partition("::")[0]).exists()]


def kill(mutant: Mutant, folder: Path, *, quick: bool) -> str:
    """The test that fails with the mutant in place; empty when it survives."""
    path = folder / mutant.path
    original = path.read_text(encoding="utf-8")
    if original.count(mutant.old) != 1:
        raise SystemExit(f"'{mutant.name}': its text is there {original.count(mutant.old)} times in {path.name}")
    path.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        likely = existing(mutant.tests, folder)
        rest = sorted(str(p.relative_to(folder)) for p in (folder / mutant.suite).rglob("test_*.py"))
        found = failure(folder, likely) if likely else ""
        if found or quick:
            return found
        return failure(folder, [test for test in rest if test not in likely])
    finally:
        path.write_text(original, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of mutants; default all")
    parser.add_argument("--quick", action="store_true", help="only the tests most likely to notice")
    options = parser.parse_args()
    every = (*MUTANTS, *DRAFT_MUTANTS)
    chosen = [m for m in every if not options.names or any(n in f"{m.file} {m.name}" for n in options.names)]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_A_TIME):
            copies.put(path := Path(folder, str(number)))
            copy(path)
        likely = existing(tuple(dict.fromkeys(name for m in chosen for name in m.tests)), path)
        if sound := failure(path, likely if options.quick else [*{m.suite: None for m in chosen}, *likely]):
            print(f"without any mutant {sound} fails: mend that first", file=sys.stderr)
            return 2

        def run(mutant: Mutant) -> tuple[Mutant, str, float]:
            place = copies.get()
            started = time.monotonic()
            try:
                return mutant, kill(mutant, place, quick=options.quick), time.monotonic() - started
            finally:
                copies.put(place)

        survivors = 0
        print(f"{'MUTANT':<60}{'IN':<12}{'S':>5}  KILLED BY")
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for mutant, killed_by, seconds in pool.map(run, chosen):
                survivors += not killed_by
                print(f"{mutant.name:<60}{mutant.file:<12}{seconds:>5.1f}  {killed_by or 'NOBODY'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} killed in {time.monotonic() - begun:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
