"""Forecasts of a live cell's history, how they have held, and what is found in the history."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from console.cli.main import run
from console.service.advisor import Advisor
from console.service.forecasts import SCORED_AHEAD, Forecasts, HistoryFindings, PromiseReader
from console.service.recommendations import Recommender
from console.views.forecast import bar, forecast_lines
from engine.loop import EngineLoop
from engine.model.commands import Cordon
from engine.model.errors import NotFoundError
from recommender.estimates.queries import ForecastRequest, HourAhead
from recommender.history.metrics import Sample
from recommender.history.telemetry import Telemetry
from tests.console.fake_client import HOSTILE, FakeClient
from tests.support.served import HOUR_MS, running_loop, served_on_unix

MINUTE = 60_000


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


def measured(hours: int, *, metric: str = "demand_gpu", of: str = "queue", subject: str = "a") -> list[Sample]:
    """A day's rhythm, two samples an hour."""
    return [
        Sample(metric, of, subject, half * HOUR_MS // 2, 20_000 + 10_000 * math.sin(half * math.pi / 24))
        for half in range(2 * hours)
    ]


def pass_to(loop: EngineLoop, hour: int) -> None:
    loop.call(lambda engine: engine.advance(hour * HOUR_MS + MINUTE))


def test_a_forecast_comes_from_the_hours_that_are_over(loop: EngineLoop) -> None:
    telemetry = Telemetry()
    telemetry.add(measured(60))
    pass_to(loop, 60)
    forecasts = Forecasts(loop, telemetry)
    view = forecasts.answer(ForecastRequest(subject="queue:a", hours=6))
    assert (view.made_ms, view.known_hours, view.missing_hours) == (60 * HOUR_MS, 60, 0)
    assert [hour.at_ms for hour in view.hours] == [(60 + i) * HOUR_MS for i in range(6)]
    assert all(hour.p10 <= hour.p50 <= hour.p90 for hour in view.hours)
    assert view.basis != "models"
    assert "60 hours of history" in view.notes[0]
    telemetry.add([Sample("demand_gpu", "queue", "a", 60 * HOUR_MS + 1, 9e6)])
    assert forecasts.answer(ForecastRequest(subject="queue:a", hours=6)).hours == view.hours, "the hour is not over"


def test_gaps_are_counted_and_three_hours_are_too_short(loop: EngineLoop) -> None:
    telemetry = Telemetry()
    telemetry.add([Sample("demand_gpu", "cell", "", hour * HOUR_MS, 1000.0) for hour in (1, 2, 5)])
    pass_to(loop, 6)
    view = Forecasts(loop, telemetry).answer(ForecastRequest())
    assert (view.known_hours, view.missing_hours, view.basis) == (3, 2, "too short")
    assert "only the measured range" in view.notes[0]


def test_an_hour_that_others_measured_in_part_is_not_taken_for_whole(loop: EngineLoop) -> None:
    telemetry = Telemetry()
    samples = [Sample("gpu_util", "node", "n1", minute * 60_000, 50.0) for minute in range(90)]
    telemetry.add(samples, source="prometheus:x")
    asked = ForecastRequest(subject="node:n1", metric="gpu_util")
    assert Forecasts(loop, telemetry).answer(asked).made_ms == HOUR_MS
    telemetry.add([Sample("gpu_util", "node", "n1", 119 * 60_000, 50.0)], source="prometheus:x")
    assert Forecasts(loop, telemetry).answer(asked).made_ms == 2 * HOUR_MS


def test_forecasts_are_kept_as_they_were_made_and_scored_when_their_hour_has_come(loop: EngineLoop) -> None:
    telemetry = Telemetry()
    samples = measured(60)
    telemetry.add(samples[:80])
    forecasts = Forecasts(loop, telemetry)
    for hour in range(40, 48):
        pass_to(loop, hour)
        view = forecasts.answer(ForecastRequest(subject="queue:a"))
        telemetry.add(samples[2 * hour : 2 * hour + 2])
    assert view.coverage[0].hours_ahead == SCORED_AHEAD[0]
    pass_to(loop, 48)
    [one, six] = forecasts.answer(ForecastRequest(subject="queue:a")).coverage
    assert (one.hours_ahead, one.scored, six.hours_ahead, six.scored) == (1, 8, 6, 3)
    assert one.inside_permille + one.below_permille + one.above_permille in (998, 999, 1000)


def test_the_shell_shows_it_at_80_columns(loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    with served_on_unix(loop) as path:
        assert run(["history", "forecast", "queue:a", "--connect", str(path)]) == 3
        assert run(["history", "forecast", "nonsense", "--connect", str(path)]) == 2
        assert run(["history", "forecast", "--hours", "999", "--connect", str(path)]) == 2
    lines = forecast_lines(FakeClient().forecast(ForecastRequest(subject="queue:a")))
    assert max(map(len, lines)) <= 80
    assert sum("2026-03-0" in line for line in lines) == 48
    hostile = "\n".join(forecast_lines(FakeClient(hostile=True).forecast(ForecastRequest(subject="queue:a"))))
    assert not set(hostile) & {"\x1b", "\u202e"}
    assert HOSTILE[1] not in hostile


def test_a_bar_is_as_long_as_its_p90() -> None:
    hour = HourAhead(at_ms=0, p10=2.0, p50=5.0, p90=10.0)
    assert bar(hour, 10.0, 10) == "━━═══┄┄┄┄┄"
    assert bar(hour, 20.0, 10) == "━═┄┄┄"
    assert bar(HourAhead(at_ms=0, p10=0.0, p50=0.0, p90=0.0), 10.0, 10) == ""


# -- what is found, and what came of it -------------------------------------------------------------------------------


def test_what_was_promised_is_read_from_the_history_when_it_is_due(loop: EngineLoop) -> None:
    telemetry = Telemetry()
    history, promises = HistoryFindings(loop, telemetry, Forecasts(loop, telemetry)), PromiseReader(telemetry)
    recommender = Recommender(loop, Advisor(loop), more=history, read=promises.read, others=promises.others)
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    pass_to(loop, 3)
    [found] = recommender.recommendations().open
    expected = found.suggestion.expected
    assert expected is not None
    assert (expected.was, expected.to) == (24_000.0, 32_000.0)
    telemetry.add([Sample("capacity_gpu", "cell", "", 3 * HOUR_MS + m * MINUTE, 32_000.0) for m in range(180)])
    pass_to(loop, 6)
    recommender.recommendations()
    recommender.turn()
    [followed] = recommender.recommendations().followed
    assert (followed.way, followed.verdict and followed.verdict.outcome) == ("left", "held")
    [found] = recommender.recommendations().open
    assert found.track is not None
    assert (found.track.left, found.track.resolved) == (1, 1)


def test_an_empty_history_finds_nothing_and_says_nothing(loop: EngineLoop) -> None:
    telemetry = Telemetry()
    history = HistoryFindings(loop, telemetry, Forecasts(loop, telemetry))
    assert history(loop.call(lambda engine: engine.overview())) == ([], [])
    assert PromiseReader(telemetry).read("waiting", "queue", "a", 0, HOUR_MS) is None
    with pytest.raises(NotFoundError):
        Forecasts(loop, telemetry).answer(ForecastRequest())
