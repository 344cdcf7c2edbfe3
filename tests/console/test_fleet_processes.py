"""A fleet over real engine processes that are killed, stopped and started again while work is submitted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_engines_and_the_fleet_are_killed_and_every_submission_is_in_one_cell() -> None:
    command = [sys.executable, "-m", "tests.bench.fleet_chaos", "--jobs", "40", "--kills", "6", "--seed", "151"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert sum(found["in_cells"].values()) == 40
    assert all(found["killed"].values()), "the seed ends the fleet and each of the engines, and stops one for a while"
