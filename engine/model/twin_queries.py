"""Questions to the twin, and its answers. Types only, so that a console imports them without loading the engine.

`engine.twin.live_twin.Twins` takes a question and gives a RunStatus. The answers are made in `engine.twin.what_if` and
`engine.twin.start_estimates`.

Times are cell time in milliseconds, money is micro-USD, device time is milliseconds times whole devices (CPU cores
where the cell has no GPU). Integers only.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from engine.model.specs import HOUR_MS, Spec, WorkloadSpec
from engine.model.what_if_edits import AnyEdit

MAX_HORIZON_MS = 7 * 24 * HOUR_MS
MAX_SEEDS = 100
MAX_WATCHED = 100
# -- asks -------------------------------------------------------------------------------------------------------------


class WhatIf(Spec, frozen=True, kw_only=True, tag_field="ask", tag="what_if"):
    """Run ahead with and without the edits, once for every seed."""

    edits: tuple[AnyEdit, ...]
    horizon_ms: int = 24 * HOUR_MS
    seeds: int = 8
    seed: int = 0
    """The first seed; the same gives the same answer."""
    watch: tuple[str, ...] = ()
    """Workloads whose starts are told, besides those that the edits submit and those that move most."""
    arrivals: bool = False
    """More work arrives as it did of late, resampled by seed. Otherwise only what is there, and what edits submit."""


class AskStart(Spec, frozen=True, kw_only=True, tag_field="ask", tag="start"):
    """The start of a waiting workload."""

    id: str
    horizon_ms: int = 24 * HOUR_MS
    seeds: int = 20
    seed: int = 0
    arrivals: bool = True
    """As in WhatIf. Without them starts are forecast too early where later work goes first."""


class AskRun(Spec, frozen=True, kw_only=True, tag_field="ask", tag="run"):
    """Would these workloads run, if they were submitted now? Nothing is submitted."""

    workloads: tuple[WorkloadSpec, ...]
    horizon_ms: int = 24 * HOUR_MS
    seeds: int = 8
    seed: int = 0
    arrivals: bool = False


MAX_STRETCH = 3
"""Times as long as `within_ms` it may take where the machine has other things to do."""


class AskOptions(Spec, frozen=True, kw_only=True, tag_field="ask", tag="options"):
    """The outcome of each of these options, if it alone were submitted now. Nothing is submitted."""

    workloads: tuple[WorkloadSpec, ...]
    """One workload for each option. With `not_before_ms` it is an option for later."""
    run_ms: tuple[tuple[int, ...], ...]
    """Run time of each: likely times in ascending order, a single one where it is known."""
    horizon_ms: int = 24 * HOUR_MS
    seeds: int = 8
    seed: int = 0
    arrivals: bool = True
    until: Literal["started", "ended"] = "ended"
    """The end of the run: at the start, or at the end of the work."""
    within_ms: int = 0
    """Time in which there must be an answer on a machine with nothing else to do: with fewer seeds, and less far
    ahead, as it takes; 0: all of it. Elsewhere it takes up to three times as long."""


Ask = WhatIf | AskStart | AskRun | AskOptions

# -- answers ----------------------------------------------------------------------------------------------------------


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the runs. The quantiles are null with fewer than `engine.model.quantities.MIN_RUNS` of them."""

    runs: int
    least: int
    p10: int | None
    p50: int | None
    p90: int | None
    most: int


Unit = Literal["permille", "duration", "count", "money", "device_time"]
"""As in the columns of `engine.model.list_queries`; device_time is milliseconds of one device (or core)."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure before and after. `change` is made of the differences seed by seed (the same run times and draws on
    both sides), so it is narrower than the two intervals suggest."""

    name: str
    """wait_mean, wait_p50, wait_p95, started, finished, waiting (at the end), evictions, evictions of one cause as
    `evictions/<cause>`, lost_work, utilisation, fragmentation, cost, idle_cost."""
    title: str
    unit: Unit
    better: Literal["lower", "higher", ""]
    of: Literal["cell", "queue", "tenant"]
    subject: str
    """Name of the queue or tenant; empty for the cell."""
    before: Interval
    after: Interval
    change: Interval


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a workload, over the runs. Quantiles and chance are null with fewer than
    `engine.model.quantities.MIN_RUNS` runs. A time is null too where the start lies after the horizon, or never comes.
    """

    runs: int
    started: int
    """Runs in which it starts within the horizon."""
    least_ms: int | None
    """The first start of these."""
    p10_ms: int | None
    p50_ms: int | None
    p90_ms: int | None
    most_ms: int | None
    """The last start; null unless it starts in every run."""
    chance_permille: int | None
    """Chance of a start within the horizon."""


class StartFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The next start of one workload before and after. Null where it does not exist, or runs already and goes on."""

    id: str
    queue: str
    why: Literal["watched", "submitted", "sooner", "later"]
    """Asked for, submitted by an edit, or among those that move most."""
    before: Start | None
    after: Start | None


class Outlook(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="what_if"):
    """Before and after. Partial while its run goes on: of the seeds so far, or of a part of the horizon."""

    version: int
    """State version of the cell that was forked."""
    at_ms: int
    horizon_ms: int
    covered_ms: int
    """The part of the horizon that the figures cover; less than the whole in a first estimate only."""
    seeds: int
    """Seeds that the figures rest on."""
    edits: tuple[str, ...]
    """The edits as they were understood, in text."""
    figures: tuple[Figure, ...]
    """Figures of the cell first, then of queues, then of tenants; those of a queue or tenant only where there is
    something.
    """
    starts: tuple[StartFigure, ...]
    notes: tuple[str, ...]
    """Edits that could not be done when their time came, and in how many seeds; omissions of the figures."""


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """Something that decides when a workload starts."""

    kind: Literal["ends", "ahead", "gate"]
    """Work that ends and makes room; work that goes first; what it waits for besides room."""
    subject: str
    """Id of the workload; token of the reason."""
    text: str
    chance_permille: int
    """Share of the seeds in which it mattered."""
    at_ms: int | None = None
    """Its expected end or start: the middle one of those seeds."""


ForecastKind = Literal["room", "quota", "both", "gate"]
"""What it waits for: room, quota, both, or a hold, a dependency or a time first."""
FORECAST_KINDS = get_args(ForecastKind)


class StartForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The start of waiting work: told at once, by the line ahead of it, and refined where the twin has run ahead. The
    same whoever asks. Cell times."""

    at_ms: int
    kind: ForecastKind
    p10_ms: int | None
    """The quantiles are null while nobody can say, such as on hold."""
    p50_ms: int | None
    p90_ms: int | None
    decides: str
    """What decides it, in words. May name workloads: untrusted."""
    line_ms: int
    """The wait by what is ahead alone, before earlier forecasts corrected it."""
    alike: int
    """Earlier forecasts of its kind whose start is known; of all kinds while those are few."""
    p90_held_permille: int | None
    """Share of these that had started by their p90."""
    seeds: int = 0
    """Runs of the twin that have refined it."""


class StartEstimate(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="start"):
    version: int
    at_ms: int
    horizon_ms: int
    seeds: int
    id: str
    state: str
    """State of the workload at the question. Only work that has not started and has not ended has an estimate."""
    start: Start | None
    """Of the runs alone: what they make of it is in `forecast`."""
    arrivals: bool
    drivers: tuple[Driver, ...]
    """Most frequent first."""
    basis: str = ""
    """The source of run times, in words; empty where it needs no mention."""
    forecast: StartForecast | None = None
    """The answer: told at once, and refined by the seeds."""
    leaves_out: str = ""
    """Holds that no forecast knows, in words; empty where there are none. Holds an outside scheduler's own word:
    untrusted.
    """


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One workload that was tried."""

    id: str
    starts_now: bool
    start: Start
    end_p50_ms: int | None
    """Null with fewer than `engine.model.quantities.MIN_RUNS` runs, and where half of them do not see its end."""
    cost: Interval
    """Cost to its end, or as far as the horizon goes."""
    reason: str
    """The primary reason why it does not start now, in words; empty when it starts."""
    forecast: StartForecast | None = None
    """Where it would wait, and is no member of an array: its start, by the line ahead of it and by the runs."""


class DryRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="run"):
    version: int
    at_ms: int
    horizon_ms: int
    covered_ms: int
    """Time run ahead in every seed: until all had ended, and as long again."""
    seeds: int
    trials: tuple[Trial, ...]
    preempts_now: tuple[str, ...]
    """Ids of those that would be stopped at once for them."""
    evictions: Interval
    """More evictions than without them."""
    delayed: tuple[StartFigure, ...]
    """Workloads that start later because of them, the most delayed first; null: not within `covered_ms`."""


class Placing(msgspec.Struct, frozen=True, array_like=True):
    """Tasks that were placed in one pool."""

    pool: str
    tasks: int
    rate_microusd_hour: int
    """Their charge."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One option in one seed. Times are cell time."""

    started_ms: int | None
    """Null: not within `covered_ms`."""
    ended_ms: int | None
    run_ms: int
    """The work that was drawn for it, at the speed of all its tasks."""
    cost_microusd: int
    """Cost up to its end, or as far as it was run."""
    placed: tuple[Placing, ...]
    """The nodes on which it started."""
    stops: int
    """Number of times it was stopped after its start and had to wait again."""
    covered_ms: int


class OptionTrial(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    reason: str
    """The primary reason why it does not start at once, in words, of the first seed."""
    arrivals: bool
    """True if more work arrived at the recent rate."""
    attempts: tuple[Attempt, ...]
    """One attempt for each seed, in the order of the question."""
    forecast: StartForecast | None = None
    """Where it would wait: its start, by the line ahead of it and by the attempts."""


class Options(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="options"):
    """The options in the order of the question. Every option has the same seeds, hence the same draws for all other
    work.
    """

    version: int
    at_ms: int
    horizon_ms: int
    seeds: int
    until: Literal["started", "ended"]
    arrivals: bool
    """The request's own setting."""
    trials: tuple[OptionTrial, ...]


Answer = Outlook | StartEstimate | DryRun | Options


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of `engine.model.errors`, as sent over a wire."""

    code: str
    problem: str
    remedy: str


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the twin as it stands."""

    id: str
    ask: Ask
    version: int
    at_ms: int
    """State version and cell time of the fork."""
    state: Literal["running", "done", "failed", "cancelled"]
    progress_permille: int
    answer: Answer | None
    """The best so far; whole when the state is done."""
    error: RunError | None
    """The reason why it failed."""
    serial: int
    """Grows with every change: wait for one above the last seen."""


# -- how good estimates were ------------------------------------------------------------------------------------------


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Start estimates of one range of lead times against what happened."""

    lead: str
    """Time from the estimate to its median: `all`, `< 10 min`, `10 min - 1 h`, `1 h - 6 h`, `> 6 h`. Or `at once` and
    the kind of wait, for those that no run was made for."""
    estimates: int
    """Estimates whose truth is known."""
    covered_permille: int
    """Share of starts between p10 and p90. 800 is perfect."""
    early_permille: int
    """Share before p10."""
    late_permille: int
    """Share after p90."""
    median_error_ms: int
    """Median of the absolute difference between the median and the start; an open p50 counts as the end of its
    horizon.
    """


class ScoreReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    stored: int
    """All estimates ever shown."""
    open: int
    """Estimates of workloads that have not started yet, or that ended without a start."""
    scores: tuple[Score, ...]
    """All lead times first; empty while nothing is known."""
