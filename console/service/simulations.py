"""Suggestions tried on the twin beside the cell: before and after, one at a time, and only while nobody else asks the
twin for anything.

What a suggestion's action is as edits of a what-if, where there are such; the rest says why it cannot be tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from engine.model import what_if_edits as ed
from engine.model.distributions import MIN_RUNS
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.specs import HOUR_MS
from engine.model.twin_queries import Interval, Outlook, RunStatus, WhatIf
from engine.twin.live_twin import Twins
from recommender.findings.queries import SuggestionTrial
from recommender.findings.suggestions import Suggestion
from runbooks.actions.catalogue import CATALOG

if TYPE_CHECKING:
    from engine.loop import EngineLoop

HORIZON_MS = 6 * HOUR_MS
SEEDS = MIN_RUNS
"""With arrivals as of late: what a change is worth is mostly what it is worth to what comes."""
MAX_SECONDS = 45.0
"""Wall time of one try; then what it has found by then stands."""
LOOK_S = 0.1
WAITING = SuggestionTrial(state="waiting")

_NO_EDIT = "the twin has no edit for {action}"


def edits_of(suggestion: Suggestion) -> tuple[ed.AnyEdit, ...] | str:
    """The edits that come nearest to the action, or why there are none."""
    row = CATALOG.get(suggestion.action)
    try:
        if suggestion.trial:
            return ed.parse_all(suggestion.trial)
        if row is not None and not row.command:
            return "nothing would be done"
        if row is None or not row.edit:
            return _NO_EDIT.format(action=suggestion.action.replace("_", " "))
        targets = suggestion.targets if row.kind == "queue" else (",".join(suggestion.targets),)
        return tuple(ed.parse(f"{row.edit} {target}") for target in targets)
    except SpecError as error:
        return f"the twin cannot try it: {error.problem}"


class Simulations:
    """The tries of one engine. `run` is for one thread; `give_way` and `close` may be called by any."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._twins = Twins(loop.engine)
        self._leave = self._closed = False

    def run(self, suggestion: Suggestion, tell: Callable[[SuggestionTrial], None]) -> None:
        """Try it, and `tell` how it stands as it comes; at last `waiting` when somebody else wanted the twin."""
        edits = edits_of(suggestion)
        if isinstance(edits, str):
            tell(SuggestionTrial(state="none", why=edits))
            return
        told = SuggestionTrial(
            state="running", edits=tuple(ed.written(edit) for edit in edits), why=_beside(suggestion)
        )
        self._leave = False
        ask = WhatIf(edits=edits, horizon_ms=HORIZON_MS, seeds=SEEDS, arrivals=True)
        try:
            status = self._loop.call(lambda _: self._begun(ask))
            tell(_seen(told, status))
            status = self._followed(status, lambda found: tell(_seen(told, found)))
        except MusterError as error:
            tell(msgspec.structs.replace(told, state="failed", why=error.problem))
            return
        if status.state == "cancelled" and not isinstance(status.answer, Outlook):
            tell(WAITING)
            return
        tell(_seen(told, status))

    def _begun(self, ask: WhatIf) -> RunStatus:
        if self._closed:
            raise RefusedError("the engine stops")
        return self._twins.start(ask)

    def _followed(self, status: RunStatus, heard: Callable[[RunStatus], None]) -> RunStatus:
        until = time.monotonic() + MAX_SECONDS
        while status.state == "running":
            if self._leave or self._closed or self._loop.twins.busy or time.monotonic() > until:
                return self._twins.cancel(status.id)
            time.sleep(LOOK_S)
            self._loop.call(lambda _: self._twins.poll())
            before, status = status, self._twins.status(status.id)
            if status.answer is not None and status.answer != before.answer:
                heard(status)
        return status

    def give_way(self) -> None:
        """Stop the try that is under way: somebody asks the twin. It is tried again later."""
        self._leave = True

    def close(self) -> None:
        """Stop the try that is under way, for good."""
        self._closed = True
        self._twins.close()


def _seen(told: SuggestionTrial, status: RunStatus) -> SuggestionTrial:
    """The try as its run stands."""
    answer = status.answer
    if status.state == "cancelled":
        told = msgspec.structs.replace(
            told, why="; ".join(part for part in (told.why, "stopped before its end") if part)
        )
    if status.error is not None:
        return msgspec.structs.replace(told, state="failed", why=status.error.problem)
    if not isinstance(answer, Outlook):
        return msgspec.structs.replace(told, version=status.version, at_ms=status.at_ms, horizon_ms=HORIZON_MS)
    cost = next((figure for figure in answer.figures if (figure.of, figure.name) == ("cell", "cost")), None)
    return msgspec.structs.replace(
        told,
        state="running" if status.state == "running" else "done",
        why="; ".join(part for part in (told.why, *answer.notes) if part),
        version=answer.version,
        at_ms=answer.at_ms,
        horizon_ms=answer.covered_ms,
        seeds=answer.seeds,
        figures=tuple(
            figure for figure in answer.figures if figure.of == "cell" or figure.change.most or figure.change.least
        ),
        cost_microusd_hour=None if cost is None else _hourly(cost.change, answer.covered_ms),
    )


def _hourly(over: Interval, ms: int) -> Interval:
    """An amount over so long, as one for an hour."""
    amounts = {name: getattr(over, name) for name in ("least", "p10", "p50", "p90", "most")}
    return Interval(
        runs=over.runs,
        **{name: None if each is None else each * HOUR_MS // max(ms, 1) for name, each in amounts.items()},
    )


def _beside(suggestion: Suggestion) -> str:
    """How what is tried differs from the action."""
    return f"tried as near to {suggestion.action.replace('_', ' ')} as the twin can" if suggestion.trial else ""
