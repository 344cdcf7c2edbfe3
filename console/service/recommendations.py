"""The recommender beside a live engine: findings are ranked, remembered, tried on the twin, and followed up.

Lives in the engine's process and only reads the engine. Answers come from the last look, a few seconds old at most.
One thread of its own does what takes long: looking again, trying the first suggestions on the twin, checking
promises. A suggestion is tried as the edits of a what-if that come nearest to its action (`edits_of`), one at a
time, and only while nobody else uses the twin.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from console.text.terminal_text import printable
from engine.model import what_if_edits as ed
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.quantities import MIN_RUNS, counted, lasting
from engine.model.specs import HOUR_MS
from engine.model.twin_queries import Interval, Outlook, RunStatus, WhatIf
from engine.twin.live_twin import Twins
from recommender.findings.suggestion_store import SuggestionKeeper, SuggestionRecord, SuggestionStore, done_by, utc
from recommender.findings.suggestions import (
    FOUND,
    GPU_HOUR_MICROUSD,
    Others,
    Read,
    Recommendation,
    Recommendations,
    Suggestion,
    SuggestionTrial,
    Track,
    grouped,
    looked_up,
    ranked,
    record,
    same_id,
)
from runbooks.actions.catalogue import CATALOG, find
from runbooks.plans.typed_plan import MAX_PERSON, EvidenceRef, Proposal, Request, Source

if TYPE_CHECKING:
    from console.service.advisor import Advisor
    from engine.loop import EngineLoop
    from engine.model.overviews import Overview


HORIZON_MS = 6 * HOUR_MS
SEEDS = MIN_RUNS
"""With arrivals as of late: what a change is worth is mostly what it is worth to what comes."""
MAX_SECONDS = 45.0
"""Wall time of one try; then what it has found by then stands."""
LOOK_S = 0.1
MAX_ANNOUNCED = 3
"""Findings that a chat is told of at a time: what is worth most."""
WAITING = SuggestionTrial(state="waiting")

_NO_EDIT = "the twin cannot simulate {action}"


def edits_of(suggestion: Suggestion) -> tuple[ed.AnyEdit, ...] | str:
    """Edits that come nearest to the action, or the reason why there are none."""
    row = CATALOG.get(suggestion.action)
    try:
        if suggestion.trial:
            return ed.parse_all(suggestion.trial)
        if row is not None and not row.command:
            return "no change"
        if row is None or not row.edit:
            return _NO_EDIT.format(action=suggestion.action.replace("_", " "))
        targets = suggestion.targets if row.kind == "queue" else (",".join(suggestion.targets),)
        return tuple(ed.parse(f"{row.edit} {target}") for target in targets)
    except SpecError as error:
        return f"the twin cannot simulate it: {error.problem}"


class Simulations:
    """Trials of one engine. `run` is for one thread; `give_way` and `close` may be called by any."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._twins = Twins(loop.engine)
        self._leave = self._closed = False

    def run(self, suggestion: Suggestion, tell: Callable[[SuggestionTrial], None]) -> None:
        """Try a suggestion, and `tell` each state of the trial; at last `waiting` when somebody else wanted the
        twin."""
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
            raise RefusedError("the engine is stopping")
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
        """Stop the trial under way because somebody uses the twin. It is repeated later."""
        self._leave = True

    def close(self) -> None:
        """Stop the trial under way, for good."""
        self._closed = True
        self._twins.close()


def _seen(told: SuggestionTrial, status: RunStatus) -> SuggestionTrial:
    """The trial with the state of its run."""
    answer = status.answer
    if status.state == "cancelled":
        told = msgspec.structs.replace(told, why="; ".join(part for part in (told.why, "stopped early") if part))
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
    """An amount over a time, per hour."""
    amounts = {name: getattr(over, name) for name in ("least", "p10", "p50", "p90", "most")}
    hourly: dict[str, Any] = {
        name: None if amount is None else amount * HOUR_MS // max(ms, 1) for name, amount in amounts.items()
    }
    return Interval(runs=over.runs, **hourly)


def _beside(suggestion: Suggestion) -> str:
    """Difference between the edits and the action."""
    return f"simulated as close to {suggestion.action.replace('_', ' ')} as the twin can" if suggestion.trial else ""


FRESH_S = 5.0
"""Wall seconds for which a look serves questions about one of its findings."""
OLD_S = 150.0
"""Wall seconds after which a background look is no longer used."""
LOOK_EVERY_S = 10.0
SOON_S = 1.0
"""Wall seconds until the next try or chore."""
LOOKING_SHARE, ASKED_SHARE, SELDOM_S = 0.02, 0.05, 60.0
"""Of the time at most that looks in the background take, and while somebody asks: in a large cell they come less often,
down to once a minute."""
ASKED_S = 60.0
"""Wall seconds since somebody last asked for which looks may take more."""
FIRST_S = 3.0
"""Wall seconds from the start to the first look: others have more to do then."""
TRIED = 3
"""First suggestions that are tried on the twin without being asked for."""
AGAIN_MS = HOUR_MS // 2
"""Cell time after which what was tried is tried again."""
WATCHED_S = 600.0
"""Wall seconds since somebody last asked after which nothing is tried: a cell that nobody looks at keeps its cores."""
JUDGED_AT_ONCE = 10
"""Promises looked at in one turn: each is some tenths of a second's reading where many others are compared with it."""
SHOWN_FOLLOWED = 20

_NAMED = re.compile(r"\bR-[a-z2-7]{5}\b", re.IGNORECASE)
State = Literal["open", "rejected", "acted"]
More = Callable[["Overview"], tuple[Sequence[Suggestion], Sequence[str]]]
"""What stands out besides, and what could not be judged."""


class FindingsPass(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one look at the cell."""

    version: int
    now_ms: int
    rated: tuple[tuple[int, Suggestion], ...]
    unknown: tuple[str, ...]
    symptoms: dict[str, str] = {}
    """Incident -> what there is of it now, in words."""
    burning: frozenset[str] = frozenset()
    """Queues that miss their objective."""


class Recommender:
    """Recommendations for the cell of one loop; may be called by several threads, but not by the engine's own.

    `keep` opens the store; `more` finds what stands out in the history; `read` and `others` read the history for
    promised effects; its thread calls `chore` at every turn without other work.
    """

    def __init__(
        self,
        loop: EngineLoop,
        advisor: Advisor,
        *,
        keep: Callable[[], SuggestionKeeper] | None = None,
        more: More | None = None,
        read: Read | None = None,
        others: Others | None = None,
        chore: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._advisor = advisor
        self._more = more
        self._history_read: Read = read or (lambda *_: None)
        self._others: Others = others or (lambda *_: ())
        self._keep = keep
        self._chore = chore
        self._store = SuggestionStore()
        self._remembers = keep is None
        """Whether what was remembered has been read."""
        self._simulations = Simulations(loop)
        self._tried: dict[str, tuple[Suggestion, SuggestionTrial, int]] = {}
        """Id -> what was tried, how it stands, and the cell time of the try."""
        self._wanted: deque[str] = deque(maxlen=SHOWN_FOLLOWED)
        """Ids somebody asked to see tried."""
        self._found: FindingsPass | None = None
        self._looked_s = 0.0
        self._asked_s = -math.inf
        self._took_s = 0.0
        """Wall seconds of the last look."""
        self._lock = threading.RLock()
        """Held to change what is remembered, and to tell it."""
        self._looking = threading.Lock()
        """Held to look, which takes longer."""
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="recommender", daemon=True)

    def start(self) -> None:
        """Look, try and follow up from now on."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()
        self._simulations.close()
        if self._thread.is_alive():
            self._thread.join(5)

    # -- answers ------------------------------------------------------------------------------------------------------

    def recommendations(self) -> Recommendations:
        """Everything found now, or at the last look where looks are made in the background."""
        self._asked_s = time.monotonic()
        return self._view(self._look(OLD_S if self._thread.is_alive() else 0.0))

    def _view(self, found: FindingsPass) -> Recommendations:
        with self._lock:
            standings, tracks = self._store.standings, self._store.tracks()
            told: list[Recommendation] = []
            aside: list[Recommendation] = []
            for worth, suggestion in self._in_order(found):
                standing = standings[suggestion.id]
                state: State = "rejected" if standing.rejected else "acted" if standing.acted_ms else "open"
                track = tracks.get(suggestion.kind)
                shown = state == "open" and not (track is not None and track.hidden)
                told_as = Recommendation(
                    rank=len(told) + 1 if shown else 0,
                    state=state,
                    suggestion=suggestion,
                    worth_gpu_milli_h=worth,
                    first_ms=standing.first_ms,
                    note=_note(standing) if shown or track is None or state != "open" else _rarely(track),
                    command=command(suggestion),
                    simulated=self._simulated(suggestion),
                    track=track,
                )
                (told if shown else aside).append(told_as)
            return Recommendations(
                version=found.version,
                now_ms=found.now_ms,
                open=tuple(told),
                aside=tuple(aside),
                followed=tuple(self._store.followed[: -SHOWN_FOLLOWED - 1 : -1]),
                unknown=found.unknown,
                incidents=grouped(told, found.symptoms),
            )

    def _in_order(self, found: FindingsPass) -> list[tuple[int, Suggestion]]:
        """By what was tried meanwhile too."""
        trials = {id_: trial for id_, (_, trial, _) in self._tried.items()}
        worth = {suggestion.id: worth for worth, suggestion in found.rated}
        again = ranked((each for _, each in found.rated), {}, trials=trials, burning=found.burning, worth=worth)
        return again

    def standing_out(self) -> dict[str, str]:
        """Id -> text of what was worth most at the last look and names an action; no look is made for it."""
        found = self._found
        named = () if found is None else (each for _, each in found.rated if each.action != "notify")
        return {each.id: each.finding for each in islice(named, MAX_ANNOUNCED)}

    def recommendation(self, id_: str) -> Recommendation:
        """One recommendation, which is tried on the twin next. Raises NotFoundError."""
        wanted = same_id(id_)
        found = self._known(wanted, self._look(OLD_S if self._thread.is_alive() else FRESH_S))
        if found is None and not self._thread.is_alive():
            found = self._known(wanted, self._look())
        if found is None:
            gone = self._store.standings.get(wanted)
            problem = f"{wanted} is no longer found" if gone else f"there is no recommendation '{id_[:40]}'"
            raise NotFoundError(problem, "See `muster recommend`")
        if found.simulated.state == "waiting" and wanted not in self._wanted:
            self._wanted.append(wanted)
            self._woken.set()
        return found

    def _known(self, id_: str, at: FindingsPass) -> Recommendation | None:
        view = self._view(at)
        return next((each for each in (*view.open, *view.aside) if each.suggestion.id == id_), None)

    # -- what people make of it ---------------------------------------------------------------------------------------

    def reject(self, id_: str, reason: str, who: str) -> Recommendation:
        """Hide a recommendation until things change. Raises NotFoundError, SpecError, RefusedError."""
        found = self.recommendation(id_)
        with self._lock:
            self._store.reject(found.suggestion, who, reason, self._found.now_ms if self._found is not None else 0)
        return self.recommendation(id_)

    def sourced(self, request: Request) -> Request:
        """The request with the suggestion that it names in its source or reason as its origin, so that nobody passes
        for its author. Raises NotFoundError for one that is not found now, SpecError for one that suggests another
        action."""
        named = request.source
        if named is not None and named.kind != "suggestion":
            return request
        with self._lock:
            found = {suggestion.id: suggestion for _, suggestion in (self._found.rated if self._found else ())}
        acts = {step.act.action for step in request.steps}
        if named is None:
            ids = [same_id(word) for word in _NAMED.findall(request.reason)]
            id_ = next((id_ for id_ in ids if id_ in found and found[id_].action in acts), "")
        else:
            id_ = same_id(named.id)
            found[id_] = self.recommendation(id_).suggestion
            if found[id_].action not in acts:
                raise SpecError("suggestion", f"{id_} is to {found[id_].action}", "Leave it out, or do what it says")
        if not id_:
            return request
        others = tuple(each for each in request.evidence if each.id != id_)
        return msgspec.structs.replace(
            request, source=source_of(found[id_]), evidence=(evidence_of(found[id_]), *others)
        )

    def acted(self, proposal: Proposal, who: str) -> None:
        """Note a plan that was executed. Never raises: the note is not what the caller asked for."""
        with self._lock:
            if self._found is None:
                return
            source = proposal.plan.source.id if proposal.plan.source is not None else ""
            named = f"{source} {proposal.reason}"
            matches = [done_by(step.act.action, step.act.targets, named) for step in proposal.plan.steps]
            try:
                for _, suggestion in self._found.rated:
                    if any(is_it(suggestion) for is_it in matches):
                        now_ms = self._loop.call(lambda engine: engine.now_ms)
                        self._store.acted(suggestion, who, now_ms, self._simulated(suggestion))
            except MusterError as error:
                _log(f"outcomes cannot be saved: {error.problem}")
            self._looked_s = 0.0

    def _read(self, metric: str, of: str, subject: str, since_ms: int, until_ms: int) -> float | None:
        """The history; of a suggestion, whether it is still found."""
        if metric != FOUND:
            return self._history_read(metric, of, subject, since_ms, until_ms)
        found = self._found
        return None if found is None else float(any(each.id == subject for _, each in found.rated))

    def _compared(self, metric: str, of: str, subject: str) -> Sequence[str]:
        return () if metric == FOUND else self._others(metric, of, subject)

    def give_way(self) -> None:
        """Somebody asks the twin: what is tried here waits."""
        self._simulations.give_way()

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look(self, old_s: float = 0.0) -> FindingsPass:
        """The last look if it is younger than so many wall seconds, else a new one shared by all who ask meanwhile."""
        since_s = time.monotonic() - old_s
        if self._found is not None and self._looked_s > since_s:
            return self._found
        with self._looking:
            return self._found if self._found is not None and self._looked_s > since_s else self._looked()

    def _looked(self) -> FindingsPass:
        now_s = time.monotonic()
        overview = self._loop.call(lambda engine: engine.overview())
        advice = self._advisor.advice()
        more, unseen = self._more(overview) if self._more is not None else ((), ())
        with self._lock:
            self._remember()
            records = {kind: record(track) for kind, track in self._store.tracks().items()}
            rated = ranked((*advice.suggestions, *more), records, gpu_hour_microusd(overview))
            try:
                self._store.found([suggestion for _, suggestion in rated], overview.now_ms)
            except MusterError as error:
                _log(f"suggestions cannot be saved: {error.problem}")
            burning = frozenset(burn.queue for burn in overview.burns if burn.is_missed_lately)
            self._found = FindingsPass(
                version=advice.version,
                now_ms=overview.now_ms,
                rated=tuple(rated),
                unknown=(*advice.unknown, *unseen),
                symptoms=symptoms_of(overview),
                burning=burning,
            )
            there = {suggestion.id for _, suggestion in rated}
            self._tried = {id_: tried for id_, tried in self._tried.items() if id_ in there}
            self._looked_s = now_s
            self._took_s = time.monotonic() - now_s
            return self._found

    def _remember(self) -> None:
        """Read the store, once. While that fails nothing is remembered, and it is tried again."""
        if self._keep is None or self._remembers:
            return
        try:
            self._store, self._remembers = SuggestionStore(self._keep()), True
        except MusterError as error:
            _log(f"saved suggestions cannot be read: {error.problem}")

    # -- beside -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._woken.wait(FIRST_S)
        while not self._stopping:
            try:
                tried = self.turn()
            except MusterError as error:
                _log(error.problem)
                tried = False
            except Exception:  # a fault of ours must not end the advice for good
                traceback.print_exc()
                tried = False
            self._woken.wait(SOON_S if tried or self._wanted else self._every_s())
            self._woken.clear()

    def turn(self) -> bool:
        """One round of the thread, or by hand where none was started: look, follow up, and try one suggestion on the
        twin or do the chore. Returns False when there was nothing to do."""
        found = self._look(self._every_s())
        with self._lock:
            due = self._store.due(found.now_ms)[:JUDGED_AT_ONCE]
        verdicts = [(promise, looked_up(promise, self._read, self._compared)) for promise in due]
        with self._lock:
            self._store.settle(verdicts)
            chosen = self._to_try(found)
        if chosen is None or self._loop.twins.busy:
            return self._chore()
        self.try_out(chosen)
        return True

    def _every_s(self) -> float:
        """Wall seconds between looks."""
        asked = time.monotonic() - self._asked_s < ASKED_S
        return min(max(LOOK_EVERY_S, self._took_s / (ASKED_SHARE if asked else LOOKING_SHARE)), SELDOM_S)

    def try_out(self, suggestion: Suggestion) -> None:
        """Try it on the twin now, and remember what came of it."""
        now_ms = self._found.now_ms if self._found is not None else 0

        def tell(simulated: SuggestionTrial) -> None:
            with self._lock:
                self._tried[suggestion.id] = (suggestion, simulated, now_ms)

        self._simulations.run(suggestion, tell)

    def _to_try(self, found: FindingsPass) -> Suggestion | None:
        by_id = {suggestion.id: suggestion for _, suggestion in found.rated}
        while self._wanted:
            asked = by_id.get(self._wanted.popleft())
            if asked is not None and self._is_due(asked, found.now_ms):
                return asked
        if time.monotonic() - self._asked_s > WATCHED_S:
            return None
        first = [s for _, s in self._in_order(found) if not self._store.standings[s.id].rejected][:TRIED]
        return next((suggestion for suggestion in first if self._is_due(suggestion, found.now_ms)), None)

    def _is_due(self, suggestion: Suggestion, now_ms: int) -> bool:
        simulated = self._simulated(suggestion)
        if simulated.state == "none":
            return False
        return simulated.state == "waiting" or now_ms - self._tried[suggestion.id][2] > AGAIN_MS

    def _simulated(self, suggestion: Suggestion) -> SuggestionTrial:
        """Last trial of the same action."""
        tried = self._tried.get(suggestion.id)
        if tried is not None and _same(tried[0], suggestion):
            return tried[1]
        edits = edits_of(suggestion)
        return SuggestionTrial(state="none", why=edits) if isinstance(edits, str) else WAITING


def command(suggestion: Suggestion) -> tuple[str, ...]:
    """Words behind `muster` that propose the suggestion's action."""
    if suggestion.action == "notify":
        return ()
    targets = () if suggestion.action == "consolidate" else suggestion.targets
    shell = find(suggestion.action).shell.split()
    return (*shell, *targets, *suggestion.parameters, "--suggestion", suggestion.id)


def source_of(suggestion: Suggestion) -> Source:
    model = f", {suggestion.skill.model}" if suggestion.skill is not None else ""
    return Source(kind="suggestion", id=suggestion.id, by=f"{suggestion.kind}{model}"[:MAX_PERSON])


def evidence_of(suggestion: Suggestion) -> EvidenceRef:
    """Reference to the suggestion's evidence: its id tells a voter where to read it."""
    measured = hashlib.sha256(msgspec.json.encode(suggestion.evidence)).hexdigest()
    return EvidenceRef(id=suggestion.id, sha256=measured)


def gpu_hour_microusd(overview: Overview) -> int:
    """Price of a GPU-hour in this cell, micro-USD: all nodes' prices over all devices."""
    devices, cost = overview.capacity.get("gpu_milli", 0), overview.cost_microusd_hour
    return cost * 1000 // devices if devices and cost else GPU_HOUR_MICROUSD


def symptoms_of(overview: Overview) -> dict[str, str]:
    """What there is of each incident now: who waits, which objectives are missed, which nodes are lost."""
    queued = overview.states.get("queued", 0)
    told = [f"{queued:,} queued, the oldest for {lasting(overview.oldest_wait_ms)}"] if queued else []
    missed = sorted((each for each in overview.burns if each.is_missed_lately), key=lambda each: each.queue)
    told += [
        f"queue {each.queue} starts late, {(each.hour.burn_permille or 0) / 1000:.1f} x its allowance"
        for each in missed
    ]
    out = sum(pool.down + pool.suspect for pool in overview.pools)
    lost = f"{counted(out, 'node')} down or silent" if out else ""
    return {"late": "; ".join(told), "loss": lost}


def _rarely(track: Track) -> str:
    return f"no longer shown: suggestions of its kind helped in {track.held:,} of {track.judged:,} cases"


def _same(one: Suggestion, other: Suggestion) -> bool:
    return (one.action, one.targets, one.parameters, one.trial) == (
        other.action, other.targets, other.parameters, other.trial
    )  # fmt: skip


def _note(standing: SuggestionRecord) -> str:
    if standing.rejected is not None:
        reason = f" because {standing.rejected.reason}" if standing.rejected.reason else ""
        return f"rejected on {utc(standing.rejected.at_ms)} by {standing.rejected.who or 'somebody'}{reason}"
    if standing.acted_ms:
        return f"acted on {utc(standing.acted_ms)} by {standing.acted_by}; outcome due {utc(standing.due_ms)}"
    return standing.note


def _log(problem: str) -> None:
    print(f"muster: recommender: {printable(problem)}", file=sys.stderr)
