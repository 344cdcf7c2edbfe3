"""Queued work moves from a full cell to one with room: once, whatever fails, and only if nothing keeps it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.admission.fleet_routing import CellLink, Routing, TenantShare
from engine.control import Engine
from engine.journal.database import place_of
from engine.model.commands import Hold, Recall, Submit
from engine.model.errors import RefusedError
from engine.state.workloads import MOVED_TAG
from tests.console.fleet.test_fleet import World, submit_through
from tests.support.cells import small_cell, workload
from tests.support.effort import examples
from tests.support.scripted_cells import FleetDied, Way

AT_ONCE = Routing(bind_after_ms=0, move_after_ms=0)
FULL_MS = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """`j` is queued in `a`, which is full; `b` would take it at once."""
    made = full_world(tmp_path)
    yield made
    made.kill()


def full_world(folder: Path, **changes: object) -> World:
    made = World(place_of(folder / "fleet.db"), **{"routing": AT_ONCE, **changes})
    made.cells["a"].starts = "queued"
    made.cells["b"].delay_ms = None
    made.submit("j", tenant="clinic")
    made.turn()
    made.hear()
    assert (made.where("j"), made.fleet.submission("j").cell_state) == (["a"], "queued")
    made.cells["a"].delay_ms, made.cells["b"].delay_ms = FULL_MS, 0
    return made


def move(world: World) -> None:
    """As much time passes as it takes to look again, and to ask again."""
    world.hear()
    mover = world.router.mover
    mover._looked, mover._retry_at = -1e9, {}
    world.router._offers._kept.clear()
    world.router._retry_at.update(dict.fromkeys(world.router._retry_at, 0.0))
    world.router.turn()


def move_on(world: World) -> None:
    for _ in range(3):
        move(world)


def runs_in(world: World, name: str) -> list[str]:
    """The cells that have it and did not give it back."""
    return [cell for cell, each in world.cells.items() if each.states.get(name) in ("queued", "running")]


def test_queued_work_moves_once_to_the_cell_with_room_with_its_origin(world: World) -> None:
    for _ in range(3):
        move(world)
    world.hear()
    found = world.fleet.submission("j")
    assert (found.state, found.cell, found.left, runs_in(world, "j")) == ("routed", "b", ("a",), ["b"])
    assert world.cells["a"].moved_to == {"j": "b"}
    assert world.cells["b"].there["j"].tags["moved-from"] == "a"
    told = [(each.what, each.detail.partition(":")[0]) for each in reversed(world.fleet.journal.events(50))]
    assert told[-3:] == [("moving", "a to b"), ("moved", "from a to b"), ("acknowledged", "by b")]


def test_it_never_goes_back_where_it_was(world: World) -> None:
    world.cells["b"].starts = "queued"
    for _ in range(2):
        move(world)
    world.cells["a"].delay_ms, world.cells["b"].delay_ms = 0, FULL_MS
    for _ in range(3):
        move(world)
    assert (runs_in(world, "j"), world.fleet.submission("j").state) == (["b"], "routed")


@pytest.mark.parametrize("kept_by", ["running", "held", "promised", "soon", "crowded", "closed", "patience"])
def test_it_stays_where_something_keeps_it(tmp_path: Path, kept_by: str) -> None:
    world = full_world(tmp_path, routing=Routing(bind_after_ms=0, move_after_ms=60_000 if kept_by == "patience" else 0))
    a, b = world.cells["a"], world.cells["b"]
    if kept_by in ("running", "held"):
        a.states["j"] = kept_by
    elif kept_by == "promised":
        a.promised["j"] = 1
    elif kept_by == "soon":
        a.delay_ms = 0
    elif kept_by == "crowded":
        b.others = {"x": {"gpu_milli": 950_000}}
    elif kept_by == "closed":
        world.fleet.set_closed("b", True, "", "unix:1")
    move(world)
    assert (runs_in(world, "j") or [a.states["j"]])[0] in ("a", "held")
    assert (world.fleet.submission("j").state, a.moved_to) == ("routed", {})
    world.kill()


def test_what_began_while_it_was_asked_for_stays_and_is_not_asked_for_again_at_once(world: World) -> None:
    a = world.cells["a"]
    world.hear()
    world.router._offers._kept.clear()
    world.router.mover.look()  # the intent alone: nobody was asked yet
    assert world.fleet.submission("j").state == "moving"
    a.states["j"] = "running"
    move(world)
    assert (world.fleet.submission("j").state, runs_in(world, "j")) == ("routed", ["a"])
    assert "cannot recall: 'j' is running" in world.fleet.submission("j").why


def test_residency_and_a_tenants_cells_hold_while_it_moves(tmp_path: Path) -> None:
    links = (CellLink(name="a", connect="a", residency=("eu",)), CellLink(name="b", connect="b", residency=("us",)))
    world = full_world(tmp_path, cells=links, tenants=(TenantShare(name="clinic", residency=("eu",)),))
    move(world)
    assert (runs_in(world, "j"), world.cells["a"].moved_to) == (["a"], {})
    world.kill()


@pytest.mark.parametrize("seed", range(examples(40)))
def test_whatever_fails_it_is_in_exactly_one_cell(seed: int, tmp_path: Path) -> None:
    """Cells that fail in every way, fill up and become free, start what is queued, and a fleet that dies anywhere."""
    draw = random.Random(seed)
    world = World(place_of(tmp_path / "fleet.db"), routing=AT_ONCE)
    ways: tuple[Way, ...] = ("nobody there", "lost on the way back", "the fleet dies", "well", "well", "well")
    taken: list[str] = []
    for step in range(60):
        cell = draw.choice(list(world.cells.values()))
        deed = draw.randrange(7)
        try:
            if deed <= 1:
                world.submit(f"j{step}")
                taken.append(f"j{step}")
                submit_through(world, draw.choice(ways))
            elif deed == 2:
                cell.starts, cell.delay_ms = draw.choice((("queued", FULL_MS), ("running", 0)))
            elif deed == 3:
                cell.way = draw.choice(ways)
                move(world)
            elif deed == 4:
                queued = [name for name, state in cell.states.items() if state == "queued"]
                cell.states.update(dict.fromkeys(queued[:1], "running"))
            elif deed == 5:
                world.kill()
                world.start()
            else:
                move(world)
        except FleetDied:
            world.kill()
            world.start()
        if cell.way != "the fleet dies":
            cell.way = "well"
        assert all(len(runs_in(world, name)) <= 1 for name in taken)
    for each in world.cells.values():
        each.way = "well"
    for _ in range(6):
        world.router._refused.clear()
        move(world)
    assert {name: runs_in(world, name) for name in taken} == {
        name: [world.fleet.submission(name).cell] for name in taken
    }
    world.kill()


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_fleet_that_dies_at_any_write_of_a_move_neither_loses_nor_doubles_it(
    at: int, is_kept: bool, world: World
) -> None:
    """It ends before a write of its journal, or right after it: the intent, the move, the acknowledgement."""
    write, left = world.journal.write, at

    def dies(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left or is_kept:
            write(*arguments)
        if not left:
            raise FleetDied

    world.journal.write = dies  # type: ignore[method-assign]
    with pytest.raises(FleetDied):
        move_on(world)
    world.kill()
    world.start()
    for _ in range(3):
        move(world)
    assert (runs_in(world, "j"), world.fleet.submission("j").left) == (["b"], ("a",))


def test_an_engine_gives_back_what_has_not_begun_once_and_says_where_it_went(tmp_path: Path) -> None:
    engine = Engine.open(tmp_path / "j.db", cell=small_cell())
    of_fleet = [workload("runs", gpu=1000), *(workload(name, gpu=8000, count=4) for name in ("x", "kept"))]
    sent = tuple(msgspec.structs.replace(spec, tags={"fleet": "f"}) for spec in of_fleet)
    engine.command(Submit(workloads=(*sent, workload("other", gpu=8000, count=4))))
    engine.advance(1_000)
    engine.command(Hold(ids=("kept",)))
    for name, told in (("runs", "has begun|is running|is placed"), ("kept", "is held"), ("other", "not of fleet f")):
        with pytest.raises(RefusedError, match=told):
            engine.command(Recall(ids=(name,), fleet="f", to="west"))
    for _ in range(2):
        engine.command(Recall(ids=("x",), fleet="f", to="west"))
    w = engine.state.workloads
    assert w.tags_of(w.tags[w.row_of["x"]]) == {"fleet": "f", MOVED_TAG: "west"}
    with pytest.raises(RefusedError, match="x' is cancelled"):
        engine.command(Recall(ids=("x",), fleet="f", to="east"))
    dumped, version = engine.state.dump(), engine.version
    engine.close()
    again = Engine.open(tmp_path / "j.db", use_snapshot=False)
    assert (again.version, again.state.dump()) == (version, dumped)
    again.close()
