"""Routing of a fleet's submissions: offers of the cells, decisions, and sending.

One thread goes through the waiting submissions in the order of fair shares. It asks the cells that may take them,
writes down the chosen cell, sends, and writes down the cell's answer. Cells are asked side by side, about many
shapes in one question, within a bounded time (`Offers`). Work of the same shape shares an offer for a few seconds,
as long as what was sent meanwhile leaves room.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import msgspec

from console.fleet.cell_connection import CellLine, SendResult
from console.fleet.coordinator import Fleet, Held, event
from console.fleet.moving import Mover, with_origin
from console.fleet.queries import FleetEvent, FleetSubmission
from engine.admission.fleet_routing import (
    CellFacts,
    CellOffer,
    Routing,
    RoutingDecision,
    RoutingTerms,
    asked_of,
    barred,
    decide,
    over_quota,
)
from engine.model.errors import JournalError, SpecError
from engine.model.specs import WorkloadSpec
from runbooks.gate.approval_gate import wall_ms

FRESH_S = 5.0
"""How long an answer of a cell holds for other work of the same shape."""
MAX_DELAYED = 10
"""Submissions sent on one answer of a cell that does not start them at once."""
MAX_SHAPES = 16
"""Asked of a cell in one question: they share the time of its twin."""
ASKED_KEPT_S = 60.0
GRACE_S = 0.2
Key = tuple[str, bytes]
"""A cell and a shape."""


class MissingOffer(NamedTuple):
    """A shape that some cells have no valid offer for."""

    shape: bytes
    spec: WorkloadSpec
    """One of that shape."""
    cells: Sequence[str]


class OfferRequest(NamedTuple):
    """A shape that a cell is to be asked about."""

    spec: WorkloadSpec
    said: Future[None]


class TimedOffer(NamedTuple):
    """An offer and its time."""

    offer: CellOffer | None
    """None: it did not answer."""
    at: float
    """Monotonic seconds."""


class Offers:
    """Offers of all cells of a fleet. May be used by any thread."""

    def __init__(self, lines: Mapping[str, CellLine], rules: Routing, pool: Executor) -> None:
        self._lines, self._rules, self._pool = lines, rules, pool
        self._kept: dict[Key, TimedOffer] = {}
        self._sent_on: dict[Key, int] = {}
        self._asked_at: dict[Key, float] = {}
        """When last, so that in turn every shape is asked about."""
        self._lock = threading.Lock()
        self._queue: dict[str, dict[bytes, OfferRequest]] = {}
        self._under_way: dict[str, dict[bytes, OfferRequest]] = {}
        """Of every cell that is being asked, about what."""

    def said(self, shape: bytes, cell: CellFacts, asked: Mapping[str, int]) -> TimedOffer | None:
        """The cell's offer for such work if it still holds for one more; None: the cell has to be asked."""
        key = (cell.link.name, shape)
        kept = self._kept.get(key)
        return kept if kept is not None and self._holds(key, kept, cell, asked) else None

    def _holds(self, key: Key, kept: TimedOffer, cell: CellFacts, asked: Mapping[str, int]) -> bool:
        if time.monotonic() - kept.at > FRESH_S:
            return False
        if kept.offer is None or kept.offer.refused:
            return True
        if kept.offer.p50_ms == 0 and not kept.offer.silent:
            room = all(cell.used.get(name, 0) + value <= cell.capacity.get(name, 0) for name, value in asked.items())
            return room or not self._sent_on.get(key)
        return self._sent_on.get(key, 0) < MAX_DELAYED

    def used(self, cell: str, shape: bytes) -> None:
        """Count a submission sent on this offer."""
        self._sent_on[cell, shape] = self._sent_on.get((cell, shape), 0) + 1

    def ask(self, wanted: Sequence[MissingOffer]) -> None:
        """Ask all cells at once, each about as many shapes as one question holds, those not asked about for longest
        first. A cell that does not answer in time has made no offer; the remaining shapes are for next time."""
        self._forget()
        asked: dict[Key, Future[None]] = {}
        for cell, shapes in self._chosen(wanted).items():
            for each in shapes:
                asked[cell, each.shape] = self._queued(cell, each)
            self._begin(cell)
        wait(asked.values(), self._rules.answer_within_ms / 1000 + GRACE_S)
        for key, future in asked.items():
            if not future.done():
                self._keep(key, self._lines[key[0]].unsaid())

    def _queued(self, cell: str, wanted: MissingOffer) -> Future[None]:
        """Future that is done when the cell has answered about the shape. Concurrent questions about it share one
        answer."""
        with self._lock:
            for known in (self._under_way.get(cell, {}), self._queue.setdefault(cell, {})):
                if wanted.shape in known:
                    return known[wanted.shape].said
            self._queue[cell][wanted.shape] = asked = OfferRequest(wanted.spec, Future())
            return asked.said

    def _begin(self, cell: str) -> None:
        """Start asking a cell, one question at a time: its twin runs few, and shapes that come meanwhile join the
        next one."""
        with self._lock:
            if cell in self._under_way:
                return
            self._under_way[cell] = {}
        self._pool.submit(self._questions, cell)

    def _questions(self, cell: str) -> None:
        """Ask a cell until nobody has a question for it. On a thread of the pool."""
        while True:
            with self._lock:
                queue = self._queue[cell]
                now = {shape: queue.pop(shape) for shape in list(queue)[:MAX_SHAPES]}
                if not now:
                    del self._under_way[cell]
                    return
                self._under_way[cell] = now
            found: Sequence[CellOffer | None] = [None] * len(now)
            try:
                specs = [each.spec for each in now.values()]
                found = self._lines[cell].offers(specs, self._rules.horizon_ms, self._rules.answer_within_ms)
            except Exception:
                traceback.print_exc()  # a fault of ours must not leave the cell unasked for good
            finally:
                for (shape, asked), offer in zip(now.items(), found, strict=True):
                    self._keep((cell, shape), offer)
                    asked.said.set_result(None)

    def _keep(self, key: Key, offer: CellOffer | None) -> None:
        self._kept[key] = TimedOffer(offer, time.monotonic())
        self._sent_on[key] = 0

    def _chosen(self, wanted: Sequence[MissingOffer]) -> dict[str, list[MissingOffer]]:
        """Cell -> shapes that it is asked about now."""
        lists: dict[str, dict[bytes, MissingOffer]] = {}
        for each in wanted:
            for cell in each.cells:
                lists.setdefault(cell, {}).setdefault(each.shape, each)
        now = time.monotonic()
        chosen = {}
        for cell, shapes in lists.items():
            longest_ago = sorted(shapes.values(), key=lambda each: self._asked_at.get((cell, each.shape), 0.0))
            chosen[cell] = longest_ago[:MAX_SHAPES]
            for each in chosen[cell]:
                self._asked_at[cell, each.shape] = now
        return chosen

    def _forget(self) -> None:
        now = time.monotonic()
        self._kept = {key: kept for key, kept in list(self._kept.items()) if now - kept.at <= FRESH_S}
        self._sent_on = {key: count for key, count in list(self._sent_on.items()) if key in self._kept}
        self._asked_at = {key: at for key, at in list(self._asked_at.items()) if now - at <= ASKED_KEPT_S}


def shape_of(spec: WorkloadSpec) -> bytes:
    """Key that is equal for work with equal offers: the command of its tasks is left out."""
    return msgspec.msgpack.encode(msgspec.structs.replace(spec, id="", name="", run=None))


TICK_S = 1.0
"""Between two looks at what waits, unless something happens."""
MAX_LOOKED_AT = 500
"""Waiting submissions gone through in one turn."""
AT_ONCE = 32
"""Questions and submissions under way."""
RETRY_S = 2.0
"""Between two tries to settle what a cell has not acknowledged."""
SETTLE_MS = 60_000
"""What was sent so long ago is no longer on its way in an engine that runs on."""
REFUSED_S = 60.0
"""How long a cell is not offered again what it has refused."""
LOOK_ALL_S = 30.0
"""Between two looks at all that the fleet has in a cell, whatever was heard of it."""


class Router:
    """The thread that routes. `decide` may be called from any."""

    def __init__(self, fleet: Fleet, pool: Executor | None = None) -> None:
        """`pool` runs what waits for cells."""
        self._fleet = fleet
        self._stopped = False
        self._wake = threading.Event()
        self._pool = pool or ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fleet-ask")
        self._thread = threading.Thread(target=self._run, name="fleet-router", daemon=True)
        self._offers = Offers(fleet.lines, fleet.spec.routing, self._pool)
        self._sent: dict[str, list[tuple[int, dict[str, int]]]] = {}
        """Cell -> (when, what was asked for) of what it may not have shown as used yet."""
        self._refused: dict[tuple[str, str], tuple[float, str]] = {}
        """(id, cell) -> until when, and why."""
        self._retry_at = {each.id: 0.0 for each in fleet.open.values() if each.state == "sending"}
        """Id of what an earlier try may have brought to its cell -> monotonic seconds of the next."""
        self._under_way: set[str] = set()
        self._to_look: set[str] = set()
        """Cells in which something was acknowledged that was not looked at yet."""
        self._looked_all = time.monotonic()
        self._tried: set[str] = set()
        """Ids that were decided on at least once."""
        self.mover = Mover(fleet, self._pool, self._facts, self._ask_for, self._said, self._count, self._try)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the present turn; unanswered submissions are settled after the next start."""
        self._stopped = True
        self._wake.set()
        self._thread.join(10)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        self._wake.set()

    def await_decided(self, ids: Sequence[str], within_s: float) -> None:
        """Wait until each of these was sent or kept for a reason, or the time is over."""
        until = time.monotonic() + within_s
        with self._fleet.moved:
            while (left := until - time.monotonic()) > 0:
                rest = [each for name in ids if (each := self._fleet.open.get(name)) is not None]
                if all(each.state == "routed" or (each.id in self._tried and each.state == "waiting") for each in rest):
                    return
                self._fleet.moved.wait(left)

    def refuse_hopeless(self, workloads: Sequence[WorkloadSpec], cells: tuple[str, ...], by: str) -> None:
        """Raises SpecError for work that every cell refuses for good, so that its submitter knows. Of many kinds
        only as many are asked about as the time for one answer allows: the others wait, and say why."""
        until = time.monotonic() + self._fleet.spec.routing.answer_within_ms / 1000
        with self._fleet.moved:
            new = [spec for spec in workloads if spec.id not in self._fleet.open]
        self._hear(new, cells, by)
        for i, spec in enumerate(new):
            if time.monotonic() > until:
                return
            found = self.preview(spec, cells, by)
            if found.never:
                told = "; ".join(f"{row.cell}: {row.why_not}" for row in found.rows)
                where = f"workloads[{i}]" if len(workloads) > 1 else "workload"
                raise SpecError(where, f"no cell accepts it ({told})", "Nothing was submitted")

    def previews(self, specs: Sequence[WorkloadSpec], cells: tuple[str, ...], by: str) -> list[RoutingDecision]:
        """Decision for each workload as if it were alone. Raises SpecError."""
        for spec in specs:
            self._fleet.check(spec, cells, "workload")
        self._hear(specs, cells, by)
        return [self.preview(spec, cells, by) for spec in specs]

    def _hear(self, specs: Sequence[WorkloadSpec], cells: tuple[str, ...], by: str) -> None:
        """Ask the cells about as many of these shapes as one question holds. Raises SpecError."""
        wanted = []
        for spec in specs:
            each = _not_kept(spec, cells, by)
            with self._fleet.moved:
                terms, missing = self._fleet.terms(each)
            if not missing:
                wanted.append(MissingOffer(shape_of(spec), spec, self._said(each, terms)[1]))
        self._offers.ask(wanted)

    def preview(self, spec: WorkloadSpec, cells: tuple[str, ...], by: str) -> RoutingDecision:
        """Decision for a workload now. Nothing is kept. Raises SpecError."""
        fleet = self._fleet
        fleet.check(spec, cells, "workload")
        each = _not_kept(spec, cells, by)
        with fleet.moved:
            terms, missing = fleet.terms(each)
            held = fleet.held()
        quota = over_quota(terms, held.get(each.tenant, {}))
        found = self._decide(each, terms)
        if quota or missing:
            return msgspec.structs.replace(found, cell="", why=quota or missing, waits="quota" if quota else "cells")
        return found

    # -- the thread

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self.turn()
            except JournalError:
                self._wake.wait(TICK_S)  # told by the fleet's `error`; nothing was changed
            except Exception as error:
                # A fault of ours must not end routing for good, and not in silence.
                traceback.print_exc()
                self._fleet.fault = f"internal error of Muster in routing: {type(error).__name__}: {error}"
                self._wake.wait(RETRY_S)
            else:
                self._fleet.fault = ""

    def turn(self) -> None:
        """Go once through the waiting submissions. Raises JournalError; what could not be written down was not done."""
        fleet = self._fleet
        fleet.settle()
        self._tidy()
        self._settle()
        self.mover.turn(RETRY_S)
        with fleet.moved:
            held = fleet.held()
            order = fleet.in_turn((each for each in fleet.open.values() if each.state == "waiting"), held)
        left = self._route(order[:MAX_LOOKED_AT], held, in_turn=True)
        if left:
            # What is decided was sent: asking takes seconds.
            self._offers.ask(self._wanted(left))
            if self._route(left, held):
                self._wake.set()  # more shapes than one question holds, or more work than one answer

    def _route(self, names: Sequence[str], held: Held, *, in_turn: bool = False) -> list[str]:
        """Decide on these and send them, where the offers are known. Returns the others; with `in_turn` everything
        from the first of them on."""
        fleet = self._fleet
        batch: list[FleetSubmission] = []
        left: list[str] = []
        for at, name in enumerate(names):
            if self._stopped:
                break
            with fleet.moved:
                each = fleet.open.get(name)
                if each is None or each.state != "waiting":
                    continue
                terms, missing = fleet.terms(each)
            quota = over_quota(terms, held.get(each.tenant, {}))
            if quota or missing:
                self._keep_waiting(each, RoutingDecision(why=quota or missing, waits="quota" if quota else "cells"))
                continue
            offers, silent = self._said(each, terms)
            if silent:
                left.append(name)
                if in_turn:
                    left += names[at + 1 :]
                    break
                continue
            found = decide(terms, self._facts(), offers, fleet.spec)
            if not found.cell:
                self._keep_waiting(each, found)
                continue
            batch.append(self._chosen(each, found, held))
        self._send(batch)
        return left

    def _wanted(self, names: Sequence[str]) -> list[MissingOffer]:
        """Offers that are missing for these."""
        found = []
        for name in names:
            with self._fleet.moved:
                each = self._fleet.open.get(name)
                if each is None or each.state != "waiting":
                    continue
                terms, missing = self._fleet.terms(each)
            silent = [] if missing else self._said(each, terms)[1]
            if silent:
                found.append(MissingOffer(shape_of(each.spec), each.spec, silent))
        return found

    def _keep_waiting(self, each: FleetSubmission, found: RoutingDecision) -> None:
        fleet = self._fleet
        with fleet.moved:
            now = fleet.open.get(each.id)
            if now is None or now.state != "waiting":
                return
            after = msgspec.structs.replace(
                now, why=found.why, waits=found.waits, decision=found if found.rows else now.decision
            )
            if now.waits != after.waits or not now.why:
                fleet.keep((after,))
            else:
                fleet.open[each.id] = after
            self._tried.add(each.id)
            fleet.moved.notify_all()

    def _chosen(self, each: FleetSubmission, found: RoutingDecision, held: Held) -> FleetSubmission:
        """The submission as it is to be sent; from now on it counts as in its cell."""
        line = self._fleet.lines[found.cell]
        now_ms = wall_ms()
        sums = held.setdefault(each.tenant, {})
        for name, value in each.asked.items():
            sums[name] = sums.get(name, 0) + value
        self._count(each, found.cell)
        return msgspec.structs.replace(
            each, state="sending", cell=found.cell, sent_ms=now_ms, sent_pid=line.pid, why=found.why, waits="",
            decision=found, changed_ms=now_ms,
        )  # fmt: skip

    def _count(self, each: FleetSubmission, cell: str) -> None:
        """Count a submission as sent to a cell, until the cell shows it."""
        self._sent.setdefault(cell, []).append((wall_ms(), each.asked))
        self._offers.used(cell, shape_of(each.spec))

    # -- what the cells say

    def _ask_for(self, submissions: Sequence[FleetSubmission]) -> None:
        """Have the cells make the offers that are missing for these."""
        wanted = []
        for each in submissions:
            with self._fleet.moved:
                terms, missing = self._fleet.terms(each)
            if not missing and (silent := self._said(each, terms)[1]):
                wanted.append(MissingOffer(shape_of(each.spec), each.spec, silent))
        self._offers.ask(wanted)

    def _decide(self, each: FleetSubmission, terms: RoutingTerms) -> RoutingDecision:
        """Decision by recent offers; cells without one are asked."""
        offers, silent = self._said(each, terms)
        if silent:
            self._offers.ask([MissingOffer(shape_of(each.spec), each.spec, silent)])
            offers, _ = self._said(each, terms)
        # Some may have turned out to be down.
        return decide(terms, self._facts(), offers, self._fleet.spec)

    def _said(self, each: FleetSubmission, terms: RoutingTerms) -> tuple[dict[str, CellOffer], list[str]]:
        """Offers that still hold for such work; and the cells that would have to be asked."""
        offers: dict[str, CellOffer] = {}
        silent: list[str] = []
        shape = shape_of(each.spec)
        for cell in self._facts():
            name = cell.link.name
            if barred(terms, cell)[0]:
                continue
            until, why = self._refused.get((each.id, name), (0.0, ""))
            if until > time.monotonic():
                offers[name] = CellOffer(refused=why)
            elif (kept := self._offers.said(shape, cell, each.asked)) is None:
                silent.append(name)
            elif kept.offer is not None:
                offers[name] = kept.offer
        return offers, silent

    def _facts(self) -> list[CellFacts]:
        fleet = self._fleet
        found = []
        for name, line in fleet.lines.items():
            seen_ms = line.seen.wall_ms if line.seen is not None else 0
            sums: dict[str, int] = {}
            for at_ms, asked in self._sent.get(name, ()):
                if at_ms >= seen_ms:
                    for resource, value in asked.items():
                        sums[resource] = sums.get(resource, 0) + value
            found.append(line.facts(fleet.closed.get(name), sums))
        return found

    def _tidy(self) -> None:
        """Forget what is too old to matter, and look at every cell now and then."""
        now = time.monotonic()
        self._refused = {key: found for key, found in self._refused.items() if found[0] > now}
        with self._fleet.moved:
            back, self._fleet.sent_back = self._fleet.sent_back, {}
        for (name, cell), why in back.items():
            self._refused[name, cell] = (now + REFUSED_S, why)
            self._retry_at.pop(name, None)
        self._tried &= self._fleet.open.keys()
        with self._fleet.moved:
            sending = {each.id for each in self._fleet.open.values() if each.state == "sending"}
            for name in self._retry_at.keys() - sending:
                del self._retry_at[name]
        for name, line in self._fleet.lines.items():
            seen_ms = line.seen.wall_ms if line.seen is not None else 0
            self._sent[name] = [each for each in self._sent.get(name, ()) if each[0] >= seen_ms]
        if now - self._looked_all >= LOOK_ALL_S:
            self._looked_all = now
            for name in self._fleet.lines:
                self._pool.submit(self._fleet.look_quietly, name)

    # -- sending

    def _send(self, batch: list[FleetSubmission]) -> None:
        """Write down where they go, then send them without waiting for that."""
        if batch:
            fleet = self._fleet
            with fleet.moved:
                # What was withdrawn meanwhile stays here.
                batch = [each for each in batch if (now := fleet.open.get(each.id)) and now.state == "waiting"]
                fleet.keep(batch, [event("routed", each.id, f"to {each.cell}: {each.why}") for each in batch])
            for each in batch:
                self._try(each)

    def _settle(self) -> None:
        """Send again what a cell has not acknowledged, once it answers."""
        now = time.monotonic()
        with self._fleet.moved:
            rest = [each for each in self._fleet.open.values() if each.state == "sending"]
        for each in rest:
            line = self._fleet.lines.get(each.cell)
            if line is None or line.error or each.id in self._under_way or self._retry_at.get(each.id, 0.0) > now:
                continue
            self._retry_at[each.id] = now + RETRY_S
            self._try(each)

    def _try(self, each: FleetSubmission) -> None:
        self._under_way.add(each.id)
        self._pool.submit(self._sent_one, each)

    def _sent_one(self, each: FleetSubmission) -> None:
        """On a thread of the pool."""
        line = self._fleet.lines[each.cell]
        try:
            if not self._fleet.journal.is_ours:
                return  # another process may route by now: it stays `sending`, and is asked for again
            sent = line.send(with_origin(each), again=each.id in self._retry_at)
            if sent.outcome == "refused" and self._may_be_under_way(each):
                sent = SendResult("unknown", sent.text)
            self._settled(each, sent)
            if sent.outcome == "there" and each.cell not in self._to_look:
                self._to_look.add(each.cell)
                self._pool.submit(self._look_at_new, each.cell)
        except JournalError:
            pass  # it stays `sending`, and is asked for again
        finally:
            self._under_way.discard(each.id)
            self._wake.set()

    def _look_at_new(self, cell: str) -> None:
        """Look at newly acknowledged work: its first changes may have been heard before the acknowledgement."""
        self._to_look.discard(cell)
        self._fleet.look_quietly(cell, ())

    def _may_be_under_way(self, each: FleetSubmission) -> bool:
        """True when an earlier try without an answer may still take effect after a refusal."""
        line = self._fleet.lines[each.cell]
        again = each.id in self._retry_at
        return again and line.pid == each.sent_pid and wall_ms() - each.sent_ms < SETTLE_MS

    def _settled(self, each: FleetSubmission, sent: SendResult) -> None:
        fleet = self._fleet
        told: FleetEvent | None = None
        with fleet.moved:
            now = fleet.open.get(each.id)
            if now is None or now.state != "sending":
                return
            at_ms = wall_ms()
            if sent.outcome == "there":
                after = msgspec.structs.replace(now, state="routed", changed_ms=at_ms)
                told = event("acknowledged", each.id, f"by {each.cell}")
            elif sent.outcome == "unknown" or (sent.outcome == "not_sent" and each.id in self._retry_at):
                # An earlier try may have brought it there: it stays that cell's until the cell answers.
                self._retry_at.setdefault(each.id, 0.0)
                why = f"sent to {each.cell}, which has not confirmed it: {sent.text}"
                line = fleet.lines[each.cell]
                sent_ms, sent_pid = (at_ms, line.pid) if sent.outcome == "unknown" else (now.sent_ms, now.sent_pid)
                after = msgspec.structs.replace(now, why=why, sent_ms=sent_ms, sent_pid=sent_pid)
                if now.why != why:
                    told = event("unsettled", each.id, f"in {each.cell}: {sent.text}")
            else:
                if sent.outcome == "refused":
                    self._refused[each.id, each.cell] = (time.monotonic() + REFUSED_S, sent.text)
                why = f"{each.cell} did not accept it: {sent.text}"
                after = msgspec.structs.replace(now, state="waiting", cell="", sent_ms=0, sent_pid=0, why=why)
                told = event("refused", each.id, f"by {each.cell}: {sent.text}")
                self._retry_at.pop(each.id, None)
            fleet.keep((after,), (told,) if told else ())


def _not_kept(spec: WorkloadSpec, cells: tuple[str, ...], by: str) -> FleetSubmission:
    """The submission as it would be."""
    now_ms = wall_ms()
    return FleetSubmission(
        seq=0, id=spec.id, state="waiting", spec=spec, asked=asked_of(spec), cells=cells, by=by, submitted_ms=now_ms,
        changed_ms=now_ms,
    )  # fmt: skip
