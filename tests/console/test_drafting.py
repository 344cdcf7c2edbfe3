"""Drafts beside an engine: what a model's failures leave, what is spent, what is on record, what is proposed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.drafting import MOST_KEPT, Drafting
from engine.errors import NotFoundError, RefusedError, SpecError
from engine.loop import EngineLoop
from runbooks import model_budget
from runbooks.circuit import OPEN_S
from runbooks.draft import DraftAsk, Excerpt
from tests.support.drafting import KEY, drafted, drafting, ended, records
from tests.support.gates import ME
from tests.support.model_server import NOTHING, ModelServer, model_server
from tests.support.served import running_loop

PRICED = {"model_price_in": "1", "model_price_out": "5"}


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture(scope="module")
def _server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def server(_server: ModelServer) -> ModelServer:
    """One for all tests, as it was at first."""
    _server.status, _server.content, _server.floods = 200, NOTHING, False
    _server.silent.clear()
    _server.stopped.clear()
    _server.seen.clear()
    _server.keys.clear()
    return _server


def spent(loop: EngineLoop) -> list[tuple[int, int]]:
    """(reserved, spent) of every call."""
    table = model_budget.SPEND.c
    query = model_budget.select(table.reserved, table.spent).order_by(table.id)
    return loop.call(lambda engine: engine.recorded(lambda c: [tuple(row) for row in c.execute(query)]))


@pytest.mark.parametrize(
    ("settings", "reason", "named"),
    [
        ({"model": ""}, "not_configured", "no model is configured"),
        ({"model_url": "ftp://host/v1"}, "bad_endpoint", "neither http nor https"),
        ({"model_url": "not a url"}, "bad_endpoint", "model_url"),
        ({"model_url": "https://u:p@host/v1"}, "bad_endpoint", "MUSTER_MODEL_KEY"),
        ({"model_url": "https://host.example/v1", "model_egress": "external", "key": ""}, "no_key", "MUSTER_MODEL_KEY"),
        ({"model_url": "https://host.example/v1", "key": "", "model_key_file": "/nonexistent"}, "no_key", "cannot be"),
        ({"model_url": "http://127.0.0.1:9/v1"}, "connection", ""),
    ],
)
def test_what_is_wrong_with_the_model_is_named_and_leaves_the_draft_by_rule(
    loop: EngineLoop, settings: dict[str, Any], reason: str, named: str
) -> None:
    with drafting(loop, **settings) as service:
        begun = time.monotonic()
        run = drafted(service)
        assert time.monotonic() - begun < 5
        assert (run.model_state, run.reason, run.model) == ("rejected", reason, None)
        assert named in run.why
        assert run.rule is not None
        assert (run.rule.drafter, run.rule_state) == ("rule", "done")
        standing = service.standing()
        assert standing.problem if reason != "connection" else not standing.problem
    made = [type_ for type_, _ in records(loop, "llm.", "draft.")]
    assert made == (["llm.call", "draft.rejected"] if reason == "connection" else ["draft.rejected"])


@pytest.mark.parametrize(("status", "reason"), [(401, "auth"), (404, "model_missing"), (500, "http_500")])
def test_a_status_that_refuses_is_named_and_costs_nothing(
    loop: EngineLoop, server: ModelServer, status: int, reason: str
) -> None:
    server.status = status
    with drafting(loop, model_url=server.url, **PRICED) as service:
        run = drafted(service)
        assert (run.reason, run.rule is not None) == (reason, True)
        assert service.standing().spent_day_microusd == 0
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["outcome"], call["status"], call["cost_microusd"], rejected["reason"]) == (reason, status, 0, reason)
    assert all(key == f"Bearer {KEY}" for key in server.keys)
    assert KEY not in json.dumps(records(loop, ""))


def test_an_endpoint_that_does_not_take_the_key_is_left_alone_for_a_while(
    loop: EngineLoop, server: ModelServer
) -> None:
    now = [1_000.0]
    server.status = 401
    with drafting(loop, clock=lambda: now[0], model_url=server.url) as service:
        assert drafted(service).reason == "auth"
        assert drafted(service).reason == "circuit_open"
        assert (service.standing().circuit, len(server.seen)) == ("open", 1)
        now[0] += OPEN_S
        assert service.standing().circuit == "half_open"
        assert drafted(service).reason == "auth"
        assert drafted(service).reason == "circuit_open"
        assert len(server.seen) == 2


def test_a_call_that_is_cancelled_ends_at_once_and_is_settled(loop: EngineLoop, server: ModelServer) -> None:
    server.silent.set()
    with drafting(loop, model_url=server.url, **PRICED) as service:
        run = service.begin(ME, DraftAsk(question="what waits?", model=True))
        while not server.seen:
            run = service.run(run.id, run.serial, 0.05)
        begun = time.monotonic()
        run = service.cancel(run.id)
        assert time.monotonic() - begun < 0.2
        assert (run.model_state, run.reason, run.thinking) == ("cancelled", "cancelled", None)
        service.close()
        run = service.run(run.id)
        assert run.model_state == "cancelled"
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["outcome"], rejected["reason"]) == ("cancelled", "cancelled")
    assert spent(loop) == [(call["reserved_microusd"], call["cost_microusd"])]
    assert call["cost_microusd"] == call["reserved_microusd"] > 0, "nobody knows what the server has done by then"


def test_a_call_in_flight_is_broken_off_when_it_is_longer_than_the_budget(
    loop: EngineLoop, server: ModelServer
) -> None:
    server.floods = True
    with drafting(loop, model_url=server.url, **PRICED, model_budget_call="0.02", model_deadline="20s") as service:
        run = drafted(service)
        assert run.reason == "budget"
        assert "broken off" in run.why
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["outcome"], rejected["reason"]) == ("budget", "budget")
    assert call["max_tokens"] < 2_048, "as many as there was room for"
    [(reserved, charged)] = spent(loop)
    assert 0 < charged == reserved == call["cost_microusd"] <= 20_000


def test_the_budget_ends_exactly_and_never_below_zero(loop: EngineLoop, server: ModelServer) -> None:
    server.content = "no JSON"
    server.usage = {"prompt_tokens": 10**18, "completion_tokens": -5}
    with drafting(loop, model_url=server.url, **PRICED, model_budget_hour="0.03") as service:
        reasons = []
        runs = [service.begin(ME, DraftAsk(question=f"what of {n}?", model=True)) for n in range(8)]
        for run in runs:
            reasons.append(ended(service, run.id).reason)
        standing = service.standing()
    assert set(reasons) == {"content_not_json", "budget"}
    calls = [data for type_, data in records(loop, "llm.")]
    rejected = [data for type_, data in records(loop, "draft.rejected")]
    assert (len(calls), len(rejected)) == (reasons.count("content_not_json"), 8)
    assert standing.spent_hour_microusd == sum(call["cost_microusd"] for call in calls) <= 30_000
    assert [charged for _, charged in spent(loop)] == [call["cost_microusd"] for call in calls]
    assert all(call["estimated"] for call in calls), "figures that cannot be are not believed"


def test_of_a_thousand_requests_in_a_minute_the_rules_serve_what_the_model_is_not_asked(
    loop: EngineLoop, server: ModelServer
) -> None:
    now = [0.0]
    server.content = "no JSON"
    many = 120
    with drafting(loop, clock=lambda: now[0], model_url=server.url, model_calls_minute=5) as service:
        runs = []
        for number in range(many):
            now[0] = number * 60 / 1000
            runs.append(drafted(service, f"what of {number}?"))
        assert len(service.runs()) == MOST_KEPT
    assert all(run.rule is not None for run in runs)
    asked = sum(run.reason == "content_not_json" for run in runs)
    assert asked == len(server.seen) == 5
    assert {run.reason for run in runs} == {"content_not_json", "rate_limited"}
    assert [run.id for run in runs] == [f"D-{number + 1}" for number in range(many)]


def test_when_the_engine_stops_a_call_is_ended_and_settled(server: ModelServer) -> None:
    server.silent.set()
    with running_loop() as loop:
        with drafting(loop, model_url=server.url, **PRICED) as service:
            run = service.begin(ME, DraftAsk(question="what waits?", model=True))
            waits = threading.Thread(target=service.run, args=(run.id, 2**60, 30))
            waits.start()
            while not server.seen:
                service.run(run.id, run.serial, 0.05)
            begun = time.monotonic()
            service.close()
            assert time.monotonic() - begun < 2
            waits.join(2)
            assert not waits.is_alive()
            with pytest.raises(RefusedError, match="stops"):
                service.begin(ME, DraftAsk(question="more"))
        [(type_, call)] = records(loop, "llm.")
        assert call["outcome"] == "cancelled"
        assert spent(loop) == [(call["reserved_microusd"], call["cost_microusd"])]


def test_what_cannot_be_used_of_a_request_is_named_and_the_rules_draft_from_the_rest(loop: EngineLoop) -> None:
    with drafting(loop) as service:
        empty = drafted(service, "", model=False)
        assert "nothing was asked" in empty.notes[0]
        unknown = drafted(service, model=False, finding="R-nope", texts_of=("nobody",), runbook="none")
        assert [note.split(";")[0] for note in unknown.notes] == [
            "there is no recommendation 'R-nope'", "there is no runbook 'none'", "there is no workload 'nobody'",
        ]  # fmt: skip
        long = drafted(service, "x" * 5_000_000, model=False, excerpts=(Excerpt(field="log", text="y" * 5_000_000),))
        assert "5,000,000 characters" in long.notes[0]
        assert (len(long.ask.question), len(long.ask.excerpts[0].text)) == (2_000, 200)
        for run in (empty, unknown, long):
            assert (run.rule is not None, run.model_state) == (True, "off")
        with pytest.raises(NotFoundError, match="D-99"):
            service.run("D-99")
        with pytest.raises(RefusedError, match="no model was asked"):
            service.propose(ME, long.id, "model")
        with pytest.raises(SpecError, match="drafter"):
            service.propose(ME, long.id, "nobody")  # type: ignore[arg-type]


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with running_loop(path) as loop, drafting(loop) as service:
        assert drafted(service, model=False).id == "D-1"
    with running_loop(path) as loop, drafting(loop) as service:
        assert drafted(service, model=False).id == "D-2"
