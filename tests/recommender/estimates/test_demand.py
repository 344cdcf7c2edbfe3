"""Demand forecasts: no look at the future, honest on little history, in bounds whatever the past."""

from __future__ import annotations

from dataclasses import fields
from datetime import date, timedelta

import numpy as np
import pytest

from engine.model.errors import SpecError
from recommender.estimates.demand import DemandForecast, DemandModel, Floats


def seasonal(hours: int, *, seed: int = 1) -> Floats:
    """A day and a week of season around 100, with noise."""
    draw, at = np.random.default_rng(seed), np.arange(hours)
    weekend = np.where(at // 24 % 7 >= 5, 0.6, 1.0)
    wave = 100 * weekend * (1 + 0.5 * np.sin(2 * np.pi * at / 24))
    return np.asarray(wave * np.exp(0.05 * draw.standard_normal(hours)))


def sound(forecast: DemandForecast, hours: int) -> None:
    assert forecast.quantiles.shape == (len(forecast.permilles), hours)
    assert np.isfinite(forecast.quantiles).all()
    assert (forecast.quantiles >= 0).all()
    assert (np.diff(forecast.quantiles, axis=0) >= 0).all()
    if forecast.members:
        assert sum(member.weights for member in forecast.members) == pytest.approx(np.ones(hours))


def same(one: DemandForecast, other: DemandForecast) -> bool:
    return (
        np.array_equal(one.quantiles, other.quantiles)
        and [member.name for member in one.members] == [member.name for member in other.members]
        and all(
            np.array_equal(getattr(a, field.name), getattr(b, field.name))
            for a, b in zip(one.members, other.members, strict=True)
            for field in fields(a)
            if field.name != "name"
        )
    )


def test_the_future_changes_nothing_said_before_it() -> None:
    """A model that has forecast other series, and later hours of this one, says the same of the same past."""
    series, cut = seasonal(260), 230
    noisy = series.copy()
    noisy[cut:] = np.random.default_rng(2).uniform(0, 1e4, len(series) - cut)
    one, other = DemandModel(), DemandModel()
    other.forecast(noisy, 24)
    told = one.forecast(series[:cut], 24)
    assert told.basis == "models"
    assert same(told, other.forecast(noisy[:cut], 24))
    assert not same(other.forecast(series[: cut + 3], 24), other.forecast(noisy[: cut + 3], 24))


def test_members_at_earlier_hours_know_no_later_ones() -> None:
    """What members fitted to each origin say at an origin does not change with the hours after it."""
    from recommender.estimates.demand import simple

    series, judged, after = seasonal(400), 60, 20
    other = series.copy()
    other[-after:] = 1e4
    for name, said in simple(series, 24, judged, season=True).items():
        later = simple(other, 24, judged, season=True)[name]
        np.testing.assert_array_equal(said[: judged - after + 1], later[: judged - after + 1], err_msg=name)


def test_day_and_week_are_learnt() -> None:
    series = seasonal(24 * 7 * 5)
    known = 24 * (7 * 4 + 4)  # Friday ends: the next two days are a weekend.
    truth = series[known : known + 48]
    forecast = DemandModel().forecast(series[:known], 48)
    off = np.abs(forecast.p50 - truth)
    assert off.mean() < 0.5 * np.abs(series[known - 24 : known][np.arange(48) % 24] - truth).mean()
    assert off.mean() < 0.12 * truth.mean()
    assert 0.6 <= ((forecast.p10 <= truth) & (truth <= forecast.p90)).mean() <= 1


def test_holidays_are_like_sundays_where_dates_are_known() -> None:
    series = seasonal(24 * 7 * 4 + 48)  # Hour 0 is a Monday's; the last one known is a Tuesday's.
    monday = 4 * 24  # 1970-01-05, in hours since 1970.
    wednesday = date(1970, 1, 5) + timedelta(days=7 * 4 + 2)
    usual = DemandModel().forecast(series, 30)
    rested = DemandModel([wednesday]).forecast(series, 30, first_hour=monday)
    sunday = series[-72:-48]
    np.testing.assert_allclose(rested.p50[:24], (usual.p50[:24] + sunday) / 2)
    assert (rested.p10[:24] <= sunday).all()
    np.testing.assert_array_equal(rested.p50[24:], usual.p50[24:])
    sound(rested, 30)
    assert same(usual, DemandModel([wednesday]).forecast(series, 30))


def test_a_new_level_is_followed() -> None:
    series = seasonal(24 * 21)
    series[-36:] *= 4
    forecast = DemandModel().forecast(series, 12)
    assert forecast.p50[:6].mean() > 1.5 * seasonal(24 * 21 + 6)[-6:].mean()


@pytest.mark.parametrize(
    ("known", "basis"),
    [(0, "too short"), (3, "too short"), (12, "last values"), (60, "season"), (119, "season"), (120, "models")],
)
def test_short_history_says_what_it_rests_on(known: int, basis: str) -> None:
    series = seasonal(known)
    forecast = DemandModel().forecast(series, 48)
    assert forecast.basis == basis
    sound(forecast, 48)
    if known == 3:
        assert forecast.p10[0] == series.min()
        assert forecast.p90[-1] == series.max()


@pytest.mark.parametrize(
    ("name", "past"),
    [
        ("constant", np.full(300, 5.0)),
        ("zeros", np.zeros(300)),
        ("one jump at the end", np.append(np.zeros(299), 4.0)),
        ("level shift", np.where(np.arange(300) < 270, 3.0, 900.0)),
        ("rare", (np.arange(300) % 37 == 0) * 7.0),
        ("huge", seasonal(300) * 1e12),
        ("tiny", seasonal(300) * 1e-12),
        ("unknown and negative hours", np.where(np.arange(300) % 5 == 0, np.nan, seasonal(300)) - 60),
        ("nothing known", np.full(300, np.nan)),
    ],
)
def test_odd_pasts_give_sound_answers(name: str, past: Floats) -> None:
    forecast = DemandModel().forecast(past, 30, permilles=(10, 990))
    assert forecast.permilles == (10, 100, 500, 900, 990)
    sound(forecast, 30)
    known = past[np.isfinite(past) & (past >= 0)]
    assert (forecast.quantiles <= 2.01 * known.max(initial=0)).all()
    if name in ("constant", "zeros"):
        assert np.ptp(forecast.quantiles) <= 1e-6
        assert forecast.p50[0] == pytest.approx(past[0])


def test_holes_do_not_pass_for_history() -> None:
    past = np.full(500, np.nan)
    past[::50] = 7.0
    assert DemandModel().forecast(past, 3).basis == "last values"


def test_as_far_ahead_as_a_week_on_any_history() -> None:
    for known in (7, 61, 121, 240):
        sound(DemandModel().forecast(seasonal(known), 168), 168)
    with pytest.raises(SpecError, match="Give 1 to 168"):
        DemandModel().forecast(seasonal(7), 169)
