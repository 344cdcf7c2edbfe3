"""Groups A to D as a person meets them: in the shell and on the console, over a real engine and real sockets.

What the server did is named, the draft by rule stands, nothing of the server's own words is shown, and nothing that is
shown does anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from console.cli.main import run
from console.commands import drafts
from console.service.advisor import Advisor
from console.service.drafting import Drafting
from console.service.local_client import LocalClient
from console.tui.app import MusterApp
from console.tui.screens.draft import DraftPane
from engine.loop import EngineLoop
from tests.console.tui.screens.test_proposal_pages import on_screen
from tests.console.tui.test_app import until
from tests.console.tui.test_hostile_text import check_screen, click_everywhere
from tests.hostile.harness import KEY, Server, cases, needs_own_worker, serving
from tests.hostile.test_service import LONG, SETTINGS, SHORT, ends_by_deadline
from tests.support.drafting import drafting, records
from tests.support.gates import gate_of
from tests.support.served import running_loop

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def unrecorded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine writes down once a minute how late it is, also while nothing else changes: cases may take longer."""
    monkeypatch.setattr("engine.loop.KEEP_TIME_S", math.inf)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@contextmanager
def faced(server: Server, folder: Path, deadline: str = LONG) -> Iterator[tuple[EngineLoop, LocalClient]]:
    """An engine with this model, and a client of it; the circuit is closed at every call. Time in its cell stands
    still: whatever is another after the calls, they did."""
    now = itertools.count(step=1000)
    with running_loop(folder / "journal.db") as loop:
        loop.paused = True
        gate = gate_of(loop.engine)
        settings = {**SETTINGS, "model_url": server.url(), "model_deadline": deadline}
        with drafting(loop, gate, clock=lambda: float(next(now)), key=KEY, **settings) as service:
            yield loop, _client(loop, gate, service)


def _client(loop: EngineLoop, gate: Any, service: Drafting) -> LocalClient:
    return LocalClient(loop, gate, Advisor(loop), name="lab", drafting=service)


def _rows(deadline: str) -> list[dict[str, Any]]:
    """Those that may end by the deadline, or the others."""
    rows = [row for row in cases("A", "B", "C", "D") if not needs_own_worker(row)]
    return [row for row in rows if ends_by_deadline(row) == (deadline == SHORT)]


def _one_of_each(deadline: str) -> list[dict[str, Any]]:
    """A row for each way in which it may end."""
    return list({row["expect"][0]: row for row in reversed(_rows(deadline))}.values())


@pytest.mark.thorough
@pytest.mark.parametrize("deadline", [SHORT, LONG])
def test_the_shell_names_what_the_server_did(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out, deadline: str
) -> None:
    with faced(server, tmp_path, deadline) as (loop, client):
        monkeypatch.setattr(drafts, "connect", lambda _arguments: client)
        before = loop.call(lambda engine: engine.state.digest())
        # An engine that has run for a while has a child that is ready, and its modules loaded.
        run(["draft", "case=good", "--llm"])
        capsys.readouterr()
        for row in _rows(deadline):
            code = run(["draft", f"case={row['id']}", "--llm"])
            out, err = capsys.readouterr()
            where = f"{row['id']} ({row['what']}): {out} {err}"
            assert code == 0, where
            outcome = "accepted" if "Model text, unverified" in out else "rejected"
            assert outcome == ("accepted" if row["expect"] == ["accepted"] else "rejected") or len(row["expect"]) > 1, (
                where
            )
            if outcome == "rejected":
                assert "By rule" in out, where
                assert any(reason.replace("_", " ") in out or reason in out for reason in row["expect"]), where
                assert "Nothing is wrong" not in out, where
            assert all(line.isprintable() for line in (out + err).splitlines()), where
            assert not any(word in out + err for word in (KEY, "POISON", "LATE", "\x1b")), where
        assert loop.call(lambda engine: engine.state.digest()) == before
        assert not [type_ for type_, _ in records(loop, "proposal.", "exec.", "vote.")]


@pytest.mark.thorough
@pytest.mark.parametrize("deadline", [SHORT, LONG])
async def test_the_console_shows_the_rules_draft_and_nothing_to_click(
    server: Server, tmp_path: Path, deadline: str
) -> None:
    with faced(server, tmp_path, deadline) as (loop, client):
        before = loop.call(lambda engine: engine.state.digest())
        app = MusterApp(lambda: client, title="test")
        async with app.run_test(size=(100, 40), notifications=True) as pilot:
            await until(pilot, lambda: app.connected and app.navigator.current is not None)
            for row in _one_of_each(deadline):
                app.steering.run(f"draft --llm case={row['id']}")
                await until(pilot, lambda row=row: _over(app, row["id"]))
                await pilot.pause()
                text = on_screen(pilot)
                if "accepted" not in row["expect"]:
                    assert any(reason.replace("_", " ") in text or reason in text for reason in row["expect"]), row
                assert KEY not in text
                check_screen(pilot)
            await click_everywhere(pilot)
        assert loop.call(lambda engine: engine.state.digest()) == before
        assert not [type_ for type_, _ in records(loop, "proposal.", "exec.", "vote.")]


def _over(app: MusterApp, case: str) -> bool:
    page = app.navigator.current
    shown = page.detail if isinstance(page, DraftPane) else None
    return shown is not None and shown.run.over and shown.run.ask.question == f"case={case}"
