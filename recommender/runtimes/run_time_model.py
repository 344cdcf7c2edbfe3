"""How long a workload will run, before it starts and while it runs: p10, p50 and p90, from what has happened so far.

Boosted trees on the history of its likes (`recommender.runtimes.similar_runs`) give a median and a 90th percentile;
each is weighed against simple rules by how all did of late, and the 90th percentile is moved until it covers 90 %.
Trees are fitted anew as runs end. Before there is enough to fit, the nearest likes speak for them, then the request.
Nothing is kept on disk: a model is what its history makes it, and the same history makes the same model.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.model.errors import NotFoundError, SpecError
from recommender.forecasts.calibration import Drift, Mixture, Overshoot
from recommender.history.sorted_window import SortedWindow
from recommender.runtimes.similar_runs import OpenSubmission, RunHistory, SubmittedRun, names

Floats = NDArray[np.float64]
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
    """What is said of a submission, and what that rests on."""

    row: Floats
    middle: Floats
    high: Floats
    """Opinions of the median and of the 90th percentile."""
    p50: float
    p90: float
    """Of the trees, or of what stands in for them."""
    said: RunTimeQuantiles


class OpenEstimate(msgspec.Struct):
    """What was said of an open submission, for when its end comes."""

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
        """Its run time before it starts. SpecError when an open one has this id."""
        if id in self._open:
            raise SpecError("id", f"{id} is open already", "Tell its end first, or give another id")
        opinion = self._opinion(submission)
        number = self._overshoot.submitted(np.array([opinion.p90, opinion.p50]))
        self._open[id] = OpenEstimate(self._history.submitted(submission), opinion, number)
        return opinion.said

    def about(self, submission: SubmittedRun) -> RunTimeQuantiles:
        """What would be said of it, if it were submitted. Nothing is kept of the question."""
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
        """It runs from now on. Left out, nothing is learnt of it before it ends."""
        self._overshoot.started(self._said(id).number, now_ms)

    def ended(self, id: str, run_ms: int, now_ms: int) -> None:
        """It ended by itself. Leave failed and cancelled ones to `forget`: they say little of a full run."""
        if run_ms < 1:
            raise SpecError("run_ms", f"{run_ms} is not a run time", "Give whole milliseconds from 1 on")
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
        """Whether enough has ended since the last trees were fitted that new ones are due."""
        return self._ended >= self._refit_at

    def training(self) -> tuple[Floats, Floats]:
        """Rows and truths to fit the next trees to."""
        return np.array(self._rows), np.array(self._runs)

    def adopt(self, trees: Forest) -> None:
        """They speak from the next submission on."""
        self._trees = trees
        self._refit_at = self._ended + min(max(int(self._ended * REFIT_SHARE), 100), REFIT_MOST)

    def outrun(self, id: str) -> None:
        """It still runs after its p90 has gone by."""
        said = self._said(id)
        if not said.outrun:
            said.outrun = True
            self._drift.outcome(True)

    def forget(self, id: str) -> None:
        """It ended otherwise than by itself: nothing is learnt of it."""
        said = self._take(id)
        self._overshoot.forget(said.number)
        self._history.forget(said.under)

    def estimate(self, id: str, elapsed_ms: int = 0) -> RunTimeQuantiles:
        """The whole run time of an open one, given that it has run `elapsed_ms`. NotFoundError for others."""
        return given_elapsed(self._said(id).opinion.said, elapsed_ms)

    def _said(self, id: str) -> OpenEstimate:
        said = self._open.get(id)
        if said is None:
            raise NotFoundError(f"no open submission {id}", "Tell its submission first")
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
    """Whether what these likes share is told of the submission at all."""
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
