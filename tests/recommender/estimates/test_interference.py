"""Slowdown beside others: found where it was planted, claimed almost never where it was not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recommender.estimates.machine_choice import ColocatedRun, Fingerprint, beside, interference_findings, slowdowns
from recommender.history.metrics import RunRecord

HOUR = 3_600_000


def runs(seed: int, slowdown: float, kinds: int = 5, count: int = 60) -> list[ColocatedRun]:
    """Kinds of which the first takes `slowdown` longer beside a node that others fill; noise of 15 %."""
    draw, found = np.random.default_rng(seed), []
    for number in range(kinds):
        kind = f"acme/kind-{number}"
        for _ in range(count):
            share, size = float(draw.random()), int(draw.integers(0, 2))
            factor = 1 + slowdown * share if number == 0 else 1.0
            run_ms = round(HOUR * 2**size * factor * math.exp(draw.normal(0, 0.15)))
            found.append(ColocatedRun(kind, Fingerprint(kind, size, gpu=False), "pool general", run_ms, share))
    return found


def test_a_planted_slowdown_of_a_fifth_is_found() -> None:
    """In at least nine of ten cells, and of the right kind only; its size about right."""
    found = [slowdowns(runs(seed, 0.25, count=120)) for seed in range(10)]
    right = [each[0].slowdown for each in found if [one.kind for one in each] == ["acme/kind-0"]]
    assert len(right) >= 9
    assert 0.12 <= float(np.median(right)) <= 0.27


def test_nothing_is_claimed_where_nothing_is() -> None:
    """Twenty cells of five kinds: a finding in one of a hundred looks is allowed, so at most one."""
    assert sum(bool(slowdowns(runs(seed, 0.0))) for seed in range(100, 120)) <= 1


@pytest.mark.slow
def test_how_often_it_claims_and_finds_over_many_cells() -> None:
    claimed = sum(bool(slowdowns(runs(seed, 0.0))) for seed in range(1_000, 1_300))
    found = sum(
        "acme/kind-0" in [one.kind for one in slowdowns(runs(seed, 0.25, count=120))] for seed in range(2_000, 2_100)
    )
    assert claimed <= 9
    assert found >= 90


def test_too_little_is_no_evidence() -> None:
    assert slowdowns(runs(1, 0.5, count=20)) == []
    alone = [each._replace(share=0.0) for each in runs(1, 0.5)]
    assert slowdowns(alone) == []
    assert slowdowns([]) == []


def test_sizes_and_machines_are_not_mixed_up() -> None:
    """Long work on full nodes and short work on empty ones is no slowdown."""
    draw = np.random.default_rng(3)
    found = []
    for _ in range(200):
        size = int(draw.integers(0, 2))
        share = 0.8 * size + 0.2 * float(draw.random())
        run_ms = round(HOUR * 4**size * math.exp(draw.normal(0, 0.1)))
        found.append(
            ColocatedRun("acme/kind", Fingerprint("acme/kind", size, gpu=False), "pool general", run_ms, share)
        )
    assert slowdowns(found) == []


def test_a_finding_says_how_much_and_of_how_many() -> None:
    (found,) = interference_findings(slowdowns(runs(0, 0.3)))
    assert found.about == "acme/kind-0"
    assert found.action == "notify"
    assert found.evidence[0].rows == 60
    assert "% longer beside others" in found.finding


def test_only_whole_runs_count() -> None:
    run = RunRecord(
        id="w", tenant="acme", name="train-1", cpu_milli=4_000, submitted_ms=0, started_ms=0, ended_ms=HOUR,
        outcome="finished", pool="general",
    )  # fmt: skip
    made = beside(run, 0.4)
    assert made is not None
    assert (made.kind, made.run_ms, made.type_name) == ("acme/train", HOUR, "pool general")
    for changes in ({"outcome": "failed"}, {"attempts": 2}, {"name": "123"}, {"started_ms": -1}):
        assert (
            beside(RunRecord(**{**{name: getattr(run, name) for name in run.__struct_fields__}, **changes}), 0.4)
            is None
        )  # type: ignore[arg-type]
