"""The past of the demo: thirty days of work, of decisions and of advice, made from its seed when the demo is new.

Each goes the way that it goes in any cell: work through the engine, in virtual time; changes through the gate, by a
clock that goes with the cell's; advice through the store of suggestions. Measurements are written as the collector
writes them (`console.cli.demo_measures`). The colleagues are simulated: their names say so, and nobody can come from
their accounts.

What they did last begins the incident: racks were cordoned for maintenance, and nobody has returned them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from console.cli.demo_cell import FIRST_MIDNIGHT_MS, START_MS, WARM_MS, feed
from console.cli.demo_measures import FINE_STEP_MS, PoolOutage, capacity_of, keep_measures
from console.service.forecasts import PromiseReader
from console.service.recommendations import evidence_of, source_of
from engine.control import Engine
from engine.journal.side_tables import Records
from engine.model.commands import Submit
from engine.model.list_queries import Query, Term
from engine.model.spec_parts import DAY_MS, MINUTE_MS
from engine.model.specs import CellSpec, WorkloadSpec
from engine.traces.generated_day import SITE, large_work
from engine.traces.progress import counter, stage
from recommender.findings.live_findings import forgotten_cordons
from recommender.findings.suggestion_store import SuggestionRows, SuggestionStore
from recommender.findings.suggestions import Suggestion, looked_up
from recommender.history.telemetry import Telemetry
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO, Person, PolicyChange, PolicyVote
from runbooks.gate.policy_files import text_of
from runbooks.gate.policy_versions import Policies
from runbooks.plans.identity import OWNER, THIS_ACCOUNT, Actor
from runbooks.plans.incidents import AlertReport
from runbooks.plans.typed_plan import MoneyChange, Proposal, QueueChange, Request, asks

if TYPE_CHECKING:
    from recommender.history.telemetry import Row
    from runbooks.audit.witnesses import CheckpointSigner

PAST_MS = 30 * DAY_MS
BEGIN_MS = FIRST_MIDNIGHT_MS - PAST_MS
"""Cell time at which the demo's cell was made."""
_LATEST_MS = START_MS - 1
"""The past ends just before the demo begins, whose own load comes from then on."""
_CYCLE_MS = 10_000
"""Cell time between two looks of the scheduler: nobody watches."""
_TOGETHER_MS = 2 * MINUTE_MS
"""What is submitted within so long comes together."""

FEMI, DANA, ERIN = "sim-femi", "sim-dana", "sim-erin"


def _simulated(id_: str) -> Person:
    name = f"{id_.removeprefix('sim-').title()}, a simulated colleague"
    return Person(id=id_, name=name, accounts=(f"cert:{id_}",), roles=("operator", "approver"))


PEOPLE = (
    Person(id="you", accounts=(OWNER,), roles=("operator", "approver", "admin", "auditor")),
    *map(_simulated, (FEMI, DANA, ERIN)),
)
"""Whoever runs the demo, and the colleagues of its past. The policy stays that of one person, who may approve alone:
nobody else is there to vote."""


def make_past(engine: Engine, cell: CellSpec, seed: int, signer: CheckpointSigner | None, wall: WallClock) -> None:
    """Play the past of a cell that was just defined, at BEGIN_MS. `signer` signs the record."""
    past = _Past(engine, cell, seed, signer, wall)
    days = PAST_MS // DAY_MS
    told = counter(f"playing {days} days of history: day", days)
    for day, minute, happens in past.story():
        if day == 0:
            past.pass_time(FIRST_MIDNIGHT_MS, told)
            stage("playing the morning of the incident")
        past.pass_time(FIRST_MIDNIGHT_MS + day * DAY_MS + minute * MINUTE_MS, None if day == 0 else told)
        happens()
    past.pass_time(_LATEST_MS)
    stage("writing what was measured in them")
    past.alert()
    past.measure()
    past.close()


class WallClock(NamedTuple):
    """The clock on the wall, beside that of a cell which runs at this speed and has come to START_MS at `start_ms`."""

    start_ms: int
    speed: float

    def at(self, cell_ms: int) -> int:
        return self.start_ms + int((cell_ms - START_MS) / self.speed)


class _Past:
    """A cell on its way to the present, with those who act on it."""

    def __init__(
        self, engine: Engine, cell: CellSpec, seed: int, signer: CheckpointSigner | None, wall: WallClock
    ) -> None:
        self._engine, self._cell, self._seed = engine, cell, seed
        self._cycle_every_ms, engine.cycle_every_ms = engine.cycle_every_ms, _CYCLE_MS
        self._load = self._arrivals()
        self._next = next(self._load, None)
        self._outages: list[PoolOutage] = []
        self._made: dict[str, Proposal] = {}
        """Name in the story -> what was carried out."""
        self._records = Records(engine.place)
        self._telemetry = Telemetry(self._records)
        self._store = SuggestionStore(SuggestionRows(self._records))

        def clock() -> int:
            return wall.at(engine.now_ms)

        self._audit = Audit(engine, clock, signer=signer)
        self._policies = Policies(engine, self._audit, clock, default=SOLO)
        self._gate = Gate(engine, self._policies, self._audit, clock)

    # -- what happens -------------------------------------------------------------------------------------------------

    def story(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """(day, where 0 is the demo's first; minute of that day; what happens), in order of time."""
        yield -30, 60, self._name_people
        yield (
            -26,
            14 * 60,
            lambda: self._cordon("a100-8x", "power supply alarms in this rack, the vendor comes at 15:00"),
        )
        yield -26, 17 * 60 + 5, lambda: self._follow(FEMI, ERIN)
        yield -20, 10 * 60, lambda: self._raise_quota("research/vision", 16, "two weeks to the deadline")
        yield -13, 16 * 60, lambda: self._take_back("research/vision", "the deadline is over")
        yield -12, 11 * 60, lambda: self._cordon("l40s-4x", "new driver on trial")
        yield -12, 13 * 60 + 10, self._notice
        yield -11, 9 * 60, lambda: self._return_rest(ERIN, FEMI)
        yield -8, 15 * 60, lambda: self._refused("cpu-96c", "kernel update", "not while the release is built")
        yield -5, 13 * 60, lambda: self._cordon("h100-8x", "a leaf switch drops frames")
        yield -5, 16 * 60 + 5, lambda: self._follow(ERIN, DANA)
        yield -3, 9 * 60, lambda: self._set_price("cpu-96c-spot", "the provider's price from today")
        # The incident: an hour's work that took less, and a note to return them that nobody wrote.
        yield 0, 8 * 60 + 25, lambda: self._cordon("h100-8x", "firmware of their leaf switches, done by 09:00", 0.2)

    def _name_people(self) -> None:
        # Room for the first drain a newcomer tries, although colleagues have just cordoned a rack of a small cell.
        limits = msgspec.structs.replace(SOLO.limits, nodes_least=2 * SOLO.limits.nodes_least)
        policy = msgspec.structs.replace(SOLO, name="demo", version=1, people=PEOPLE, limits=limits)
        candidate = self._policies.propose(THIS_ACCOUNT, PolicyChange(text=text_of(policy)))
        self._policies.vote(THIS_ACCOUNT, PolicyVote(candidate=candidate.id, digest=candidate.digest))

    def _cordon(self, pool: str, reason: str, share: float = 0.0) -> None:
        """Cordon the last racks of a pool: one, or so many as come to this share of it."""
        rack = next(rack for rack in SITE.racks if rack.pool.name == pool)
        nodes = [node.id for node in self._cell.nodes if node.pool == pool]
        racks = max(1, int(share * len(nodes)) // rack.rack_nodes)
        most = max(SOLO.limits.nodes_least, len(nodes) * SOLO.limits.nodes_permille // 1000)
        out = nodes[-min(racks * rack.rack_nodes, most) :]
        self._carried_out(FEMI, DANA, asks("cordon", out, reason))
        self._outages.append(PoolOutage(pool, len(out), self._engine.now_ms, START_MS))

    def _notice(self) -> Suggestion | None:
        """What the recommender says of cordoned nodes now."""
        self._hold_to_promises()
        cordoned = [self._engine.node(node.id) for node in self._cell.nodes if self._is_out(node.id)]
        found = forgotten_cordons(self._engine.overview(), cordoned)
        self._store.found(found, self._engine.now_ms)
        return found[0] if found else None

    def _is_out(self, node: str) -> bool:
        return self._engine.node(node).state == "cordoned"

    def _follow(self, author: str, approver: str) -> None:
        """Do what the recommender suggests; nodes that still have work are returned too."""
        found = self._notice()
        if found is not None:
            request = asks("uncordon", found.targets, f"{found.id}: whoever cordoned them is done")
            source, evidence = source_of(found), (evidence_of(found),)
            self._carried_out(author, approver, msgspec.structs.replace(request, source=source, evidence=evidence))
            self._store.acted(found, author, self._engine.now_ms)
        self._return_rest(author, approver)

    def _return_rest(self, author: str, approver: str) -> None:
        out = [node.id for node in self._cell.nodes if self._is_out(node.id)]
        if out:
            self._carried_out(author, approver, asks("uncordon", out, "whoever cordoned them is done"))
        self._outages[-1] = self._outages[-1]._replace(end_ms=self._engine.now_ms)

    def _raise_quota(self, queue: str, gpus: int, reason: str) -> None:
        was = next(spec for spec in self._engine.state.queues.specs if spec.name == queue)
        nominal = {**was.nominal, "gpu_milli": was.nominal["gpu_milli"] + gpus * 1000}
        change = QueueChange(was=was, to=msgspec.structs.replace(was, nominal=nominal))
        self._made[queue] = self._carried_out(ERIN, DANA, asks("set_quota", (queue,), reason, queue=change))

    def _take_back(self, queue: str, reason: str) -> None:
        self._carried_out(ERIN, DANA, Request(rolls_back=self._made[queue].id, reason=reason))

    def _refused(self, pool: str, reason: str, why: str) -> None:
        nodes = [node.id for node in self._cell.nodes if node.pool == pool][:2]
        proposal = self._gate.propose(_actor(FEMI), asks("drain", nodes, reason))
        self.pass_time(self._engine.now_ms + 20 * MINUTE_MS)
        self._gate.vote(_actor(DANA), proposal.id, proposal.digest, "reject", why)

    def _set_price(self, pool: str, reason: str) -> None:
        was = next(spec.price_microusd_hour for spec in self._cell.pools if spec.name == pool)
        money = MoneyChange(price_microusd_hour=was * 94 // 100)
        self._carried_out(FEMI, ERIN, asks("set_price", (pool,), reason, money=money))

    def _carried_out(self, author: str, approver: str, request: Request) -> Proposal:
        """Proposed by one, approved by the other some minutes later, and verified."""
        proposal = self._gate.propose(_actor(author), request)
        self.pass_time(self._engine.now_ms + 4 * MINUTE_MS)
        self._gate.approve(_actor(approver), proposal.id, proposal.digest, "read and agreed")
        self.pass_time(self._engine.now_ms + MINUTE_MS)
        self._gate.tick()
        return self._gate.proposal(proposal.id)

    def alert(self) -> None:
        """The page by which the incident is noticed, as a monitoring system would send it."""
        late = Query(
            kind="workloads", columns=("queue", "wait"), sort=("-wait",), limit=1,
            where=(Term("state", "=", "queued"), Term("gpu", ">", 0), Term("wait", ">", MINUTE_MS)),
        )  # fmt: skip
        for queue, wait_ms in self._engine.query(late).rows:
            title = f"GPU queue wait of {queue} is {wait_ms // MINUTE_MS} min"
            report = AlertReport(title=title, severity="page", key="gpu-queue-wait", labels={"queue": queue})
            self._gate.incidents.report(_MONITORING, report)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _arrivals(self) -> Iterator[tuple[int, WorkloadSpec]]:
        """Large work of thirty days, submitted at midnight for its time; then all work of the last hours."""
        nodes = len(self._cell.nodes)
        for day in range((BEGIN_MS - FIRST_MIDNIGHT_MS) // DAY_MS, 0):
            midnight = FIRST_MIDNIGHT_MS + day * DAY_MS
            for offset_ms, spec in large_work(self._seed, nodes=nodes, day=day):
                yield midnight, msgspec.structs.replace(spec, not_before_ms=midnight + offset_ms)
        for at_ms, happening in feed(self._engine, self._seed, WARM_MS):
            if at_ms >= WARM_MS and isinstance(happening, WorkloadSpec):
                yield at_ms, happening

    def pass_time(self, to_ms: int, told: Callable[[int], object] | None = None) -> None:
        """Let the cell go on, with what arrives until then. `told`: is told on which day it is."""
        engine = self._engine
        while self._next is not None and self._next[0] <= to_ms:
            until_ms = min(self._next[0] + _TOGETHER_MS, to_ms)
            due: list[WorkloadSpec] = []
            while self._next is not None and self._next[0] <= until_ms:
                due.append(self._next[1])
                self._next = next(self._load, None)
            if told is not None:
                told((until_ms - BEGIN_MS) // DAY_MS)
            engine.advance(until_ms)
            engine.command(Submit(workloads=tuple(due)))
        engine.advance(to_ms)

    def _hold_to_promises(self) -> None:
        """Judge the promises that are due by the cell's capacity, as it was measured then: every five minutes."""
        due = self._store.due(self._engine.now_ms)
        if due:
            since_ms, until_ms = min(promise.at_ms for promise in due), max(promise.due_ms for promise in due)
            lately = Telemetry()
            lately.add_rows([capacity_of(self._cell, since_ms, until_ms, self._outages)])
            history = PromiseReader(lately)
            self._store.settle([(promise, looked_up(promise, history.read, history.others)) for promise in due])

    def measure(self) -> None:
        """Write what was measured."""
        self._hold_to_promises()
        keep_measures(
            self._telemetry, self._cell, self._seed, begin_ms=BEGIN_MS, end_ms=START_MS, outages=self._outages
        )
        self._telemetry.add_rows(self._waits(), step_ms=MINUTE_MS)
        self._telemetry.flush()

    def _waits(self) -> Iterator[Row]:
        """How long what waits now had waited, every five minutes since it was submitted; by queue."""
        now = Query(kind="workloads", columns=("queue", "wait"), where=(Term("state", "=", "queued"),), limit=1_000)
        since: dict[str, list[int]] = {}
        for queue, wait_ms in self._engine.query(now).rows:
            since.setdefault(queue, []).append(self._engine.now_ms - wait_ms)
        for queue, began in since.items():
            times = range(min(began) // FINE_STEP_MS * FINE_STEP_MS + FINE_STEP_MS, START_MS, FINE_STEP_MS)
            waits = [[(at_ms - one) / 1000 for one in began if one <= at_ms] for at_ms in times]
            for name, share in (("waiting_p50_s", 0.5), ("waiting_p95_s", 0.95)):
                yield name, "queue", queue, list(times), [float(np.quantile(each, share)) for each in waits]

    def close(self) -> None:
        self._engine.cycle_every_ms = self._cycle_every_ms
        self._audit.publish()
        self._audit.close()
        self._records.close()


_MONITORING = Actor(subject="service:sim-monitoring", kind="service", account="service", deeds=("alert",))


def _actor(person: str) -> Actor:
    return Actor(subject=f"person:{person}", account=f"cert:{person}")
