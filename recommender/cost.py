"""From what the twin found to a quote: when each option starts, how long it takes and what it costs, as quantiles.

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

from engine.ledger import GRAINS
from engine.outlook import Attempt, Options, OptionTrial
from engine.scaling import ScalingSpec
from engine.spec import HOUR_MS
from recommender.quote_plan import Candidate
from recommender.quotes import Basis, Offer, Quantiles, QuoteOption, RunTime

PPM = 1_000_000
DECILES = tuple(range(100, 1000, 100))
DRAWS = 200
"""Lives of work on spot machines that are drawn."""
LEAST_FINISHED = 50
"""Workloads that finished, that are enough to tell how often such are stopped."""
MOST_ATTEMPTS = 500
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
    """Of at least one value, NEVER among them perhaps: the least value that so many of the others do not exceed."""
    ordered = sorted(values)

    def at(permille: int) -> int | None:
        found = ordered[max(-(-len(ordered) * permille // 1000), 1) - 1]
        return None if found >= NEVER else found

    return Quantiles(p10=at(100), p50=at(500), p90=at(900))


def priced(candidate: Candidate, trial: OptionTrial, options: Options, likely: Sequence[int]) -> QuoteOption:
    """An option that the twin has tried."""
    attempts = trial.attempts
    # The cell may have gone on since the options were made up.
    asked_ms = max(candidate.asked_start_ms, options.at_ms)
    start, chance, looked_ms = _start(attempts, options)
    wait_ms = 0 if start.p50 is None else max(0, start.p50 - asked_ms)
    basis: Basis = "run to its end" if options.until == "ended" else "run to its start"
    if options.until == "ended" and not _unseen(candidate):
        duration, cost = _ended(attempts)
        stopped = sum(one.stops > 0 for one in attempts)
        odds: int | None = stopped * 1000 // len(attempts)
        odds_basis = f"stopped in {stopped} of {len(attempts)} seeds"
    else:
        duration, cost = _until_end(candidate, likely, wait_ms)
        odds, odds_basis = _odds(candidate, likely)
    return _option(
        candidate,
        asked_start_ms=asked_ms,
        start_ms=start,
        chance_permille=chance,
        looked_ms=looked_ms,
        reason=trial.reason if asked_ms == options.at_ms else "",
        duration_ms=duration,
        cost_microusd=cost,
        rate_microusd_hour=_rate(candidate, attempts),
        interruption_permille=odds,
        interruption_basis=odds_basis,
        basis=basis,
        seeds=len(attempts),
        arrivals=trial.arrivals,
        notes=(*candidate.notes, *_notes(candidate, trial, options, duration, asked_ms)),
    )


def _unseen(candidate: Candidate) -> bool:
    """Whether its machines are taken back, but not in rehearsals: there only as often as a pool says."""
    return bool(candidate.hazard_ppm_hour) and not candidate.hazard_told


def as_if_free(candidate: Candidate, likely: Sequence[int]) -> QuoteOption:
    """An option that starts further ahead than the twin can run: nothing is known of the queue of that time."""
    duration, cost = _until_end(candidate, likely, 0)
    odds, odds_basis = _odds(candidate, likely)
    at_ms = candidate.asked_start_ms
    return _option(
        candidate,
        asked_start_ms=at_ms,
        start_ms=Quantiles(p10=at_ms, p50=at_ms, p90=at_ms),
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


def _option(candidate: Candidate, **found: Any) -> QuoteOption:
    """What the candidate is, and what was found of it: the other fields of a QuoteOption."""
    return QuoteOption(
        kind=candidate.kind,
        label=candidate.label,
        pool=candidate.pool,
        machine_type=candidate.machine_type,
        region=candidate.region,
        gpu_model=candidate.gpu_model,
        spot=candidate.spot,
        **found,
    )


def listed(offer: Offer, nodes: int, gpu_model: str, at_ms: int, likely: Sequence[int]) -> QuoteOption:
    """What it would cost on whole machines bought at a list price, `at_ms` at the soonest: they boot as the simulated
    provider's do where a pool says nothing."""
    rate = offer.price_microusd_hour * nodes
    boots = tuple(_boot_ms(permille, nodes) for permille in (100, 500, 900))
    return QuoteOption(
        kind="list",
        label="list price",
        pool="",
        machine_type=offer.machine_type,
        region=offer.region,
        gpu_model=gpu_model,
        spot=offer.spot,
        asked_start_ms=at_ms,
        start_ms=Quantiles(p10=at_ms + boots[0], p50=at_ms + boots[1], p90=at_ms + boots[2]),
        chance_permille=None,
        looked_ms=0,
        reason="",
        duration_ms=_three(likely, lambda ms: ms),
        cost_microusd=_three(likely, lambda ms: charged(rate, ms)),
        rate_microusd_hour=rate,
        interruption_permille=None if offer.spot else 0,
        interruption_basis="not known outside the cell" if offer.spot else "on-demand machines are not taken back",
        basis="list price",
        seeds=0,
        arrivals=False,
        notes=(f"{offer.source}; no queue known: as if such machines could be bought at once; paid from when all run",),
    )


def _boot_ms(permille: int, nodes: int) -> int:
    """By when all of so many machines have booted, with that chance."""
    median, p95 = ScalingSpec(most=0).boot_ms
    each = (permille / 1000) ** (1 / nodes)
    sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
    return round(median * math.exp(sigma * NormalDist().inv_cdf(min(each, 1 - 1e-12))))


# -- start ------------------------------------------------------------------------------------------------------------


def _start(attempts: Sequence[Attempt], options: Options) -> tuple[Quantiles, int, int]:
    """Quantiles of the start, its chance, and how far ahead it was looked in every seed."""
    missing = [one.covered_ms for one in attempts if one.started_ms is None]
    looked_ms = min(missing, default=options.horizon_ms)
    times = [NEVER if one.started_ms is None else one.started_ms for one in attempts]
    # A start later than some seed was run ahead says nothing of the order.
    times = [at_ms if at_ms <= options.at_ms + looked_ms else NEVER for at_ms in times]
    return quantiles(times), sum(at_ms < NEVER for at_ms in times) * 1000 // len(times), looked_ms


def _rate(candidate: Candidate, attempts: Sequence[Attempt]) -> int:
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


def _until_end(candidate: Candidate, likely: Sequence[int], wait_ms: int) -> tuple[Quantiles, Quantiles]:
    """From the start on, not run ahead."""
    if not candidate.hazard_ppm_hour:
        rate = candidate.rate_microusd_hour
        return _three(likely, lambda ms: ms), _three(likely, lambda ms: charged(rate, ms))
    lives = interrupted(likely, candidate.hazard_ppm_hour, candidate.spec.checkpoint_interval_ms, wait_ms)
    rate = candidate.rate_microusd_hour
    costs = [NEVER if held_ms >= NEVER else charged(rate, held_ms) for _, held_ms in lives]
    return quantiles([lasts_ms for lasts_ms, _ in lives]), quantiles(costs)


def _three(likely: Sequence[int], of: Callable[[int], int]) -> Quantiles:
    return Quantiles(p10=of(likely[0]), p50=of(likely[len(likely) // 2]), p90=of(likely[-1]))


def interrupted(likely: Sequence[int], hazard_ppm_hour: int, checkpoint_ms: int, wait_ms: int) -> list[tuple[int, int]]:
    """Lives of work whose machines are taken back as a Poisson process with that hazard: (first start to end, time that
    it held machines), milliseconds; NEVER for what does not end in MOST_ATTEMPTS starts.

    A renewal process: at an interruption all work since the last multiple of `checkpoint_ms` is lost (0: all work), and
    it waits for the next start as long as for the first. Drawn DRAWS times from a fixed seed.
    """
    draw = random.Random("interrupted lives")
    mean_ms = PPM * HOUR_MS / hazard_ppm_hour
    lives = []
    for n in range(DRAWS):
        work_ms = likely[n * len(likely) // DRAWS]
        kept_ms = held_ms = waited_ms = 0
        for _ in range(MOST_ATTEMPTS):
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


def _odds(candidate: Candidate, likely: Sequence[int]) -> tuple[int | None, str]:
    """Chance that it is stopped at least once while it would run undisturbed, and what it rests on."""
    if not candidate.spot:
        if candidate.finished < LEAST_FINISHED:
            return None, "it is not run beyond its start; --seeds N does"
        of = f"{candidate.stopped:,} of {candidate.finished:,} of its priority that finished within a day"
        return candidate.stopped * 1000 // candidate.finished, f"{of} were stopped before; --seeds N runs it on"
    if candidate.max_age_ms and candidate.max_age_ms < likely[len(likely) // 2]:
        return 1000, f"its machines end when they are {candidate.max_age_ms / HOUR_MS:g} h old"
    if not candidate.hazard_ppm_hour:
        return None, "no machine of the pool was taken back so far, and the pool does not say how often"
    hours = [ms / HOUR_MS for ms in likely]
    chance = sum(1 - math.exp(-candidate.hazard_ppm_hour / PPM * h) for h in hours) / len(hours)
    whose = "as the pool says" if candidate.hazard_told else "as measured in this cell"
    nodes = candidate.spec.groups[0].count
    return round(chance * 1000), f"{candidate.hazard_ppm_hour / PPM:.3g} an hour of its {nodes:,} machines, {whose}"


def _notes(candidate: Candidate, trial: OptionTrial, options: Options, duration: Quantiles, asked_ms: int) -> list[str]:
    notes = []
    if options.arrivals and not trial.arrivals:
        notes.append("new arrivals are left out, for want of time: it may start later; --within 20s takes it")
    if len(trial.attempts) == 1 and trial.attempts[0].started_ms not in (None, asked_ms):
        notes.append("one seed: how far its start may be off is not known; --within 20s tells")
    if not candidate.hazard_ppm_hour:
        return notes
    kept_ms = candidate.spec.checkpoint_interval_ms
    text = f"going on from checkpoints every {kept_ms / HOUR_MS:g} h" if kept_ms else "beginning anew each time"
    drawn = options.until == "started" or _unseen(candidate)
    notes.append(f"interruptions are {'drawn from its start on' if drawn else 'those of the rehearsals'}, {text}")
    if duration.p90 is None:
        notes.append("it may hardly ever end on spot machines: give it checkpoints (--checkpoint), or others")
    return notes
