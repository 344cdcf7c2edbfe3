"""Hourly series of demand, and the score of capacity rules on them.

The capacity of an hour is decided `lead` hours before it, from the demand known by then. Each rule is given the
headroom, a factor, with which exactly 1 % of the demanded unit-hours of the last 30 % of a series are unmet. Its score
is the unit-hours that it then provides above demand, in percent of those demanded. Series are read from files, or come
from the generated cell (`engine.traces.generated_day`).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from engine.capacity.task_shapes import accepts
from engine.model.errors import SpecError
from engine.model.specs import HOUR_MS
from engine.state.demand import DAY, Forecaster, SeasonalBaseline, Series
from engine.traces.generated_day import ai_day

UNMET = 0.01
MAX_HEADROOM = 1e9
LEADS = (1, 6)
"""Hours."""
QUANTILES = (500, 800, 900, 950)
"""Permille."""
MIN_HOURS = 10 * DAY
"""Shorter series are left out: their test part would be less than three days."""
FULL = "_full"
"""Series whose name ends so are tested on their last 40 %."""
GENERATED_DAYS, GENERATED_NODES = 28, 100
COMPARED = (
    "helios_earth_dev_vcs_gpu_demand", "itp2021_cluster04_gpus_in_use", "kth_sp2_1996_procs_in_use",
    "nab_Twitter_volume_AMZN", "nab_nyc_taxi", "philly2017_active_nodes", "spotgpu2026_gpus_active_A10_h0024-2650",
    "spotgpu2026_gpus_active_h0024-2650",
)  # fmt: skip
"""Series on which the best forecaster known to us was measured by the same protocol."""
BEST_KNOWN = {1: 4.0, 6: 13.5}
"""By lead in hours: its geometric mean over them. Gradient-boosted trees on lags, fitted to each series by itself."""
REACTIVE = ("last value", "max 24 h", "max(last, yesterday)", "peak of train")


class Load(msgspec.Struct, frozen=True):
    """One series."""

    name: str
    demand: Series
    first_test: int
    """Hour at which its test part begins."""


class SeriesScore(msgspec.Struct, frozen=True, kw_only=True):
    """How rules did on one series. Percent of the demanded unit-hours that were provided above demand, by rule; None
    where no headroom leaves as little unmet."""

    series: str
    lead_h: int
    hours: int
    test_hours: int
    over_percent: dict[str, float | None]
    train_over_percent: dict[str, float | None]
    """Of forecasts, by quantile, on the part before the test: what the quantile is chosen by."""


def forecast_rule(permille: int) -> str:
    return f"forecast q{permille / 1000:g}"


def read(folder: str | Path) -> list[Load]:
    """Every `*.csv.gz` of the folder with a column `value`, by name. Raises SpecError naming the file."""
    paths = sorted(Path(folder).glob("*.csv.gz"))
    if not paths:
        raise SpecError("--data", f"'{folder}' holds no *.csv.gz", "Give a folder of hourly series, or none")
    found = []
    for path in paths:
        name = path.name.removesuffix(".csv.gz")
        demand = _column(path)
        if len(demand) >= MIN_HOURS:
            share = 0.6 if name.endswith(FULL) else 0.7
            found.append(Load(name, demand, int(len(demand) * share)))
    return found


def _column(path: Path) -> Series:
    try:
        with gzip.open(path, "rt", newline="") as lines:
            values = np.array([float(row["value"]) for row in csv.DictReader(lines)])
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise SpecError(str(path), f"is not a series: {error}", "Give lines of time,value") from None
    if not np.isfinite(values).all() or (values < 0).any():
        raise SpecError(str(path), "holds a value below 0", "Give numbers of 0 or more")
    return values


def generated(seed: int, days: int = GENERATED_DAYS) -> list[Load]:
    """Units asked for in each pool of the generated AI cell if everything had started when it was submitted: mean of
    each hour, in milli-GPU, or milli-CPU where there are no GPUs."""
    hours = days * DAY
    series: dict[str, Series] = {}
    for day in range(days):
        cell, arrivals = ai_day(seed, nodes=GENERATED_NODES, day=day)
        for at_ms, spec in arrivals:
            for group in spec.groups:
                # The first that it may use: which one it will be given depends on what else runs.
                pool = next(pool for pool in cell.pools if accepts(group, pool))
                units = group.count * (group.request.gpu_milli if pool.capacity.gpu_milli else group.request.cpu_milli)
                begin = (at_ms + day * DAY * HOUR_MS) / HOUR_MS
                demand = series.setdefault(pool.name, np.zeros(hours))
                _add(demand, begin, begin + spec.simulated_runtime_ms / HOUR_MS, units)
    return [Load(f"generated_{name}", demand, int(hours * 0.7)) for name, demand in sorted(series.items())]


def _add(demand: Series, begin: float, end: float, units: int) -> None:
    """So many more from `begin` to `end`, in hours."""
    first, last = int(begin), min(int(end), len(demand) - 1)
    demand[first : last + 1] += units
    demand[first] -= units * (begin - first)
    if end < last + 1:
        demand[last] -= units * (last + 1 - end)


def over_provisioned(demand: Series, capacity: Series) -> float | None:
    """Unit-hours above demand in percent of those demanded, with the headroom that leaves UNMET of them unmet; None
    when none up to the most does."""
    total = demand.sum()

    def unmet(headroom: float) -> float:
        return float(np.maximum(demand - headroom * capacity, 0).sum() / total)

    low, high = 0.0, 1.0
    while unmet(high) > UNMET:
        low, high = high, 2 * high
        if low >= MAX_HEADROOM:
            return None
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if unmet(middle) > UNMET else (low, middle)
    return float(np.maximum(high * capacity - demand, 0).sum() / total * 100)


def reactive(load: Load, lead: int) -> dict[str, Series]:
    """Return the capacity by each of REACTIVE in each hour of the test part."""
    demand, hours = load.demand, range(load.first_test, len(load.demand))
    last = demand[load.first_test - lead : len(demand) - lead]
    yesterday = demand[load.first_test - DAY : len(demand) - DAY]
    most = np.array([demand[hour - lead - DAY + 1 : hour - lead + 1].max() for hour in hours])
    peak = np.full(len(hours), demand[: load.first_test].max())
    return dict(zip(REACTIVE, (last, most, np.maximum(last, yesterday), peak), strict=True))


def foretold(demand: Series, hours: range, lead: int, permilles: Sequence[int], forecaster: Forecaster) -> Series:
    """[quantile, hour]: what the forecaster says of each of these hours, of which it knows what was asked for up to
    `lead` before."""
    return np.array([forecaster.quantiles(demand[: hour - lead + 1], lead, permilles) for hour in hours]).T


def score(load: Load, lead: int, forecaster: Forecaster | None = None) -> SeriesScore:
    """All rules on one series."""
    forecaster = SeasonalBaseline() if forecaster is None else forecaster
    demand, first = load.demand, load.first_test
    over = {name: over_provisioned(demand[first:], provided) for name, provided in reactive(load, lead).items()}
    train: dict[str, float | None] = {}
    # As long a part as the test part, before it: what comes before that is needed to forecast from.
    before = range(max(first - (len(demand) - first), 2 * DAY + lead), first)
    every = foretold(demand, range(before.start, len(demand)), lead, QUANTILES, forecaster)
    for permille, said in zip(QUANTILES, every, strict=True):
        train[forecast_rule(permille)] = over_provisioned(demand[before.start : first], said[: len(before)])
        over[forecast_rule(permille)] = over_provisioned(demand[first:], said[len(before) :])
    return SeriesScore(
        series=load.name,
        lead_h=lead,
        hours=len(demand),
        test_hours=len(demand) - first,
        over_percent=over,
        train_over_percent=train,
    )


def geometric_means(
    scores: Iterable[SeriesScore], of: Callable[[SeriesScore], dict[str, float | None]]
) -> dict[str, float | None]:
    """By rule, over the series on which every rule has a score above 0; None when there are none."""
    rows = [of(score) for score in scores]
    rows = [row for row in rows if all(value is not None and value > 0 for value in row.values())]
    if not rows:
        return {}
    table = np.log(np.array([[value for value in row.values() if value is not None] for row in rows]))
    return dict(zip(rows[0], np.exp(table.mean(axis=0)).tolist(), strict=True))


def chosen_quantile(scores: Iterable[SeriesScore]) -> int:
    """Permille of the forecast that provides least on the parts before the tests, over all leads; the lower of equals.
    900 when no series tells."""
    means = geometric_means(scores, lambda score: score.train_over_percent)
    return min(QUANTILES, key=lambda permille: (means[forecast_rule(permille)], permille)) if means else 900
