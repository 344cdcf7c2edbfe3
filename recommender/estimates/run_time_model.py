"""Run times of workloads, before the start and while they run: p10, p50 and p90 from finished runs of their likes.

Features are the likes at nine distances. Of the likes' run times only those that had ended count. Of the likes
themselves their submissions are known too, and that some have not ended; how long those will run is not.

Boosted trees on these features give a median and a 90th percentile. Each is weighed against simple rules by how all did
of late, and the 90th percentile is moved until it covers 90 %. Trees are fitted anew as runs end. Before there is
enough to fit, the nearest likes speak for them, then the request. Nothing is kept on disk: the same history makes the
same model.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.model.errors import NotFoundError, SpecError


class SortedWindow:
    """The last `size` values, also in order of magnitude."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._recent) == self._size:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def at_rank(self, rank: int) -> float:
        """The rank-th smallest from 1; ranks outside are the least or greatest value."""
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]

    def median(self) -> float:
        """The lower of the two middle values when their number is even."""
        return self.at_rank((len(self) + 1) // 2)


WINDOW = 50
"""Most recent runs kept for each kind of likes."""
LONG_WINDOW = 1_000
"""The same for user and size, whose long median is the best simple rule of several traces."""
SMOOTHING = 0.25
"""Weight of the newest run in the smoothed one."""
MAX_KEYS = 200_000
"""Kinds of likes kept; the one not submitted to for longest is forgotten first."""

LIKES = ("same", "user asked", "user size", "user name", "user", "name size", "queue size asked", "size", "all")
"""From the nearest to the farthest; `RunHistory._keys` says what each shares."""
TOLD = (
    "last", "before last", "smoothed", "p10", "p50", "p90", "count", "since end", "since submission", "gap", "open",
    "newest submitted",
)  # fmt: skip
"""Of each kind. Run times are natural logarithms of ms, spans of time ln(1 + s), counts of what ended ln(1 + n)."""
OWN = ("size", "requested", "hour", "weekday", "last two", "user size long")
"""What is told beside the likes."""

NAN = math.nan


class SubmittedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The known features of a workload when it is submitted."""

    at_ms: int
    user: str = ""
    name: str = ""
    queue: str = ""
    size: int = 0
    """What it asks for in all, in the unit that matters most where it runs: milli-GPU, or processors."""
    requested_ms: int = 0
    """Run time its owner asked for; 0 means not given."""
    figures: tuple[int, ...] = ()
    """Anything else that is told beforehand; as many for every submission of one history."""


class SimilarRuns:
    """The finished runs of one kind, and how many of it are under way."""

    __slots__ = (
        "before_last", "count", "ended_ms", "last", "long", "newest", "newest_at", "open", "previous_at", "recent",
        "smoothed", "submitted_at",
    )  # fmt: skip

    def __init__(self, *, long: bool) -> None:
        self.recent = SortedWindow(WINDOW)
        self.long = SortedWindow(LONG_WINDOW) if long else None
        self.last = self.before_last = self.smoothed = self.newest = NAN
        self.ended_ms = self.submitted_at = self.previous_at = self.newest_at = -1
        self.open = self.count = 0

    def ended(self, log_run: float, submitted_at: int, ended_ms: int) -> None:
        self.smoothed = log_run if not len(self.recent) else self.smoothed + SMOOTHING * (log_run - self.smoothed)
        self.recent.add(log_run)
        if self.long is not None:
            self.long.add(log_run)
        self.before_last, self.last = self.last, log_run
        self.ended_ms = ended_ms
        self.open -= 1
        self.count += 1
        if submitted_at >= self.newest_at:
            self.newest_at, self.newest = submitted_at, log_run

    def told(self, now: int) -> tuple[float, ...]:
        """Return the values in the order of TOLD; NaN where nothing is known."""
        submitted, previous = self.submitted_at, self.previous_at
        since = math.log1p((now - submitted) / 1000) if submitted >= 0 else NAN
        gap = math.log1p((submitted - previous) / 1000) if previous >= 0 else NAN
        n = len(self.recent)
        if not n:
            return (NAN, NAN, NAN, NAN, NAN, NAN, 0.0, NAN, since, gap, self.open, NAN)
        at = self.recent.at_rank
        return (
            self.last, self.before_last, self.smoothed, at((n + 9) // 10), at((n + 1) // 2), at(-(-n * 9 // 10)),
            math.log1p(self.count), math.log1p(max(0, now - self.ended_ms) / 1000), since, gap, self.open, self.newest,
        )  # fmt: skip

    def submitted(self, now: int) -> None:
        self.open += 1
        self.previous_at, self.submitted_at = self.submitted_at, now


NONE = SimilarRuns(long=False)
"""Of which nothing was ever submitted."""


class OpenSubmission(msgspec.Struct):
    """A submission that has not ended, and whom its end will be told."""

    submission: SubmittedRun
    likes: list[SimilarRuns]


class RunHistory:
    """Feed it submissions and ends in the order they happen."""

    def __init__(self) -> None:
        self._likes: OrderedDict[tuple[object, ...], SimilarRuns] = OrderedDict()

    def figures(self, submission: SubmittedRun) -> list[float]:
        """Return the figures in the order of `names`, from what came before the submission. Changes nothing."""
        now = submission.at_ms
        kinds = [self._likes.get((level, *key), NONE) for level, key in enumerate(keys(submission))]
        row = [figure for likes in kinds for figure in likes.told(now)]
        requested = math.log(submission.requested_ms) if submission.requested_ms > 0 else NAN
        hours = now // 3_600_000
        users = kinds[LIKES.index("user size")].long
        row += (
            math.log(max(submission.size, 0.5)), requested, float(hours % 24), float(hours // 24 % 7),
            last_two(kinds[LIKES.index("user")], requested), users.median() if users else NAN,
        )  # fmt: skip
        row += submission.figures
        return row

    def submitted(self, submission: SubmittedRun) -> OpenSubmission:
        """Count the run as under way; `ended` or `forget` want back what is returned."""
        kinds = [self._find((level, *key)) for level, key in enumerate(keys(submission))]
        for likes in kinds:
            likes.submitted(submission.at_ms)
        return OpenSubmission(submission, kinds)

    def ended(self, under: OpenSubmission, run_ms: int, now_ms: int) -> None:
        """Note that the run ended by itself after `run_ms`."""
        log_run = math.log(max(run_ms, 1))
        for likes in under.likes:
            likes.ended(log_run, under.submission.at_ms, now_ms)

    def forget(self, under: OpenSubmission) -> None:
        """Forget a run that will not end by itself."""
        for likes in under.likes:
            likes.open -= 1

    def _find(self, key: tuple[object, ...]) -> SimilarRuns:
        likes = self._likes.get(key)
        if likes is None:
            if len(self._likes) >= MAX_KEYS:
                self._likes.popitem(last=False)
            likes = self._likes[key] = SimilarRuns(long=key[0] == LIKES.index("user size"))
        self._likes.move_to_end(key)
        return likes


def keys(submission: SubmittedRun) -> tuple[tuple[object, ...], ...]:
    """Return the keys that a run shares with its likes, in the order of LIKES."""
    user, name, queue, size = submission.user, submission.name, submission.queue, submission.size
    asked, figures = submission.requested_ms, submission.figures
    magnitude = round(math.log2(max(size, 0.5)))
    return (
        (user, name, queue, size, asked, figures),
        (user, asked, figures),
        (user, magnitude),
        (user, name),
        (user,),
        (name, size),
        (queue, magnitude, asked),
        (magnitude,),
        (),
    )


def last_two(user: SimilarRuns, requested: float) -> float:
    """The estimate of Tsafrir et al. (Backfilling using system-generated predictions, TPDS 2007), as a logarithm.

    The mean of the user's last two run times, never above the request; the request where the user has none.
    """
    if math.isnan(user.last):
        return requested
    before = user.last if math.isnan(user.before_last) else user.before_last
    mean = math.log((math.exp(user.last) + math.exp(before)) / 2)
    return mean if math.isnan(requested) else min(mean, requested)


def names(figures: Sequence[str]) -> list[str]:
    """Return the names of the figures that `submitted` gives, where a submission's own are called `figures`."""
    return [f"{likes}: {told}" for likes in LIKES for told in TOLD] + [*OWN, *figures]


Floats = NDArray[np.float64]


class Mixture:
    """Several estimates of one quantile as one, each weighed by its recent pinball loss, of this user's runs first.

    Weights are exponential in the loss relative to the best (Hedge, Freund and Schapire 1997). Losses are forgotten at
    `DECAY` for each run that ends, a user's own at `OWN_DECAY` for each of theirs; the loss of everybody's runs counts
    as much as `PRIOR` runs of the user. Losses are of estimates made before the run they are held against had ended.
    """

    DECAY, OWN_DECAY = 0.998, 0.995
    PRIOR = 100.0
    SHARPNESS = 8.0
    MIN_LOSS = 0.01
    """A best loss below this counts as this."""
    USERS = 20_000
    """Users kept; who has not been heard of for longest is forgotten first."""

    def __init__(self, opinions: int, quantile: float, *, median: bool = False) -> None:
        """`median`: the answer is one of the opinions, their weighted median, instead of the weighted mean.

        The mean of a rule that says a minute and one that says an hour is a time that nothing takes.
        """
        self._quantile = quantile
        self._median = median
        self._all = np.zeros(opinions + 1)
        """Sum of losses of each, and of ones."""
        self._users: OrderedDict[str, Floats] = OrderedDict()

    def weigh(self, user: str, opinions: Floats) -> float:
        """One for all; all weigh alike before anything was learnt."""
        weights = self.weights(user)
        if not self._median:
            return float(weights @ opinions)
        order = np.argsort(opinions, kind="stable")
        reached = np.cumsum(weights[order])
        return float(opinions[order[np.searchsorted(reached, reached[-1] / 2)]])

    def weights(self, user: str) -> Floats:
        """Return the weights, which sum to 1."""
        loss = self._all[:-1] / max(self._all[-1], 1.0)
        own = self._users.get(user)
        if own is not None:
            loss = (own[:-1] + self.PRIOR * loss) / (own[-1] + self.PRIOR)
        best = float(loss.min())
        weights = np.exp(-self.SHARPNESS * (loss - best) / max(best, self.MIN_LOSS))
        normed: Floats = weights / weights.sum()
        return normed

    def learn(self, user: str, opinions: Floats, truth: float) -> None:
        off = truth - opinions
        losses = np.append(np.maximum(self._quantile * off, (self._quantile - 1) * off), 1.0)
        own = self._users.get(user)
        if own is None:
            if len(self._users) >= self.USERS:
                self._users.popitem(last=False)
            own = np.zeros(len(losses))
        self._users[user] = own * self.OWN_DECAY + losses
        self._users.move_to_end(user)
        self._all = self._all * self.DECAY + losses


class Overshoot:
    """The amount by which runs exceed their estimates: a quantile over the latest submissions, whether ended or not.

    Of those that still run it is known that they take longer than they have run. Leaving them out would make runs look
    short whenever work comes in bursts, so they count as censored (Kaplan and Meier, Nonparametric estimation from
    incomplete observations, 1958). Unit: natural logarithms of ms.
    """

    LATEST = 1_000
    LEAST = 50
    """Ended ones below which nothing is said."""
    EVERY = 5
    """Submissions between two looks."""

    def __init__(self, said: int) -> None:
        """`said`: how many statements are judged for each submission."""
        self._said = np.zeros((self.LATEST, said))
        self._started_ms = np.full(self.LATEST, np.inf)
        self._log_run = np.full(self.LATEST, np.nan)
        """NaN while it runs."""
        self._number = 0
        self._shift = np.zeros(said)

    def shift(self, share: float, now_ms: int) -> Floats:
        """Return the amount to add to each estimate so that this share of runs does not exceed it; 0 while too few are
        known."""
        if self._number % self.EVERY == 0:
            ended = ~np.isnan(self._log_run)
            known = ended | (self._started_ms < now_ms)
            if ended.sum() >= self.LEAST:
                with np.errstate(divide="ignore", invalid="ignore"):
                    so_far = np.log(np.maximum(now_ms - self._started_ms, 1.0))
                run = np.where(ended, self._log_run, so_far)[known]
                for at, said in enumerate(self._said.T):
                    self._shift[at] = survival_quantile(run - said[known], ended[known], share)
        return self._shift.copy()

    def submitted(self, said: Floats) -> int:
        """A number to tell its start and end by."""
        at = self._number % self.LATEST
        self._said[at], self._started_ms[at], self._log_run[at] = said, np.inf, np.nan
        self._number += 1
        return self._number - 1

    def started(self, number: int, now_ms: int) -> None:
        if self._number - number <= self.LATEST:
            self._started_ms[number % self.LATEST] = now_ms

    def ended(self, number: int, log_run: float) -> None:
        if self._number - number <= self.LATEST:
            self._log_run[number % self.LATEST] = log_run

    def forget(self, number: int) -> None:
        """Forget a run that will not end by itself, as if it had never been submitted."""
        if self._number - number <= self.LATEST:
            self._started_ms[number % self.LATEST] = np.inf


def survival_quantile(values: Floats, ended: NDArray[np.bool_], share: float) -> float:
    """The least value that at most 1 - share outlive, where those not ended outlive their value; else the greatest."""
    order = np.argsort(values, kind="stable")
    alive = np.arange(len(values), 0, -1)
    outlived = np.cumprod(1 - ended[order] / alive)
    at = int(np.searchsorted(-outlived, share - 1 - 1e-12))
    return float(values[order[min(at, len(order) - 1)]])


class Drift:
    """A slow sum of misses and hits, added to an upper quantile so that in the long run it covers its share.

    Online gradient descent on its pinball loss (Gibbs and Candès, Adaptive conformal inference under distribution
    shift, 2021). A run that has gone past its quantile is a miss from that moment, long before it ends.
    """

    STEP = 0.001
    """Of the sum for each outcome, in the unit of the quantile."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.shift = 0.0

    def outcome(self, missed: bool) -> None:
        self.shift += self.STEP * (missed - (1 - self._share))


Basis = Literal["trees", "likes", "request", "nothing"]

FIRST_FIT = 300
"""Runs that must have ended before trees are fitted."""
REFIT_SHARE, REFIT_MOST = 0.25, 3_000
"""Trees are fitted anew once this share more runs have ended, or so many."""
MEMORY = 20_000
"""Most recent runs that trees are fitted to."""
TREES: dict[str, Any] = {
    "max_iter": 100,
    "learning_rate": 0.07,
    "max_leaf_nodes": 7,
    "min_samples_leaf": 80,
    "l2_regularization": 1.0,
    "max_bins": 63,
    "early_stopping": False,
    "random_state": 0,
}
"""Settings of sklearn's HistGradientBoostingRegressor."""
MIDDLE = (
    "user size: p50", "user size long", "same: p50", "same: last", "same: smoothed", "last two", "user: p50",
    "user size: smoothed", "size: p50",
)  # fmt: skip
"""Figures of the history that are opinions of the median, beside the trees."""
HIGH = (
    "same: p90", "user size: p90", "user: p90", "size: p90", "all: p90", "user asked: p90", "queue size asked: p90",
    "requested",
)  # fmt: skip
"""The same for the 90th percentile."""
NEAREST = ("same", "user asked", "user name", "user size", "user", "name size", "queue size asked", "size", "all")
"""Likes that speak where there are no trees, the nearest first."""
FAR_LIKES = ("size", "all")
"""Those that a request is better than."""
ENOUGH = 5
"""Runs of a kind before it speaks for itself where there are no trees."""
WEIGHED_FROM = 50
"""Runs that must have ended before opinions are weighed; until then the first speaks alone."""
BELOW_WINDOW = 500
"""Most recent ends that p10 is taken from."""
NARROWEST = 0.02
"""Least distance of p10 and p90 from p50, in natural logarithms."""
FAR = 60.0
"""Past the longest time that can be told: e^60 ms are three billion years."""


class RunTimeQuantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a run time."""

    p10_ms: int
    p50_ms: int
    p90_ms: int
    basis: Basis
    """What spoke loudest of all: fitted trees, likes that ended, the owner's request, or nothing at all."""
    samples: int
    """Runs that had ended when this was said."""
    nearest: str = ""
    """The nearest likes of which at least ENOUGH have ended, else of which any has; one of NEAREST, or empty."""
    nearest_runs: int = 0
    """How many of them have ended."""


class Opinion(msgspec.Struct):
    """An estimate of a submission, and its basis."""

    row: Floats
    middle: Floats
    high: Floats
    """Opinions of the median and of the 90th percentile."""
    p50: float
    p90: float
    """Of the trees, or of what stands in for them."""
    said: RunTimeQuantiles


class OpenEstimate(msgspec.Struct):
    """The estimate of an open submission, kept until its end."""

    under: OpenSubmission
    opinion: Opinion
    number: int
    """Of `Overshoot`."""
    outrun: bool = False


class RunModel:
    """Feed it `submitted`, `started`, `outrun` and `ended` in the order they happen."""

    def __init__(self, figures: tuple[str, ...] = (), *, fits_itself: bool = True) -> None:
        """`figures` names those of every submission. Who fits trees elsewhere watches `stale` and calls `adopt`."""
        told = names(figures)
        self._history = RunHistory()
        self._middle_at = [told.index(name) for name in MIDDLE]
        self._high_at = [told.index(name) for name in HIGH]
        self._nearest = {kind: [told.index(f"{kind}: {q}") for q in ("count", "p10", "p50", "p90")] for kind in NEAREST}
        self._requested_at = told.index("requested")
        self._trees: Forest | None = None
        self._middle = Mixture(len(MIDDLE) + 1, 0.5, median=True)
        self._high = Mixture(len(HIGH) + 3, 0.9)
        self._overshoot = Overshoot(2)
        self._drift = Drift(0.9)
        self._below = SortedWindow(BELOW_WINDOW)
        self._open: dict[str, OpenEstimate] = {}
        self._rows: deque[Floats] = deque(maxlen=MEMORY)
        self._runs: deque[float] = deque(maxlen=MEMORY)
        self._ended = 0
        self._refit_at = FIRST_FIT
        self._fits_itself = fits_itself

    def submitted(self, id: str, submission: SubmittedRun) -> RunTimeQuantiles:
        """Estimate the run time before the start. SpecError when an open one has this id."""
        if id in self._open:
            raise SpecError("id", f"{id} is open already", "Report its end first, or use another id")
        opinion = self._opinion(submission)
        number = self._overshoot.submitted(np.array([opinion.p90, opinion.p50]))
        self._open[id] = OpenEstimate(self._history.submitted(submission), opinion, number)
        return opinion.said

    def about(self, submission: SubmittedRun) -> RunTimeQuantiles:
        """Estimate a run as if it were submitted. Nothing is kept of the question."""
        return self._opinion(submission).said

    def _opinion(self, submission: SubmittedRun) -> Opinion:
        row, user = np.array(self._history.figures(submission)), submission.user
        low, first, p90, basis, nearest = self._fallback(row, submission)
        if self._trees is not None:
            first, p90 = self._trees.predict(row)
            basis = "trees"
        middle = opinions(np.array([first]), row[self._middle_at])
        weighed = self._ended >= WEIGHED_FROM
        p50 = self._middle.weigh(user, middle) if weighed else first
        over_p90, over_p50 = self._overshoot.shift(0.9, submission.at_ms)
        high = opinions(np.array([p90 + over_p90, p90, p50 + over_p50]), row[self._high_at])
        top = max(self._high.weigh(user, high) + self._drift.shift if weighed else p90, p50 + NARROWEST)
        if weighed:
            low = p50 - max(p90 - p50, NARROWEST) * max(
                self._below.at_rank(math.ceil(0.9 * (len(self._below) + 1))), 0.0
            )
        said = RunTimeQuantiles(
            p10_ms=to_ms(min(low, p50 - NARROWEST)),
            p50_ms=to_ms(p50),
            p90_ms=to_ms(top),
            basis=basis,
            samples=self._ended,
            nearest=nearest,
            nearest_runs=round(math.expm1(row[self._nearest[nearest][0]])) if nearest else 0,
        )
        return Opinion(row, middle, high, p50, p90, said)

    def started(self, id: str, now_ms: int) -> None:
        """Note that the run begins now. Left out, nothing is learnt of it before it ends."""
        self._overshoot.started(self._said(id).number, now_ms)

    def ended(self, id: str, run_ms: int, now_ms: int) -> None:
        """Learn from a run that ended by itself. Leave failed and cancelled ones to `forget`: they say little of a full
        run."""
        if run_ms < 1:
            raise SpecError("run_ms", f"{run_ms} is not a run time", "Give a whole number of milliseconds, 1 or more")
        said = self._take(id)
        truth, user, opinion = math.log(run_ms), said.under.submission.user, said.opinion
        self._middle.learn(user, opinion.middle, truth)
        self._high.learn(user, opinion.high, truth)
        if not said.outrun:
            self._drift.outcome(run_ms > opinion.said.p90_ms)
        self._overshoot.ended(said.number, truth)
        self._below.add((opinion.p50 - truth) / max(opinion.p90 - opinion.p50, NARROWEST))
        self._history.ended(said.under, run_ms, now_ms)
        self._rows.append(opinion.row)
        self._runs.append(truth)
        self._ended += 1
        if self._fits_itself and self.stale():
            self.adopt(Forest(*self.training()))

    def stale(self) -> bool:
        """Return whether enough has ended since the last trees were fitted that new ones are due."""
        return self._ended >= self._refit_at

    def training(self) -> tuple[Floats, Floats]:
        """Rows and truths to fit the next trees to."""
        return np.array(self._rows), np.array(self._runs)

    def adopt(self, trees: Forest) -> None:
        """Use these trees from the next submission on."""
        self._trees = trees
        self._refit_at = self._ended + min(max(int(self._ended * REFIT_SHARE), 100), REFIT_MOST)

    def outrun(self, id: str) -> None:
        """Note that the run goes on after its p90 has gone by."""
        said = self._said(id)
        if not said.outrun:
            said.outrun = True
            self._drift.outcome(True)

    def forget(self, id: str) -> None:
        """Forget a run that ended otherwise than by itself: nothing is learnt of it."""
        said = self._take(id)
        self._overshoot.forget(said.number)
        self._history.forget(said.under)

    def estimate(self, id: str, elapsed_ms: int = 0) -> RunTimeQuantiles:
        """The whole run time of an open one, given that it has run `elapsed_ms`. NotFoundError for others."""
        return given_elapsed(self._said(id).opinion.said, elapsed_ms)

    def _said(self, id: str) -> OpenEstimate:
        said = self._open.get(id)
        if said is None:
            raise NotFoundError(f"no open submission {id}", "Report its submission first")
        return said

    def _take(self, id: str) -> OpenEstimate:
        said = self._said(id)
        del self._open[id]
        return said

    def _fallback(self, row: Floats, asked: SubmittedRun) -> tuple[float, float, float, Basis, str]:
        """p10, p50 and p90, who says so, and the nearest likes.

        That is the nearest likes with enough runs, else the request, else any likes at all.
        """
        requested = float(row[self._requested_at])
        known = {kind: row[at] for kind, at in self._nearest.items() if telling(kind, asked) and row[at[0]] > 0}
        enough = [kind for kind, (count, *_) in known.items() if count >= math.log1p(ENOUGH)]
        nearest = next(iter(enough or known), "")
        if not math.isnan(requested) and (not enough or nearest in FAR_LIKES):
            # Half the request is the classic guess; runs rarely outlive the whole.
            return requested - math.log(20), requested - math.log(2), requested, "request", nearest
        if nearest:
            _, low, middle, high = known[nearest].tolist()
            return low, middle, high, "likes", nearest
        hour = math.log(3_600_000)
        return hour - math.log(60), hour, hour + math.log(24), "nothing", ""


def telling(kind: str, asked: SubmittedRun) -> bool:
    """Return whether what these likes share is told of the submission at all."""
    return (bool(asked.name) or "name" not in kind) and (asked.requested_ms > 0 or kind != "user asked")


class Forest:
    """Boosted trees for several quantiles, flattened so that one row takes a fraction of a millisecond."""

    def __init__(self, rows: Floats, truths: Floats, quantiles: tuple[float, ...] = (0.5, 0.9)) -> None:
        """Fits. Rows may hold NaN. The same rows give the same trees: one thread, a fixed seed."""
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        telling = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in rows.T])
        self._kept = np.flatnonzero(telling)
        kept = rows[:, self._kept]
        parts, starts, roots, count = [], [], [], 0
        with threadpool_limits(limits=1):
            for quantile in quantiles:
                model = HistGradientBoostingRegressor(loss="quantile", quantile=quantile, **TREES).fit(kept, truths)
                starts.append(float(np.ravel(model._baseline_prediction)[0]))
                for (tree,) in model._predictors:
                    nodes = tree.nodes.copy()
                    here = np.arange(len(nodes), dtype=np.uint32)
                    leaf = nodes["is_leaf"].astype(bool)
                    nodes["left"] = np.where(leaf, here, nodes["left"]) + count
                    nodes["right"] = np.where(leaf, here, nodes["right"]) + count
                    roots.append(count)
                    count += len(nodes)
                    parts.append(nodes)
        nodes = np.concatenate(parts)
        self._feature = np.where(nodes["is_leaf"], 0, nodes["feature_idx"]).astype(np.intp)
        self._threshold = nodes["num_threshold"].copy()
        self._missing_left = nodes["missing_go_to_left"].astype(bool)
        self._children = np.stack([nodes["right"], nodes["left"]], axis=1).astype(np.intp).ravel()
        self._value = nodes["value"].copy()
        self._roots = np.array(roots, dtype=np.intp)
        self._depth = int(nodes["depth"].max())
        self._starts = np.array(starts)

    def predict(self, row: Floats) -> tuple[float, ...]:
        """The quantiles of one row, in the order given."""
        values = row[self._kept]
        missing = np.isnan(values)
        at = self._roots
        for _ in range(self._depth):
            feature = self._feature[at]
            left = (values[feature] <= self._threshold[at]) | (missing[feature] & self._missing_left[at])
            at = self._children[2 * at + left]
        sums = self._value[at].reshape(len(self._starts), -1).sum(axis=1) + self._starts
        return tuple(sums.tolist())


def opinions(first: Floats, others: Floats) -> Floats:
    """Both; who of the others has no opinion repeats the first of the first."""
    return np.concatenate([first, np.where(np.isnan(others), first[0], others)])


def to_ms(log_ms: float) -> int:
    return max(1, round(math.exp(min(log_ms, FAR))))


def given_elapsed(before: RunTimeQuantiles, elapsed_ms: int) -> RunTimeQuantiles:
    """Quantiles of the whole run time when it is known to exceed `elapsed_ms`.

    Between and beyond its quantiles the run time is taken as two-sided Pareto about the median: above it, the chance to
    outlast x falls as a power of x through p90; below, the chance to end before x rises as one through p10. So past
    its median a run is expected to go on in proportion to what it has run already, as long runs do.
    """
    if elapsed_ms < 0:
        raise SpecError("elapsed_ms", f"{elapsed_ms} is below 0", "Give the time since it started")
    if elapsed_ms < 1:
        return before
    middle, elapsed = math.log(before.p50_ms), math.log(elapsed_ms)
    above = max((math.log(before.p90_ms) - middle) / math.log(5), 1e-6)
    below = max((middle - math.log(before.p10_ms)) / math.log(5), 1e-6)
    if elapsed <= middle:
        left = 1 - 0.5 * math.exp((elapsed - middle) / below)
    else:
        left = 0.5 * math.exp((middle - elapsed) / above)

    def quantile(share: float) -> int:
        if elapsed > middle:
            return to_ms(elapsed - above * math.log(1 - share))
        outlast = left * (1 - share)
        log_ms = (
            middle - above * math.log(outlast / 0.5)
            if outlast <= 0.5
            else middle + below * math.log((1 - outlast) / 0.5)
        )
        return to_ms(log_ms)

    p10, p50, p90 = (max(quantile(share), elapsed_ms) for share in (0.1, 0.5, 0.9))
    return msgspec.structs.replace(before, p10_ms=p10, p50_ms=p50, p90_ms=p90)
