"""The demo begins with thirty days behind it and with an incident that can be found, explained, mended and taken back;
all of it comes from the seed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest

from console.cli import demo_cell, demo_past
from console.service.forecasts import Forecasts
from engine.control import Engine
from engine.journal.side_tables import Records
from engine.loop import EngineLoop
from engine.model.commands import Define, Submit
from engine.model.list_queries import Query, Term
from engine.model.reports import ShowbackRequest
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import WorkloadSpec
from recommender.estimates.queries import ForecastRequest
from recommender.findings.live_findings import forgotten_cordons
from recommender.findings.suggestion_store import SuggestionRows, SuggestionStore
from recommender.history.telemetry import Telemetry
from runbooks.audit.log import Audit
from runbooks.audit.verify import Trust, verify
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.policy_versions import Policies
from runbooks.plans.identity import OWNER, Actor
from runbooks.plans.typed_plan import asks
from tests.support.audit_logs import signer

pytestmark = pytest.mark.about_files("two files are compared row by row")
NODES = 40
WALL = demo_past.WallClock(1_772_366_400_000, demo_cell.SPEED)
YOU = Actor(subject="person:you", account=OWNER)


@dataclass
class Demo:
    """A demo at the moment at which a console would be opened on it."""

    engine: Engine
    path: Path
    cell: demo_cell.CellSpec

    def telemetry(self) -> Telemetry:
        return Telemetry(Records(self.path))

    def go_on(self, minutes: int) -> None:
        """Let so much cell time pass, with the demo's own load."""
        until_ms = self.engine.now_ms + minutes * MINUTE_MS
        load = demo_cell.feed(self.engine, 1, demo_cell.WARM_MS)
        for at_ms, happening in takewhile(lambda each: each[0] <= until_ms, load):
            self.engine.advance(at_ms)
            assert isinstance(happening, WorkloadSpec)
            self.engine.command(Submit(workloads=(happening,)))
        self.engine.advance(until_ms)

    def out(self) -> list[str]:
        return [node.id for node in self.cell.nodes if self.engine.node(node.id).state == "cordoned"]


def begun(path: Path) -> Demo:
    engine = Engine.open(path, seed=1)
    cell = demo_cell.cell(NODES)
    engine.advance(demo_past.BEGIN_MS)
    engine.command(Define(cell=cell))
    engine.cycle_every_ms = 1_000
    demo_past.make_past(engine, cell, 1, signer(), WALL)
    return Demo(engine, path, cell)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    made = begun(tmp_path_factory.mktemp("demo") / "journal.db")
    yield made
    made.engine.close()


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def test_the_same_seed_makes_the_same_past(demo: Demo, tmp_path: Path) -> None:
    """What is different are ids and nonces of the record, which are drawn so that nobody can guess them."""
    again = begun(tmp_path / "journal.db")
    again.engine.close()
    for table in ("telemetry_series", "telemetry_chunk", "suggestion", "suggestion_promise"):
        there = rows(demo.path, table)
        assert there == rows(again.path, table), table
        assert there, table
    assert demo.engine.version == again.engine.version


def test_the_record_verifies_and_several_people_decided(demo: Demo) -> None:
    gate = gate_of(demo.engine)
    code, reports = verify([demo.path], Trust(keys=(gate.audit.public_key,)))
    assert (code, [report.problems for report in reports]) == (0, [[]])
    shown = [gate.proposal(each.id) for each in gate.proposals()]
    authors = {each.plan.author.subject for each in shown}
    assert len(authors) >= 2
    assert {each.state for each in shown} == {"verified", "rejected", "rolled_back"}
    for each in shown:
        assert each.votes
        assert all(vote.subject != each.plan.author.subject for vote in each.votes), "a colleague decided"


def gate_of(engine: Engine) -> Gate:
    def clock() -> int:
        return WALL.at(engine.now_ms)

    audit = Audit(engine, clock, signer=signer())
    return Gate(engine, Policies(engine, audit, clock, default=SOLO), audit, clock)


def test_thirty_days_are_charged_measured_and_foretold(demo: Demo) -> None:
    showback = demo.engine.showback(ShowbackRequest(by="team"))
    assert showback.since_ms <= demo_past.BEGIN_MS
    assert sum(line.microusd for line in showback.lines) == showback.total_microusd
    charged = sum(line.microusd for line in showback.lines if line.kind == "group")
    assert charged > showback.total_microusd // 5, "most of a month was not idle"
    loop = EngineLoop(demo.engine, speed=0.0)
    loop.start()
    try:
        forecast = Forecasts(loop, demo.telemetry()).answer(ForecastRequest(subject="queue:research/nlp", hours=24))
    finally:
        loop.stop()
    assert forecast.known_hours >= 28 * 24
    assert forecast.members


def test_advice_has_a_track_record(demo: Demo) -> None:
    store = SuggestionStore(SuggestionRows(Records(demo.path)))
    track = store.tracks()["forgotten_cordons"]
    assert (track.acted, track.held) == (2, 2), "what was followed did what was promised"
    assert (track.left, track.resolved) == (1, 0), "what was ignored did not come right by itself"


def test_the_incident_begins_and_one_approved_change_ends_it(demo: Demo) -> None:
    """Racks are out since before the demo began: work waits for them within the first minute, advice finds them, and
    returning them lets it start."""
    out = demo.out()
    assert out
    demo.go_on(60)
    cordoned = [demo.engine.node(id_) for id_ in out]
    (found,) = forgotten_cordons(demo.engine.overview(), cordoned)
    assert set(found.targets) == set(out)
    late = Query(
        kind="workloads", columns=("id", "wait"), sort=("-wait",),
        where=(Term("state", "=", "queued"), Term("reason", "=", "InsufficientCapacity"), Term("gpu", ">", 0)),
    )  # fmt: skip
    first, wait_ms = demo.engine.query(late).rows[0]
    assert wait_ms >= 20 * MINUTE_MS
    gate = gate_of(demo.engine)
    proposal = gate.propose(YOU, asks("uncordon", found.targets, found.id))
    assert gate.approve(YOU, proposal.id, proposal.digest).state == "verified"
    demo.go_on(1)
    assert demo.engine.workload(first).state == "running"
    taken_back = gate.rollback(YOU, proposal.id, "the firmware is to be done again")
    assert taken_back.state == "rolled_back"
    assert demo.out() == out
