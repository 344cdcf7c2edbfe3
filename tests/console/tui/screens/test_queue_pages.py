"""The queues as a tree with quotas as bars, and the page of one queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.screens.cell_lists import QueuePane
from console.views.lists import ListView, Window
from console.views.queues import QueuePageData, fetch, queue_columns
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.list_queries import Query
from engine.model.specs import BurstSpec, CellSpec, FlavorQuota, QueueSpec
from tests.console.fake_client import HOSTILE, FakeClient
from tests.console.tui.test_app import console, here, line, press, quick, until, write  # noqa: F401
from tests.support.cells import small_cell, submit, workload
from tests.support.gates import gate_of

GPU = "gpu_milli"


def cell() -> CellSpec:
    """Four nodes of 8 GPU: `root` over `lab` (`lab/a` borrows from `lab/b`), and `loose` beside it."""
    plain = small_cell(4, 1)
    burst = BurstSpec(limit={GPU: 24_000})
    queues = (
        QueueSpec(name="root", nominal={GPU: 2**40}),
        QueueSpec(name="lab", parent="root"),
        QueueSpec(name="lab/a", parent="lab", nominal={GPU: 8000}, start_within_ms=60_000),
        QueueSpec(name="lab/b", parent="lab", nominal={GPU: 16_000}, borrowing_limit={GPU: 0}, burst=burst),
        QueueSpec(name="loose", flavors=(FlavorQuota(pool="gpu", nominal={GPU: 8000}),)),
    )
    return msgspec.structs.replace(plain, queues=queues)


@pytest.fixture
def client() -> Iterator[LocalClient]:
    """`lab/a` runs on 16 GPU, 8 of them borrowed, and has one that waits."""
    engine = Engine.open(None, cell=cell())
    engine.command(submit(*(workload(f"w{i}", queue="lab/a", gpu=8000, run=10**7, estimate=10**7) for i in range(2))))
    engine.command(
        submit(workload("huge", queue="lab/a", count=4, gpu=8000), workload("own", queue="loose", gpu=8000, run=10**7))
    )
    engine.advance(5 * 60_000)
    loop = EngineLoop(engine)
    loop.start()
    try:
        yield LocalClient(loop, gate_of(engine), Advisor(loop))
    finally:
        loop.stop()
        engine.close()


def tree(client: Any, folded: frozenset[str] = frozenset(), words: str = "", limit: int = 100) -> Window:
    view = ListView.of("queues")
    view.filter(words)
    return fetch(lambda: client, view, folded, {}, 0, limit)


def names(window: Window) -> list[str]:
    return [row.cells[0][0] for row in window.rows]


def test_children_stand_below_their_cohorts(client: LocalClient) -> None:
    shown = tree(client)
    assert names(shown) == ["▾ root", "  ▾ lab", "      lab/a", "      lab/b", "  loose"]
    assert [row.id for row in shown.rows] == ["root", "lab", "lab/a", "lab/b", "loose"]
    assert names(tree(client, frozenset({"lab"}))) == ["▾ root", "  ▸ lab", "  loose"]
    assert tree(client, frozenset({"lab"})).matched == 3
    assert (names(tree(client, limit=2)), tree(client, limit=2).matched) == (["▾ root", "  ▾ lab"], 5)


def test_sorted_or_filtered_it_is_a_flat_list(client: LocalClient) -> None:
    assert names(tree(client, frozenset({"lab"}), "name:lab/*")) == ["lab/a", "lab/b"]
    assert names(tree(client, frozenset({"lab"}), "sort:-gpu_used"))[0] == "root"


def test_the_bar_tells_own_borrowed_and_lent_apart(client: LocalClient) -> None:
    view = ListView.of("queues")
    at = [column.name for column in view.columns].index("quota_use")
    bars = {row.id: row.cells[at][0] for row in tree(client).rows}
    assert bars["lab/a"].startswith("━━━━━━━═══════")
    assert set(bars["lab/b"].split()[0]) == {"╱", "┄"}, "half of it is lent"
    assert bars["lab"].startswith("━")
    assert bars["loose"] == "no quota", "of all pools together"


def test_names_of_strangers_stay_text() -> None:
    shown = tree(FakeClient(20, hostile=True))
    assert any("\\x1b" in name for name in names(shown))
    assert all(text.isprintable() for row in shown.rows for text, _ in row.cells)


def known(client: Any, name: str) -> QueuePageData:
    pane = QueuePane(lambda: client, name)
    return pane.ask(client)._replace(fairness=client.fairness())


def words(client: Any, name: str, width: int = 70) -> str:
    left, right = queue_columns(known(client, name), width)
    told = []
    for section in (*left, *right):
        told += [f"# {section.title} {section.note}"]
        told += ["".join(text for text, _ in each.spans) for each in section.lines]
    for text in told[1:]:
        assert cell_len(text) <= max(width, 60) or text.startswith("#"), text
    return "\n".join(told)


def test_a_queue_tells_its_quota_who_lends_its_burn_and_who_waits_and_why(client: LocalClient) -> None:
    told = words(client, "lab/a")
    assert "16 of 8, 8 borrowed" in told
    assert "═ lab/a" in told
    assert "borrows 8 GPU" in told
    assert "╱ lab/b" in told
    assert "lends 8 GPU" in told
    assert "95% start within 1m" in told
    assert "×6.7 of the allowance: 0 of 2 starts late" in told
    assert "huge" in told.split("# Longest waits")[1].split("# Largest running")[0]
    assert "w0" in told.split("# Largest running")[1]
    assert "of lab/a" in told.split("# Recent starts, and why")[1]


def test_a_queue_tells_its_burst_its_pools_and_its_limits(client: LocalClient) -> None:
    told = words(client, "lab/b")
    assert "up to 24 GPU for 4h, then a 1h cool-down" in told
    assert "not bursting" in told
    assert "may borrow 0" in told
    assert "8 lent" in told
    loose = words(client, "loose")
    assert "in pool gpu" in loose
    assert "8 of 8" in loose
    assert ":set-quota loose --start-within" in loose
    assert "lab/a" in words(client, "root"), "what is below it"


@pytest.mark.parametrize("width", [34, 56, 100])
def test_the_page_fits_and_hides_nothing_from_a_stranger(width: int) -> None:
    client = FakeClient(200, hostile=True)
    name = client.query(Query(kind="queues", columns=("name",))).rows[0][0]
    assert name in HOSTILE
    for text in words(client, name, width).split("\n"):
        assert text.isprintable()


async def test_enter_opens_a_queue_and_x_folds_its_cohort(client: LocalClient) -> None:
    async with console(client, start="queues") as pilot:  # type: ignore[arg-type]
        await until(pilot, lambda: here(pilot).table.cursor_row is not None)
        await press(pilot, "j", "j", "x")
        await until(pilot, lambda: line(pilot, "title").count("1 folded"))
        await until(pilot, lambda: here(pilot).table.cursor_row.id == "lab")
        kept = here(pilot).place()
        assert kept["folded"] == ["lab"]
        await press(pilot, "x")
        await until(pilot, lambda: "folded" not in line(pilot, "title"))
        here(pilot).put_back(kept)
        await until(pilot, lambda: "1 folded" in line(pilot, "title"))
        await press(pilot, "x")
        await until(pilot, lambda: len(here(pilot)._cohorts) == 5 and here(pilot).table.matched == 5)
        await press(pilot, "j", "enter")
        await until(pilot, lambda: here(pilot).NAME == "queue" and here(pilot).detail is not None)
        assert here(pilot).line == "queue lab/a"
        assert here(pilot).targets[0].id == "lab/a"
        assert here(pilot).as_of is not None
        await press(pilot, "w")
        await until(pilot, lambda: pilot.app.bars.bar is not None)  # type: ignore[attr-defined]
        await until(pilot, lambda: pilot.app.bars.bar._input.value.startswith("whatif quota lab/a"))  # type: ignore[attr-defined]


async def test_a_queue_can_be_held_from_its_page() -> None:
    client = FakeClient(50)
    async with console(client, start="queues") as pilot:
        await until(pilot, lambda: here(pilot).table.cursor_row is not None)
        await press(pilot, "enter")
        await until(pilot, lambda: here(pilot).NAME == "queue" and here(pilot).detail is not None)
        await press(pilot, "P")
        await until(pilot, lambda: client.proposed)
        assert (client.proposed[0].action, client.proposed[0].targets) == ("hold_queue", ("research/train",))
