"""Counting with estimates that may prove wrong: job by job the same as a second simulator that shares no code."""

from __future__ import annotations

from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_sim import Job, simulate

from engine.traces.replay import JobColumns, LastTwoEstimates, backfill, easy

HOUR_S = 3600


def counted(rows: list[tuple[int, int, int, int, str]]) -> JobColumns:
    """Of (arrival, run time, processors, longest run time expected, user), in seconds."""
    return JobColumns(
        arrival=[row[0] * 1000 for row in rows],
        run=[row[1] * 1000 for row in rows],
        processors=[row[2] for row in rows],
        estimate=[row[3] * 1000 for row in rows],
    )


class Guesses:
    """Estimates as drawn, (likely, safe) in seconds; half as long again, a minute more at least, when they prove wrong.

    For both simulators: `likely` and `safe` for the one, `submitted` for the other.
    """

    def __init__(self, guesses: list[tuple[int, int]]) -> None:
        self.guesses = guesses
        self.told: list[tuple[str, int, int]] = []

    def likely(self, index: int) -> int:
        return self.guesses[index][0]

    def safe(self, index: int) -> int:
        return self.guesses[index][1]

    def longer(self, index: int, elapsed: float) -> int:
        return int(elapsed) + max(60, int(elapsed) // 2)


class GuessesInMs(Guesses):
    def submitted(self, job: int, now: int) -> tuple[int, int]:
        self.told.append(("submitted", job, now))
        likely, safe = self.guesses[job]
        return likely * 1000, safe * 1000

    def started(self, job: int, now: int) -> None:
        self.told.append(("started", job, now))

    def longer(self, index: int, elapsed: float) -> int:
        return super().longer(index, elapsed // 1000) * 1000

    def ended(self, job: int, now: int) -> None:
        self.told.append(("ended", job, now))


jobs = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 30),
        st.integers(1, 8),
        st.integers(0, 30),
        st.sampled_from(("ann", "bob")),
        st.integers(1, 30),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=40,
)
"""(arrival, run time, processors, how much longer was asked for, user, likely run time, how much more the safe one is)
in steps; a step of 20 s has some jobs outrun several corrections, one of 5 h has some wait longer than three days."""


@settings(max_examples=100, deadline=None, derandomize=True)
@given(rows=jobs, processors=st.integers(8, 16), step_s=st.sampled_from([20, 5 * HOUR_S]), order=st.booleans())
def test_every_job_starts_when_the_reference_simulator_starts_it(rows, processors, step_s, order):
    rows = sorted(rows, key=itemgetter(0))
    told = [(a * step_s, r * step_s, p, (r + more) * step_s, user) for a, r, p, more, user, _, _ in rows]
    guesses = [(likely * step_s, (likely + more) * step_s) for *_, likely, more in rows]
    reference = [Job(a, r, p, most, ("ann", "bob").index(user)) for a, r, p, most, user in told]
    policy = "easy-sjbf" if order else "slowdown"
    expected = simulate(reference, processors, policy, model=Guesses(guesses))
    model = GuessesInMs(guesses)
    starts = backfill(counted(told), processors, model, "fcfs" if order else "slowdown")
    assert [start / 1000 for start in starts] == expected
    assert sorted(model.told, key=itemgetter(2)) == model.told, "told in the order things happen"
    assert len(model.told) == 3 * len(rows)
    if order:
        last_two = LastTwoEstimates(counted(told), [user for *_, user in told])
        starts = backfill(counted(told), processors, last_two)
        assert [start / 1000 for start in starts] == simulate(reference, processors, "easy-sjbf", last_two=True)


def test_an_order_by_hand() -> None:
    """One processor is busy until 100 s. Then whose wait and an hour are most beside its expected run time goes first,
    whenever it came; a job of 200 h gets its turn after three days although short ones keep coming."""
    rows = [(0, 100, 1, 0, ""), (10, 500, 1, 0, ""), (20, 50, 1, 0, ""), (90, 5, 1, 0, "")]
    likely = [(100, 100), (500, 500), (50, 50), (50, 50)]
    assert backfill(counted(rows), 1, GuessesInMs(likely), "slowdown") == [0, 155_000, 100_000, 150_000]
    assert backfill(counted(rows), 1, GuessesInMs(likely), "fcfs") == [0, 100_000, 600_000, 650_000]
    rows = [(0, HOUR_S, 1, 0, ""), (1, 200 * HOUR_S, 1, 0, "")]
    rows += [(hour * HOUR_S, HOUR_S, 1, 0, "") for hour in range(1, 80)]
    starts = backfill(counted(rows), 1, GuessesInMs([(run, run) for _, run, *_ in rows]), "slowdown")
    assert starts[1] == 73 * HOUR_S * 1000
    assert starts[2:74] == [hour * HOUR_S * 1000 for hour in range(1, 73)]


def test_jobs_all_alike_in_time_start_as_by_easy_backfill() -> None:
    rows = [(n, 30, 1 + n * 7 % 5, 30, "") for n in range(60)]
    starts = backfill(counted(rows), 8, GuessesInMs([(30, 30)] * 60))
    assert starts == easy(counted(rows), 8)
    assert max(start - row[0] * 1000 for start, row in zip(starts, rows, strict=True)) > 60_000


@pytest.mark.parametrize("order", ["fcfs", "slowdown"])
def test_nothing_to_do(order) -> None:
    assert backfill(counted([]), 4, GuessesInMs([]), order) == []
