"""Looking back on the console: each page is of then and says so, nothing can be done there, and Esc leads to now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.widgets.pane import Pane
from engine.control import Engine
from engine.model.commands import Submit
from tests.console.tui.test_app import console, here, hint, line, notes, press, until, write
from tests.console.tui.test_app import quick as quick
from tests.support.gates import gate_of
from tests.support.served import HOUR_MS, gpu_job, running_loop

MINUTE_MS = 60_000
LOOKS = (
    "overview", "queues", "nodes", "pools", "events", "workload early", "queue a", "topology", "cost", "node g0",
)  # fmt: skip
"""Pages that are all of then."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[LocalClient]:
    """A cell at 04:32: work ran from 02:00 to 03:00, and other work came at 04:00."""

    def day(engine: Engine) -> None:
        for at_ms, name in ((2 * HOUR_MS, "early"), (4 * HOUR_MS, "late")):
            engine.advance(at_ms)
            engine.command(Submit(workloads=(gpu_job(name),)))
        engine.advance(4 * HOUR_MS + 32 * MINUTE_MS)

    with running_loop(tmp_path / "journal.db") as loop:
        loop.paused = True
        loop.call(day)
        made = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        yield made
        made.break_off()


async def test_pages_are_of_then_until_one_goes_back(client: LocalClient) -> None:
    async with console(client) as pilot:  # type: ignore[arg-type]
        app = pilot.app
        await press(pilot, "t")
        await write(pilot, "at 02:30")
        await press(pilot, "enter")
        await until(pilot, lambda: "AS OF 1970-01-01 02:30:00 UTC (2h 2m ago), read only" in line(pilot, "banner"))
        await until(pilot, lambda: here(pilot).as_of == (app.past.version, 2 * HOUR_MS + 30 * MINUTE_MS))  # type: ignore[attr-defined]
        await until(pilot, lambda: "as of then" in line(pilot, "title"))
        assert app.client().workload("early").state == "running"  # type: ignore[attr-defined]
        await until(pilot, lambda: "02:30:00 UTC" in line(pilot, "top"))
        assert [item.subject for item in app.events.newest(1)] == ["early"]  # type: ignore[attr-defined]
        await press(pilot, "X")
        await until(pilot, lambda: "as of 1970-01-01 02:30:00 nothing can be changed" in notes(pilot))
        await press(pilot, "colon")
        await write(pilot, "cancel early")
        await press(pilot, "enter")
        assert "nothing can be changed" in hint(pilot)
        await press(pilot, "escape")
        await press(pilot, "full_stop")
        await until(pilot, lambda: "AS OF 1970-01-01 02:31:00" in line(pilot, "banner"))
        await press(pilot, "less_than_sign", "comma")
        await until(pilot, lambda: "AS OF 1970-01-01 02:25:00" in line(pilot, "banner"))
        await press(pilot, "escape")
        await until(pilot, lambda: line(pilot, "banner") == "")
        assert app.client().workload("early").state == "finished"  # type: ignore[attr-defined]
        await until(pilot, lambda: app.events.newest(1)[0].subject == "late")  # type: ignore[attr-defined]


async def test_a_time_that_cannot_be_shown_is_refused_and_one_stays(client: LocalClient) -> None:
    async with console(client) as pilot:  # type: ignore[arg-type]
        await press(pilot, "full_stop")
        await until(pilot, lambda: "this is now" in notes(pilot))
        await press(pilot, "t")
        await write(pilot, "at 1969-12-31 10:00")
        await press(pilot, "enter")
        await until(pilot, lambda: "is before the first that is kept" in notes(pilot))
        assert line(pilot, "banner") == ""


async def test_each_page_shows_then_or_says_that_it_is_not_kept(client: LocalClient) -> None:
    async with console(client) as pilot:  # type: ignore[arg-type]
        await press(pilot, "colon")
        await write(pilot, "at 02:30")
        await press(pilot, "enter")
        await until(pilot, lambda: "AS OF" in line(pilot, "banner"))
        for command in LOOKS:
            pilot.app.steering.run(command)  # type: ignore[attr-defined]
            await pilot.pause()
            await pilot.app.workers.wait_for_complete()
            assert "not kept" not in notes(pilot), command
        for command in ("proposals", "policy", "suggestions", "audit"):
            pilot.app.clear_notifications()
            pilot.app.steering.run(command)  # type: ignore[attr-defined]
            await until(pilot, lambda: "not kept as of 1970-01-01 02:30:00 UTC" in notes(pilot))


async def test_two_marked_times_show_what_changed_between_them(client: LocalClient) -> None:
    async with console(client) as pilot:  # type: ignore[arg-type]
        await press(pilot, "colon")
        await write(pilot, "at 02:30")
        await press(pilot, "enter")
        await until(pilot, lambda: "AS OF 1970-01-01 02:30:00" in line(pilot, "banner"))
        await press(pilot, "equals_sign")
        await until(pilot, lambda: "1970-01-01 02:30:00 is marked" in notes(pilot))
        await press(pilot, "escape")
        await until(pilot, lambda: line(pilot, "banner") == "")
        await press(pilot, "equals_sign")
        await until(pilot, lambda: "diff 1970-01-01T02:30:00 1970-01-01T04:32:00" in line(pilot, "title"))
        await until(pilot, lambda: here(pilot).detail is not None)  # type: ignore[attr-defined]
        text = "\n".join(here(pilot).text_lines())  # type: ignore[attr-defined]
        assert "1 workload finished" in text
        assert "03:00:00  early" in text
        assert "1 workload submitted" in text
        assert "04:00:00  late" in text


async def test_a_difference_that_cannot_be_read_is_refused_on_its_line(client: LocalClient) -> None:
    async with console(client) as pilot:  # type: ignore[arg-type]
        await press(pilot, "colon")
        await write(pilot, "diff 1 2 3")
        await press(pilot, "enter")
        assert "3 times" in hint(pilot)


async def test_no_page_keeps_what_it_had_of_another_time(client: LocalClient) -> None:
    async with console(client) as pilot:  # type: ignore[arg-type]
        app = pilot.app
        app.steering.run("whatif drain g0")  # type: ignore[attr-defined]
        for command in ("overview", "workload late"):
            app.steering.run(command)  # type: ignore[attr-defined]
            await app.workers.wait_for_complete()
        before = {*app.query(Pane)}
        app.past.go("03:30")  # type: ignore[attr-defined]
        await until(pilot, lambda: "AS OF" in line(pilot, "banner"))
        await until(pilot, lambda: "there is no workload 'late'" in notes(pilot))
        assert line(pilot, "title").startswith("  overview › ")
        assert {pane.NAME for pane in before & {*app.query(Pane)}} == {"whatif"}
