"""An engine on a real Slurm cluster while it, its database, slurmctld and slurmrestd are killed and the lines between
are cut: nothing acknowledged is lost, nothing is done twice, all of it recovers by itself. Many more rounds of it:
tests/bench/chaos.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import postgres
import pytest
import slurm_cluster

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_everything_around_an_engine_is_killed_and_cut_off_and_nothing_is_lost_or_done_twice(database: str) -> None:
    reason = slurm_cluster.why_not("host") or (postgres.why_not() if database == "postgres" else "")
    if reason:
        pytest.skip(reason)
    # Each kind of harm twice: the monkey takes them in turn.
    rounds = {"sqlite": "12", "postgres": "16"}[database]
    command = [sys.executable, "-m", "tests.bench.chaos", "--database", database, "--rounds", rounds, "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert found["kills"] >= 10
    assert found["acknowledged"] > 20
    assert found["acts carried"] > 5
