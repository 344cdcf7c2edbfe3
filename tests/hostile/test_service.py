"""Groups A to D through the engine's own service: whatever the server does, a person has a draft by rule in time, the
cell is as it was, and what is on record is exactly what happened.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from console.service.drafting import Drafting
from engine.loop import EngineLoop
from runbooks.models import limits
from tests.hostile.harness import KEY, MAX_BYTES, Server, cases, needs_own_worker, serving
from tests.support.agreement import check_agreement
from tests.support.drafting import drafted, drafting, records
from tests.support.served import running_loop

SHORT, LONG = "800ms", "2m"
"""Deadlines: of cases that may end by it, and of the others, however busy the machine is."""
SETTINGS: dict[str, Any] = {
    "model_calls_minute": 100_000,
    "model_price_in": "1",
    "model_price_out": "5",
    "model_budget_day": "1000",
    "model_budget_hour": "1000",
}
BRIEF = ("A07", "A19", "B03", "C12", "C14-one", "D04")


@pytest.fixture(autouse=True)
def unrecorded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine writes down once a minute how late it is, also while nothing else changes: cases may take longer."""
    monkeypatch.setattr("engine.loop.KEEP_TIME_S", math.inf)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.mark.thorough
def test_the_cell_and_its_records_after_the_worst(server: Server, tmp_path: Path) -> None:
    _run([row for row in cases("A", "B", "C", "D") if row["id"] in BRIEF], server, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["A", "B", "C", "D"])
def test_the_cell_and_its_records_after_every_case(server: Server, tmp_path: Path, group: str) -> None:
    # A question of megabytes is asked in the library alone: the service cuts what it is given.
    _run([row for row in cases(group) if "prompt_kib" not in row], server, tmp_path)


def _run(rows: list[dict[str, Any]], server: Server, folder: Path) -> None:
    # Between two cases the circuit has closed again.
    hours = itertools.count(step=3600)
    now = [0.0]
    with (
        running_loop(folder / "journal.db") as loop,
        drafting(
            loop, clock=lambda: now[0], key=KEY, model_url=server.url(), model_deadline=LONG, **SETTINGS
        ) as shared,
    ):
        loop.paused = True  # whatever is another afterwards, the cases did
        before = loop.call(lambda engine: engine.state.digest())
        drafted(shared, "case=good")
        for row in rows:
            now[0] = float(next(hours))
            known = len(records(loop, ""))
            if needs_own_worker(row) or ends_by_deadline(row):
                with drafting(loop, clock=lambda: now[0], key=KEY, **_settings(row, server, folder)) as own:
                    _check(own, row, loop, known)
            else:
                _check(shared, row, loop, known)
            assert loop.call(lambda engine: engine.state.digest()) == before, row
        assert KEY not in json.dumps(records(loop, ""))
        table = limits.SPEND.c
        spends = loop.call(
            lambda engine: engine.recorded(
                lambda connection: connection.execute(select(table.reserved, table.spent)).all()
            )
        )
        assert all(0 <= spent <= reserved for reserved, spent in spends)
        assert not loop.call(check_agreement)


def _check(service: Drafting, row: dict[str, Any], loop: EngineLoop, known: int) -> None:
    run = drafted(service, f"case={row['id']}")
    where = f"{row['id']} ({row['what']}): {run.reason}: {run.why}"
    assert (run.reason or "accepted") in row["expect"], where
    assert run.rule is not None, where
    assert run.rule_state == "done", where
    assert (run.model is not None) == (run.model_state == "done") == (not run.reason), where
    assert run.why.isprintable(), where
    new = records(loop, "")[known:]
    assert [type_ for type_, _ in new] == ["llm.call", "draft.rejected" if run.reason else "draft.created"], where
    call = new[0][1]
    assert len(call["prompt_sha256"]) == 64, where
    assert bool(call["bytes"]) == (len(call["response_sha256"]) == 64), where
    assert call["bytes"] <= MAX_BYTES + 4096, where
    assert 0 <= call["cost_microusd"] <= call["reserved_microusd"], where


def ends_by_deadline(row: dict[str, Any]) -> bool:
    return "deadline" in row["expect"]


def _settings(row: dict[str, Any], server: Server, folder: Path) -> dict[str, Any]:
    url = server.url(row.get("via", "http"), tls=row.get("tls"))
    if "host" in row:
        url = url.replace("127.0.0.1", row["host"])
    settings = {**SETTINGS, "model_url": url, "model_deadline": SHORT if ends_by_deadline(row) else LONG}
    if row.get("ca"):
        (folder / "ca.pem").write_text(server.ca)
        settings["model_ca_file"] = str(folder / "ca.pem")
    return settings
