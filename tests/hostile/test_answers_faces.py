"""Groups E and F as a person meets them: what a model answers over HTTP, in the shell and on the console.

The same rows as in test_answers.py. Whatever is answered, the rejection is named, the draft by rule stands, the cell
and the proposals are what they were, and nothing that is shown does anything.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from console.cli.main import run
from console.commands import drafts
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.app import MusterApp
from console.tui.screens.draft import DraftPane
from engine.loop import EngineLoop
from tests.console.tui.screens.test_proposal_pages import on_screen
from tests.console.tui.test_app import until
from tests.console.tui.test_hostile_text import check_screen, click_everywhere
from tests.hostile.test_answers import ROWS
from tests.support.answered import CANARY, QUESTION, SAID, Desk, answer_of
from tests.support.drafting import KEY, drafting, records
from tests.support.model_server import ModelServer, model_server

Out = pytest.CaptureFixture[str]
# The mark of a prompt is another one at each call; rows about a runbook need one in the folder of the library.
PLAYED = [
    row for row in ROWS
    if row.get("task", "act") == "act" and CANARY not in json.dumps(answer_of(row))
    and (not row["id"].startswith("F07") or "rules" in row["id"] or row["expect"] == ["accepted"])
]  # fmt: skip


@contextmanager
def asked() -> Iterator[tuple[EngineLoop, LocalClient, ModelServer]]:
    """The cell of the table's rows behind a client, and a model server; the circuit is closed at every call."""
    desk = Desk()
    now = itertools.count(step=1000)
    loop = EngineLoop(desk.engine)
    loop.paused = True
    loop.start()
    try:
        with (
            model_server() as server,
            drafting(
                loop, desk.gate, clock=lambda: float(next(now)), model_url=server.url, model_calls_minute=100_000,
                model_budget_hour="1000", model_budget_day="1000",
            ) as service,
        ):  # fmt: skip
            yield loop, LocalClient(loop, desk.gate, Advisor(loop), name="lab", drafting=service), server
    finally:
        loop.stop()
        desk.engine.close()


def _put(server: ModelServer, row: dict[str, Any]) -> None:
    answer = answer_of(row)
    server.content = answer if isinstance(answer, str) else {**SAID, **answer}


@pytest.mark.thorough
def test_the_shell_names_why_an_answer_is_rejected(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    with asked() as (loop, client, server):
        monkeypatch.setattr(drafts, "connect", lambda _arguments: client)
        before = loop.call(lambda engine: (engine.version, engine.state.digest()))
        for i, row in enumerate(PLAYED):
            _put(server, row)
            # Each question is another: nothing is answered from what is kept.
            assert run(["draft", f"{QUESTION} ({i})", "--llm"]) == 0
            out, err = capsys.readouterr()
            where = f"{row['id']} ({row['what']}): {out} {err}"
            outcomes = {"accepted" if "Model text, unverified" in out else "rejected"}
            outcomes |= {reason for reason in row["expect"] if reason in out or reason.replace("_", " ") in out}
            assert outcomes & set(row["expect"]), where
            assert "By rule" in out, where
            assert all(line.isprintable() for line in (out + err).splitlines()), where
            assert KEY not in out + err, where
            assert loop.call(lambda engine: (engine.version, engine.state.digest())) == before, where
        assert not [type_ for type_, _ in records(loop, "proposal.", "exec.", "vote.")]
        made = [type_ for type_, _ in records(loop, "llm.call", "draft.")]
        assert made.count("llm.call") == len(PLAYED) == len(made) - len(PLAYED)


@pytest.mark.thorough
async def test_the_console_shows_it_and_nothing_to_click() -> None:
    with asked() as (loop, client, server):
        before = loop.call(lambda engine: (engine.version, engine.state.digest()))
        app = MusterApp(lambda: client, title="test")
        rows = [row for row in PLAYED if row["expect"] == ["accepted"]]
        rows += {row["expect"][0]: row for row in PLAYED}.values()
        async with app.run_test(size=(100, 40), notifications=True) as pilot:
            await until(pilot, lambda: app.connected and app.navigator.current is not None)
            for i, row in enumerate(rows):
                _put(server, row)
                app.steering.run(f"draft --llm {QUESTION} ({i})")
                await until(pilot, partial(_over, app, f"{QUESTION} ({i})"))
                await pilot.pause()
                text = on_screen(pilot)
                assert KEY not in text
                check_screen(pilot)
            await click_everywhere(pilot)
        assert loop.call(lambda engine: (engine.version, engine.state.digest())) == before
        assert not [type_ for type_, _ in records(loop, "proposal.", "exec.", "vote.")]


def _over(app: MusterApp, question: str) -> bool:
    page = app.navigator.current
    shown = page.detail if isinstance(page, DraftPane) else None
    return shown is not None and shown.run.over and shown.run.ask.question == question
