"""A fleet over real engine processes that are killed, stopped and started again while work is submitted; where its
journal is in PostgreSQL, that server is killed and held up too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.thorough
@pytest.mark.parametrize(("database", "kills", "seed"), [("file", 6, 151), ("postgres", 8, 261)])
def test_engines_and_the_fleet_are_killed_and_every_submission_is_in_one_cell(
    database: str, kills: int, seed: int
) -> None:
    if database == "postgres" and (reason := postgres.why_not()):
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.bench.fleet_chaos", "--jobs", "40", "--kills", str(kills)]
    command += ["--seed", str(seed), "--database", database]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert sum(found["in_cells"].values()) == 40
    assert all(found["killed"].values()), "the seed ends each of them, and stops one for a while"
