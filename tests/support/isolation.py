"""Tests see nothing of the person who runs them: no settings, state, runtime folder, proxy, agent or locale. The same
holds for every process they start."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[2]
KEPT = {
    "PATH", "LD_LIBRARY_PATH", "TMPDIR", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "TESTS_THOROUGH", "MUSTER_SLURM_INSTALL", "SLURM_LOOP_CACHE",
}  # fmt: skip
"""Where programs are found, how much is tested, and what says how a test process runs."""
KEPT_PREFIXES = ("PYTEST_", "MUSTER_TEST_", "TEXTUAL_SNAPSHOT_")


def isolate() -> Path:
    """Gives this process an environment of its own, and returns its new home: whoever calls removes it at the end."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    home = Path(tempfile.mkdtemp(prefix="mu-home-"))
    folders = {
        "HOME": home,
        **{f"XDG_{kind}_HOME": home / kind.lower() for kind in ("CONFIG", "STATE", "DATA", "CACHE")},
    }
    folders["XDG_RUNTIME_DIR"] = home / "run"
    for folder in folders.values():
        folder.mkdir(mode=0o700, exist_ok=True)
    os.environ.clear()
    os.environ.update(kept)
    os.environ.update({name: str(folder) for name, folder in folders.items()})
    os.environ.update({"LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "xterm-256color", "SHELL": "/bin/sh"})
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    os.umask(0o022)
    time.tzset()
    return home


def remove(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)


def forgive_slow_machines() -> None:
    """Random cases have no limit of time; tests that name settings of their own begin with these."""
    settings.register_profile("muster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("muster")
