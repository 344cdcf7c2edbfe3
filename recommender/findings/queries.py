"""What faces are told of suggestions: ranked, with what was tried on the twin, and what came of those before. Types
only; nothing heavy is loaded."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.twin_queries import Figure, Interval
from recommender.findings.suggestions import Expected, Suggestion


class SuggestionTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Before and after, as the twin of the cell ran ahead."""

    state: Literal["none", "waiting", "running", "done", "failed"]
    """`none`: the twin cannot try it; `waiting`: it has not been tried yet."""
    why: str = ""
    """Why there is none, or why it failed; of what was tried, how it differs from the action where it does."""
    edits: tuple[str, ...] = ()
    """As `muster whatif --edit` takes them."""
    version: int = 0
    """State version it was tried on; `at_ms` is its cell time."""
    at_ms: int = 0
    horizon_ms: int = 0
    seeds: int = 0
    figures: tuple[Figure, ...] = ()
    """Of the cell, and of queues and tenants where something changes."""
    cost_microusd_hour: Interval | None = None
    """Change of the hourly bill over the horizon."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what was promised happened."""

    outcome: Literal["held", "partly", "no", "unknown"]
    seen: float | None
    """The metric when it was due; None when it was not measured."""
    why: str
    others: float | None = None
    """How the same metric moved meanwhile, in its own unit, in the median of those where nothing was done."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """A promise and what came of it."""

    id: str
    """Of the suggestion."""
    kind: str
    finding: str
    way: Literal["acted", "left"]
    """`left`: nothing was done; it shows what happens by itself."""
    at_ms: int
    """When it was acted on; of what was left, when it was first found."""
    due_ms: int
    who: str = ""
    expected: Expected
    verdict: Verdict | None = None
    """None until it is due."""


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What came of suggestions of one kind so far."""

    kind: str
    acted: int
    """Acted on and due."""
    held: int
    partly: int
    unknown: int
    """Due, but not to be judged: not measured, or it moved elsewhere too."""
    held_low_permille: int | None
    """Wilson's 95 % interval of the share of held among those judged; None when there is none."""
    held_high_permille: int | None
    left: int
    """Left alone, due and judged."""
    resolved: int
    """Of those, what came right by itself."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A suggestion as it stands now."""

    rank: int
    """From 1; 0 for one that is not in the list."""
    state: Literal["open", "rejected", "acted"]
    suggestion: Suggestion
    worth_gpu_milli_h: int
    """What it is ranked by (`recommender.findings.suggestions.worth_gpu_milli_h`)."""
    first_ms: int
    """When it was first found; cell time."""
    note: str
    """Why it is here again, or is not in the list; empty when there is nothing to say."""
    command: tuple[str, ...]
    """Words behind `muster` that propose its action; empty when there is nothing to propose."""
    simulated: SuggestionTrial
    track: Track | None
    """Of its kind; None while nothing is known."""


class Recommendations(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    """Newest state version that they were made from."""
    now_ms: int
    open: tuple[Recommendation, ...]
    """What is worth most first."""
    aside: tuple[Recommendation, ...]
    """Found, but rejected by somebody, or acted on and not due yet."""
    followed: tuple[Followed, ...]
    """The last that were followed up, newest first."""
    unknown: tuple[str, ...]
    """What could not be judged, and why."""
