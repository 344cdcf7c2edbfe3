"""Moving queued work: what waits in a full cell goes to another that would start it now.

A move is one intent in the fleet's journal: the submission is `moving`, from its `cell` `to` another. Then the cell is
asked to give it back (`Recall`), which it does only if the work has never begun and nobody holds it, in one turn of its
engine, and the same again changes nothing. Only when the cell has said so, the submission is written down as `sending`
to the other cell, and sent like any. So at every moment at most one cell may have it: a fleet that dies in between asks
again. Work that the cell does not give back stays where it is.

Work does not swing between cells: it was queued for `move_after`, it goes only where it would start at once and is
better off by cost and waiting, and never back to a cell that it has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec

from console.fleet.cell_connection import SendResult
from console.fleet.coordinator import Fleet, event
from console.fleet.queries import FleetSubmission
from engine.admission.fleet_routing import CellFacts, CellOffer, CellRow, RoutingTerms, decide, over_quota
from engine.model.errors import JournalError
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import WorkloadSpec
from runbooks.gate.approval_gate import wall_ms

LOOK_S = 5.0
"""Between two looks at what could move."""
MAX_LOOKED_AT = 16
"""Submissions that are looked at each time, those that waited longest first."""
AT_ONCE_MS = MINUTE_MS
"""A start so near is at once."""
ASKED_AS = "{}.moved"
"""Under this id other cells, and its own, are asked about work: a cell has an id only once."""

Said = Callable[[FleetSubmission, RoutingTerms], tuple[dict[str, CellOffer], list[str]]]


class Mover:
    """Moves the queued work of a fleet. Used by the thread that routes."""

    def __init__(
        self,
        fleet: Fleet,
        pool: Executor,
        facts: Callable[[], Sequence[CellFacts]],
        ask: Callable[[Sequence[FleetSubmission]], None],
        said: Said,
        chosen: Callable[[FleetSubmission, str], None],
        send: Callable[[FleetSubmission], None],
    ) -> None:
        """`facts` and `said`: of the cells; `ask` has them make offers. `chosen` counts work as in its new cell, `send`
        sends it there."""
        self._fleet = fleet
        self._pool = pool
        self._facts, self._ask, self._said = facts, ask, said
        self._chosen, self._send = chosen, send
        self._looked = time.monotonic()
        self._retry_at: dict[str, float] = {}
        self._under_way: set[str] = set()

    def turn(self, retry_s: float) -> None:
        """Go on with what moves, and begin to move what is better off elsewhere. Raises JournalError."""
        now = time.monotonic()
        with self._fleet.moved:
            moving = [each for each in self._fleet.open.values() if each.state == "moving"]
        for each in moving:
            line = self._fleet.lines.get(each.cell)
            ready = line is not None and not line.error and each.id not in self._under_way
            if ready and self._retry_at.get(each.id, 0.0) <= now:
                self._retry_at[each.id] = now + retry_s
                self._under_way.add(each.id)
                self._pool.submit(self._recall, each)
        if now - self._looked >= LOOK_S:
            self._looked = now
            self.look()

    def look(self) -> None:
        """Begin to move what would start at once elsewhere. Raises JournalError."""
        found = self._candidates()
        if len(self._facts()) < 2 or not found:
            return
        self._ask([_asked_as(each) for each in found])
        begun = [moving for each in found if (moving := self._better_off(each)) is not None]
        with self._fleet.moved:
            begun = [each for each in begun if self._is_queued(self._fleet.open.get(each.id), each.cell)]
            told = [event("moving", each.id, f"{each.cell} to {each.to}: {each.why}") for each in begun]
            self._fleet.keep(begun, told)

    def _candidates(self) -> list[FleetSubmission]:
        """Queued submissions that may move, the oldest first."""
        before_ms = wall_ms() - self._fleet.spec.routing.move_after_ms
        with self._fleet.moved:
            needed = {need.id for each in self._fleet.open.values() for need in each.spec.after}
            found = [
                each
                for each in self._fleet.open.values()
                if self._is_queued(each, each.cell) and each.changed_ms <= before_ms
                and each.spec.array is None and not each.spec.after and each.id not in needed
            ]  # fmt: skip
        return sorted(found, key=lambda each: each.submitted_ms)[:MAX_LOOKED_AT]

    def _is_queued(self, each: FleetSubmission | None, cell: str) -> bool:
        """True for work that waits in a cell that answers and decides itself."""
        if each is None or (each.state, each.cell_state, each.cell) != ("routed", "queued", cell):
            return False
        line = self._fleet.lines.get(cell)
        return line is not None and not line.error and line.seen is not None and line.seen.mirror.state == "none"

    def _better_off(self, each: FleetSubmission) -> FleetSubmission | None:
        """The submission on its way to another cell; None: it stays."""
        with self._fleet.moved:
            terms, missing = self._fleet.terms(each)
            held = self._fleet.held().get(each.tenant, {})
        offers, silent = self._said(_asked_as(each), terms)
        if missing or each.cell in silent:
            return None
        found = decide(terms, self._facts(), offers, self._fleet.spec)
        rows = {row.cell: row for row in found.rows}
        if found.cell in ("", each.cell) or not _at_once(rows[found.cell]) or not self._has_room(found.cell, each):
            return None
        if over_quota(terms, {name: value - each.asked.get(name, 0) for name, value in held.items()}):
            return None
        if self._fleet.lines[each.cell].is_promised(each.id, self._fleet.spec.routing.bind_within_ms):
            return None
        self._chosen(_asked_as(each), found.cell)
        why = f"queued in {each.cell}; {found.why}"
        return msgspec.structs.replace(each, state="moving", to=found.cell, why=why, decision=found)

    def _has_room(self, cell: str, each: FleetSubmission) -> bool:
        """True while there is room for it beside all that was sent and moved there meanwhile."""
        facts = next(facts for facts in self._facts() if facts.link.name == cell)
        return all(facts.used.get(name, 0) + value <= facts.capacity.get(name, 0) for name, value in each.asked.items())

    def _recall(self, each: FleetSubmission) -> None:
        """Ask the cell for it. On a thread of the pool."""
        try:
            if self._fleet.journal.is_ours:
                self._settled(each, self._fleet.lines[each.cell].recall(each.id, each.to))
        except JournalError:
            pass  # it stays `moving`, and its cell is asked again
        finally:
            self._under_way.discard(each.id)

    def _settled(self, each: FleetSubmission, said: SendResult) -> None:
        with self._fleet.moved:
            now = self._fleet.open.get(each.id)
            if now is None or now.state != "moving" or said.outcome == "unknown":
                return
            if said.outcome == "refused":
                why = f"stays in {now.cell}: {said.text}"
                after = msgspec.structs.replace(
                    now, state="routed", to="", cell_state="", why=why, changed_ms=wall_ms()
                )
                self._fleet.keep((after,), (event("stays", now.id, f"in {now.cell}: {said.text}"),))
                return
            line = self._fleet.lines[now.to]
            after = msgspec.structs.replace(
                now, state="sending", cell=now.to, to="", left=(*now.left, now.cell), cell_state="", running=0,
                sent_ms=wall_ms(), sent_pid=line.pid, changed_ms=wall_ms(),
            )  # fmt: skip
            self._fleet.keep((after,), (event("moved", now.id, f"from {now.cell} to {now.to}"),))
            self._retry_at.pop(now.id, None)
        self._send(after)


def _asked_as(each: FleetSubmission) -> FleetSubmission:
    name = ASKED_AS.format(each.id)
    return msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, id=name))


def _at_once(row: CellRow) -> bool:
    start_ms = row.start_p50_ms
    return not row.guessed and not row.crowded and start_ms is not None and start_ms + row.data_ms <= AT_ONCE_MS


def with_origin(each: FleetSubmission) -> WorkloadSpec:
    """The workload as it is sent, with where it was before."""
    if not each.left:
        return each.spec
    return msgspec.structs.replace(each.spec, tags={**each.spec.tags, ORIGIN_TAG: ",".join(each.left)})


ORIGIN_TAG = "moved-from"
"""Tag of work that waited in other cells before: their names."""
