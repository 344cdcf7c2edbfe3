"""Exports: all rows that match, as they are shown, in a file that is whole or not there."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path

import pytest

from console.text.plain_tables import plain, title
from console.tui.dialog_frames import OverwriteDialog
from console.tui.page_data import OVERLAP, STEP, Export, PageData, PageRows, list_data, read_argument
from console.views.lists import ListView
from engine.model.errors import RefusedError, SpecError, UnreachableError
from engine.model.list_queries import COLUMNS
from tests.console.fake_client import HOSTILE, NOW_MS, FakeClient
from tests.console.tui.test_app import console, here, hint, line, notes, press, quick, until, write

__all__ = ["quick"]


class Source:
    """Numbered rows, of which some may come or go between two windows."""

    def __init__(self, count: int) -> None:
        self.names = [f"r{number:07d}" for number in range(count)]
        self.version = 1
        self.between: list[object] = []
        """What happens before each window after the first."""

    def read(self, offset: int, limit: int) -> PageRows:
        if offset and self.between:
            self.between.pop(0)(self)  # type: ignore[operator]
            self.version += 1
        ids = self.names[offset : offset + limit]
        return PageRows(
            ids, [[name] for name in ids], [{"id": name} for name in ids], len(self.names), self.version, NOW_MS
        )

    @property
    def data(self) -> PageData:
        return PageData("numbers", ("id",), self.read)


def exported(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:]


def view(text: str = "") -> ListView:
    found = ListView.of("workloads")
    found.filter(text)
    return found


def test_every_row_once_in_order(tmp_path: Path) -> None:
    source = Source(2 * STEP + 7)
    told = Export(source.data, "numbers", "csv", tmp_path / "x.csv").write()
    assert exported(tmp_path / "x.csv") == source.names
    assert told == f"exported 20,007 rows to {tmp_path / 'x.csv'}"
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"], "nothing is left lying about"
    assert (tmp_path / "x.csv").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("count", [0, 1, STEP, STEP + 1])
def test_any_number_of_rows(tmp_path: Path, count: int) -> None:
    source = Source(count)
    Export(source.data, "numbers", "json", tmp_path / "x.json").write()
    whole = json.loads((tmp_path / "x.json").read_text())
    assert [item["id"] for item in whole["items"]] == source.names
    assert (whole["rows"], whole["complete"]) == (count, True)


def test_rows_that_come_and_go_meanwhile_leave_none_out_and_none_twice(tmp_path: Path) -> None:
    source = Source(4 * STEP)
    stay = source.names[:]

    def come(source: Source) -> None:
        source.names[0:0] = [f"new{number}" for number in range(OVERLAP - 100)]

    def go(source: Source) -> None:
        del source.names[: OVERLAP // 2]

    source.between = [come, go]
    run = Export(source.data, "numbers", "csv", tmp_path / "x.csv")
    told = run.write()
    rows = exported(tmp_path / "x.csv")
    assert len(set(rows)) == len(rows), "none twice"
    assert set(stay) <= set(rows), "none left out"
    assert "the cell went from v1" in told


def test_a_list_that_moves_too_fast_is_told(tmp_path: Path) -> None:
    source = Source(3 * STEP)
    source.between = [lambda source: source.names.__setitem__(slice(0, 3 * OVERLAP), [])]
    assert "rows may be missing" in Export(source.data, "numbers", "csv", tmp_path / "x.csv").write()


@pytest.mark.thorough
def test_a_million_rows_take_no_more_memory_than_a_window(tmp_path: Path) -> None:
    class Endless(Source):
        def read(self, offset: int, limit: int) -> PageRows:
            ids = [f"r{number:07d}" for number in range(offset, min(offset + limit, 200_000))]
            return PageRows(ids, [[name] for name in ids], [{"id": name} for name in ids], 200_000, 1, NOW_MS)

    run = Export(Endless(0).data, "numbers", "csv", tmp_path / "x.csv")
    tracemalloc.start()
    try:
        run.write()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run.written == 200_000
    assert most < 20 << 20


def test_cells_no_spreadsheet_computes_with(tmp_path: Path) -> None:
    formulas = ["=1+1", "+A1", "-2", "@SUM(A1)", "\t=1", "＝1", 'say "hi", =x', " =1", "fine"]
    client = FakeClient(len(formulas))
    for row, name in zip(client._tables["workloads"], formulas, strict=True):
        row["name"] = name
    Export(list_data(lambda: client, view("sort:id columns:id,name,wait")), "w", "csv", tmp_path / "x.csv").write()
    rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert rows[0] == ["id", "name", "wait_s"]
    names = [row[1] for row in rows[1:]]
    assert names[-1] == "fine"
    assert all(not name.lstrip().startswith(("=", "+", "-", "@", "＝")) for name in names)
    assert all(float(row[2]) >= 0 for row in rows[1:]), "numbers stay numbers"


def test_hostile_names_stay_in_their_cell(tmp_path: Path) -> None:
    client = FakeClient(60, hostile=True)
    Export(list_data(lambda: client, view("columns:id,name,tenant")), "w", "csv", tmp_path / "x.csv").write()
    text = (tmp_path / "x.csv").read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == 61
    assert {len(row) for row in rows} == {3}
    assert any(len(cell) > 4_500 for row in rows for cell in row), "nothing is cut"
    assert len(HOSTILE) > 5


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("gpu", 250, "0.25"), ("wait", 90_000, "90"), ("cost", 1_500_000, "1.5"), ("memory", 64, "64"), ("run", None, "")],
)
def test_quantities_are_in_the_unit_of_their_title(name: str, value: int | None, text: str) -> None:
    column = next(column for column in COLUMNS["workloads"] if column.name == name)
    assert plain(column, value) == text
    assert (
        title(column)
        == {"gpu": "gpu", "wait": "wait_s", "cost": "cost_usd", "memory": "memory_mib", "run": "run_s"}[name]
    )


def test_stopped_it_says_what_was_written(tmp_path: Path) -> None:
    source = Source(5 * STEP)
    run = Export(source.data, "numbers", "json", tmp_path / "x.json")
    source.between = [lambda _: None, lambda _: run.stop()]
    told = run.write()
    assert told == f"stopped: 29,000 rows of 50,000 are in {tmp_path / 'x.partial.json'}"
    whole = json.loads((tmp_path / "x.partial.json").read_text())
    assert (len(whole["items"]), whole["complete"]) == (29_000, False)
    assert not (tmp_path / "x.json").exists()
    assert not run.stop(), "it is over"


def test_an_engine_lost_in_between_leaves_nothing(tmp_path: Path) -> None:
    def lose(_source: Source) -> None:
        raise UnreachableError("the engine is gone")

    source = Source(3 * STEP)
    source.between = [lose]
    with pytest.raises(UnreachableError):
        Export(source.data, "numbers", "csv", tmp_path / "x.csv").write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["nowhere", "file"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError) as caught:
        Export(Source(3).data, "numbers", "csv", tmp_path / folder / "x.csv").write()
    assert str(tmp_path / folder / "x.csv") in str(caught.value)
    assert "directory" in str(caught.value)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("console.tui.page_data.os.fsync", full)
    with pytest.raises(RefusedError, match="no space left on device"):
        Export(Source(3).data, "numbers", "csv", tmp_path / "x.csv").write()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("another's")
    with pytest.raises(RefusedError, match="the file exists by now"):
        Export(Source(3).data, "numbers", "csv", tmp_path / "x.csv").write()
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
    assert (tmp_path / "x.csv").read_text() == "another's"


def test_how_an_export_is_asked_for() -> None:
    assert read_argument("csv /tmp/a b.csv", "nodes") == ("csv", Path("/tmp/a b.csv"))
    assert read_argument("/tmp/a.json", "nodes") == ("json", Path("/tmp/a.json"))
    form, path = read_argument("json", "nodes")
    assert form == "json"
    assert path.name.startswith("muster-nodes-")
    for wrong in ("xml", "xml /tmp/a", "csv /tmp/a\0b"):
        with pytest.raises(SpecError):
            read_argument(wrong, "nodes")


@pytest.mark.thorough
async def test_from_the_console_with_a_question_before_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    async with console(FakeClient(300)) as pilot:
        here(pilot).filter("state:held sort:id columns:id,state")
        await press(pilot, "o")
        await until(pilot, lambda: pilot.app.bars.bar is not None)  # type: ignore[attr-defined]
        await write(pilot, f"export csv {path}")
        await press(pilot, "enter")
        await until(pilot, lambda: "exported 30 rows" in notes(pilot))
        rows = path.read_text().splitlines()
        assert rows[0] == "id,state"
        assert len(rows) == 31
        path.write_text("mine")
        await press(pilot, "colon")
        await write(pilot, f"export {path}")
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverwriteDialog))
        await press(pilot, "enter")
        assert path.read_text() == "mine", "the default is no"
        await press(pilot, "colon")
        await write(pilot, f"export {path}")
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverwriteDialog))
        await press(pilot, "y")
        await until(pilot, lambda: path.read_text() != "mine")


async def test_progress_is_in_the_title_and_escape_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(300)
    monkeypatch.setattr("console.tui.page_data.STEP", 10)
    async with console(client) as pilot:
        ask, pane = client.query, here(pilot)

        def slow(query: object) -> object:
            if query.offset > 50 and query.limit == 10:  # type: ignore[attr-defined]
                import time

                while not pane.work._stopped:  # type: ignore[union-attr]
                    time.sleep(0.005)
            return ask(query)  # type: ignore[arg-type]

        client.query = slow  # type: ignore[assignment,method-assign]
        monkeypatch.setattr("console.tui.page_data.OVERLAP", 2)
        await press(pilot, "colon")
        await write(pilot, f"export csv {tmp_path / 'w.csv'}")
        await press(pilot, "enter")
        await until(pilot, lambda: "of 300" in line(pilot, "title") and "esc stops" in line(pilot, "title"))
        await press(pilot, "escape")
        await until(pilot, lambda: "stopped: " in notes(pilot))
        assert (tmp_path / "w.partial.csv").exists()
        assert not (tmp_path / "w.csv").exists()
        await until(pilot, lambda: "exporting" not in line(pilot, "title"))


async def test_where_nothing_is_listed_there_is_nothing_to_export() -> None:
    async with console(FakeClient(30), start="overview") as pilot:
        await press(pilot, "colon")
        await write(pilot, "export csv /tmp/x.csv")
        await press(pilot, "enter")
        await until(pilot, lambda: "this page has no list" in hint(pilot))
