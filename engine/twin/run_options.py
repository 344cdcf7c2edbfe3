"""What would become of a workload in several ways to run it: each option is tried alone, on rehearsals with the same
draws for all other work, so that options differ by themselves alone.

Where there must be an answer within some time, it goes as far as it gets. Work that arrives costs most of it, so every
option is first run ahead without arrivals, then with them, and what does not get far enough so is told without. Then
those that were not cut off by the time are run again with other seeds: as many of them as there is time to run MIN_RUNS
times, since fewer runs make no quantiles.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from engine.control import Engine
from engine.model import what_if_edits as ed
from engine.model.distributions import MIN_RUNS
from engine.model.twin_queries import MAX_STRETCH, AskOptions, Attempt, Options, OptionTrial, Placing
from engine.state.cell_state import State
from engine.state.run_times import RunTimes, Whole, quantile
from engine.twin import rehearsals
from engine.twin.rehearsals import Conditions, HorizonProgress, RehearsalSample, arrivals_within
from engine.twin.what_if import AT_ONCE, NEVER, Job, run_all

MAX_OPTIONS = 16
FREE_PART, FULL_PART = 0.5, 0.4
"""Of the time that is left: for the first seed without arrivals, then with them. The rest is for other seeds."""
MIN_S = 0.02
"""CPU time that a rehearsal has at least."""
ARRIVAL_S = 0.0003
"""CPU time of one arrival, at the least."""
NEAR_MS, MAX_LATER = 10 * 60_000, 4
"""With arrivals a start is looked for so many times as far ahead as without, and so much further."""
GRAIN_PERMILLE, MAX_LOOKS = 20, 10_000
"""To so large a part of how far ahead it is a start is told where time is short, and coarser with many kinds of
waiting work: cycles are a third of the work, and starts move by a few percent."""
GOLDEN = 0.618033988749895


def share_of(n: int) -> float:
    """Of the likely run times the one that the n-th seed has, from 0 to 1: the median first, then spread evenly
    however many there are (multiples of the golden ratio)."""
    return (0.5 + n * GOLDEN) % 1


def run_time_in(likely: Sequence[int], n: int) -> int:
    """The run time of an option in the n-th seed."""
    return quantile(array("q", likely), share_of(n), 0)


class FixedRunTimes(RunTimes):
    """Run times of some workloads are told, all others drawn."""

    def __init__(self, state: State, others: RunTimes, told: dict[str, int]) -> None:
        self._ids = state.workloads.ids
        self._others = others
        self._told = told
        self.hangs = others.hangs

    def kin(self, row: int) -> str:
        return self._others.kin(row)

    def draw(self, row: int, share: float, beyond_ms: int) -> int:
        told = self._told.get(self._ids[row])
        return self._others.draw(row, share, beyond_ms) if told is None else max(told, beyond_ms + 1)

    def draw_many(self, rows: Whole, shares: object, beyond_ms: Whole) -> Whole:
        # What is told of is submitted in the rehearsal, and drawn one by one.
        return self._others.draw_many(rows, shares, beyond_ms)  # type: ignore[arg-type]


class _Time:
    """What is left of the time of an ask, by the CPU time that was used, so that answers hang little on what else the
    machine does; and a last moment all the same."""

    def __init__(self, within_ms: int) -> None:
        self.limited = within_ms > 0
        self._within_s = within_ms / 1000
        self._own_s = time.process_time()
        self._beside_s = 0.0
        self.last_s = time.monotonic() + MAX_STRETCH * self._within_s if self.limited else 0.0
        """Reading of the monotonic clock."""

    def left_s(self) -> float:
        used_s = time.process_time() - self._own_s + self._beside_s
        late = self.limited and time.monotonic() >= self.last_s
        return 0.0 if late else max(self._within_s - used_s, 0.0)

    def note(self, beside_s: float) -> None:
        """So much was used by processes beside this one, as if each had had a core."""
        self._beside_s += beside_s


class _Round:
    """One seed of some options."""

    def __init__(self, ask: AskOptions, places: Sequence[int], n: int, *, arrivals: bool) -> None:
        self.ask, self.places, self.n, self.arrivals = ask, places, n, arrivals
        self.samples: dict[int, RehearsalSample] = {}
        """By place in the ask."""

    def run(self, engine: Engine, run_times: RunTimes, horizons: Sequence[int], left: _Time, part: float) -> None:
        """With that part of what is left of the time: what one option does not need is for those before it, which
        matter more. Raises MusterError."""
        keep_s = left.left_s() * (1 - part)
        pairs = [self.places[at : at + AT_ONCE] for at in range(0, len(self.places), AT_ONCE)]
        while pairs:
            each_s = max((left.left_s() - keep_s) / len(pairs), MIN_S) if left.limited else 0.0
            self._run(engine, run_times, horizons, left, pairs.pop(), each_s)

    def _run(
        self,
        engine: Engine,
        run_times: RunTimes,
        horizons: Sequence[int],
        left: _Time,
        places: Sequence[int],
        each_s: float,
    ) -> None:
        """These side by side, each with so much CPU time; 0: as it takes."""
        jobs: list[Job] = []
        told = {}
        for place in places:
            spec = self.ask.workloads[place]
            told[spec.id] = run_time_in(self.ask.run_ms[place], self.n)
            under = Conditions(
                seed=self.ask.seed + self.n,
                horizon_ms=horizons[place],
                arrivals=self.arrivals,
                focus=(spec.id,),
                until="started" if self.ask.until == "started" else "over",
                give_up_cpu_s=each_s,
                give_up_s=left.last_s,
                grain_permille=GRAIN_PERMILLE if left.limited else 1,
                most_looks=MAX_LOOKS if left.limited else rehearsals.MAX_LOOKS,
                figures=False,
            )
            jobs.append(((ed.SubmitEdit(workloads=(spec,)),), under))

        def heard(job: int, what: RehearsalSample | HorizonProgress) -> None:
            if isinstance(what, RehearsalSample):
                self.samples[places[job]] = what

        run_all(engine, jobs, FixedRunTimes(engine.state, run_times, told), heard)
        left.note(max(self.samples[place].cpu_s for place in places))

    def settled(self, place: int) -> bool:
        found = self.samples[place].focus[0]
        return (found.started_ms if self.ask.until == "started" else found.ended_ms) >= 0


def answer(
    engine: Engine, ask: AskOptions, run_times: RunTimes, tell: Callable[[int, Options | None], None]
) -> Options:
    """Everything, or as much as there is time for. `tell(permille, what there is so far)`. Raises MusterError."""
    left = _Time(ask.within_ms)
    places = list(range(len(ask.workloads)))
    horizons = [ask.horizon_ms] * len(places)
    rounds = {place: [one] for place, one in _first(engine, ask, run_times, horizons, left).items()}
    if left.limited:
        # What was cut off by the time would be cut off again.
        places = [place for place in places if _reached(rounds[place][0], place, ask.horizon_ms)]
    for n in range(1, ask.seeds):
        tell(n * 1000 // ask.seeds, _options(engine, ask, rounds))
        if left.limited:
            places = _in_time(rounds, places, max(MIN_RUNS - n, 1), left) or _in_time(rounds, places, 1, left)
        again: list[int] = []
        for arrivals in (True, False):
            alike = [place for place in places if rounds[place][0].arrivals == arrivals]
            if not alike:
                continue
            one = _Round(ask, alike, n, arrivals=arrivals)
            one.run(engine, run_times, horizons, left, 1.0)
            for place in alike:
                # What was not run as far ahead as the others says nothing beside them.
                if not left.limited or _reached(one, place, horizons[place]):
                    rounds[place].append(one)
                    again.append(place)
        places = sorted(again)
        if not places:
            break
    return _options(engine, ask, rounds)


def _reached(one: _Round, place: int, horizon_ms: int) -> bool:
    """Whether the option was run as far ahead as it should."""
    return one.settled(place) or one.samples[place].covered_ms >= horizon_ms


Rounds = dict[int, list[_Round]]
"""By place in the ask, the rounds that the option is told from, by seed."""


def _in_time(rounds: Rounds, places: Sequence[int], times: int, left: _Time) -> list[int]:
    """Those, the first ones first, that can be run so many times more in the time that is left."""
    found: list[int] = []
    beside_s: list[float] = []
    for place in places:
        cost_s = rounds[place][-1].samples[place].cpu_s
        # Those that run side by side take as long as the longest of them.
        if times * sum(sorted([*beside_s, cost_s], reverse=True)[::AT_ONCE]) <= left.left_s():
            found.append(place)
            beside_s.append(cost_s)
    return found


def _first(engine: Engine, ask: AskOptions, run_times: RunTimes, horizons: list[int], left: _Time) -> dict[int, _Round]:
    """The first seed of every option, with arrivals where those let it be run ahead in time."""
    places = list(range(len(ask.workloads)))
    first = _Round(ask, places, 0, arrivals=ask.arrivals and not left.limited)
    first.run(engine, run_times, horizons, left, FREE_PART)
    found = dict.fromkeys(places, first)
    if not left.limited or not ask.arrivals:
        return found
    near = [place for place in places if first.settled(place) and _within_reach(engine, first.samples[place], left)]
    for place in near:
        horizons[place] = min(ask.horizon_ms, NEAR_MS + MAX_LATER * first.samples[place].covered_ms)
    full = _Round(ask, near, 0, arrivals=True)
    full.run(engine, run_times, horizons, left, FULL_PART)
    for place in near:
        if full.settled(place):
            found[place] = full
        else:
            horizons[place] = ask.horizon_ms
    return found


def _within_reach(engine: Engine, sample: RehearsalSample, left: _Time) -> bool:
    """Whether what arrives up to then can be run ahead in time."""
    count = arrivals_within(engine.state, engine.now_ms, sample.covered_ms)
    return count * ARRIVAL_S <= left.left_s() * FULL_PART


def _options(engine: Engine, ask: AskOptions, rounds: Rounds) -> Options:
    return Options(
        version=engine.version,
        at_ms=engine.now_ms,
        horizon_ms=ask.horizon_ms,
        seeds=max(map(len, rounds.values())),
        until=ask.until,
        arrivals=ask.arrivals,
        trials=tuple(
            OptionTrial(
                id=spec.id,
                reason=rounds[place][0].samples[place].focus[0].reason,
                arrivals=rounds[place][0].arrivals,
                attempts=tuple(_attempt(ask, one, place) for one in rounds[place]),
            )
            for place, spec in enumerate(ask.workloads)
        ),
    )


def _attempt(ask: AskOptions, one: _Round, place: int) -> Attempt:
    sample = one.samples[place]
    found = sample.focus[0]
    return Attempt(
        started_ms=None if found.started_ms == NEVER else found.started_ms,
        ended_ms=None if found.ended_ms < 0 else found.ended_ms,
        run_ms=run_time_in(ask.run_ms[place], one.n),
        cost_microusd=found.cost_microusd,
        placed=tuple(Placing(*held) for held in found.placed),
        stops=found.stops,
        covered_ms=sample.covered_ms,
    )
