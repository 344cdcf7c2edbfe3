"""What finished runs say of one that is submitted: its likes at nine distances, as figures for a model.

Of the likes' run times only those that had ended count. Of the likes themselves it is also known when they were
submitted and that some have not ended; how long those will run is not.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from recommender.history.sorted_window import SortedWindow

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
    """What is known of a workload when it is submitted."""

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
        """In the order of TOLD; NaN where nothing is known."""
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
        """In the order of `names`, from what came before it. Changes nothing."""
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
        """It counts as under way; `ended` or `forget` want back what is returned."""
        kinds = [self._find((level, *key)) for level, key in enumerate(keys(submission))]
        for likes in kinds:
            likes.submitted(submission.at_ms)
        return OpenSubmission(submission, kinds)

    def ended(self, under: OpenSubmission, run_ms: int, now_ms: int) -> None:
        """It ended by itself after running `run_ms`."""
        log_run = math.log(max(run_ms, 1))
        for likes in under.likes:
            likes.ended(log_run, under.submission.at_ms, now_ms)

    def forget(self, under: OpenSubmission) -> None:
        """It will not end by itself."""
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
    """What its likes share with it, in the order of LIKES."""
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
    """Of the figures that `submitted` gives, where a submission's own are called `figures`."""
    return [f"{likes}: {told}" for likes in LIKES for told in TOLD] + [*OWN, *figures]
