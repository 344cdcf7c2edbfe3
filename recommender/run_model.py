"""How long a workload will run, before it starts and while it runs: p10, p50 and p90, from what has happened so far.

Boosted trees on the history of its likes (`recommender.run_history`) give a median and a 90th percentile; the median
is weighed against simple rules by how each did of late, and the 90th percentile is moved until it covers 90 %. Trees
are fitted anew as runs end. Before there is enough to fit, the nearest likes speak, then the owner's request.

Nothing is kept on disk: a model is what its history makes it, and the same history makes the same model.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import NotFoundError, SpecError
from recommender.calibration import Cover, Mixture
from recommender.run_history import History, Submission, Under, names

Floats = NDArray[np.float64]
Basis = Literal["trees", "likes", "request", "nothing"]

FIRST_FIT = 300
"""Runs that must have ended before trees are fitted."""
REFIT_SHARE, REFIT_MOST = 0.25, 3_000
"""Trees are fitted anew once this share more runs have ended, or so many."""
MEMORY = 10_000
"""Most recent runs that trees are fitted to."""
TREES: dict[str, Any] = {
    "max_iter": 100,
    "learning_rate": 0.07,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 40,
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
NEAREST = ("same", "user asked", "user size", "user name", "user", "name size", "queue size asked", "size", "all")
ENOUGH = 5
"""Runs of a kind before it speaks for itself where there are no trees."""
NARROWEST = 0.02
"""Least distance of p10 and p90 from p50, in natural logarithms."""
FAR = 60.0
"""Past the longest time that can be told: e^60 ms are three billion years."""


class RunTime(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a run time."""

    p10_ms: int
    p50_ms: int
    p90_ms: int
    basis: Basis
    """What spoke loudest of all: fitted trees, likes that ended, the owner's request, or nothing at all."""
    samples: int
    """Runs that had ended when this was said."""


class Said(msgspec.Struct):
    """What was said of a submission, for when its end comes."""

    under: Under
    row: Floats
    middle: Floats
    p50: float
    p90: float
    """Before it was moved."""
    said: RunTime
    outrun: bool = False


class RunModel:
    """Feed it `submitted`, `outrun` and `ended` in the order they happen."""

    def __init__(self, figures: tuple[str, ...] = ()) -> None:
        """`figures` names those of every submission."""
        told = names(figures)
        self._history = History()
        self._middle_at = [told.index(name) for name in MIDDLE]
        self._nearest = [[told.index(f"{kind}: {q}") for q in ("count", "p10", "p50", "p90")] for kind in NEAREST]
        self._requested_at = told.index("requested")
        self._trees: Forest | None = None
        self._middle = Mixture(len(MIDDLE) + 1, 0.5, sharpness=15.0)
        self._cover = Cover(0.9)
        self._below = Cover(0.9)
        self._open: dict[str, Said] = {}
        self._rows: deque[Floats] = deque(maxlen=MEMORY)
        self._runs: deque[float] = deque(maxlen=MEMORY)
        self._ended = 0
        self._refit_at = FIRST_FIT

    def submitted(self, id: str, submission: Submission) -> RunTime:
        """Its run time before it starts. SpecError when an open one has this id."""
        if id in self._open:
            raise SpecError("id", f"{id} is open already", "Tell its end first, or give another id")
        figures, under = self._history.submitted(submission)
        row = np.array(figures)
        fallback = self._fallback(row)
        first, p90 = self._trees.predict(row) if self._trees is not None else fallback[1:3]
        middle = opinions(first, row[self._middle_at])
        p50 = self._middle.weigh(middle) if self._trees is not None else first
        high = max(p90 + self._cover.shift(), p50 + NARROWEST)
        low = p50 - max((p90 - p50) * max(self._below.shift(), 0.0), NARROWEST) if self._trees else fallback[0]
        basis = fallback[3] if self._trees is None else "trees"
        said = RunTime(
            p10_ms=to_ms(min(low, p50 - NARROWEST)),
            p50_ms=to_ms(p50),
            p90_ms=to_ms(high),
            basis=basis,
            samples=self._ended,
        )
        self._open[id] = Said(under, row, middle, p50, p90, said)
        return said

    def ended(self, id: str, run_ms: int, now_ms: int) -> None:
        """It ended by itself. Leave failed and cancelled ones to `forget`: they say little of a full run."""
        if run_ms < 1:
            raise SpecError("run_ms", f"{run_ms} is not a run time", "Give whole milliseconds from 1 on")
        said = self._take(id)
        truth = math.log(run_ms)
        self._middle.learn(said.middle, truth)
        if not said.outrun:
            self._cover.outcome(run_ms > said.said.p90_ms)
        self._cover.learn(truth - said.p90)
        self._below.learn((said.p50 - truth) / max(said.p90 - said.p50, NARROWEST))
        self._history.ended(said.under, run_ms, now_ms)
        self._rows.append(said.row)
        self._runs.append(truth)
        self._ended += 1
        if self._ended >= self._refit_at:
            self._trees = Forest(np.array(self._rows), np.array(self._runs), (0.5, 0.9))
            self._refit_at = self._ended + min(max(int(self._ended * REFIT_SHARE), 100), REFIT_MOST)

    def outrun(self, id: str) -> None:
        """It still runs after its p90 has gone by."""
        said = self._said(id)
        if not said.outrun:
            said.outrun = True
            self._cover.outcome(True)

    def forget(self, id: str) -> None:
        """It ended otherwise than by itself: nothing is learnt of it."""
        for likes in self._take(id).under.likes:
            likes.open -= 1

    def estimate(self, id: str, elapsed_ms: int = 0) -> RunTime:
        """The whole run time of an open one, given that it has run `elapsed_ms`. NotFoundError for others."""
        return given_elapsed(self._said(id).said, elapsed_ms)

    def _said(self, id: str) -> Said:
        said = self._open.get(id)
        if said is None:
            raise NotFoundError(f"no open submission {id}", "Tell its submission first")
        return said

    def _take(self, id: str) -> Said:
        said = self._said(id)
        del self._open[id]
        return said

    def _fallback(self, row: Floats) -> tuple[float, float, float, Basis]:
        """p10, p50 and p90 from the nearest likes with enough runs, else the request, else any likes at all."""
        for enough in (ENOUGH, 1):
            for count, *quantiles in self._nearest:
                if row[count] >= math.log1p(enough):
                    low, middle, high = row[quantiles]
                    return float(low), float(middle), float(high), "likes"
            requested = float(row[self._requested_at])
            if not math.isnan(requested):
                # Half the request is the classic guess; runs rarely outlive the whole.
                return requested - math.log(20), requested - math.log(2), requested, "request"
        hour = math.log(3_600_000)
        return hour - math.log(60), hour, hour + math.log(24), "nothing"


class Forest:
    """Boosted trees for several quantiles, flattened so that one row takes a fraction of a millisecond."""

    def __init__(self, rows: Floats, truths: Floats, quantiles: tuple[float, ...]) -> None:
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


def opinions(first: float, others: Floats) -> Floats:
    """`first` and the others; who has no opinion repeats the first."""
    return np.concatenate([[first], np.where(np.isnan(others), first, others)])


def to_ms(log_ms: float) -> int:
    return max(1, round(math.exp(min(log_ms, FAR))))


def given_elapsed(before: RunTime, elapsed_ms: int) -> RunTime:
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
    return RunTime(p10_ms=p10, p50_ms=p50, p90_ms=p90, basis=before.basis, samples=before.samples)
