"""The fleet's connection to one cell: its present state, offers for work, and submissions.

A thread of its own watches the cell, and only that thread waits for it: routing uses the watcher's snapshot and asks
only cells that answer. A cell that fails to answer once counts as down until the watcher has heard it again.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from engine.admission.fleet_routing import FLEET_TAG, CellClock, CellFacts, CellLink, CellOffer, as_of_cell, offer_of
from engine.model.commands import Recall, Submit
from engine.model.errors import (
    BusyError,
    MusterError,
    NotFoundError,
    NotSentError,
    RefusedError,
    SpecError,
    UnreachableError,
)
from engine.model.list_queries import Query, Term
from engine.model.overviews import Overview
from engine.model.spec_parts import HOUR_MS
from engine.model.twin_queries import AskOptions, Options
from runbooks.gate.approval_gate import wall_ms

if TYPE_CHECKING:
    from console.client.protocol import Client, Health
    from engine.external.mirror_report import MirrorReport
    from engine.model.specs import WorkloadSpec

NOT_ASKED = "not asked yet"
POLL_S = 1.0
"""Longest wait of one look at what has changed."""
LOOK_EVERY_S = 2.0
"""How often health and use are asked for."""
WATCH_PATIENCE_S = 5.0
SEND_PATIENCE_S = 15.0
"""Longest wait for a cell to acknowledge a submission."""
RETRY_S = (0.5, 1.0, 2.0, 3.0)
MIN_BETWEEN_S = 0.5
"""Between two looks at what has changed, however much happens."""
HEARD_MS = 10_000
"""Age up to which a snapshot proves that the cell is there, however long its twin takes to answer."""
RUNNING, ENDED = ("placed", "running"), ("finished", "failed", "cancelled")
TAKEN = ("already exists", "was already requested")
"""Parts of a cell's error when it has the id: as a workload, or as a request to another scheduler."""
ASKED, DOUBT = "asked of Slurm", "in doubt"
"""States of work that another scheduler was asked for and the cell does not show yet; in doubt: see `muster
intent list`."""
SENT_BACK = ("refused", "expired", "undone")
"""Phases in which an intent ends without effect."""
MAX_INTENTS = 1_000
AT_ONCE = 200
"""Workloads asked for in one query."""
MAX_CHANGES = 2_000
UNKNOWN_RUN_MS = HOUR_MS
"""Run time taken for the cost of work that tells none."""
TWIN_PART = 0.25
"""Part of the time for an answer that the twin may run ahead: on a busy machine it takes up to three times as long."""

MAX_SEEDS, MIN_SEEDS = 8, 3
"""Rehearsals of one shape, and of each of many."""

Connect = Callable[["CellLink", float], "Client"]
"""Makes a client of a cell that waits so many seconds for an answer."""


class SendResult(NamedTuple):
    """Outcome of sending a submission."""

    outcome: Literal["there", "refused", "later", "not_sent", "unknown"]
    """`later`: certainly not there, and may be tried again anywhere; `unknown`: it may be there."""
    text: str = ""


class CellSnapshot(NamedTuple):
    """A cell at one moment."""

    health: Health
    overview: Overview
    wall_ms: int
    mirror: MirrorReport

    @property
    def shut(self) -> str:
        """Reason why nothing may be sent to a cell whose engine answers: its other scheduler is not available or not
        ours to command."""
        if self.mirror.state == "none":
            return ""
        if self.mirror.state != "following":
            return (
                f"its Slurm is {self.mirror.state}: {self.mirror.error}"
                if self.mirror.error
                else "its Slurm is starting"
            )
        return "" if self.mirror.acts else "it is read-only on its Slurm: serve it with --slurm-act"

    @property
    def clock(self) -> CellClock:
        return CellClock(wall_ms=self.wall_ms, cell_ms=self.health.now_ms, speed=self.health.speed)


class RemoteWorkload(NamedTuple):
    """State of a workload in its cell."""

    state: str
    running: int
    """It, or how many members of an array."""
    over: int
    sent_back: str = ""
    """Why the scheduler behind the cell would not have it, after the cell had taken it: certainly it is not there."""


class CellLine:
    """Connection to one cell. `heard` is called on the watcher's thread: with the ids that changed, or None when
    anything may have; and whenever the cell went down or came back."""

    def __init__(
        self, link: CellLink, connect: Connect, fleet: str, heard: Callable[[str, Sequence[str] | None], object]
    ) -> None:
        self.link = link
        self.seen: CellSnapshot | None = None
        """As it last answered."""
        self.error = NOT_ASKED
        """Why it counts as down; empty while it answers."""
        self._connect = connect
        self._fleet = fleet
        self._heard = heard
        self._clients: dict[float, Client] = {}
        self._making = threading.Lock()
        self._stopped = threading.Event()
        self._look = threading.Event()
        self._tries = 0
        self._thread = threading.Thread(target=self._run, name=f"fleet-{link.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends with its present question."""
        self._stopped.set()
        self._look.set()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @property
    def pid(self) -> int:
        """Process of its engine as last seen; 0 if never seen."""
        return self.seen.health.pid if self.seen is not None else 0

    def facts(self, closed: str | None, sent: dict[str, int]) -> CellFacts:
        """Facts for a routing decision. `closed`: why a person has closed the cell; `sent`: resources sent there
        since it was last seen."""
        if closed is not None:
            return CellFacts(link=self.link, why_not=f"closed by an operator{f': {closed}' if closed else ''}")
        if self.error or self.seen is None:
            return CellFacts(link=self.link, why_not=f"down: {self.error}")
        if self.seen.shut:
            return CellFacts(link=self.link, why_not=self.seen.shut)
        view = self.seen.overview
        used = {name: value + sent.get(name, 0) for name, value in view.used.items()}
        return CellFacts(link=self.link, capacity=view.capacity, used=used)

    # -- asking and sending, on the caller's thread

    def offers(self, specs: Sequence[WorkloadSpec], horizon_ms: int, answer_within_ms: int) -> list[CellOffer | None]:
        """Offers of the cell's twin, for each spec as if it were sent alone now; None for those without an answer in
        time."""
        seen = self.seen
        if seen is None:
            return [None] * len(specs)
        until = time.monotonic() + answer_within_ms / 1000
        try:
            return self._tried(specs, seen, horizon_ms, until)
        except NotSentError as error:
            self._down(error)
            return [None] * len(specs)
        except UnreachableError:
            return [self.unsaid()] * len(specs)
        except MusterError as error:
            return [CellOffer(silent=error.problem)] * len(specs)

    def _tried(
        self, specs: Sequence[WorkloadSpec], seen: CellSnapshot, horizon_ms: int, until: float
    ) -> list[CellOffer | None]:
        """Offers, where a spec that the cell refuses does not keep the others from being asked about. Raises
        MusterError for any other failure."""
        if time.monotonic() >= until:
            return [self.unsaid()] * len(specs)
        try:
            return self._asked(specs, seen, horizon_ms, until)
        except SpecError as error:
            if len(specs) == 1:
                return [CellOffer(refused=error.problem)]
            half = len(specs) // 2
            first = self._tried(specs[:half], seen, horizon_ms, until)
            return first + self._tried(specs[half:], seen, horizon_ms, until)

    def unsaid(self) -> CellOffer | None:
        """Offer of a cell that did not answer in time: silent when the watcher has heard it of late, as it may be
        busy; else None."""
        seen_ms = self.seen.wall_ms if self.seen is not None and not self.error else 0
        fresh = wall_ms() - seen_ms < HEARD_MS
        return CellOffer(silent="its twin did not answer in time") if fresh else None

    def _asked(
        self, specs: Sequence[WorkloadSpec], seen: CellSnapshot, horizon_ms: int, until: float
    ) -> list[CellOffer | None]:
        given = [as_of_cell(spec, self.link, self._fleet, seen.clock) for spec in specs]
        run_ms = [spec.estimate_ms or spec.simulated_runtime_ms or UNKNOWN_RUN_MS for spec in specs]
        left_s = until - time.monotonic()
        client, speed = self._client(left_s), seen.health.speed
        ask = AskOptions(
            workloads=tuple(_one_of(spec) for spec in given), run_ms=tuple((each,) for each in run_ms),
            horizon_ms=min(round(horizon_ms * speed), 7 * 24 * HOUR_MS), until="started",
            seeds=max(MIN_SEEDS, MAX_SEEDS // len(specs)),
            within_ms=max(50, round(left_s * 1000 * TWIN_PART)),
        )  # fmt: skip
        status = client.ask(ask)
        while status.state == "running" and (left_s := until - time.monotonic()) > 0:
            status = client.run(status.id, status.serial, left_s)
        if status.state == "running":
            with contextlib.suppress(MusterError):
                client.cancel_run(status.id)
        if status.error is not None:
            if status.error.code == SpecError.code:
                raise SpecError("", status.error.problem)
            return [CellOffer(silent=status.error.problem)] * len(specs)
        answer = status.answer  # of fewer rehearsals than were asked for, where it took too long
        if not isinstance(answer, Options) or len(answer.trials) != len(specs):
            took = status.state == "running"
            told = "its twin timed out" if took else "its twin did not answer"
            return [CellOffer(silent=told)] * len(specs)
        return [
            _of_all(spec, offer_of(answer, place, run_ms[place], speed)) if answer.trials[place].attempts
            else CellOffer(silent="its twin timed out")
            for place, spec in enumerate(given)
        ]  # fmt: skip

    def send(self, spec: WorkloadSpec, *, again: bool) -> SendResult:
        """Submit a workload. A cell has an id only once; `again`: an earlier try may have brought it there. Any
        doubt is `unknown`."""
        seen = self.seen
        if seen is None:
            return SendResult("not_sent", self.error)
        given = as_of_cell(spec, self.link, self._fleet, seen.clock)
        client = self._client(SEND_PATIENCE_S)
        try:
            client.command(Submit(workloads=(given,)))
        except NotSentError as error:
            self._down(error)
            return SendResult("not_sent", error.problem)
        except BusyError as error:
            return SendResult("later", error.problem)
        except (SpecError, RefusedError, NotFoundError) as error:
            return self._refused(client, given, error, again)
        except MusterError as error:
            if isinstance(error, UnreachableError):
                self._down(error)
            return SendResult("unknown", error.problem)
        return SendResult("there")

    def _refused(self, client: Client, given: WorkloadSpec, error: MusterError, again: bool) -> SendResult:
        """Outcome of a refusal: an earlier try brought the workload there already, or the cell refuses it."""
        first = f"{given.id}/{given.array.first}" if given.array is not None else given.id
        taken = any(words in error.problem for words in TAKEN)
        try:
            owner: str | None = client.workload(first).tags.get(FLEET_TAG, "")
        except NotFoundError:
            owner = "" if taken else None  # asked of another scheduler, and not seen there yet
        except MusterError as failed:
            return SendResult("unknown", failed.problem)
        if owner is None:
            return SendResult("refused", error.problem)
        # Another scheduler keeps no tags. What may be ours by an earlier try is: given away it might run twice.
        if owner == self._fleet or (again and not owner):
            return SendResult("there")
        return SendResult("refused", f"another workload is named {given.id}")

    def recall(self, workload_id: str, to: str) -> SendResult:
        """Ask the cell to give back work that has not begun, for another cell. `refused`: it stays there."""
        client = self._client(SEND_PATIENCE_S)
        try:
            client.command(Recall(ids=(workload_id,), fleet=self._fleet, to=to))
        except (SpecError, RefusedError, NotFoundError) as error:
            return SendResult("refused", error.problem)
        except MusterError as error:
            if isinstance(error, UnreachableError):
                self._down(error)
            return SendResult("unknown", error.problem)
        return SendResult("there")

    def is_promised(self, workload_id: str, within_ms: int) -> bool:
        """Whether the cell has promised work a start so soon, or does not say."""
        seen = self.seen
        try:
            promised_ms = self._client(WATCH_PATIENCE_S).workload(workload_id).promised_start_ms
        except MusterError:
            return True
        if promised_ms is None or seen is None:
            return seen is None
        now_ms = seen.clock.cell_ms + (wall_ms() - seen.clock.wall_ms) * seen.clock.speed
        return promised_ms - now_ms <= within_ms * seen.clock.speed

    def standings(self, specs: Sequence[WorkloadSpec]) -> dict[str, RemoteWorkload]:
        """State of workloads in the cell by id, of those that exist there. Raises MusterError."""
        client = self._client(WATCH_PATIENCE_S)
        found: dict[str, RemoteWorkload] = {}
        single = [spec.id for spec in specs if spec.array is None]
        for at in range(0, len(single), AT_ONCE):
            ids = single[at : at + AT_ONCE]
            where = tuple(Term("id", "=", name) for name in ids)
            page = client.query(Query(kind="workloads", columns=("id", "state"), where=where, limit=len(ids)))
            for name, state in page.rows:
                found[name] = RemoteWorkload(state, int(state in RUNNING), int(state in ENDED))
        for spec in specs:
            if spec.array is not None and (standing := _of_array(client, spec.id)) is not None:
                found[spec.id] = standing
        missing = {spec.id for spec in specs if spec.id not in found}
        if missing and self.seen is not None and self.seen.mirror.state != "none":
            found |= _asked_of_another(client, missing)
        return found

    def _client(self, patience_s: float) -> Client:
        key = round(max(patience_s, 0.1), 0) or 1.0
        with self._making:
            if key not in self._clients:
                self._clients[key] = self._connect(self.link, key)
            return self._clients[key]

    def _down(self, error: MusterError) -> None:
        """Mark the cell as down: nobody else asks it before the watcher has heard it."""
        self.error = error.problem
        self._look.set()

    # -- watching

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._watch()
            except MusterError as error:
                if self._stopped.is_set():
                    return
                self._lost(error.problem)
            except Exception as error:
                # A fault of ours must not leave the cell as it was last seen for good: it counts as down, and says why.
                traceback.print_exc()
                self._lost(f"internal error of Muster: {type(error).__name__}: {error}")

    def _lost(self, why: str) -> None:
        """Report the loss, and wait before the next try."""
        self.error = why
        self._heard(self.link.name, ())
        self._look.clear()
        self._look.wait(RETRY_S[min(self._tries, len(RETRY_S) - 1)])
        self._tries += 1

    def glance(self) -> bool:
        """Take a snapshot. Returns True when it is another engine than before, or one that was put back, so that
        everything must be asked anew. Raises MusterError."""
        client = self._client(WATCH_PATIENCE_S)
        before, again = self.seen, bool(self.error)
        health = client.health()
        overview, mirror = client.overview(), client.mirror()
        self.seen = CellSnapshot(health, overview, wall_ms(), mirror)
        self.error, self._tries = "", 0
        return again or before is None or health.version < before.health.version

    def _watch(self) -> None:
        """Watch the cell until it fails to answer. Raises MusterError."""
        client = self._client(WATCH_PATIENCE_S)
        version, asked = -1, -LOOK_EVERY_S
        while not self._stopped.is_set():
            if time.monotonic() - asked >= LOOK_EVERY_S or self.error:
                asked = time.monotonic()
                if (self.glance() or version < 0) and self.seen is not None:
                    version = self.seen.health.version
                    self._heard(self.link.name, None)
            self._look.clear()
            began = time.monotonic()
            changes = client.changes(version, POLL_S, MAX_CHANGES)
            if changes.version > version:
                version = changes.version
                self._heard(self.link.name, None if changes.missed else [item.subject for item in changes.items])
            self._look.wait(MIN_BETWEEN_S - (time.monotonic() - began))


def _one_of(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec, or the first member of an array: the twin tries single ones."""
    if spec.array is None:
        return spec
    return msgspec.structs.replace(spec, id=f"{spec.id}/{spec.array.first}", array=None)


def _of_all(spec: WorkloadSpec, one: CellOffer) -> CellOffer:
    """The offer with the cost of all members."""
    if spec.array is None or one.cost_microusd is None:
        return one
    members = (spec.array.last - spec.array.first) // spec.array.step + 1
    return msgspec.structs.replace(one, cost_microusd=one.cost_microusd * members)


def _asked_of_another(client: Client, names: Collection[str]) -> dict[str, RemoteWorkload]:
    """State of workloads that another scheduler was asked for, and that the cell does not show."""
    found: dict[str, RemoteWorkload] = {}
    for intent in client.intents(MAX_INTENTS).items:
        name = intent.subjects[0] if intent.what == "submit" and intent.subjects else ""
        if name not in names or name in found:  # the newest tells
            continue
        if intent.phase in SENT_BACK:
            found[name] = RemoteWorkload("", 0, 0, intent.text or intent.phase)
        else:
            found[name] = RemoteWorkload(DOUBT if intent.phase == DOUBT else ASKED, 0, 0)
    return found


def _of_array(client: Client, name: str) -> RemoteWorkload | None:
    """State of an array by its members; None where there are none."""

    def matched(*states: str) -> int:
        where = (Term("array", "=", name), *(Term("state", "=", state) for state in states))
        return client.query(Query(kind="workloads", columns=("id",), where=where, limit=1)).matched

    total = matched()
    if not total:
        return None
    over = matched(*ENDED)
    if over < total:
        return RemoteWorkload(f"{over:,} of {total:,} over", matched(*RUNNING), over)
    failed = matched("failed", "cancelled")
    return RemoteWorkload(f"finished, {failed:,} of {total:,} not" if failed else "finished", 0, over)
