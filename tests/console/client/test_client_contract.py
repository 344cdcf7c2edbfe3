"""One contract for both clients: in process, and over HTTP on a Unix socket."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from console.client.credentials import TokenAsk
from console.client.presence import PresenceAsk
from console.client.protocol import Client
from console.client.remote import RemoteClient
from console.server.operations import LONGEST_WAIT_S
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.executors.task_files import AttemptKey, OutputRequest, attempt_folder
from engine.loop import EngineLoop
from engine.model.commands import AddPools, AddQueues, Cancel, Cordon, SetPolicy, Submit
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError, UnreachableError
from engine.model.list_queries import Named, Query, Term
from engine.model.reports import ShowbackRequest
from engine.model.specs import BudgetSpec, BurstSpec, QueueSpec, ReservationSpec
from engine.model.twin_queries import Ask, AskRun, AskStart, DryRun, Outlook, RunStatus, StartEstimate, WhatIf
from engine.model.what_if_edits import FailNodesEdit, Nodes, SetWeightEdit
from recommender.estimates.queries import ForecastRequest, Quantiles, QuoteRequest, SizingRequest
from recommender.history.metrics import HistoryRequest, RunBatch, RunRecord, SampleBatch, SampleRow
from runbooks.drafts.typed_draft import DraftAsk, DraftRun
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.identity import Scope
from runbooks.plans.queries import AuditQuery, IntentAnswer, RunbookAsk, RunbookVote
from runbooks.plans.typed_plan import Act, MoneyChange, QueueChange, Request, StepRequest, asks
from tests.support.elastic_cells import pool, work
from tests.support.gates import gate_of
from tests.support.made_up_slurm import decided_by_slurm, put_in_doubt
from tests.support.patience import PATIENCE_S
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix, socket_folder

Connect = Callable[..., Client]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture(params=["local", "remote"])
def connect(request: pytest.FixtureRequest, loop: EngineLoop) -> Iterator[Connect]:
    with ExitStack() as after:
        if request.param == "local":
            gate, advisor = gate_of(loop.engine), Advisor(loop)
            yield lambda read_only=False: LocalClient(loop, gate, advisor, read_only, name="lab")
            return
        path = after.enter_context(served_on_unix(loop))

        def remote(read_only: bool = False) -> Client:
            client = RemoteClient(str(path), read_only)
            after.callback(client.close)
            return client

        yield remote


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


def submit(client: Client, *ids: str, **options: Any) -> None:
    client.command(Submit(workloads=tuple(gpu_job(workload_id, **options) for workload_id in ids)))


def test_health_names_the_cell(client: Client) -> None:
    health = client.health()
    assert (health.name, health.cell, health.speed, health.paused) == ("lab", "test", 1.0, False)
    assert health.journal_error == ""
    assert health.version > 0


def test_a_submission_is_seen_everywhere(client: Client) -> None:
    receipt = client.command(Submit(workloads=(gpu_job("a"), gpu_job("b", tasks=4))))
    assert receipt.changed == ("a", "b")
    assert client.overview().states["running"] == 1
    page = client.query(Query(kind="workloads", columns=("id", "state"), where=(Term("state", "=", "queued"),)))
    assert page.rows == [["b", "queued"]]
    assert (page.matched, page.total) == (1, 2)
    assert client.workload("b").reasons
    node = client.workload("a").placement[0].node
    assert client.node(node).workloads == (("a", 1),)


def test_what_happens_is_followed_from_a_version_or_from_now_on(client: Client) -> None:
    submit(client, "a")
    begun = client.health().version
    submit(client, "b")

    def until(subject: str, after: int) -> list[str]:
        seen: list[str] = []
        with closing(client.follow(after)) as following:
            for found in following:
                seen += [item.subject for item in found.items]
                if subject in seen:
                    return seen
                if after < 0 and not seen:
                    submit(client, subject)
        return seen

    assert "a" not in until("b", begun)
    assert not {"a", "b"} & set(until("c", -1))


def test_definitions_are_requests_too(client: Client) -> None:
    client.command(AddQueues(queues=(QueueSpec(name="night"),)))
    assert client.query(Query(kind="queues", columns=("name",), where=(Term("name", "=", "night"),))).matched == 1


def test_ids_with_slashes_and_dots_arrive_whole(client: Client) -> None:
    submit(client, "team/a/../b")
    assert client.workload("team/a/../b").id == "team/a/../b"


def test_an_id_that_ends_like_a_route_is_still_an_id(client: Client) -> None:
    submit(client, "a", "b/estimate")
    assert client.workload("b/estimate").id == "b/estimate"
    asked = client.estimate("b/estimate")
    assert asked is not None
    assert (asked.basis, asked.samples) == ("request", 0)
    with pytest.raises(NotFoundError, match="'b'"):
        client.estimate("b")
    with pytest.raises(NotFoundError, match="'a/estimate'"):
        client.workload("a/estimate")


def test_processes_and_output_of_a_cell_without_any_say_so(client: Client) -> None:
    submit(client, "train-0")
    assert client.processes("train-0").why_none == "this cell runs no real work"
    with pytest.raises(RefusedError, match="this cell runs no real work"):
        client.output(OutputRequest(id="train-0"))
    with pytest.raises(NotFoundError):
        client.processes("nobody")
    with pytest.raises(NotFoundError):
        client.output(OutputRequest(id="nobody"))


@pytest.mark.parametrize("name", ["a", "team/a", "a/output"])
def test_what_was_written_comes_over_as_it_is(client: Client, loop: EngineLoop, tmp_path: Path, name: str) -> None:
    """Whatever bytes there are, whatever slashes the id has."""
    submit(client, name)
    key = AttemptKey(name, client.workload(name).submitted_ms, 1)
    folder = attempt_folder(tmp_path, key) / "main.0"
    folder.mkdir(parents=True)
    (folder / "output.00000000000000000000").write_bytes(bytes(range(256)))
    loop.engine.processes = SimpleNamespace(root=tmp_path)  # type: ignore[assignment]
    part = client.output(OutputRequest(id=name, task="0", attempt=1, offset=250, most=100), wait_s=1.0)
    assert (part.data, part.offset, part.end, part.task) == (bytes(range(250, 256)), 250, 256, "main.0")
    assert client.output(OutputRequest(id=name, offset=-4)).data == bytes(range(252, 256))
    assert [task.name for task in client.processes(name).attempts[0].tasks] == ["main.0"]


def test_an_estimate_comes_from_the_request_until_work_has_finished(client: Client, loop: EngineLoop) -> None:
    submit(client, *(f"train-{number}" for number in range(20)))
    early = client.estimate("train-0")
    assert early is not None
    assert (early.basis, early.samples, early.scored, early.p90_coverage_permille) == ("request", 0, 0, None)
    loop.call(lambda engine: engine.advance(engine.now_ms + 6 * HOUR_MS))
    likely = client.estimate("train-0")
    assert likely is not None
    assert [round(ms / 60_000) for ms in (likely.p10_ms, likely.p50_ms, likely.p90_ms)] == [59, 60, 61]
    assert (likely.basis, likely.samples, likely.level) == ("likes", 20, "tenant, name and size")
    assert (likely.learnt, likely.scored, likely.p90_coverage_permille, likely.within2x_permille) == (
        20,
        20,
        1000,
        1000,
    )
    assert likely.median_abs_log_error == pytest.approx(math.log(2))  # half the request was said of each


def test_what_would_let_work_start_is_told_and_not_done(connect: Connect, loop: EngineLoop) -> None:
    submit(connect(), "a", "b", "a/unblocking", tasks=4)
    before = loop.call(lambda engine: (engine.version, engine.state.digest()))
    client = connect(read_only=True)
    answer = client.unblocking("b")
    assert answer.version == before[0]
    assert answer.found is not None
    assert (answer.found.kind, answer.found.starts, answer.found.smallest) == ("capacity", "b", True)
    assert answer.found.edits[0]["do"] == "add_nodes"
    assert client.unblocking("a").found is None
    assert client.workload("a/unblocking").id == "a/unblocking"
    with pytest.raises(NotFoundError, match="'nothing'"):
        client.unblocking("nothing")
    assert loop.call(lambda engine: (engine.version, engine.state.digest())) == before


def test_when_waiting_work_may_start_is_told_and_nothing_is_written(connect: Connect, loop: EngineLoop) -> None:
    loop.call(lambda _: setattr(loop.twins.starts, "keep", lambda: False))
    submit(connect(), "a", "b", "a/start", tasks=4)
    before = loop.call(lambda engine: (engine.version, engine.state.digest(), len(engine.estimates())))
    client = connect(read_only=True)
    found = client.start_forecast("b")
    assert found is not None
    assert (found.kind, found.alike) == ("room", 0)
    assert found.p10_ms is not None
    assert found.p90_ms is not None
    assert found.at_ms <= found.p10_ms < found.p90_ms
    assert client.start_forecast("a") is None
    assert client.workload("a/start").id == "a/start"
    with pytest.raises(NotFoundError, match="'nothing'"):
        client.start_forecast("nothing")
    assert loop.call(lambda engine: (engine.version, engine.state.digest(), len(engine.estimates()))) == before


def test_recommendations_are_shown_and_not_done(connect: Connect, loop: EngineLoop) -> None:
    client = connect(read_only=True)
    assert client.recommendations().open == ()
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    [found] = client.recommendations().open
    assert (found.suggestion.action, found.suggestion.targets) == ("uncordon", ("g0",))
    assert found.suggestion.evidence[0].value == "2.0 h"
    assert client.node("g0").state == "cordoned"
    assert client.recommendation(found.suggestion.id.upper()).command == found.command
    with pytest.raises(NotFoundError, match="R-nope"):
        client.recommendation("R-nope/../x")


def test_a_recommendation_is_rejected_only_by_who_may_act(connect: Connect, loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    client = connect()
    [found] = client.recommendations().open
    with pytest.raises(RefusedError, match="read-only"):
        connect(read_only=True).reject_recommendation(found.suggestion.id, "broken fan")
    assert client.reject_recommendation(found.suggestion.id, "broken fan").state == "rejected"
    view = client.recommendations()
    assert (view.open, [each.state for each in view.aside]) == ((), ["rejected"])
    assert "broken fan" in view.aside[0].note
    with pytest.raises(RefusedError, match="already"):
        client.reject_recommendation(found.suggestion.id, "again")


def test_what_stands_beside_the_cell_is_found_by_its_id_too(client: Client, loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    [advice] = client.recommendations().open
    draft = ended_draft(client, DraftAsk(question="node g0 is still cordoned", pick="cordoned"))
    run = ended(client, AskRun(workloads=(gpu_job("probe"),), seeds=2))
    assert client.find(advice.suggestion.id) == (
        Named("recommendation", advice.suggestion.id, advice.suggestion.finding),
    )
    assert client.find(draft.id) == (Named("draft", draft.id, "done"),)
    assert client.find(run.id) == (Named("run", run.id, run.state),)
    assert client.find("drain-failing-node")[0].kind == "runbook"


def test_without_a_history_there_is_no_forecast(client: Client) -> None:
    with pytest.raises(NotFoundError, match="no measurements yet of queue:a"):
        client.forecast(ForecastRequest(subject="queue:a"))
    for wrong in (ForecastRequest(subject="queue"), ForecastRequest(hours=0), ForecastRequest(metric="demand_gpus")):
        with pytest.raises(SpecError):
            client.forecast(wrong)


def test_sizes_and_placement_are_told_by_both(client: Client, loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("train-1"),))))
    assert client.sizing(SizingRequest()).kinds == ()
    assert "no usage data" in client.sizing(SizingRequest(workload_id="train-1")).unknown[0]
    advice = client.advice_on("train-1")
    assert [(option.pool, option.basis, option.allowed) for option in advice.options] == [("gpu", "price only", True)]
    for ask in (lambda: client.sizing(SizingRequest(workload_id="none")), lambda: client.advice_on("none/advice")):
        with pytest.raises(NotFoundError):
            ask()


def test_a_queue_is_told_whole_with_the_spec_it_has(client: Client) -> None:
    queue = client.queue("root")
    assert (queue.name, queue.mode, queue.closed_by, queue.leaves) == ("root", "open", "", ("a", "b"))
    assert client.queue("a").spec.parent == "root"


def test_who_holds_what_and_who_went_first(client: Client) -> None:
    submit(client, "a")
    submit(client, "b", gpus=4)
    report = client.fairness()
    assert {vertex.name: vertex.used.get("gpu_milli") for vertex in report.queues} == {
        "root": 12_000, "a": 12_000, "b": None,
    }  # fmt: skip
    assert [made.workload for made in report.decisions] == ["b", "a"]


def test_a_quota_is_changed_by_a_plan_that_carries_the_spec(client: Client) -> None:
    was = client.queue("b").spec
    change = QueueChange(was=was, to=msgspec.structs.replace(was, weight=7), over="evict")
    proposal = client.propose(asks("set_quota", ("b",), queue=change))
    assert proposal.plan.steps[0].act.queue == change
    client.approve(proposal.id, proposal.digest)
    assert client.queue("b").spec.weight == 7


def test_the_list_of_queues_tells_loans_and_modes(client: Client) -> None:
    eight = {"gpu_milli": 8000}
    queues = (
        QueueSpec(name="lab"), QueueSpec(name="day", parent="lab", nominal=eight),
        QueueSpec(name="night", parent="lab", nominal=eight),
    )  # fmt: skip
    client.command(AddQueues(queues=queues))
    submit(client, "x", "y", queue="night")
    hold = client.propose(asks("hold_queue", ("lab",)))
    client.approve(hold.id, hold.digest)
    where = tuple(Term("name", "=", queue.name) for queue in queues)
    columns = ("name", "state", "running", "gpu_borrowed", "gpu_lent", "burst")
    assert client.query(Query(kind="queues", columns=columns, where=where)).rows == [
        ["lab", "held", 2, 0, 0, ""], ["day", "held", 0, 0, 8000, ""], ["night", "held", 2, 8000, 0, ""],
    ]  # fmt: skip
    night = client.queue("night")
    assert (night.mode, night.closed_by, night.over) == ("open", "lab", {})
    change = QueueChange(was=night.spec, to=msgspec.structs.replace(night.spec, nominal={"gpu_milli": 0}), over="keep")
    less = client.propose(asks("set_quota", ("night",), queue=change))
    client.approve(less.id, less.digest)
    assert client.queue("night").over == eight


def test_the_list_of_queues_tells_bursts_and_what_is_left_of_them(client: Client, loop: EngineLoop) -> None:
    burst = BurstSpec(limit={"gpu_milli": 16_000}, window_ms=HOUR_MS // 2, cooldown_ms=HOUR_MS)
    client.command(AddQueues(queues=(QueueSpec(name="night", nominal={"gpu_milli": 8000}, burst=burst),)))
    query = Query(kind="queues", columns=("burst", "burst_left"), where=(Term("name", "=", "night"),))
    submit(client, "x", queue="night")
    assert client.query(query).rows == [["idle", None]]
    submit(client, "y", queue="night")
    [[state, left]] = client.query(query).rows
    assert state == "burst"
    assert 0 < left <= HOUR_MS // 2
    loop.call(lambda engine: engine.advance(engine.now_ms + HOUR_MS // 2))
    [[state, left]] = client.query(query).rows
    assert state == "cooldown"
    assert 0 < left <= HOUR_MS


def test_nodes_are_reserved_and_listed(client: Client) -> None:
    now_ms = client.health().now_ms
    wanted = ReservationSpec(name="m", nodes=("g0",), start_ms=now_ms + HOUR_MS, end_ms=now_ms + 2 * HOUR_MS)
    proposal = client.propose(asks("reserve", ("m",), reservation=wanted))
    client.approve(proposal.id, proposal.digest)
    page = client.query(Query(kind="reservations", columns=("name", "state", "nodes", "queues")))
    assert page.rows == [["m", "ahead", 1, ""]]


def test_pools_and_orders_are_listed(client: Client, loop: EngineLoop) -> None:
    new = pool("new", cpu=8, price=70, most=3, zones=("z1",), boot_ms=(HOUR_MS // 5, HOUR_MS // 5))
    client.command(AddPools(pools=(new,)))
    client.command(Submit(workloads=(work("w", queue="a", cpu=8, count=2, pools=("new",)),)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 60_000))
    columns = ("name", "nodes", "booting", "ordered", "least", "most", "price", "spot", "backed_off")
    rows = client.query(Query(kind="pools", columns=columns, where=(Term("name", "=", "new"),))).rows
    assert rows == [["new", 2, 2, 0, 0, 3, 70, "on-demand", None]]
    page = client.query(Query(kind="orders", columns=("id", "state", "pool", "zone", "nodes", "granted", "workload")))
    assert page.rows == [["0", "filled", "new", "z1", 2, 2, "w"]]
    [[ordered, ready]] = client.query(Query(kind="orders", columns=("ordered", "ready"))).rows
    assert HOUR_MS // 5 <= ready - ordered < HOUR_MS // 5 + 10_000
    assert "waiting for nodes: order 0, 2 of new" in client.workload("w").reasons[-1].text
    [seen] = [each for each in client.overview().pools if each.name == "new"]
    assert (seen.nodes, seen.ready, seen.booting) == (2, 0, 2)


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda client: client.queue("nothing"), NotFoundError),
        (lambda client: client.propose(asks("set_quota", ("a",))), SpecError),
        (lambda client: client.propose(asks("reserve", ("m",))), SpecError),
        (lambda client: client.workload("nothing"), NotFoundError),
        (lambda client: client.node("nothing"), NotFoundError),
        (lambda client: client.estimate("nothing"), NotFoundError),
        (lambda client: client.propose(asks("cancel", ("nothing",))), NotFoundError),
        (lambda client: client.approve("P-0-000000", "0" * 64), NotFoundError),
        (lambda client: client.query(Query(kind="workloads", columns=("nothing",))), SpecError),
        (lambda client: client.query(Query(kind="workloads", offset=-1)), SpecError),
        (lambda client: client.propose(asks("cancel", ())), SpecError),
        (lambda client: client.command(Submit(workloads=(gpu_job("a", queue="nowhere"),))), MusterError),
        (lambda client: client.command(Cancel(ids=("a",))), RefusedError),
        (lambda client: client.command(SetPolicy(policy="fcfs")), RefusedError),
    ],
)
def test_errors_are_of_the_named_kind_and_say_what_was_wrong(
    client: Client, ask: Callable[[Client], object], kind: type[MusterError]
) -> None:
    before = client.health().version
    with pytest.raises(kind) as caught:
        ask(client)
    assert caught.value.problem
    assert client.health().version == before


def test_the_same_submission_twice_runs_once(client: Client) -> None:
    submit(client, "a")
    with pytest.raises(MusterError, match="a"):
        submit(client, "a")
    assert client.query(Query(kind="workloads")).total == 1


def test_an_action_is_proposed_shown_and_done_once(client: Client) -> None:
    submit(client, "a")
    proposal = client.propose(asks("cancel", ("a",), "a test"))
    assert proposal.reason == "a test"
    assert proposal.plan.author.subject
    assert client.workload("a").state == "running"
    with pytest.raises(RefusedError):
        client.approve(proposal.id, "0" * 64)
    with pytest.raises(RefusedError, match="needs a reason"):
        client.approve(proposal.id, proposal.digest)
    outcome = client.approve(proposal.id, proposal.digest, "seen and wanted")
    assert (outcome.changed, outcome.state) == (("a",), "verified")
    assert client.workload("a").state == "cancelled"
    with pytest.raises(RefusedError, match="executed"):
        client.approve(proposal.id, proposal.digest, "seen and wanted")


def test_a_preview_shows_what_a_proposal_would_and_keeps_nothing(connect: Connect) -> None:
    wanted = asks("drain", ("g0",), "a test")
    shown = connect(read_only=True).preview(wanted)
    assert (shown.state, shown.revision, connect().proposals()) == ("simulated", 0, ())
    kept = connect().propose(wanted)
    assert (kept.title, kept.steps, kept.effects, kept.tier) == (shown.title, shown.steps, shown.effects, shown.tier)
    with pytest.raises(NotFoundError, match="g9"):
        connect().preview(asks("drain", ("g9",)))


def test_the_life_of_a_proposal_is_the_same_for_both(client: Client) -> None:
    steps = tuple(
        StepRequest(id=name, act=Act(action="cordon", targets=(node,)), confirm=confirm)
        for name, node, confirm in (("one", "g0", "none"), ("two", "g1", "operator"))
    )
    shown = client.propose(Request(steps=steps[:1], start="asked"))
    shown = client.revise(shown.id, Request(steps=steps, start="asked"))
    assert (shown.revision, shown.state, len(shown.plan.steps)) == (2, "awaiting", 2)
    assert client.vote(shown.id, shown.digest, "abstain", "not mine").needs == 1
    assert client.vote(shown.id, shown.digest, "approve").state == "approved"
    assert client.execute(shown.id).state == "paused"
    assert client.confirm(shown.id, "two").state == "verified"
    assert [each.state for each in client.proposal(shown.id).standing] == ["verified", "verified"]
    assert client.rollback(shown.id, "enough").state == "rolled_back"
    assert {client.node("g0").state, client.node("g1").state} == {"ready"}
    for deed in (lambda: client.pause(shown.id), lambda: client.resume(shown.id), lambda: client.cancel(shown.id)):
        with pytest.raises(RefusedError):
            deed()
    other = client.propose(asks("cordon", ("g0",)))
    assert client.cancel(other.id, "not needed").state == "cancelled"
    third = client.propose(asks("cordon", ("g0",)))
    assert client.vote(third.id, third.digest, "reject", "not today").state == "rejected"
    assert [each.id for each in client.proposals(("rejected", "cancelled"))] == [third.id, other.id]


def test_the_glass_freezes_and_reviews_are_the_same_for_both(client: Client) -> None:
    shown = client.propose(asks("drain", ("g0",)))
    with pytest.raises(RefusedError, match="reason"):
        client.break_glass(shown.id, shown.digest, "")
    client.freeze(FreezeSpec(name="nights", weekly=("daily 22:00 - 06:00",)))
    assert [each.spec.name for each in client.freezes()] == ["nights"]
    client.thaw("nights")
    assert client.freezes() == ()
    assert client.break_glass(shown.id, shown.digest, "the rack is on fire").state == "verified"
    [review] = client.reviews()
    assert (review.forced, review.proposal) == (True, shown.id)
    with pytest.raises(RefusedError, match="your own action"):
        client.close_review(review.id, "it was right to do so")
    with pytest.raises(NotFoundError):
        client.thaw("nights")


def test_health_says_who_approves(client: Client) -> None:
    assert (client.health().approval, client.health().audit_error) == ("solo", "")


def test_read_only_refuses_every_change_and_shows_everything(connect: Connect) -> None:
    submit(connect(), "a")
    client = connect(read_only=True)
    assert client.read_only
    assert client.workload("a").state == "running"
    for change in (
        lambda: submit(client, "b"),
        lambda: client.propose(asks("cancel", ("a",))),
        lambda: client.approve("P-1-abcdef", "0" * 64),
        lambda: client.revise("P-1", asks("cancel", ("a",))),
        lambda: client.vote("P-1", "0" * 64, "reject"),
        lambda: client.execute("P-1"),
        lambda: client.pause("P-1"),
        lambda: client.resume("P-1"),
        lambda: client.confirm("P-1", "1"),
        lambda: client.rollback("P-1"),
        lambda: client.cancel("P-1"),
        lambda: client.break_glass("P-1", "0" * 64, "a test of it"),
        lambda: client.close_review(1, "seen and understood"),
        lambda: client.freeze(FreezeSpec(name="x", weekly=("daily 22:00 - 06:00",))),
        lambda: client.thaw("x"),
        lambda: client.create_token(TokenAsk(name="x")),
        lambda: client.revoke_token("0" * 12),
    ):
        with pytest.raises(RefusedError, match="read-only"):
            change()


def test_tokens_are_made_listed_and_revoked(connect: Connect) -> None:
    client = connect()
    made = client.create_token(TokenAsk(name="laptop", scopes=("vote", "read"), within=Scope(tenants=("a",))))
    assert made.token.startswith(f"muster_{made.line.id}_")
    assert made.line.scopes == ("read", "vote")
    assert client.tokens() == (made.line,)
    ended = client.revoke_token(made.line.id)
    assert ended.revoked_by == made.line.subject
    assert client.tokens() == (ended,) == (client.revoke_token(made.line.id),)
    with pytest.raises(NotFoundError, match="no token"):
        client.revoke_token("0" * 12)
    with pytest.raises(SpecError, match="scopes"):
        client.create_token(TokenAsk(name="x", scopes=("everything",)))


def test_consoles_see_each_other(connect: Connect) -> None:
    client = connect()
    at = [PresenceAsk(session=letter * 32, page="proposal", thing="proposal P-1") for letter in "ab"]
    assert client.present(at[0]).here == ()
    seen = client.present(at[1]).here
    assert [(each.page, each.thing, each.doing, each.mine) for each in seen] == [
        ("proposal", "proposal P-1", "looks", True)
    ]
    client.present(msgspec.structs.replace(at[1], leaves=True))
    assert client.present(at[0]).here == ()
    with pytest.raises(SpecError, match="session"):
        client.present(PresenceAsk(session="mine", page="nodes"))


def test_changes_come_back_at_once_when_there_are_any(client: Client) -> None:
    before = client.health().version
    submit(client, "a")
    changes = client.changes(before, 10.0)
    assert changes.version > before
    assert any(item.subject == "a" for item in changes.items)


def test_changes_wait_for_something_to_happen(client: Client, connect: Connect) -> None:
    version = client.health().version
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(connect().changes(version, LONGEST_WAIT_S).version))
    begun = time.monotonic()
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    submit(client, "a")
    waiter.join(PATIENCE_S)
    assert found[0] > version
    assert time.monotonic() - begun < LONGEST_WAIT_S, "it was the news that ended it, not the time"


def test_changes_return_empty_handed_when_the_time_is_up(client: Client) -> None:
    begun = time.monotonic()
    assert client.changes(client.health().version, 0.2).items == ()
    assert time.monotonic() - begun > 0.15


def test_many_threads_share_one_client(client: Client) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(5):
                submit(client, f"w{number}-{i}")
                client.overview()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failed == []
    assert client.query(Query(kind="workloads")).total == 40


def test_a_hundred_long_polls_leave_room_for_questions(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path:
        clients = [RemoteClient(str(path)) for _ in range(100)]
        version = clients[0].health().version
        waiters = [threading.Thread(target=client.changes, args=(version, LONGEST_WAIT_S)) for client in clients]
        for waiter in waiters:
            waiter.start()
        asking = RemoteClient(str(path))
        for _ in range(20):
            asking.health()
        assert all(waiter.is_alive() for waiter in waiters), "it was answered while they wait"
        submit(asking, "a")
        for waiter in waiters:
            waiter.join(PATIENCE_S)
        assert not any(waiter.is_alive() for waiter in waiters)
        for client in (*clients, asking):
            client.close()


def test_a_read_only_server_refuses_whatever_the_client_says(loop: EngineLoop) -> None:
    with served_on_unix(loop, read_only=True) as path:
        client = RemoteClient(str(path))
        with pytest.raises(RefusedError, match="read-only"):
            submit(client, "a")
        with pytest.raises(RefusedError, match="read-only"):
            client.propose(asks("cordon", ("g0",)))
        assert client.overview().states.get("queued", 0) == 0
        client.close()


def test_a_server_that_stops_lets_long_polls_go(loop: EngineLoop) -> None:
    ended = threading.Event()

    def wait(client: RemoteClient, version: int) -> None:
        try:
            client.changes(version, 30.0)
        except UnreachableError:
            pass
        finally:
            ended.set()

    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        waiter = threading.Thread(target=wait, args=(client, client.health().version))
        waiter.start()
        waiter.join(0.1)
    assert ended.wait(PATIENCE_S)
    waiter.join()
    client.close()


# httpcore leaves the socket of a failed connection to the garbage collector, which is soon enough and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_there_is_unreachable_with_a_remedy() -> None:
    with socket_folder() as folder:
        for where in (str(folder / "none.sock"), "http://127.0.0.1:9"):
            client = RemoteClient(where)
            with pytest.raises(UnreachableError, match="Start one"):
                client.health()
            client.close()


@pytest.mark.parametrize("where", ["ftp://127.0.0.1", "http://", "https:///x"])
def test_an_address_that_is_none_is_refused(where: str) -> None:
    with pytest.raises(SpecError, match="socket"):
        RemoteClient(where)


def test_a_closed_client_says_so(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        client.close()
        with pytest.raises(UnreachableError, match="closed"):
            client.health()


def ended(client: Client, ask: Ask) -> RunStatus:
    status = client.ask(ask)
    while status.state == "running":
        status = client.run(status.id, status.serial, 5.0)
    return status


def test_a_what_if_runs_ahead_and_changes_nothing(client: Client) -> None:
    submit(client, "first", tasks=2)
    before = client.health().version
    node = client.workload("first").placement[0].node
    ask = WhatIf(edits=(FailNodesEdit(nodes=Nodes(ids=(node,))),), horizon_ms=2 * HOUR_MS, seeds=2)
    status = ended(client, ask)
    assert (status.state, status.error, status.ask) == ("done", None, ask)
    assert isinstance(status.answer, Outlook)
    evictions = next(f for f in status.answer.figures if f.name == "evictions" and f.of == "cell")
    assert (evictions.before.most, evictions.after.least) == (0, 1)
    assert (evictions.after.runs, evictions.after.p50) == (2, None), "two runs make no quantiles"
    assert client.workload("first").state == "running"
    assert client.health().version == before
    assert [(run.id, run.answer) for run in client.runs()] == [(status.id, None)]


def test_wrong_edits_are_all_named_and_nothing_runs(client: Client) -> None:
    edits = (FailNodesEdit(nodes=Nodes(ids=("nowhere",))), SetWeightEdit(queue="nobody", weight=2))
    with pytest.raises(SpecError) as caught:
        client.ask(WhatIf(edits=edits))
    assert "nowhere" in caught.value.problem
    assert "nobody" in caught.value.problem
    assert client.runs() == ()


@pytest.mark.thorough
def test_when_a_waiting_workload_starts_is_told_and_stored(client: Client) -> None:
    submit(client, "first", tasks=4)
    submit(client, "second", tasks=4)
    status = ended(client, AskStart(id="second", seeds=5))
    assert isinstance(status.answer, StartEstimate)
    assert status.answer.start is not None
    assert status.answer.start.chance_permille == 1000
    with pytest.raises(MusterError):
        client.ask(AskStart(id="first"))
    assert client.scores().open == client.scores().stored


def test_a_run_can_be_stopped_and_is_remembered(client: Client) -> None:
    submit(client, "first", tasks=4)
    status = client.ask(WhatIf(edits=(), horizon_ms=24 * HOUR_MS, seeds=100))
    assert client.cancel_run(status.id).state in ("cancelled", "done")
    assert client.run(status.id).id == status.id
    with pytest.raises(NotFoundError):
        client.run("T-999")


def test_a_dry_run_submits_nothing(client: Client) -> None:
    status = ended(client, AskRun(workloads=(gpu_job("probe"),), seeds=2))
    assert isinstance(status.answer, DryRun)
    assert status.answer.trials[0].starts_now
    with pytest.raises(NotFoundError):
        client.workload("probe")


def ended_draft(client: Client, ask: DraftAsk) -> DraftRun:
    run = client.draft(ask)
    while not run.over:
        run = client.draft_run(run.id, run.serial, 5)
    return run


def test_a_draft_changes_nothing_until_somebody_proposes_it_and_others_approve(
    connect: Connect, loop: EngineLoop
) -> None:
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    looks, acts = connect(read_only=True), connect()
    ask = DraftAsk(question="node g0 is still cordoned", pick="cordoned", model=True)
    assert ended_draft(looks, ask).rule is not None
    run = ended_draft(acts, ask)
    assert (run.rule_state, run.model_state, run.reason) == ("done", "rejected", "not_configured")
    assert run.rule is not None
    assert run.rule.request is not None
    assert [(step.act.action, step.act.targets) for step in run.rule.request.steps] == [("uncordon", ("g0",))]
    assert acts.proposals() == ()
    with pytest.raises(RefusedError, match="read-only"):
        looks.propose_draft(run.id, "rule")
    with pytest.raises(RefusedError, match="no draft by the model"):
        acts.propose_draft(run.id, "model")
    shown = acts.propose_draft(run.id, "rule", "looked at it")
    assert (shown.plan.origin, shown.plan.author.subject, shown.reason) == (
        "recommender", "service:recommender", "looked at it",
    )  # fmt: skip
    assert acts.draft_run(run.id).proposed == (("rule", shown.id),)
    assert acts.node("g0").state == "cordoned"
    acts.approve(shown.id, shown.digest, "seen")
    assert acts.node("g0").state == "ready"
    kept = acts.draft_runs()[0]
    assert (kept.id, kept.ask.question) == (run.id, run.ask.question)
    assert acts.cancel_draft(run.id).model_state == "rejected"
    standing = acts.model()
    assert (standing.configured, standing.endpoint) == (False, "")
    assert "model_url" in standing.problem
    for unknown in (lambda: acts.draft_run("D-99"), lambda: acts.cancel_draft("D/../1")):
        with pytest.raises(NotFoundError):
            unknown()


def test_budgets_are_set_through_the_gate_and_told_with_what_was_charged(client: Client) -> None:
    submit(client, "a")
    budget = BudgetSpec(name="team", scope="queue", of="a", limit_microusd=5_000_000)
    shown = client.propose(asks("set_budget", ("team",), money=MoneyChange(budget=budget)))
    assert client.budgets().budgets == ()
    client.approve(shown.id, shown.digest)
    (line,) = client.budgets().budgets
    assert (line.spec, line.stage, line.waiting) == (budget, "open", 0)
    report = client.showback(ShowbackRequest(by="queue"))
    assert report.lines[-1].kind == "idle"
    assert sum(each.microusd for each in report.lines) == report.total_microusd
    with pytest.raises(SpecError, match="colour"):
        client.showback(ShowbackRequest(by="colour"))


def test_a_quote_is_told_by_option_and_submits_nothing(client: Client, loop: EngineLoop) -> None:
    submit(client, "runs", tasks=3)
    digest = loop.call(lambda engine: engine.state.digest())
    asked = QuoteRequest(nodes=2, gpus=8, model="h100", run_ms=6 * HOUR_MS, queue="b", seeds=2, arrivals=False)
    quote = client.quote(asked)
    (option,) = quote.options
    assert (option.pool, option.kind, option.basis, option.seeds) == ("gpu", "now", "run to its end", 2)
    assert option.start_ms.least is not None
    assert option.start_ms.least > quote.at_ms
    cost = 2 * 6 * 20_000_000
    assert option.cost_microusd == Quantiles(runs=2, least=cost, p10=None, p50=None, p90=None, most=cost)
    assert (option.duration_ms.least, option.duration_ms.most) == (6 * HOUR_MS, 6 * HOUR_MS)
    assert "GPU" in option.reason
    assert loop.call(lambda engine: engine.state.digest()) == digest
    quick = client.quote(msgspec.structs.replace(asked, nodes=1, seeds=0))
    assert [(each.start_ms.least, each.cost_microusd.most) for each in quick.options] == [(quick.at_ms, 120_000_000)]
    for wrong, said in ((0, "nodes"), (9, "larger than the cell")):
        with pytest.raises(SpecError, match=said):
            client.quote(msgspec.structs.replace(asked, nodes=wrong))


def test_a_quote_without_hours_needs_work_like_it(client: Client, loop: EngineLoop) -> None:
    asked = QuoteRequest(nodes=1, gpus=8, name="train-77", queue="a", seeds=1, arrivals=False)
    with pytest.raises(SpecError, match="hours"):
        client.quote(asked)
    submit(client, *(f"train-{number}" for number in range(20)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 6 * HOUR_MS))
    found = client.quote(asked)
    assert (found.run_time.told, found.run_time.p50_ms) == (False, HOUR_MS)
    assert found.run_time.samples >= 8
    assert found.options[0].cost_microusd.least == 20_000_000


def test_history_is_brought_in_once_and_told_by_window(client: Client) -> None:
    start = int(time.time() * 1000) // HOUR_MS * HOUR_MS - 2 * HOUR_MS
    row = SampleRow("gpu_util", "node", "g0", (start, start + 60_000, start + HOUR_MS), (10.0, 30.0, 50.0))
    run = RunRecord(id="1", source="swf:x", submitted_ms=0, started_ms=1, ended_ms=start, outcome="finished")
    for _ in range(2):
        assert client.import_samples(SampleBatch(source="prometheus:lab", series=(row,))).taken == 3
        assert client.import_runs(RunBatch(runs=(run,))).taken == 1
    asked = HistoryRequest(
        metric="gpu_util", of="node", subject="g0", since_ms=start, until_ms=start + 3 * HOUR_MS, step_ms=HOUR_MS
    )
    found = client.history(asked)
    assert [(point.count, point.mean) for point in found.points] == [(2, 20.0), (1, 50.0), (0, None)]
    assert (found.series[0].source, found.stale_count) == ("prometheus:lab", 1)
    assert client.history(HistoryRequest(runs=5, until_ms=2**50)).runs == (run,)
    with pytest.raises(SpecError, match="no 'gpu_utl'"):
        client.history(HistoryRequest(metric="gpu_utl"))
    bad = SampleBatch(source="prometheus:lab", series=(SampleRow("gpu_util", "node", "g0", (1,), ()),))
    with pytest.raises(SpecError, match="a different number of times"):
        client.import_samples(bad)


def test_a_read_only_client_brings_nothing_in(connect: Connect) -> None:
    client = connect(read_only=True)
    with pytest.raises(RefusedError, match="read-only"):
        client.import_samples(SampleBatch(source="x", series=()))
    with pytest.raises(RefusedError, match="read-only"):
        client.import_runs(RunBatch(runs=()))
    assert client.history(HistoryRequest()).series == ()


def test_runbooks_are_looked_at_by_all_and_changed_by_none_who_only_reads(connect: Connect) -> None:
    client, reader = connect(), connect(True)
    lines = client.runbooks()
    assert reader.runbooks() == lines
    assert reader.runbook(lines[0].id).line == lines[0]
    submit(client, "first")
    node = client.workload("first").placement[0].node
    ask = RunbookAsk(id="drain-failing-node", inputs={"node": node})
    tried = reader.run_runbook(ask)
    assert tried.applies
    assert tried.proposal is not None
    assert tried.proposal.state == "simulated"
    with pytest.raises(RefusedError, match="read-only"):
        reader.run_runbook(msgspec.structs.replace(ask, dry_run=False))
    for decide in (reader.approve_runbook, reader.retire_runbook):
        with pytest.raises(RefusedError, match="read-only"):
            decide(RunbookVote(id=lines[0].id, sha256=lines[0].sha256, comment="x"))
    with pytest.raises(RefusedError, match="not approved"):
        client.run_runbook(msgspec.structs.replace(ask, dry_run=False))
    with pytest.raises(NotFoundError):
        client.runbook("nothing/../like it")


def test_a_cell_that_muster_decides_mirrors_nobody(client: Client) -> None:
    submit(client, "a")
    assert client.mirror().state == "none"
    with pytest.raises(NotFoundError, match="nobody else schedules workload 'a'"):
        client.mirrored("a")
    assert client.intents().items == ()
    with pytest.raises(NotFoundError, match="no intent i7"):
        client.intent(7)


def test_a_doubt_is_looked_at_and_settled_in_ones_own_name(connect: Connect, loop: EngineLoop) -> None:
    node = loop.engine.state.capacity.node_ids[0]
    loop.call(decided_by_slurm)
    number = loop.call(lambda engine: put_in_doubt(engine, Cordon(ids=(node,))))
    client = connect()
    detail = client.intent(number)
    assert (detail.view.phase, detail.view.subjects, detail.far) == ("in doubt", (node,), None)
    assert [word.phase for word in detail.words] == ["sent", "accepted", "in doubt"]
    assert detail.act is not None
    said = IntentAnswer(number=number, outcome="done", reason="the node is drained")
    with pytest.raises(RefusedError, match="read-only"):
        connect(read_only=True).answer_intent(said)
    with pytest.raises(SpecError, match="reason"):
        client.answer_intent(IntentAnswer(number=number, outcome="done", reason="so"))
    assert client.answer_intent(said).changed == (f"i{number}",)
    assert client.intents().in_doubt == 0
    with pytest.raises(RefusedError, match="it is settled"):
        client.answer_intent(said)
    [record] = client.audit_page(AuditQuery(type="intent.answered")).rows
    assert record.subject == client.whoami().subject
