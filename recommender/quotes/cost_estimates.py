"""From what the twin found to a quote: when each option starts, how long it takes and what it costs: as quantiles where
they were measured from enough runs, else as what single runs say.

Costs are those the ledger would charge: for every task the part of its node's list price, in whole micro-USD an hour,
times the time it holds the node, rounded down to a micro-USD. Where an option was run ahead to its end they are what
the rehearsals counted by that rule. Where it was run only to its start, they are the rate times the run time; on spot
machines that are known to be taken back, over draws of when that happens (see `interrupted`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

from engine.ledger.charges import GRAINS
from engine.model import distributions
from engine.model.autoscaling import ScalingSpec
from engine.model.base import HOUR_MS
from engine.model.distributions import MIN_RUNS
from engine.model.twin_queries import Attempt, Options, OptionTrial
from recommender.quotes.options import QuoteCandidate
from recommender.quotes.queries import Offer, Quantiles, QuoteOption, RunTime

PPM = 1_000_000
DECILES = tuple(range(100, 1000, 100))
DRAWS = 200
"""Lives of work on spot machines that are drawn."""
MIN_FINISHED = 50
"""Workloads that finished, that are enough to tell how often such are stopped."""
MAX_ATTEMPTS = 500
"""Starts in one life, after which it is taken to never end."""
NORMAL_P90 = NormalDist().inv_cdf(0.9)
NEVER = 2**62
"""Sorts after every time."""


def charged(rate_microusd_hour: int, ms: int) -> int:
    """What the ledger charges for so long at a rate: micro-USD, rounded down."""
    return rate_microusd_hour * ms // GRAINS


def likely_of(run: RunTime) -> tuple[int, ...]:
    """Run times at the deciles, ascending; one where it is known. Between p10, p50 and p90 and beyond, the logarithm is
    taken to be normal on each side of the median."""
    if run.told or run.p10_ms == run.p90_ms:
        return (run.p50_ms,)
    low, high = (
        math.log(max(each, 1) / run.p50_ms) / z for each, z in ((run.p10_ms, -NORMAL_P90), (run.p90_ms, NORMAL_P90))
    )
    found = []
    for permille in DECILES:
        z = NormalDist().inv_cdf(permille / 1000)
        found.append(max(1, round(run.p50_ms * math.exp((low if z < 0 else high) * z))))
    return tuple(sorted(found))


def quantiles(values: Sequence[int]) -> Quantiles:
    """Of one value of each run, at least one, NEVER where it is not known."""
    known = sorted(value for value in values if value < NEVER)
    low, middle, high = distributions.quantiles(known, len(values) - len(known))
    return Quantiles(
        runs=len(values),
        least=known[0] if known else None,
        p10=low,
        p50=middle,
        p90=high,
        most=known[-1] if len(known) == len(values) else None,
    )


def told(value: int) -> Quantiles:
    """Of what no run measured: it follows from what was told."""
    return Quantiles(runs=0, least=value, p10=None, p50=None, p90=None, most=value)


def priced(candidate: QuoteCandidate, trial: OptionTrial, options: Options, run: RunTime) -> QuoteOption:
    """An option that the twin has tried."""
    attempts = trial.attempts
    # The cell may have gone on since the options were made up.
    asked_ms = max(candidate.asked_start_ms, options.at_ms)
    start, looked_ms = _start(attempts, options)
    started = sum(one.started_ms is not None and one.started_ms <= options.at_ms + looked_ms for one in attempts)
    wait_ms = max(0, next((at for at in (start.p50, start.least) if at is not None), asked_ms) - asked_ms)
    # What lasts longer than can be run ahead ends in no run: then it is told as where no run goes on to the end.
    ended = options.until == "ended" and not _unseen(candidate) and any(one.ended_ms is not None for one in attempts)
    duration, cost = _ended(attempts) if ended else _until_end(candidate, run, wait_ms)
    odds, odds_basis = _odds(candidate, run)
    if ended and len(attempts) >= MIN_RUNS and all(one.ended_ms is not None or one.stops for one in attempts):
        stopped = sum(one.stops > 0 for one in attempts)
        odds, odds_basis = stopped * 1000 // len(attempts), f"stopped in {stopped} of {len(attempts)} runs to its end"
    return _option(
        candidate,
        run,
        asked_start_ms=asked_ms,
        start_ms=start,
        started=started,
        chance_permille=started * 1000 // len(attempts) if len(attempts) >= MIN_RUNS else None,
        looked_ms=looked_ms,
        reason=trial.reason if asked_ms == options.at_ms else "",
        duration_ms=duration,
        cost_microusd=cost,
        rate_microusd_hour=_rate(candidate, attempts),
        interruption_permille=odds,
        interruption_basis=odds_basis,
        basis="run to its end" if ended else "run to its start",
        seeds=len(attempts),
        arrivals=trial.arrivals,
        notes=(*candidate.notes, *_notes(candidate, trial, options, ended=ended, duration=duration)),
    )


def _unseen(candidate: QuoteCandidate) -> bool:
    """Whether its machines are taken back, but not in rehearsals: there only as often as a pool says."""
    return bool(candidate.hazard_ppm_hour) and not candidate.hazard_told


def as_if_free(candidate: QuoteCandidate, run: RunTime) -> QuoteOption:
    """An option that starts further ahead than the twin can run: nothing is known of the queue of that time."""
    duration, cost = _until_end(candidate, run, 0)
    odds, odds_basis = _odds(candidate, run)
    at_ms = candidate.asked_start_ms
    return _option(
        candidate,
        run,
        asked_start_ms=at_ms,
        start_ms=told(at_ms),
        started=0,
        chance_permille=None,
        looked_ms=0,
        reason="",
        duration_ms=duration,
        cost_microusd=cost,
        rate_microusd_hour=candidate.rate_microusd_hour,
        interruption_permille=odds,
        interruption_basis=odds_basis,
        basis="as if there were room",
        seeds=0,
        arrivals=False,
        notes=(*candidate.notes, "further ahead than can be run: the queue of that time is not known"),
    )


def _option(candidate: QuoteCandidate, run: RunTime, **found: Any) -> QuoteOption:
    """What the candidate is, and what was found of it: the other fields of a QuoteOption."""
    return QuoteOption(
        kind=candidate.kind,
        label=candidate.label,
        pool=candidate.pool,
        machine_type=candidate.machine_type,
        region=candidate.region,
        gpu_model=candidate.gpu_model,
        spot=candidate.spot,
        interruption_over_ms=run.p50_ms,
        **found,
    )


def listed(offer: Offer, nodes: int, gpu_model: str, at_ms: int, run: RunTime) -> QuoteOption:
    """What it would cost on whole machines bought at a list price, `at_ms` at the soonest: they boot as the simulated
    provider's do where a pool says nothing."""
    rate = offer.price_microusd_hour * nodes
    return QuoteOption(
        kind="list",
        label="list price",
        pool="",
        machine_type=offer.machine_type,
        region=offer.region,
        gpu_model=gpu_model,
        spot=offer.spot,
        asked_start_ms=at_ms,
        start_ms=told(at_ms + _boot_ms(nodes)),
        started=0,
        chance_permille=None,
        looked_ms=0,
        reason="",
        duration_ms=_undisturbed(run, lambda ms: ms),
        cost_microusd=_undisturbed(run, lambda ms: charged(rate, ms)),
        rate_microusd_hour=rate,
        interruption_permille=None if offer.spot else 0,
        interruption_over_ms=run.p50_ms,
        interruption_basis="not known outside the cell" if offer.spot else "on-demand machines are not taken back",
        basis="list price",
        seeds=0,
        arrivals=False,
        notes=(f"{offer.source}; no queue known: as if such machines could be bought at once; paid from when all run",),
    )


def _boot_ms(nodes: int) -> int:
    """By when all of so many machines have booted, as often as not."""
    median, p95 = ScalingSpec(most=0).boot_ms
    each: float = 0.5 ** (1 / nodes)
    sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
    return round(median * math.exp(sigma * NormalDist().inv_cdf(min(each, 1 - 1e-12))))


# -- start ------------------------------------------------------------------------------------------------------------


def _start(attempts: Sequence[Attempt], options: Options) -> tuple[Quantiles, int]:
    """The start, and how far ahead it was looked for in every run."""
    missing = [one.covered_ms for one in attempts if one.started_ms is None]
    looked_ms = min(missing, default=options.horizon_ms)
    times = [NEVER if one.started_ms is None else one.started_ms for one in attempts]
    # A start later than some run went ahead says nothing of the order.
    return quantiles([at_ms if at_ms <= options.at_ms + looked_ms else NEVER for at_ms in times]), looked_ms


def _rate(candidate: QuoteCandidate, attempts: Sequence[Attempt]) -> int:
    rates = [sum(held.rate_microusd_hour for held in one.placed) for one in attempts if one.placed]
    return rates[0] if rates else candidate.rate_microusd_hour


# -- duration and cost ------------------------------------------------------------------------------------------------


def _ended(attempts: Sequence[Attempt]) -> tuple[Quantiles, Quantiles]:
    durations, costs = [], []
    for one in attempts:
        over = one.started_ms is not None and one.ended_ms is not None
        durations.append(one.ended_ms - one.started_ms if over else NEVER)  # type: ignore[operator]
        costs.append(one.cost_microusd if over else NEVER)
    return quantiles(durations), quantiles(costs)


def _until_end(candidate: QuoteCandidate, run: RunTime, wait_ms: int) -> tuple[Quantiles, Quantiles]:
    """From the start on, not run ahead."""
    rate = candidate.rate_microusd_hour
    if not candidate.hazard_ppm_hour:
        return _undisturbed(run, lambda ms: ms), _undisturbed(run, lambda ms: charged(rate, ms))
    lives = interrupted(likely_of(run), candidate.hazard_ppm_hour, candidate.spec.checkpoint_interval_ms, wait_ms)
    costs = [NEVER if held_ms >= NEVER else charged(rate, held_ms) for _, held_ms in lives]
    return quantiles([lasts_ms for lasts_ms, _ in lives]), quantiles(costs)


def _undisturbed(run: RunTime, of: Callable[[int], int]) -> Quantiles:
    """What hangs on the run time alone."""
    if run.told:
        return told(of(run.p50_ms))
    if run.samples < MIN_RUNS:
        return Quantiles(runs=run.samples, least=of(run.p50_ms), p10=None, p50=None, p90=None, most=of(run.p50_ms))
    return Quantiles(
        runs=run.samples, least=None, p10=of(run.p10_ms), p50=of(run.p50_ms), p90=of(run.p90_ms), most=None
    )


def interrupted(likely: Sequence[int], hazard_ppm_hour: int, checkpoint_ms: int, wait_ms: int) -> list[tuple[int, int]]:
    """Lives of work whose machines are taken back as a Poisson process with that hazard: (first start to end, time that
    it held machines), milliseconds; NEVER for what does not end in MAX_ATTEMPTS starts.

    A renewal process: at an interruption all work since the last multiple of `checkpoint_ms` is lost (0: all work), and
    it waits for the next start as long as for the first. Drawn DRAWS times from a fixed seed.
    """
    draw = random.Random("interrupted lives")
    mean_ms = PPM * HOUR_MS / hazard_ppm_hour
    lives = []
    for n in range(DRAWS):
        work_ms = likely[n * len(likely) // DRAWS]
        kept_ms = held_ms = waited_ms = 0
        for _ in range(MAX_ATTEMPTS):
            lasts_ms = int(draw.expovariate(1.0) * mean_ms)
            if lasts_ms >= work_ms - kept_ms:
                held_ms += work_ms - kept_ms
                lives.append((held_ms + waited_ms, held_ms))
                break
            held_ms += lasts_ms
            waited_ms += wait_ms
            if checkpoint_ms:
                kept_ms = (kept_ms + lasts_ms) // checkpoint_ms * checkpoint_ms
        else:
            lives.append((NEVER, NEVER))
    return lives


def _odds(candidate: QuoteCandidate, run: RunTime) -> tuple[int | None, str]:
    """Chance that it is stopped at least once in its own run time, at a rate that does not change, and what the rate
    rests on."""
    return _spot_odds(candidate, run) if candidate.spot else _usual_odds(candidate, run)


def _spot_odds(candidate: QuoteCandidate, run: RunTime) -> tuple[int | None, str]:
    likely, oldest_ms = likely_of(run), candidate.max_age_ms
    if oldest_ms and oldest_ms < run.p50_ms:
        return 1000, f"its machines end when they are {oldest_ms / HOUR_MS:g} h old"
    hazard = candidate.hazard_ppm_hour
    if not hazard:
        return None, "no machine of the pool was taken back so far, and the pool does not say how often"
    nodes = candidate.spec.groups[0].count
    whose = "as the pool says" if candidate.hazard_told else "as measured in this cell"
    basis = f"{hazard / PPM:.3g} an hour of its {nodes:,} machines, {whose}, taken as constant"
    asked_ms = nodes * run.p50_ms
    if not candidate.hazard_told and asked_ms > candidate.watched_ms:
        basis += f"; extrapolated: {_hours(asked_ms)} of machines from {_hours(candidate.watched_ms)} that were watched"
    return _at_least_once(hazard / PPM, likely), basis


def _usual_odds(candidate: QuoteCandidate, run: RunTime) -> tuple[int | None, str]:
    """As often as work of its priority was stopped for the time it ran."""
    past = candidate.past
    if past.finished < MIN_FINISHED or not past.ran_ms:
        return None, f"only {past.finished:,} of its priority finished within a day; --seeds 8 runs it on"
    seen = f"{past.finished:,} of its priority that finished within a day, {_hours(past.ran_ms)} in all"
    if not past.stops and run.p50_ms > past.ran_ms:
        return None, f"none of {seen}, was stopped: too little to tell of {_hours(run.p50_ms)}"
    basis = f"{past.stops:,} stops of {seen}, at that rate throughout"
    if run.p50_ms > past.longest_ms:
        basis += f"; extrapolated: none ran longer than {_hours(past.longest_ms)}"
    return _at_least_once(past.stops * HOUR_MS / past.ran_ms, likely_of(run)), basis


def _at_least_once(hazard_hour: float, likely: Sequence[int]) -> int:
    """Permille, as a mean over the likely run times."""
    return round(1000 * sum(-math.expm1(-hazard_hour * ms / HOUR_MS) for ms in likely) / len(likely))


def _hours(ms: int) -> str:
    return f"{ms / HOUR_MS:,.3g} h" if ms < 100 * HOUR_MS else f"{ms // HOUR_MS:,} h"


def _notes(
    candidate: QuoteCandidate, trial: OptionTrial, options: Options, *, ended: bool, duration: Quantiles
) -> list[str]:
    notes = []
    if options.arrivals and not trial.arrivals:
        notes.append("new arrivals are left out, for want of time: it may start later; --within 20s takes it")
    if options.until == "ended" and not ended and not _unseen(candidate):
        notes.append(f"no run reached its end within {_hours(options.horizon_ms)}: its duration is its run time")
    if not candidate.hazard_ppm_hour:
        return notes
    kept_ms = candidate.spec.checkpoint_interval_ms
    text = f"going on from checkpoints every {kept_ms / HOUR_MS:g} h" if kept_ms else "beginning anew each time"
    notes.append(f"interruptions are {'those of the runs' if ended else 'drawn from its start on'}, {text}")
    if duration.runs >= MIN_RUNS and duration.p90 is None:
        notes.append("it may hardly ever end on spot machines: give it checkpoints (--checkpoint), or others")
    return notes
