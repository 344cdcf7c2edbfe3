"""A fleet over cells that fail in every way a cell can: what it has taken is in exactly one cell, or waits."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from console.fleet.cell_connection import ASKED, TAKEN
from console.fleet.coordinator import GONE, Fleet
from console.fleet.journal import FleetJournal
from console.fleet.queries import FleetSubmission
from console.fleet.routing import MAX_SHAPES, MissingOffer, Offers, Router
from engine.admission.fleet_routing import CellLink, CellOffer, FleetSpec, Routing, TenantShare
from engine.control import Engine
from engine.external.mirror_report import MirrorReport
from engine.journal.database import Place, place_of
from engine.model.commands import Submit
from engine.model.errors import JournalBusy, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.external_cells import IntentView
from engine.model.specs import Dependency, WorkloadSpec
from tests.support import postgres
from tests.support.cells import small_cell, workload
from tests.support.effort import examples
from tests.support.patience import PATIENCE_S
from tests.support.scripted_cells import FleetDied, HereAndNow, ScriptedCell, Way

MINUTE_MS = 60_000


class World:
    """Two cells, and a fleet that can be killed and started again."""

    def __init__(self, place: Place, **changes: object) -> None:
        self.cells = {name: ScriptedCell(name) for name in ("a", "b")}
        self._place = place
        self._spec = FleetSpec(cells=tuple(CellLink(name=name, connect=name) for name in self.cells))
        self._spec = msgspec.structs.replace(self._spec, **changes)
        self.start()

    def start(self) -> None:
        self.journal = FleetJournal(self._place)
        self.fleet = Fleet(self._spec, self.journal, lambda link, _: self.cells[link.name])  # type: ignore[arg-type,return-value]
        self.router = Router(self.fleet, HereAndNow())
        self.hear()

    def kill(self) -> None:
        """As a crash does: nothing but the journal is left."""
        self.journal.close()

    def hear(self) -> None:
        """What the watchers' threads would do."""
        for name, line in self.fleet.lines.items():
            try:
                line.glance()
            except MusterError as error:
                line.error = error.problem
            self.fleet.look_quietly(name)

    def turn(self) -> None:
        self.hear()
        self.router._retry_at.update(dict.fromkeys(self.router._retry_at, 0.0))  # time has passed
        self.router.turn()

    def submit(self, *ids: str, gpus: int = 1, tenant: str = "", cells: tuple[str, ...] = ()) -> None:
        specs = [job(name, gpus=gpus, tenant=tenant) for name in ids]
        self.fleet.submit(specs, cells, "unix:1")

    def where(self, name: str) -> list[str]:
        return [cell for cell, each in self.cells.items() if name in each.there]

    def state(self, name: str) -> str:
        return self.fleet.submission(name).state


def job(name: str, gpus: int = 1, tenant: str = "") -> WorkloadSpec:
    return workload(name, gpu=1000 * gpus, cpu=0, tenant=tenant)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a journal may be: all that follows is so in both."""
    return place_of(tmp_path / "fleet.db" if request.param == "file" else postgres.new_url())


@pytest.fixture
def world(place: Place) -> Iterator[World]:
    made = World(place)
    yield made
    made.kill()


def test_work_goes_to_the_cell_where_it_costs_less(world: World) -> None:
    world.cells["b"].cost_microusd = 500_000
    world.submit("j")
    world.turn()
    assert (world.where("j"), world.state("j")) == (["b"], "routed")
    decided = world.fleet.submission("j").decision
    assert decided is not None
    assert [(row.cell, row.cost_microusd) for row in decided.rows] == [("b", 500_000), ("a", 1_000_000)]


def test_the_same_submission_again_changes_nothing_and_another_by_its_id_is_refused(world: World) -> None:
    world.submit("j")
    world.turn()
    world.submit("j")
    world.turn()
    assert (world.fleet.journal.counts(), len(world.where("j"))) == ({"routed": 1}, 1)
    with pytest.raises(RefusedError, match="'j' already exists, as another workload"):
        world.submit("j", gpus=2)


def test_of_many_all_are_taken_or_none(world: World) -> None:
    with pytest.raises(SpecError, match=r"workloads\[1\]"):
        world.fleet.submit([job("x"), msgspec.structs.replace(job("y"), groups=())], (), "unix:1")
    assert world.fleet.journal.counts() == {}


def test_a_cell_that_is_down_is_routed_around_and_never_waited_for(world: World) -> None:
    world.cells["a"].way = "nobody there"
    world.submit("j")
    world.turn()
    assert world.where("j") == ["b"]
    assert (world.cells["a"].times_asked, world.fleet.view().cells[0].state) == (0, "down")


def test_what_may_have_arrived_goes_nowhere_else(world: World) -> None:
    world.submit("j")
    world.cells["b"].cost_microusd = 2_000_000
    world.hear()
    world.cells["a"].way = "well"
    submit_through(world, "lost on the way back")
    assert (world.where("j"), world.state("j")) == (["a"], "sending")
    world.turn()
    world.turn()
    assert world.where("j") == ["a"], "not tried elsewhere while a is silent"
    world.cells["a"].way = "well"
    world.turn()
    assert (world.where("j"), world.state("j")) == (["a"], "routed")


def submit_through(world: World, way: Way) -> None:
    """Have the next submissions to a meet that, though its twin still answered."""
    cell = world.cells["a"]
    asked = cell.ask

    def then(ask: object) -> object:
        found = asked(ask)  # type: ignore[arg-type]
        cell.way = way
        return found

    cell.ask = then  # type: ignore[method-assign,assignment]
    try:
        world.router.turn()
    finally:
        cell.ask = asked  # type: ignore[method-assign]


def test_what_is_still_on_its_way_is_not_given_away_when_a_later_try_is_refused(world: World) -> None:
    world.submit("j")
    world.cells["b"].cost_microusd = 2_000_000
    world.hear()
    submit_through(world, "lost on the way")
    world.cells["a"].way = "refused"
    world.turn()
    assert (world.where("j"), world.state("j")) == ([], "sending"), "the first try may still arrive"
    world.cells["a"].arrive()
    world.turn()
    assert (world.where("j"), world.state("j")) == (["a"], "routed")


def test_a_new_engine_that_does_not_know_it_and_refuses_it_frees_it_for_another_cell(world: World) -> None:
    world.submit("j")
    world.cells["b"].cost_microusd = 2_000_000
    world.hear()
    submit_through(world, "lost on the way")
    world.cells["a"].restart()
    world.cells["a"].way = "refused"
    world.turn()
    world.turn()
    assert (world.where("j"), world.state("j")) == (["b"], "routed")


def test_that_nobody_is_there_any_more_says_nothing_of_an_earlier_try(world: World) -> None:
    for start_again in (False, True):
        name = f"j{start_again}"
        world.router._offers._kept.clear()  # time has passed
        world.submit(name)
        world.cells["b"].cost_microusd = 2_000_000
        world.hear()
        submit_through(world, "lost on the way back")
        if start_again:
            world.kill()
        world.cells["a"].way = "well"
        world.start() if start_again else world.hear()
        world.cells["a"].way = "nobody there"  # it fell right after it was last seen
        world.router._retry_at.update(dict.fromkeys(world.router._retry_at, 0.0))
        world.router.turn()
        assert world.state(name) == "sending"
        world.turn()
        assert world.where(name) == ["a"]
        world.cells["a"].way = "well"
        world.turn()
        assert world.state(name) == "routed"


@pytest.mark.parametrize("shows", [True, False])
def test_a_cell_of_another_scheduler_keeps_no_tags_and_what_may_be_ours_is(world: World, shows: bool) -> None:
    world.submit("j")
    world.cells["b"].cost_microusd = 2_000_000
    world.hear()
    submit_through(world, "lost on the way back")
    world.cells["a"].way = "well"
    world.cells["a"].keeps_tags, world.cells["a"].shows = False, shows
    world.cells["a"].restart()
    world.turn()
    world.turn()
    assert (world.where("j"), world.state("j")) == (["a"], "routed")
    assert world.fleet.submission("j").cell_state == ("running" if shows else "")


@pytest.mark.parametrize(
    ("phase", "cell", "cell_state"), [("refused", "b", "running"), ("in doubt", "a", "in doubt"), ("sent", "a", ASKED)]
)
def test_what_a_slurm_refuses_after_its_cell_took_it_goes_to_another_and_what_is_in_doubt_stays(
    world: World, phase: str, cell: str, cell_state: str
) -> None:
    a = world.cells["a"]
    a.mirrors, a.keeps_tags, a.shows = MirrorReport(where="s", state="following", acts=True), False, False
    world.submit("j")
    world.turn()
    assert world.fleet.submission("j").cell == "a"
    intent = IntentView(
        id="i1", what="submit", subjects=("j",), count=1, phase=phase, job=0, text="no such feature", at_ms=1,
        changed_ms=1, tries=0, token="1-ab",
    )  # fmt: skip
    a.asked_of_slurm = (intent,)
    world.turn()
    world.turn()
    found = world.fleet.submission("j")
    assert (found.cell, found.cell_state) == (cell, cell_state)
    told = [each.detail for each in world.fleet.view().recent if each.what == "refused"]
    assert told == (["by the Slurm of a: no such feature"] if phase == "refused" else [])


@pytest.mark.parametrize(
    ("mirror", "told"),
    [
        (MirrorReport(where="s", state="lost", error="no answer", acts=True), "its Slurm is lost: no answer"),
        (MirrorReport(where="s", state="following"), "it is read-only on its Slurm"),
        (MirrorReport(where="s", state="following", acts=True), ""),
    ],
)
def test_a_cell_whose_slurm_cannot_be_asked_is_routed_around(world: World, mirror: MirrorReport, told: str) -> None:
    world.cells["a"].mirrors = mirror
    world.submit("j")
    world.turn()
    assert world.where("j") == (["b"] if told else ["a"])
    cell = world.fleet.view().cells[0]
    assert (cell.state, cell.decided_by) == ("down" if told else "up", "slurm")
    assert cell.why.startswith(told)


def test_an_engine_says_that_it_has_an_id_in_words_that_are_known() -> None:
    engine = Engine.open(None, cell=small_cell())
    engine.command(Submit(workloads=(job("j"),)))
    with pytest.raises(SpecError) as refused:
        engine.command(Submit(workloads=(job("j"),)))
    assert TAKEN[0] in refused.value.problem


def test_where_it_goes_is_written_down_before_it_is_sent(world: World) -> None:
    world.submit("j")
    world.cells["b"].cost_microusd = 2_000_000
    world.hear()
    with pytest.raises(FleetDied):
        submit_through(world, "the fleet dies")
    world.kill()
    world.cells["b"].cost_microusd = 1
    world.start()
    world.turn()
    assert (world.where("j"), world.state("j")) == (["a"], "routed")


def test_a_fleet_that_died_between_writing_down_and_hearing_asks_that_cell_first(world: World) -> None:
    world.submit("j")
    world.cells["b"].cost_microusd = 2_000_000
    world.hear()
    submit_through(world, "lost on the way back")
    world.kill()
    world.cells["b"].cost_microusd = 1
    world.start()
    world.turn()
    assert world.where("j") == ["a"]
    world.cells["a"].way = "well"
    world.turn()
    assert (world.where("j"), world.state("j")) == (["a"], "routed")


def test_what_every_cell_loses_is_seen_and_not_run_again(world: World) -> None:
    world.submit("j")
    world.turn()
    world.cells["a"].there.clear()
    world.hear()
    found = world.fleet.submission("j")
    assert (found.state, found.cell_state) == ("routed", GONE)
    world.turn()
    assert world.where("j") == []


def test_an_id_that_somebody_else_has_taken_in_a_cell_goes_to_another(world: World) -> None:
    world.cells["b"].cost_microusd = 2_000_000
    world.cells["a"].there["j"] = msgspec.structs.replace(job("j"), tags={"fleet": "another"})
    world.cells["a"].states["j"] = "running"
    world.submit("j")
    world.turn()
    world.turn()
    assert (world.where("j"), world.fleet.submission("j").cell) == (["a", "b"], "b")


def test_the_end_is_told_and_the_tenant_has_its_quota_back(place: Place) -> None:
    world = World(place, tenants=(TenantShare(name="t", quota={"gpu_milli": 4000}),))
    world.submit("x", "y", gpus=3, tenant="t")
    world.turn()
    assert [world.state(name) for name in "xy"] == ["routed", "waiting"]
    assert world.fleet.submission("y").waits == "quota"
    world.cells[world.where("x")[0]].states["x"] = "finished"
    world.turn()
    assert [world.state(name) for name in "xy"] == ["ended", "routed"]
    world.kill()


def test_a_quota_counts_work_that_did_not_come_through_the_fleet_and_work_in_a_cell_that_is_down(
    place: Place,
) -> None:
    world = World(place, tenants=(TenantShare(name="t", quota={"gpu_milli": 4000}),))
    world.cells["a"].others = {"t": {"gpu_milli": 2000}}
    world.hear()
    world.cells["a"].way = "nobody there"
    world.submit("x", gpus=3, tenant="t")
    world.turn()
    assert (world.state("x"), world.fleet.submission("x").waits) == ("waiting", "quota")
    with pytest.raises(SpecError, match="more than its tenant's limit"):
        world.submit("y", gpus=5, tenant="t")
    world.kill()


def test_whose_tenant_holds_least_goes_first_where_room_is_short(place: Place) -> None:
    world = World(place, routing=Routing(bind_after_ms=3_600_000, bind_within_ms=0))
    for cell in world.cells.values():
        cell.delay_ms = MINUTE_MS
    world.submit("a1", "a2", "a3", tenant="greedy")
    world.submit("b1", tenant="small")
    world.turn()
    assert {world.fleet.submission(name).waits for name in ("a1", "b1")} == {"room"}
    for cell in world.cells.values():
        cell.delay_ms = 0
        cell.others = {"greedy": {"gpu_milli": 100_000}}
    world.hear()
    assert [each.id for each in world.fleet.view().waiting] == ["b1", "a1", "a2", "a3"]
    world.kill()


def test_what_waits_for_other_work_goes_to_its_cell(world: World) -> None:
    world.cells["a"].cost_microusd = 5_000_000
    world.submit("prep")
    world.cells["b"].way = "nobody there"
    world.turn()
    world.cells["b"].way = "well"
    world.router._offers._kept.clear()
    after = msgspec.structs.replace(job("train"), after=(Dependency(id="prep"),))
    world.fleet.submit([after], (), "unix:1")
    world.turn()
    assert (world.where("prep"), world.where("train")) == (["a"], ["a"])


def test_a_closed_cell_gets_nothing_more_until_it_is_opened_also_after_a_restart(world: World) -> None:
    world.fleet.set_closed("a", True, "maintenance", "unix:1")
    world.kill()
    world.start()
    world.submit("x", cells=("a",))
    world.turn()
    assert (world.where("x"), world.fleet.submission("x").waits) == ([], "cells")
    assert "closed by an operator: maintenance" in world.fleet.submission("x").decision.rows[0].why_not  # type: ignore[union-attr]
    world.fleet.set_closed("a", False, "", "unix:1")
    world.turn()
    assert world.where("x") == ["a"]
    with pytest.raises(NotFoundError, match="there is no cell 'mars'"):
        world.fleet.set_closed("mars", True, "", "unix:1")


def test_only_what_is_in_no_cell_can_be_withdrawn(world: World) -> None:
    world.submit("x")
    world.submit("y", cells=("b",))
    world.cells["b"].way = "nobody there"
    world.turn()
    with pytest.raises(RefusedError, match="x is routed in a, not waiting"):
        world.fleet.withdraw(["y", "x"], "unix:1")
    assert world.fleet.withdraw(["y"], "unix:1") == ("y",)
    world.cells["b"].way = "well"
    world.turn()
    assert (world.where("y"), world.state("y")) == ([], "withdrawn")


def test_like_work_shares_what_a_cell_said_while_there_is_room(world: World) -> None:
    world.submit(*(f"j{i}" for i in range(100)))
    world.turn()
    assert world.fleet.journal.counts() == {"routed": 100}
    assert world.cells["a"].times_asked <= 2


def test_of_many_shapes_a_cell_is_asked_in_one_question_and_equal_ones_share_an_answer(world: World) -> None:
    specs = [msgspec.structs.replace(job(f"s{i}"), estimate_ms=MINUTE_MS * (1 + i % 6)) for i in range(60)]
    world.fleet.submit(specs, (), "unix:1")
    world.turn()
    assert world.fleet.view().counts == {"routed": 60}
    assert [cell.times_asked for cell in world.cells.values()] == [1, 1]


def test_what_is_asked_while_a_cell_is_asked_is_one_question_more() -> None:
    """A cell's twin runs few things at once: who asks beside others waits for an answer to all of them."""
    first, go_on = threading.Event(), threading.Event()
    questions: list[int] = []

    class Line:
        def offers(self, specs: list[WorkloadSpec], *_: int) -> list[CellOffer | None]:
            questions.append(len(specs))
            first.set()
            assert go_on.wait(PATIENCE_S)
            return [CellOffer(p50_ms=0)] * len(specs)

    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(9) as askers:
        offers = Offers({"a": Line()}, Routing(answer_within_ms=10_000), pool)  # type: ignore[dict-item]
        wanted = [MissingOffer(bytes([i]), job(f"j{i}"), ("a",)) for i in range(8)]
        asked = [askers.submit(offers.ask, wanted[:1])]
        assert first.wait(PATIENCE_S)
        asked += [askers.submit(offers.ask, [each]) for each in wanted]
        while len(offers._queue["a"]) < 7:
            assert not asked[-1].done()
        go_on.set()
        for each in asked:
            each.result(PATIENCE_S)
    assert questions == [1, 7]


def test_every_shape_has_its_turn_though_there_are_more_than_one_question_holds(world: World) -> None:
    for cell in world.cells.values():
        cell.delay_ms = 60 * MINUTE_MS  # all of it is kept in the fleet, and asked about again and again
    specs = [msgspec.structs.replace(job(f"s{i}"), estimate_ms=MINUTE_MS * (1 + i)) for i in range(3 * MAX_SHAPES)]
    world.fleet.submit(specs, (), "unix:1")
    for _ in range(3):
        world.turn()
        world.router._offers._kept.clear()  # time has passed
    assert all(world.fleet.submission(spec.id).decision is not None for spec in specs)


def test_what_one_shape_has_wrong_is_not_held_against_the_others_of_a_question(world: World) -> None:
    world.cells["a"].refused_queues.add("odd")
    odd = msgspec.structs.replace(job("odd"), queue="odd")
    world.fleet.submit([job("x"), odd, msgspec.structs.replace(job("y"), estimate_ms=1)], ("a",), "unix:1")
    world.turn()
    assert [world.state(name) for name in ("x", "odd", "y")] == ["routed", "waiting", "routed"]
    assert "there is no queue 'odd'" in world.fleet.submission("odd").why


def test_of_cells_that_do_as_well_the_emptier_is_taken(world: World) -> None:
    world.cells["a"].others = {"t": {"gpu_milli": 500_000}}
    world.submit("x")
    world.turn()
    assert world.where("x") == ["b"]
    assert world.fleet.submission("x").why == "starts at once; a would do as well, and is fuller"


def test_what_is_shown_needs_no_database_and_counts_what_there_is(world: World) -> None:
    world.submit("x", "y", "z")
    world.turn()
    world.cells[world.where("x")[0]].states["x"] = "finished"
    world.turn()
    view = world.fleet.view()
    assert view.counts == world.fleet.journal.counts() == {"ended": 1, "routed": 2}
    kept = [(each.what, each.subject) for each in world.fleet.journal.events(100)]
    assert [(each.what, each.subject) for each in view.recent] == kept
    world.journal.close()
    assert world.fleet.view().counts == view.counts
    world.start()


def test_one_journal_has_one_fleet(world: World, place: Place) -> None:
    with pytest.raises(JournalBusy, match=r"the fleet's journal .* is open in another engine \(process"):
        FleetJournal(place)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_whatever_fails_nothing_is_lost_and_nothing_is_in_two_cells(seed: int, place: Place) -> None:
    draw = random.Random(seed)
    world = World(place, routing=Routing(bind_after_ms=0))
    taken: list[str] = []
    ways: tuple[Way, ...] = ("well", "well", "nobody there", "lost on the way", "lost on the way back", "refused")
    deadly: tuple[Way, ...] = (*ways[1:], "the fleet dies")
    for step in range(60):
        deed = draw.randrange(8)
        cell = draw.choice(list(world.cells.values()))
        if deed <= 1:
            world.submit(f"j{step}")
            taken.append(f"j{step}")
        elif deed == 2:
            cell.way = draw.choice(ways)
        elif deed == 3:
            cell.arrive()
        elif deed == 4:
            cell.restart()
        elif deed == 5:
            world.kill()
            world.start()
        elif deed == 6:
            try:
                submit_through(world, draw.choice(deadly))
            except FleetDied:
                world.kill()
                world.start()
        else:
            world.turn()
        assert all(len(world.where(name)) <= 1 for name in taken)
    for each in world.cells.values():
        each.way = "well"
        each.arrive()
    for _ in range(5):
        world.router._refused.clear()
        world.turn()
    assert [name for name in taken if len(world.where(name)) != 1] == []
    assert {name: world.fleet.submission(name).cell for name in taken} == {name: world.where(name)[0] for name in taken}
    world.kill()


def test_pages_of_submissions_go_back_from_the_newest(world: World) -> None:
    world.submit("a", "b", "c")
    first = world.fleet.page((), 0, 2)
    rest = world.fleet.page((), first.next_before, 2)
    assert [each.id for each in (*first.items, *rest.items)] == ["c", "b", "a"]
    assert rest.next_before == 0
    with suppress(MusterError):
        world.turn()
    assert isinstance(world.fleet.page(("routed",), 0, 10).items[0], FleetSubmission)
