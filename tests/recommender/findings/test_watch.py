"""Findings from the history: what is unusual now, of which object, with evidence; silence where all is usual."""

from __future__ import annotations

import numpy as np
import pytest

from recommender.findings.anomalies import DAY_MS, HOUR_MS
from recommender.findings.history_watch import STEP_MS, HistoryWatch, failing_queue
from recommender.findings.suggestions import Suggestion
from recommender.history.metrics import Sample
from recommender.history.telemetry import Telemetry

START_MS = 1_800_000_000_000 // DAY_MS * DAY_MS


def told(metric: str, of: str, subject: str, values: np.ndarray, step_ms: int = STEP_MS) -> list[Sample]:
    return [Sample(metric, of, subject, START_MS + at * step_ms, float(value)) for at, value in enumerate(values)]


def looked(samples: list[Sample], now_ms: int) -> list[Suggestion]:
    history, watch = Telemetry(), HistoryWatch()
    history.add(samples, step_ms=STEP_MS)
    found, unknown = watch.look(history, now_ms)
    while unknown:
        found, unknown = watch.look(history, now_ms)
    return found


def usual(days: int, level: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(level, level / 20, days * 96)


def test_waits_far_over_the_usual_are_found_while_they_last() -> None:
    waits = usual(8, 600)
    waits[-8:] = 7_200
    samples = [*told("wait_p95_s", "queue", "research", waits), *told("wait_p95_s", "queue", "batch", usual(8, 900, 1))]
    now_ms = START_MS + 8 * DAY_MS
    (found,) = looked(samples, now_ms)
    assert (found.kind, found.about, found.action) == ("unusual_wait_p95_s", "queue:research", "notify")
    assert found.finding == "the wait (p95) of queue research is unusual: 2.0 h, usually 10 min"
    assert found.evidence[0].rows > 500
    assert "usual" in found.evidence[0].baseline
    assert not found.thin
    assert looked(samples, now_ms + 7 * HOUR_MS) == []


def test_a_cheaper_hour_and_a_shorter_wait_are_no_findings() -> None:
    waits, bill = usual(8, 600), usual(8, 5e6)
    waits[-8:], bill[-8:] = 0, 0
    samples = [*told("wait_p95_s", "queue", "research", waits), *told("cost_rate", "cell", "", bill)]
    assert looked(samples, START_MS + 8 * DAY_MS) == []


def test_a_bill_that_jumps_after_a_short_history_says_that_it_is_short() -> None:
    bill = usual(4, 5e6)
    bill[-4:] = 2e7
    (found,) = looked(told("cost_rate", "cell", "", bill), START_MS + 4 * DAY_MS)
    assert found.kind == "unusual_cost_rate"
    assert "20.00 USD/h" in found.finding
    assert found.thin


def test_errors_of_a_device_drain_its_node() -> None:
    errors = np.zeros(96 * 8)
    errors[-10:] = 1
    (found,) = looked(told("ecc_errors", "node", "h100-0007", errors), START_MS + 8 * DAY_MS)
    assert (found.action, found.targets) == ("drain", ("h100-0007",))
    throttle = np.zeros(96 * 2)
    throttle[-4:] = 1
    (hot,) = looked(told("throttle", "node", "h100-0008", throttle), START_MS + 2 * DAY_MS)
    assert (hot.kind, hot.targets) == ("throttled_node", ("h100-0008",))


def test_a_queue_that_fails_more_than_chance_explains() -> None:
    assert failing_queue("research", (30, 60), (40, 1_000), 10 * DAY_MS)[0].finding.startswith(
        "50.0 % of the work ended"
    )
    assert failing_queue("research", (3, 60), (40, 1_000), 10 * DAY_MS) == []
    assert failing_queue("research", (30, 60), (400, 1_000), 10 * DAY_MS) == []
    assert failing_queue("research", (0, 0), (0, 0), 0) == []


def test_a_long_history_is_read_over_several_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recommender.findings.history_watch.AT_ONCE", 500)
    samples = [each for at in range(5) for each in told("cost_rate", "tenant", f"t{at}", usual(2, 1e6, at))]
    history, watch = Telemetry(), HistoryWatch()
    history.add(samples, step_ms=STEP_MS)
    now_ms = START_MS + 2 * DAY_MS
    assert watch.look(history, now_ms)[1] == ["the history of 2 series is still being read"]
    assert watch.look(history, now_ms)[1] == []
