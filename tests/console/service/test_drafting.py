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

import msgspec
import pytest

from console.service.drafting import MAX_KEPT, Drafting
from engine.loop import EngineLoop
from engine.model.commands import Cordon
from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.drafts.typed_draft import DraftAsk, DraftRun, Excerpt
from runbooks.models import limits
from runbooks.models.calls import ModelWorker
from runbooks.models.endpoint import endpoint_of
from runbooks.models.limits import OPEN_S, TTL_MS
from tests.support.drafting import KEY, drafted, drafting, ended, records
from tests.support.gates import ME, gate_of
from tests.support.model_server import NOTHING, ModelServer, model_server
from tests.support.patience import PATIENCE_S
from tests.support.served import HOUR_MS, running_loop
from tests.support.team import Member, team_gate

PRICED: dict[str, Any] = {"model_price_in": "1", "model_price_out": "5"}


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture(scope="module")
def _server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def worker(_server: ModelServer) -> Iterator[ModelWorker]:
    """Its child takes half a second to start."""
    endpoint = endpoint_of(_server.url, "made-up", egress="local", deadline_ms=300_000)
    worker = ModelWorker(endpoint, lambda: KEY)
    yield worker
    worker.close()


@pytest.fixture
def server(_server: ModelServer) -> ModelServer:
    """One for all tests, as it was at first."""
    _server.status, _server.content, _server.model, _server.floods = 200, NOTHING, "made-up", False
    _server.silent.clear()
    _server.stopped.clear()
    _server.seen.clear()
    _server.keys.clear()
    return _server


def spent(loop: EngineLoop) -> list[tuple[int, int]]:
    """(reserved, spent) of every call."""
    table = limits.SPEND.c
    query = limits.select(table.reserved, table.spent).order_by(table.id)
    return loop.call(lambda engine: engine.recorded(lambda c: [tuple(row) for row in c.execute(query)]))


def asked(service: Drafting, run: DraftRun, server: ModelServer) -> DraftRun:
    """As it is when the server has its question."""
    while not server.seen:
        run = service.run(run.id, run.serial, 0.05)
        assert not run.over, run.why
    return run


@pytest.mark.parametrize(
    ("settings", "reason", "named"),
    [
        ({"model": ""}, "not_configured", "no model is configured"),
        ({"model_url": "ftp://host/v1"}, "bad_endpoint", "neither http nor https"),
        ({"model_url": "not a url"}, "bad_endpoint", "model_url"),
        ({"model_url": "https://u:p@host/v1"}, "bad_endpoint", "MUSTER_MODEL_KEY"),
        ({"model_url": "https://host.example/v1", "model_egress": "external", "key": ""}, "no_key", "MUSTER_MODEL_KEY"),
        ({"model_url": "https://host.example/v1", "key": "", "model_key_file": "/nonexistent"}, "no_key", "cannot be"),
        pytest.param({"model_url": "http://127.0.0.1:9/v1"}, "connection", "", marks=pytest.mark.thorough),
    ],
)
def test_what_is_wrong_with_the_model_is_named_and_leaves_the_draft_by_rule(
    loop: EngineLoop, settings: dict[str, Any], reason: str, named: str
) -> None:
    with drafting(loop, **settings) as service:
        run = drafted(service)
        assert (run.model_state, run.reason, run.model) == ("rejected", reason, None)
        assert named in run.why
        assert run.rule is not None
        assert (run.rule.drafter, run.rule_state) == ("rule", "done")
        standing = service.standing()
        assert standing.problem if reason != "connection" else not standing.problem
    made = [type_ for type_, _ in records(loop, "llm.", "draft.")]
    assert made == (["llm.call", "draft.rejected"] if reason == "connection" else ["draft.rejected"])


@pytest.mark.parametrize(("status", "reason"), [(401, "auth"), (404, "model_missing"), (503, "http_503")])
def test_a_status_that_refuses_is_named_and_costs_nothing(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker, status: int, reason: str
) -> None:
    server.status = status
    with drafting(loop, worker=worker, model_url=server.url, **PRICED) as service:
        run = drafted(service)
        assert (run.reason, run.rule is not None) == (reason, True)
        assert service.standing().spent_day_microusd == 0
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["outcome"], call["status"], call["cost_microusd"], rejected["reason"]) == (reason, status, 0, reason)
    assert all(key == f"Bearer {KEY}" for key in server.keys)
    assert KEY not in json.dumps(records(loop, ""))


@pytest.mark.parametrize(
    ("status", "model", "reason", "setting"),
    [
        (401, "made-up", "auth", "MUSTER_MODEL_KEY"),
        (404, "made-up", "model_missing", "model_url"),
        (200, "another", "other_model", "model_aliases"),
    ],
)
def test_an_endpoint_that_only_a_setting_can_mend_is_left_alone_for_a_while(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker, status: int, model: str, reason: str, setting: str
) -> None:
    """The next call would be answered the same, and may cost the same."""
    now = [1_000.0]
    server.status, server.model = status, model
    with drafting(loop, worker=worker, clock=lambda: now[0], model_url=server.url) as service:
        assert drafted(service).reason == reason
        unasked = drafted(service)
        assert unasked.reason == "circuit_open"
        assert setting in unasked.why
        assert "again in 120 s" in unasked.why
        assert (service.standing().circuit, len(server.seen)) == ("open", 1)
        now[0] += OPEN_S
        assert service.standing().circuit == "half_open"
        assert drafted(service).reason == reason
        assert drafted(service).reason == "circuit_open"
        assert len(server.seen) == 2
        now[0] += OPEN_S
        server.status, server.model = 200, "made-up"
        assert drafted(service).reason == ""
        assert service.standing().circuit == "closed"


def test_the_answer_of_another_model_is_refused_unless_the_settings_list_it(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    server.model = "made-up-2026-08-06"
    with drafting(loop, worker=worker, model_url=server.url, **PRICED) as service:
        run = drafted(service)
        assert (run.model, run.reason) == (None, "other_model")
        assert "made-up-2026-08-06" in run.why
        assert 'model_aliases = ["made-up-2026-08-06"]' in run.why
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["model"], call["returned"], rejected["reason"]) == ("made-up", "made-up-2026-08-06", "other_model")
    assert call["cost_microusd"] > 0, "it was answered, and costs"
    aliases = ("made-up-2026-05-13", "made-up-2026-08-06")
    with drafting(loop, worker=worker, model_url=server.url, model_aliases=aliases, **PRICED) as service:
        run = drafted(service)
        assert run.model is not None
        assert run.model.called is not None
        assert run.model.called.returned == "made-up-2026-08-06"
    with drafting(loop, model_url=server.url, model_aliases=("two words",)) as service:
        assert "model_aliases" in service.standing().problem


def test_a_call_that_is_cancelled_ends_at_once_and_is_settled(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    server.silent.set()
    with drafting(loop, worker=worker, model_url=server.url, **PRICED) as service:
        run = service.begin(ME, DraftAsk(question="what waits?", model=True))
        run = asked(service, run, server)
        while run.rule_state == "drafting":
            run = service.run(run.id, run.serial, 10)
        assert (run.rule_state, run.model_state) == ("done", "thinking"), "the draft by rule waits for no model"
        run = service.cancel(ME, run.id)
        assert (run.model_state, run.reason, run.thinking) == ("cancelled", "cancelled", None)
        service.close()
        run = service.run(run.id)
        assert run.model_state == "cancelled"
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["outcome"], rejected["reason"]) == ("cancelled", "cancelled")
    assert spent(loop) == [(call["reserved_microusd"], call["cost_microusd"])]
    assert call["cost_microusd"] == call["reserved_microusd"] > 0, "nobody knows what the server has done by then"


def test_a_call_in_flight_is_broken_off_when_it_is_longer_than_the_budget(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    server.floods = True
    with drafting(loop, worker=worker, model_url=server.url, **PRICED, model_budget_call="0.02") as service:
        run = drafted(service)
        assert run.reason == "budget"
        assert "broken off" in run.why
    (_, call), (_, rejected) = records(loop, "llm.", "draft.")
    assert (call["outcome"], rejected["reason"]) == ("budget", "budget")
    assert call["max_tokens"] < 2_048, "as many as there was room for"
    [(reserved, charged)] = spent(loop)
    assert 0 < charged == reserved == call["cost_microusd"] <= 20_000


def test_the_budget_ends_exactly_and_never_below_zero(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    server.content = "no JSON"
    server.usage = {"prompt_tokens": 10**18, "completion_tokens": -5}
    with drafting(loop, worker=worker, model_url=server.url, **PRICED, model_budget_hour="0.03") as service:
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


@pytest.mark.parametrize("many", [60, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_of_a_thousand_requests_in_a_minute_the_rules_serve_those_that_no_model_is_asked(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker, many: int
) -> None:
    now = [0.0]
    server.content = "no JSON"
    with drafting(loop, worker=worker, clock=lambda: now[0], model_url=server.url, model_calls_minute=5) as service:
        runs = []
        for number in range(many):
            now[0] = number * 60 / 1000
            runs.append(drafted(service, f"what of {number}?"))
        assert len(service.runs()) == MAX_KEPT
    assert all(run.rule is not None for run in runs)
    asked = sum(run.reason == "content_not_json" for run in runs)
    assert asked == len(server.seen) == 5 + int(now[0] * 5 / 60)
    assert {run.reason for run in runs} == {"content_not_json", "rate_limited"}
    assert [run.id for run in runs] == [f"D-{number + 1}" for number in range(many)]
    assert len(records(loop, "draft.rejected")) == many


@pytest.mark.thorough
def test_a_call_of_an_engine_that_was_killed_is_settled_as_spent(tmp_path: Path, server: ModelServer) -> None:
    server.silent.set()
    path = tmp_path / "journal.db"
    worker = Path(__file__).parents[2] / "support" / "draft_crash_worker.py"
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(
        [sys.executable, str(worker), str(path), server.url], env=environment, cwd=root, stdout=subprocess.DEVNULL
    ) as process:
        while not server.seen and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert server.seen
    with running_loop(path) as loop, drafting(loop, model="") as service:
        [(reserved, charged)] = spent(loop)
        (_, call), (_, rejected) = records(loop, "llm.", "draft.")
        assert (rejected["draft"], rejected["reason"]) == ("D-7", "worker")
        assert 0 < reserved == charged == call["cost_microusd"]
        assert (call["outcome"], call["draft"], call["endpoint"]) == ("lost", "D-7", server.url)
        service.open()
        assert len(records(loop, "llm.")) == 1, "once"


@pytest.mark.thorough
def test_when_the_engine_stops_a_call_is_ended_and_settled(server: ModelServer) -> None:
    server.silent.set()
    with running_loop() as loop:
        with drafting(loop, model_url=server.url, **PRICED) as service:
            run = service.begin(ME, DraftAsk(question="what waits?", model=True))
            waits = threading.Thread(target=service.run, args=(run.id, 2**60, 30))
            waits.start()
            run = asked(service, run, server)
            service.close()
            waits.join(PATIENCE_S)
            assert not waits.is_alive()
            with pytest.raises(RefusedError, match="is stopping"):
                service.begin(ME, DraftAsk(question="more"))
        [(_, call)] = records(loop, "llm.")
        assert call["outcome"] == "cancelled"
        assert spent(loop) == [(call["reserved_microusd"], call["cost_microusd"])]


def test_what_cannot_be_used_of_a_request_is_named_and_the_rules_draft_from_the_rest(loop: EngineLoop) -> None:
    with drafting(loop) as service:
        empty = drafted(service, "", model=False)
        assert "no question given" in empty.notes[0]
        unknown = drafted(service, model=False, finding="R-nope", texts_of=("nobody",), runbook="none")
        assert [note.split(";")[0] for note in unknown.notes] == [
            "there is no recommendation 'R-nope'", "there is no runbook 'none'", "there is no workload 'nobody'",
        ]  # fmt: skip
        long = drafted(service, "x" * 5_000_000, model=False, excerpts=(Excerpt(field="log", text="y" * 5_000_000),))
        assert "5,000,000 characters" in long.notes[0]
        assert (len(long.ask.question), len(long.ask.excerpts[0].text)) == (2_000, 200)
        half = drafted(service, "\ud800 \x1b[2J", model=False, finding="\ud800", texts_of=("\ud800",), runbook="\ud800")
        for run in (empty, unknown, long, half):
            assert msgspec.json.encode(run)
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


# -- the same question again -------------------------------------------------------------------------------------------


def test_the_same_question_about_the_same_facts_is_answered_once_and_recorded_each_time(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    loop.paused = True
    now = [0.0]
    with drafting(loop, worker=worker, clock=lambda: now[0], model_url=server.url, **PRICED) as service:
        first, second = drafted(service), drafted(service)
        assert (first.model_state, second.model_state, len(server.seen)) == ("done", "done", 1)
        assert second.model is not None
        assert second.model.called is not None
        assert (second.model.called.cached, second.model.called.cost_microusd) == (True, 0)
        assert first.agreement == "both propose no action"
        drafted(service, "what else waits?")
        assert len(server.seen) == 2, "another question is another"
        now[0] += TTL_MS / 1000
        drafted(service)
        assert len(server.seen) == 3, "what it rests on is too old"
        loop.call(lambda engine: engine.advance(engine.now_ms + TTL_MS))
        drafted(service)
        assert len(server.seen) == 4, "older in the cell's time is older too"
    made = records(loop, "llm.", "draft.")
    assert [type_ for type_, _ in made] == ["llm.call", "draft.created"] * 5
    assert [data["cached"] for type_, data in made if type_ == "llm.call"] == [False, True, False, False, False]
    assert sum(charged for _, charged in spent(loop)) == sum(data.get("cost_microusd", 0) for _, data in made) > 0


def test_what_was_of_no_use_is_asked_again(loop: EngineLoop, server: ModelServer, worker: ModelWorker) -> None:
    loop.paused = True
    server.content = {**NOTHING, "approved_by": "alice"}
    with drafting(loop, worker=worker, model_url=server.url) as service:
        assert [drafted(service).reason for _ in range(2)] == ["schema", "schema"]
    assert len(server.seen) == 2


def test_a_server_that_sends_the_key_back_has_it_nowhere(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    server.content = {**NOTHING, "summary": f"The key is {KEY}."}
    with drafting(loop, worker=worker, model_url=server.url) as service:
        run = drafted(service)
        assert (run.reason, run.model) == ("leak_detected", None)
        assert KEY not in json.dumps(records(loop, "")) + str(service.runs()) + str(service.standing())


# -- proposing ---------------------------------------------------------------------------------------------------------

UNCORDON = {
    **NOTHING, "title": "Take g0 back", "summary": "Node g0 takes no work.",
    "steps": [{"action": "uncordon", "with": {"nodes": ["g0"]}}],
}  # fmt: skip


def forgotten(loop: EngineLoop) -> None:
    """A node that somebody cordoned two hours ago."""
    loop.paused = True
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))


def test_one_person_alone_may_approve_what_they_had_drafted(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    forgotten(loop)
    server.content = UNCORDON
    gate = gate_of(loop.engine)
    with drafting(loop, gate, worker=worker, model_url=server.url) as service:
        run = drafted(service, "node g0 is still cordoned", pick="cordoned")
        assert run.agreement == "same action and target"
        assert loop.call(lambda engine: engine.node("g0")).state == "cordoned", "a draft does nothing"
        shown = service.propose(ME, run.id, "model", "looked at it")
        assert (shown.state, shown.plan.origin, shown.plan.requester) == ("awaiting", "model", ME.subject)
        assert (shown.plan.author.subject, shown.plan.author.kind) == ("service:llm-drafter", "llm")
        assert shown.reason == "looked at it"
        assert service.propose(ME, run.id, "model").id == shown.id, "the same once more is the same"
        other = service.propose(ME, run.id, "rule")
        assert (other.plan.origin, other.plan.author.subject) == ("recommender", "service:recommender")
        assert service.run(run.id).proposed == (("model", shown.id), ("rule", other.id))
        outcome = loop.call(lambda _: gate.approve(ME, shown.id, shown.digest, "seen"))
        assert outcome.state == "verified"
        record = service.standing().record
        assert record is not None
        assert (record.drafted, record.proposed, record.approved, record.verified) == (1, 1, 1, 1)
    assert loop.call(lambda engine: engine.node("g0")).state == "ready"


def test_in_a_team_who_asked_for_a_draft_does_not_approve_it(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    forgotten(loop)
    server.content = UNCORDON
    gate = team_gate(loop.engine, lambda: 1_000_000)
    ann, ben, eve = (Member(gate, name) for name in ("ann", "ben", "eve"))
    with drafting(loop, gate, worker=worker, model_url=server.url) as service:
        run = drafted(service, "node g0 is still cordoned", pick="cordoned", actor=ann.actor)
        for drafter in ("model", "rule"):
            shown = service.propose(ann.actor, run.id, drafter)
            assert (shown.plan.requester, shown.self_approvable) == ("person:ann", False)
            with pytest.raises(RefusedError, match="asked for it"):
                loop.call(lambda _, shown=shown: ann.yes(shown))
            with pytest.raises(RefusedError, match="eve is not"):
                service.propose(eve.actor, run.id, drafter)
        assert loop.call(lambda _: ben.yes(shown)).state == "verified"
        seen = len(server.seen)
        looked = drafted(service, "node g1 is cordoned", actor=eve.actor)
        assert (looked.reason, len(server.seen)) == ("policy_denied", seen)
        assert "eve is not" in looked.why
        assert looked.rule is not None, "who may look may have the rules look"


def test_who_may_not_ask_may_not_break_off_what_another_asked(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    gate = team_gate(loop.engine, lambda: 1_000_000)
    ann, ben, eve = (Member(gate, name).actor for name in ("ann", "ben", "eve"))
    server.silent.set()
    with drafting(loop, gate, worker=worker, model_url=server.url) as service:
        for ends in (ann, ben):
            run = service.begin(ann, DraftAsk(question="what waits?", model=True))
            with pytest.raises(RefusedError, match="eve is not"):
                service.cancel(eve, run.id)
            assert service.run(run.id).model_state == "thinking"
            assert service.cancel(ends, run.id).model_state == "cancelled"


def test_secrets_in_what_was_asked_are_not_told_to_who_may_only_look(loop: EngineLoop) -> None:
    secret = "AKIA2E0A8F3B244C9986"
    pasted = (Excerpt(field="log", text=f"{'x ' * 94}{secret}"), Excerpt(field="DB_PASSWORD", text="hunter2"))
    with drafting(loop) as service:
        run = drafted(service, f"why does it fail with password=hunter2 and {secret}?", model=False, excerpts=pasted)
        told = msgspec.json.encode(service.runs()).decode()
        assert secret[:8] not in told
        assert "hunter2" not in told
        assert run.ask.question.startswith("why does it fail with password=")


def test_two_who_share_an_account_are_two_when_both_sign(
    loop: EngineLoop, server: ModelServer, worker: ModelWorker
) -> None:
    forgotten(loop)
    server.content = UNCORDON
    gate = team_gate(loop.engine, lambda: 1_000_000)
    ann = Member(gate, "ann").actor
    ben = Member(gate, "ben", at=ann.account)
    with drafting(loop, gate, worker=worker, model_url=server.url) as service:
        run = drafted(service, "node g0 is cordoned", actor=ann)
        unsigned = service.propose(ann, run.id, "model")
        with pytest.raises(RefusedError, match="account"):
            loop.call(lambda _: ben.yes(unsigned))
        loop.call(lambda _: gate.cancel(ann, unsigned.id))
        by_key = msgspec.structs.replace(ann, signed=True)
        signed = service.propose(by_key, run.id, "model")
        assert signed.id != unsigned.id
        assert loop.call(lambda _: ben.yes(signed)).state == "verified"


def test_where_nothing_can_be_written_no_model_is_asked_and_the_rules_draft(
    tmp_path: Path, server: ModelServer, worker: ModelWorker
) -> None:
    with (
        running_loop(tmp_path / "journal.db") as loop,
        drafting(loop, worker=worker, model_url=server.url, **PRICED) as service,
    ):
        drafted(service, "what waits?", model=False)
        loop.call(lambda engine: engine.record(lambda c: c.exec_driver_sql("PRAGMA query_only = ON")))
        run = drafted(service)
        assert (run.reason, run.rule is not None, len(server.seen)) == ("budget", True, 0)
        assert "cannot be written down" in run.why
        loop.call(lambda engine: engine.recorded(lambda c: c.exec_driver_sql("PRAGMA query_only = OFF")))
        assert drafted(service).model_state == "done"
        assert len(server.seen) == 1


NO_MORE_RECORDS = (
    "CREATE TRIGGER no_more_records BEFORE INSERT ON audit_record BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
)


@pytest.mark.thorough
def test_a_call_whose_end_cannot_be_written_is_settled_as_spent(
    tmp_path: Path, server: ModelServer, worker: ModelWorker
) -> None:
    server.silent.set()
    with (
        running_loop(tmp_path / "journal.db") as loop,
        drafting(loop, worker=worker, model_url=server.url, **PRICED) as service,
    ):
        run = service.begin(ME, DraftAsk(question="what of b?", model=True))
        run = asked(service, run, server)
        loop.call(lambda engine: engine.record(lambda c: c.exec_driver_sql(NO_MORE_RECORDS)))
        service.close()
        loop.call(lambda engine: engine.record(lambda c: c.exec_driver_sql("DROP TRIGGER no_more_records")))
        service.standing()
        assert spent(loop)[-1][0] == spent(loop)[-1][1]
        assert [data["outcome"] for _, data in records(loop, "llm.")] == ["lost"]
