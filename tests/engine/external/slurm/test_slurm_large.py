"""100,000 jobs in one answer, of the recorded size, through the whole mirror into a cell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_samples import needs_samples

BENCH = Path(__file__).resolve().parents[3] / "bench" / "slurm_large.py"
MAX_MB = 950
"""The answers are 250 and 760 MB; held whole beside what is made of them, 24.11 took Muster to 1.8 GB."""


@needs_samples
@pytest.mark.slow
@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42"])
def test_a_hundred_thousand_jobs_in_one_answer_are_mirrored_in_bounded_memory(version: str) -> None:
    asked = [sys.executable, str(BENCH), "--version", version, "--jobs", "100000"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    first, again = rows[0], rows[1]
    assert first["jobs"] == again["jobs"] == 100_000
    assert again["told"] == 0, "nothing has changed"
    assert max(row.get("memory_most_mb", 0) for row in rows) < MAX_MB
    windows = [row for row in rows if row["figure"].startswith("window")]
    assert windows
    assert all(row["of"] == 100_000 and len(row["ms"]) == 3 for row in windows)
