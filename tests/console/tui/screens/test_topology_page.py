"""The map of the cell: closer and out, colourings that read without colour, and acting on a domain's nodes by id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from console.client.remote import RemoteClient
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.screens.nodes import TopologyPane
from console.views.lists import ListView
from console.views.nodes import (
    COLOURINGS,
    View,
    drawn_row,
    facts,
    laid_out,
    nodes_filter,
    read_view,
    short_name,
    spot,
)
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.errors import NotFoundError, SpecError
from engine.model.reports import HeatMap, HeatRequest, HeatTile
from engine.model.specs import NodeSpec
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, line, press, quick, until  # noqa: F401
from tests.support.cells import small_cell, submit, workload
from tests.support.gates import gate_of
from tests.support.served import running_loop, served_on_unix

TILE = HeatTile(
    name="r1", zone="z", block="b", rack="r1", nodes=4, states={"ready": 4}, use_permille=500, gpu_milli=32_000,
    gpu_free_milli=16_000, split_milli=4_000, price_microusd_hour=40_000_000, spot=0,
)  # fmt: skip


def tile(**changes: Any) -> HeatTile:
    return msgspec.structs.replace(TILE, **changes)


def shown(tiles: tuple[HeatTile, ...], width: int, height: int, cursor: int = 0, colouring: str = "use") -> list[str]:
    layout = laid_out(tiles, "rack", width, height)
    spots = [spot(each, colouring, 20_000_000) for each in tiles]
    rows = [drawn_row(row, layout, tiles, spots, cursor, width) for row in layout.rows]
    return ["".join(text for text, _ in row) for row in rows]


def test_tiles_have_names_and_numbers_where_there_is_room_and_signs_where_not() -> None:
    tiles = tuple(tile(name=f"r{i}", rack=f"r{i}", use_permille=i * 100) for i in range(11))
    wide = shown(tiles, 60, 20)
    assert wide[0] == "zone z › block b"
    assert wide[1].startswith("[r0       · 0%")
    assert "r9       ▇ 90%" in wide[-1] or any("r9       ▇ 90%" in text for text in wide)
    assert shown(tiles, 60, 2, cursor=3)[1:] == [" ·  ▁  ▁ [▂] ▃  ▄  ▄  ▅  ▆  ▇  █ "]
    for width in (10, 38, 100):
        for text in shown(tiles, width, 3):
            assert cell_len(text) <= max(width, 22)


def test_every_colouring_has_a_sign_of_its_own_for_what_differs() -> None:
    signs = {
        "use": [tile(use_permille=0), tile(use_permille=400), tile(use_permille=1000)],
        "fragmentation": [tile(gpu_milli=0), tile(gpu_free_milli=0), tile(split_milli=0), tile(split_milli=16_000)],
        "health": [tile(states={state: 4}) for state in ("ready", "cordoned", "draining", "suspect", "down")],
        "price": [
            tile(price_microusd_hour=0),
            tile(price_microusd_hour=8_000_000),
            tile(price_microusd_hour=8 * 10**7),
        ],
    }
    assert tuple(signs) == COLOURINGS
    for colouring, tiles in signs.items():
        drawn = [spot(each, colouring, 20_000_000).sign for each in tiles]
        assert len(set(drawn)) == len(drawn), colouring


def test_the_worst_state_of_a_domain_shows() -> None:
    assert spot(tile(states={"ready": 3, "down": 1}), "health", 0)[:2] == ("✗", "1 of 4")
    assert spot(tile(states={"booting": 1, "cordoned": 1, "ready": 2}), "health", 0)[:2] == ("◇", "2 of 4")


def test_names_are_short_by_what_they_share() -> None:
    assert short_name(tile(name="b-r12", rack="b-r12"), 8) == "r12"
    assert short_name(tile(name="node-000017", rack="r9"), 6) == "…00017"
    assert short_name(tile(name="", rack=""), 6) == "–"


def test_the_line_that_leads_to_a_map_is_read_back() -> None:
    for view in (View(), View("rack", (("zone", "z"),), "health"), View("node", (("zone", "z"), ("rack", "r 1")))):
        if '"' not in view.line:
            assert read_view(view.line.removeprefix("topology")) == view
    assert read_view("racks by:price") == View("rack", (), "price")
    for wrong in ("rows", "by:luck", "node:x"):
        with pytest.raises(SpecError, match="not a level of the map"):
            read_view(wrong)


def test_facts_fit_and_lead_to_the_nodes() -> None:
    answer = HeatMap(version=1, now_ms=1, level="rack", within={}, offset=0, total=1, tiles=(), dearest_microusd_hour=1)
    for name in ("r1", "x" * 200, "\x1b[31mred", ""):
        for width in (34, 60):
            here = tile(name=name, rack=name, block="b" * 99)
            for section in facts(here, answer, "use", "act on these 4 nodes", width):
                for each in section.lines:
                    text = "".join(part for part, _ in each.spans)
                    assert cell_len(text) <= width, text
                    assert text.isprintable()
    ListView.of("nodes").filter(nodes_filter(tile(rack="a rack"), "rack"))
    assert nodes_filter(tile(rack=""), "rack") == "zone:z block:b"


def test_the_map_is_the_same_from_far() -> None:
    with running_loop() as loop, served_on_unix(loop) as path:
        near, far = LocalClient(loop, gate_of(loop.engine), Advisor(loop)), RemoteClient(str(path))
        for request in (HeatRequest(level="rack"), HeatRequest(level="node", within={"rack": "r0"}, limit=1)):
            assert near.topology(request).tiles == far.topology(request).tiles
        with pytest.raises(NotFoundError, match="there is no zone 'mars'"):
            far.topology(HeatRequest(level="node", within={"zone": "mars"}))
        far.close()


# -- the page over a real engine


@pytest.fixture
def client() -> Iterator[LocalClient]:
    """Two zones: `z0` with racks of two nodes of 8 GPU each, one node in use; `z1` with one node."""
    cell = small_cell(4, 2)
    cell = msgspec.structs.replace(cell, nodes=(*cell.nodes, NodeSpec(id="far", pool="cpu", zone="z1", rack="rz")))
    engine = Engine.open(None, cell=cell)
    engine.command(submit(workload("w", gpu=8000, run=10**7)))
    loop = EngineLoop(engine)
    loop.start()
    try:
        yield LocalClient(loop, gate_of(engine), Advisor(loop))
    finally:
        loop.stop()
        engine.close()


def page(pilot: Any) -> TopologyPane:
    found = pilot.app.navigator.current
    assert isinstance(found, TopologyPane)
    return found


def under(pilot: Any) -> str:
    here = page(pilot).map.tile
    return here.name if here is not None else ""


async def test_enter_goes_closer_and_escape_back_to_the_same_tile(client: LocalClient) -> None:
    async with console(client, start="topology") as pilot:  # type: ignore[arg-type]
        await until(pilot, lambda: under(pilot) == "r0")
        assert "4 racks  ·  by use" in line(pilot, "title")
        assert page(pilot).as_of is not None
        await press(pilot, "right")
        assert under(pilot) == "r1"
        await press(pilot, "down", "up", "left", "right")
        await press(pilot, "enter")
        await until(pilot, lambda: under(pilot) == "g2")
        assert page(pilot).line == "topology node zone:z0 block:b0 rack:r1"
        await press(pilot, "escape")
        await until(pilot, lambda: under(pilot) == "r1")
        await press(pilot, "z")
        await until(pilot, lambda: under(pilot) == "b0")
        await press(pilot, "z")
        await until(pilot, lambda: under(pilot) == "z0")
        await press(pilot, "right", "enter")
        await until(pilot, lambda: page(pilot).map.tiles and page(pilot).detail.level == "block" and not under(pilot))
        await press(pilot, "enter")
        await until(pilot, lambda: under(pilot) == "rz")


async def test_enter_on_a_node_opens_it(client: LocalClient) -> None:
    async with console(client, start="topology") as pilot:  # type: ignore[arg-type]
        await until(pilot, lambda: under(pilot) == "r0")
        await press(pilot, "enter")
        await until(pilot, lambda: under(pilot) == "g0")
        await press(pilot, "enter")
        await until(pilot, lambda: pilot.app.navigator.current.NAME == "node")  # type: ignore[attr-defined]
        await press(pilot, "escape")
        await until(pilot, lambda: under(pilot) == "g0")


async def test_m_colours_by_the_next_and_what_is_shown_says_so(client: LocalClient) -> None:
    async with console(client, start="topology") as pilot:  # type: ignore[arg-type]
        await until(pilot, lambda: under(pilot) == "r0")
        for colouring in (*COLOURINGS[1:], "use"):
            await press(pilot, "m")
            await until(pilot, lambda colouring=colouring: f"by {colouring}" in line(pilot, "title"))
        assert page(pilot).line == "topology"


async def test_a_domain_is_cordoned_by_the_ids_of_its_nodes() -> None:
    client = FakeClient(20, nodes=48)
    async with console(client, start="topology") as pilot:
        await until(pilot, lambda: len(page(pilot).targets) == 4)
        before = [f"node-{i:05d}" for i in range(4)]
        assert [target.id for target in page(pilot).targets] == before
        await press(pilot, "right")
        assert not {target.id for target in page(pilot).targets} & {*before}, "never those of the tile before"
        await until(pilot, lambda: len(page(pilot).targets) == 4)
        assert {target.state for target in page(pilot).targets} == {"ready", "cordoned", "down"}
        await press(pilot, "C")
        await until(pilot, lambda: client.proposed)
        assert client.proposed[0].action == "cordon"
        assert client.proposed[0].targets == ("node-00004", "node-00006"), "the ready ones, by id"


async def test_a_click_moves_and_a_second_one_goes_closer(client: LocalClient) -> None:
    async with console(client, start="topology", size=(100, 30)) as pilot:  # type: ignore[arg-type]
        await until(pilot, lambda: under(pilot) == "r0")
        layout = page(pilot).map._layout
        x = 1 + layout.tile_width + 2
        await pilot.click(page(pilot).map, offset=(x, layout.line_of[1]))
        await until(pilot, lambda: under(pilot) == "r1")
        await pilot.click(page(pilot).map, offset=(x, layout.line_of[1]))
        await until(pilot, lambda: under(pilot) == "g2")


async def test_it_stays_on_its_tile_while_the_cell_changes_and_when_it_is_opened_again(client: LocalClient) -> None:
    async with console(client, start="topology") as pilot:  # type: ignore[arg-type]
        await until(pilot, lambda: under(pilot) == "r0")
        await press(pilot, "G")
        assert under(pilot) == "rz"
        page(pilot).look_again()
        await pilot.app.workers.wait_for_complete()
        assert under(pilot) == "rz"
        place = page(pilot).place()
        again = TopologyPane(page(pilot).connect, "")
        again.put_back(place)
        assert again._keep == "rz"
        again.put_back({"tile": 3, "offset": "x"})
        assert again._keep == "rz"


@pytest.mark.parametrize(
    "size", [(60, 15), *(pytest.param(each, marks=pytest.mark.thorough) for each in ((80, 24), (220, 60)))]
)
async def test_it_is_usable_at_any_size_and_with_names_of_strangers(size: tuple[int, int]) -> None:
    client = FakeClient(20, nodes=400, hostile=True)
    async with console(client, start="topology", size=size) as pilot:
        await until(pilot, lambda: page(pilot).map.tiles)
        for _ in range(3):
            await press(pilot, "pagedown", "m")
        for y in range(page(pilot).map.size.height):
            assert page(pilot).map.render_line(y).text.isprintable()
