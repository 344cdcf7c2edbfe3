"""A fleet: cells that are engines of their own, the submissions to all of them, and the views of both.

It holds no state of the cells. Its journal has every submission, written before it is sent and after it was
acknowledged. A submission is sent to one cell at a time. It goes to another only when it is certain that the first
does not have it: nobody was there, the cell has refused it, or the engine that was asked is gone and its journal
does not know it. Otherwise it stays with that cell until the cell answers.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from console import VERSION
from console.fleet.cell_connection import ASKED, DOUBT, NOT_ASKED, CellLine, Connect, RemoteWorkload
from console.fleet.journal import FleetJournal
from console.fleet.queries import CellView, FleetEvent, FleetSubmission, FleetView, State, SubmissionsPage, TenantView
from engine.admission.fleet_routing import (
    FleetSpec,
    RoutingTerms,
    TenantShare,
    WaitingSubmission,
    asked_of,
    barred,
    check_fleet,
    fair_order,
    over_quota,
    share_ppm,
    terms_of,
)
from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import RESOURCES, WorkloadSpec, check_workload
from runbooks.gate.approval_gate import wall_ms

Held = dict[str, dict[str, int]]
"""Tenant -> resource -> quantity."""


def cell_view(line: CellLine, closed: str | None, here: Sequence[FleetSubmission], spec: FleetSpec) -> CellView:
    """View of one cell. `closed`: why a person has closed it, None: nobody has; `here`: submissions of the fleet in
    it."""
    seen = line.seen
    view = CellView(
        name=line.link.name,
        state="down" if line.error else "closed" if closed is not None else "up",
        why=line.error or closed or "",
        connect=line.link.connect,
        region=line.link.region,
        residency=line.link.residency,
        datasets=tuple(data.name for data in spec.datasets if line.link.name in data.cells),
        fleet_open=len(here),
        unsettled=sum(each.state == "sending" for each in here),
    )
    if seen is None:
        return msgspec.structs.replace(view, state="unknown" if line.error in ("", NOT_ASKED) else "down")
    of = seen.overview
    return msgspec.structs.replace(
        view,
        state="down" if view.state == "up" and seen.shut else view.state,
        why=view.why or seen.shut,
        decided_by="" if seen.mirror.state == "none" else seen.mirror.scheduler.lower(),
        seen_ms=seen.wall_ms,
        version=of.version,
        capacity=of.capacity,
        used=of.used,
        nodes=sum(pool.nodes for pool in of.pools),
        ready=sum(pool.ready for pool in of.pools),
        running=of.states.get("running", 0) + of.states.get("placed", 0),
        queued=of.states.get("queued", 0),
        wait_p95_ms=of.wait_p95_ms,
        cost_microusd_hour=of.cost_microusd_hour,
    )


def tenant_views(
    spec: FleetSpec,
    held: Held,
    capacity: Mapping[str, int],
    waiting: Sequence[FleetSubmission],
    lines: Mapping[str, CellLine],
) -> tuple[TenantView, ...]:
    """Tenants of the fleet's file, then others that hold something."""
    known = {tenant.name: tenant for tenant in spec.tenants}
    names = [*known, *sorted(name for name in held if name not in known)]
    return tuple(_tenant(known.get(name, TenantShare(name=name)), held, capacity, waiting, lines) for name in names)


def _tenant(
    tenant: TenantShare,
    held: Held,
    capacity: Mapping[str, int],
    waiting: Sequence[FleetSubmission],
    lines: Mapping[str, CellLine],
) -> TenantView:
    holds = held.get(tenant.name, {})
    return TenantView(
        name=tenant.name,
        weight=tenant.weight,
        quota=tenant.quota,
        held=holds,
        share_ppm=share_ppm(holds, capacity, tenant.weight),
        waiting=sum(each.tenant == tenant.name for each in waiting),
        by_cell={
            cell: line.seen.overview.tenants[tenant.name]
            for cell, line in lines.items()
            if line.seen is not None and tenant.name in line.seen.overview.tenants
        },
    )


MAX_SHOWN = 100
"""Waiting submissions, and events, of one view."""
GONE = "gone"
"""State of work that a cell has acknowledged and does not know: its journal is another, or was put back."""
UNSEEN = ("", ASKED, DOUBT)
"""States of work that a cell has acknowledged and does not show yet."""


class Fleet:
    """One fleet. Its methods may be called from any thread."""

    def __init__(self, spec: FleetSpec, journal: FleetJournal, connect: Connect) -> None:
        check_fleet(spec)
        self.spec = spec
        self.journal = journal
        self.moved = threading.Condition(threading.RLock())
        """Holds what is below; waited on for a change of any submission."""
        self.open = {submission.id: submission for submission in journal.open_submissions()}
        self.closed = journal.closed()
        self.counts = Counter[State](journal.counts())
        """State -> submissions. What is looked at all the time is answered without the database."""
        self.recent = deque(journal.events(MAX_SHOWN), maxlen=MAX_SHOWN)
        """Newest first."""
        self.error = ""
        """Why the journal cannot be written; empty while it can."""
        self.fault = ""
        """Why nothing was routed in the last turn; empty when all is well."""
        name = f"{spec.name}-{journal.uid}"
        self.lines = {link.name: CellLine(link, connect, name, self._heard) for link in spec.cells}
        self.sent_back: dict[tuple[str, str], str] = {}
        """(id, cell) -> why the scheduler behind the cell would not have it; for whoever routes."""
        self._seq = journal.last_seq()
        self._weights = {tenant.name: tenant.weight for tenant in spec.tenants}
        self._up: dict[str, bool] = {}

    def start(self) -> None:
        for line in self.lines.values():
            line.start()

    def stop(self) -> None:
        for line in self.lines.values():
            line.stop()
        for line in self.lines.values():
            line.close()

    # -- what is asked of it

    def submit(self, workloads: Sequence[WorkloadSpec], cells: tuple[str, ...], by: str) -> tuple[str, ...]:
        """Take all submissions or none; once this returns none is lost. An equal one that exists is accepted as it
        is. Raises SpecError and RefusedError, JournalError when it cannot be kept."""
        with self.moved:
            self.settle()
            there = self.journal.found_in_time([spec.id for spec in workloads])
            now_ms, new = wall_ms(), []
            for i, spec in enumerate(workloads):
                where = f"workloads[{i}]" if len(workloads) > 1 else "workload"
                self.check(spec, cells, where)
                known = there.get(spec.id)
                if known is None:
                    self._seq += 1
                    there[spec.id] = submission = _submission(self._seq, spec, cells, by, now_ms)
                    new.append(submission)
                elif known.spec != spec or known.cells != cells:
                    raise RefusedError(
                        f"{where}.id: '{spec.id}' already exists, as another workload", "Give each its own id"
                    )
            self.keep(new, [event("submitted", each.id, each.by) for each in new])
        return tuple(spec.id for spec in workloads)

    def check(self, spec: WorkloadSpec, cells: tuple[str, ...], where: str) -> None:
        """Raises SpecError for a malformed workload, and for one that no cell can ever take."""

        check_workload(spec, where)
        terms = terms_of(spec, self.spec, cells, where=where)
        why = [barred(terms, line.facts(None, {})) for line in self.lines.values()]
        if all(for_good for _, for_good in why):
            told = "; ".join(f"{name}: {text}" for name, (text, _) in zip(self.lines, why, strict=True))
            raise SpecError(where, f"no cell accepts it ({told})", "Change its residency, data or cells")
        too_much = over_quota(terms, {})
        if too_much:
            raise SpecError(where, f"is more than its tenant's limit: {too_much}", "Ask for less at once")

    def withdraw(self, ids: Sequence[str], by: str) -> tuple[str, ...]:
        """Take back submissions that wait in the fleet. Raises RefusedError, with nothing done, when one of them is
        in a cell."""
        with self.moved:
            found = [self._known(name) for name in ids]
            for each in found:
                if each.state != "waiting":
                    at = f" in {each.cell}" if each.cell else ""
                    raise RefusedError(
                        f"{each.id} is {each.state}{at}, not waiting in the fleet",
                        f"Cancel it there: muster --cell {each.cell} cancel {each.id}" if each.cell else "",
                    )
            now_ms = wall_ms()
            gone = [msgspec.structs.replace(each, state="withdrawn", why="", changed_ms=now_ms) for each in found]
            self.keep(gone, [event("withdrawn", each.id, by) for each in gone])
        return tuple(ids)

    def set_closed(self, cell: str, closed: bool, reason: str, by: str) -> None:
        """Stop or resume sending to a cell. Its work goes on."""
        with self.moved:
            if cell not in self.lines:
                raise NotFoundError(f"there is no cell '{cell[:60]}'", f"Cells: {', '.join(self.lines)}")
            detail = f"{by}: {reason}" if reason else by
            told = event("closed" if closed else "opened", cell, detail)
            self.journal.set_closed(cell, reason if closed else None, told)
            self.recent.appendleft(told)
            if closed:
                self.closed[cell] = reason
            else:
                self.closed.pop(cell, None)
            self.moved.notify_all()

    def submission(self, submission_id: str) -> FleetSubmission:
        with self.moved:
            return self._known(submission_id)

    def page(self, states: Sequence[State], before: int, limit: int) -> SubmissionsPage:
        kept = self.journal.page(states, before, limit)
        with self.moved:
            found = [self.open.get(each.id, each) for each in kept]
        more = found[-1].seq if len(found) == limit else 0
        return SubmissionsPage(now_ms=wall_ms(), items=tuple(found), next_before=more)

    def view(self) -> FleetView:
        with self.moved:
            held = self.held()
            waiting = [each for each in self.open.values() if each.state == "waiting"]
            order = self.in_turn(waiting, held)
            there: dict[str, list[FleetSubmission]] = {}
            for each in self.open.values():
                there.setdefault(each.cell, []).append(each)
            return FleetView(
                name=self.spec.name,
                now_ms=wall_ms(),
                pid=os.getpid(),
                software=VERSION,
                error=self.error or self.fault,
                cells=tuple(
                    cell_view(line, self.closed.get(name), there.get(name, []), self.spec)
                    for name, line in self.lines.items()
                ),
                tenants=tenant_views(self.spec, held, self.capacity(), waiting, self.lines),
                kept_in=str(self.journal.place),
                counts={state: count for state, count in sorted(self.counts.items()) if count},
                waiting=tuple(self.open[name] for name in order[:MAX_SHOWN]),
                recent=tuple(self.recent),
            )

    def _known(self, submission_id: str) -> FleetSubmission:
        found = self.open.get(submission_id) or self.journal.found([submission_id]).get(submission_id)
        if found is None:
            raise NotFoundError(
                f"the fleet has no '{submission_id[:80]}'", "It may have been submitted directly to a cell"
            )
        return found

    # -- for whoever routes; with `moved` held

    def keep(self, changed: Sequence[FleetSubmission], events: Sequence[FleetEvent] = ()) -> None:
        """Write changes down, then apply them. Raises JournalError with nothing changed."""
        if not changed and not events:
            return
        try:
            self.journal.write(changed, events)
        except MusterError as error:
            self.error = error.problem
            raise
        self.error = ""
        self.recent.extendleft(events)
        for each in changed:
            before = self.open.get(each.id)
            if before is not None:
                self.counts[before.state] -= 1
            self.counts[each.state] += 1
            if each.state in ("ended", "withdrawn"):
                self.open.pop(each.id, None)
            else:
                self.open[each.id] = each
        self.moved.notify_all()

    def settle(self) -> None:
        """Reload after a write with unknown outcome. Raises JournalError."""
        with self.moved:
            if not self.journal.settle():
                return
            kept = {each.id: each for each in self.journal.open_submissions()}
            for name, each in kept.items():
                known = self.open.get(name)
                if known is not None and (known.state, known.cell) == (each.state, each.cell):
                    kept[name] = known  # with what its cell said since
            self.open = kept
            self.closed = self.journal.closed()
            self.counts = Counter[State](self.journal.counts())
            self.recent = deque(self.journal.events(MAX_SHOWN), maxlen=MAX_SHOWN)
            self._seq = max(self._seq, self.journal.last_seq())
            self.error = ""
            self.moved.notify_all()

    def held(self) -> Held:
        """Resources that each tenant holds in all cells, with those of its work under way. Where cell and fleet know
        different moments the larger figure counts, so that a quota is never exceeded."""
        total: Held = {}
        running: dict[str, Held] = {name: {} for name in self.lines}
        for each in self.open.values():
            if each.state == "waiting":
                continue
            part = each.running if each.members > 1 else int(each.running > 0)
            left = each.members - each.over - part
            for name, asked in each.asked.items():
                one = asked // each.members
                _add(total, each.tenant, name, one * max(left, 0))
                _add(running.setdefault(each.cell, {}), each.tenant, name, one * part)
        for cell, ours in running.items():
            line = self.lines.get(cell)
            theirs = line.seen.overview.tenants if line is not None and line.seen is not None else {}
            for tenant in {*ours, *theirs}:
                for name in RESOURCES:
                    most = max(ours.get(tenant, {}).get(name, 0), theirs.get(tenant, {}).get(name, 0))
                    if most:
                        _add(total, tenant, name, most)
        return total

    def capacity(self) -> dict[str, int]:
        """Capacity of all cells, as they were last seen."""
        seen = [line.seen.overview.capacity for line in self.lines.values() if line.seen is not None]
        return {name: sum(each.get(name, 0) for each in seen) for name in RESOURCES}

    def in_turn(self, waiting: Iterable[FleetSubmission], held: Held) -> list[str]:
        """Ids of waiting submissions, in the order in which they are tried."""
        rows = [WaitingSubmission(each.id, each.tenant, each.asked, each.submitted_ms) for each in waiting]
        return fair_order(rows, held, self.capacity(), self._weights)

    def terms(self, each: FleetSubmission) -> tuple[RoutingTerms, str]:
        """Terms that decide where it may go; and the reason why it cannot go anywhere yet, where a workload it
        depends on has no cell."""
        cells = set(each.cells)
        for need in each.spec.after:
            first = self._found_for(need.id)
            if first is None:
                continue
            if not first.cell:
                return self._terms(each, each.cells), f"waits for {need.id}, which is in no cell yet"
            cells = cells & {first.cell} if cells else {first.cell}
        return self._terms(each, tuple(sorted(cells))), ""

    def _terms(self, each: FleetSubmission, cells: tuple[str, ...]) -> RoutingTerms:
        terms = terms_of(each.spec, self.spec, cells, waited_ms=wall_ms() - each.submitted_ms)
        return msgspec.structs.replace(terms, left=each.left) if each.left else terms

    def _found_for(self, name: str) -> FleetSubmission | None:
        """Submission of a workload: its own, or that of the array it is a member of."""
        for candidate in (name, name.rpartition("/")[0]):
            if candidate:
                found = self.open.get(candidate) or self.journal.found([candidate]).get(candidate)
                if found is not None:
                    return found
        return None

    # -- what the cells say, on their watchers' threads

    def _heard(self, cell: str, subjects: Sequence[str] | None) -> None:
        with suppress(JournalError):  # told by `error`; looked at again later
            self._note_up(cell)
            self.look(cell, subjects)

    def look_quietly(self, cell: str, subjects: Sequence[str] | None = None) -> None:
        """As `look`; failures are looked at again later."""
        with suppress(MusterError):
            self.look(cell, subjects)

    def look(self, cell: str, subjects: Sequence[str] | None = None) -> None:
        """Update the state of the fleet's work in a cell: of these workloads and those not seen yet, or of all.
        Raises JournalError, and the errors of the cell's client."""
        line = self.lines[cell]
        with self.moved:
            here = {each.id: each for each in self.open.values() if each.cell == cell and each.state == "routed"}
            if subjects is not None:
                touched = {name for subject in subjects for name in (subject, subject.rpartition("/")[0])}
                here = {name: each for name, each in here.items() if name in touched or each.cell_state in UNSEEN}
        if not here or line.error:
            return
        standings = line.standings([each.spec for each in here.values()])
        with self.moved:
            changed, told = [], []
            for name, before in here.items():
                found, now = standings.get(name), self.open.get(name)
                if now is None or now.state != "routed" or now.cell != cell:
                    continue
                if found is not None and found.sent_back:
                    self.sent_back[name, cell] = found.sent_back
                    changed.append(_back(now, f"{cell} accepted it, but its Slurm did not: {found.sent_back}"))
                    told.append(event("refused", name, f"by the Slurm of {cell}: {found.sent_back}"))
                    continue
                after = _standing(now, found, before.cell_state)
                if found is not None and found.over >= now.members:
                    changed.append(msgspec.structs.replace(after, state="ended"))
                    told.append(event("ended", name, f"{found.state} in {cell}"))
                else:
                    self.open[name] = after
            self.keep(changed, told)
            self.moved.notify_all()

    def _note_up(self, cell: str) -> None:
        error = self.lines[cell].error
        with self.moved:
            before, self._up[cell] = self._up.get(cell), not error
            if before is (not error) or (before is None and not error):
                return
            self.keep((), (event("down" if error else "up", cell, error),))
            self.moved.notify_all()


def _standing(now: FleetSubmission, found: RemoteWorkload | None, before: str) -> FleetSubmission:
    # What was acknowledged a moment ago another scheduler may not show yet.
    state = found.state if found is not None else before if before in UNSEEN else GONE
    return msgspec.structs.replace(
        now,
        cell_state=state,
        running=found.running if found is not None else 0,
        over=found.over if found is not None else 0,
        changed_ms=wall_ms() if state != before else now.changed_ms,
    )


def _back(now: FleetSubmission, why: str) -> FleetSubmission:
    """The submission waiting in the fleet again, as if it had never been sent."""
    return msgspec.structs.replace(
        now, state="waiting", cell="", cell_state="", sent_ms=0, sent_pid=0, waits="", why=why, changed_ms=wall_ms()
    )


def event(what: str, subject: str, detail: str = "") -> FleetEvent:
    return FleetEvent(at_ms=wall_ms(), what=what, subject=subject, detail=detail)


def _submission(seq: int, spec: WorkloadSpec, cells: tuple[str, ...], by: str, now_ms: int) -> FleetSubmission:
    members = (spec.array.last - spec.array.first) // spec.array.step + 1 if spec.array is not None else 1
    return FleetSubmission(
        seq=seq, id=spec.id, state="waiting", spec=spec, asked=asked_of(spec), cells=cells, by=by, members=members,
        submitted_ms=now_ms, changed_ms=now_ms,
    )  # fmt: skip


def _add(held: Held, tenant: str, name: str, value: int) -> None:
    if value:
        sums = held.setdefault(tenant, {})
        sums[name] = sums.get(name, 0) + value
