"""Answers recorded of Slurm 22.05.8 and 24.11.5, of `../shared/slurm/samples`."""

from __future__ import annotations

import json

import pytest
from slurm_cluster import SAMPLES

from engine.external.slurm.answers import SlurmAnswer, split

EARLY, MIDDLE, LATER = "22.05-v0.0.38", "24.11-v0.0.40", "24.11-v0.0.42"
VERSIONS = (EARLY, MIDDLE, LATER)
needs_samples = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="needs the folder `shared/slurm/samples` next to the checkout"
)


def sample(version: str, name: str) -> SlurmAnswer:
    """One recorded answer by its name in INDEX.tsv."""
    told = json.loads((SAMPLES / version / f"{name}.json").read_text())
    response = told["response"]
    return split(told["status"], (response if isinstance(response, str) else json.dumps(response)).encode())
