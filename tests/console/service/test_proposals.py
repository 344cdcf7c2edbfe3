"""From a wish to an act and back, as people meet it: through the shell and over HTTP, under a policy of a team. What
must not happen is tried on every path."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select

from console.cli.main import run
from console.client.credentials import Identity
from console.client.launch import ensure_engine
from console.client.remote import RemoteClient
from console.client.sockets import probe
from console.commands.proposals import plan_of
from console.forms.settings import ConsoleSettings, paths_in
from console.service.gate_watch import NOTHING_RUNS, GateTicker
from engine import loop as loops
from engine.loop import EngineLoop
from engine.model.commands import AddQueues, Cancel, Drain, Submit
from engine.model.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import QueueSpec
from recommender.history.metrics import RunBatch, SampleBatch
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO, Policy, ServiceIdentity
from runbooks.gate.run_limits import FreezeSpec
from runbooks.gate.store import EFFECT, OUTBOX
from runbooks.plans.identity import OWNER, Actor, Signed
from runbooks.plans.queries import IntentAnswer
from runbooks.plans.typed_plan import Act, Proposal, Request, StepRequest, asks
from runbooks.untrusted.strict_formats import read
from tests.support.gates import gate_of
from tests.support.patience import PATIENCE_S
from tests.support.people import key_of, person, team
from tests.support.served import gpu_job, running_loop, served_on_unix, socket_folder

HOUR_MS = 3_600_000
ME = person("me", "operator", "approver", uid=os.getuid())
ALICE = person("alice", "operator", "approver", keys=2)
BOB = person("bob", "approver")
SUE = person("sue", "admin", "operator", on_call=True)
WIDE = msgspec.structs.replace(team().limits, nodes_permille=1000, gpus_permille=10_000, gpus_least=1000)
PEOPLE = team(ME, ALICE, BOB, SUE, limits=WIDE, channels=(("ops", "log:"),))


class Clock:
    """Wall time that moves when told."""

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Held(Identity):
    """A person whose key is at hand."""

    def __init__(self, name: str, number: int = 0) -> None:
        super().__init__(ConsoleSettings(operator=name))
        self._key = key_of(name, number)

    def vote(self, client: Any, shown: Proposal, verdict: str, kind: Any = "vote") -> Signed:
        return self.sign(
            client.whoami(), kind=kind, proposal=shown.id, revision=shown.revision, digest=shown.digest,
            verdict=verdict,
        )  # fmt: skip


class Lab:
    """A small cell behind a socket, and people before it."""

    def __init__(self, loop: EngineLoop, gate: Gate, clock: Clock, path: Path, after: ExitStack) -> None:
        self.loop, self.gate, self.clock, self.path = loop, gate, clock, path
        self._after = after

    def shell(self, *arguments: str) -> int:
        return run([*arguments, "--connect", str(self.path)])

    def client(self, name: str = "", number: int = 0) -> RemoteClient:
        client = RemoteClient(str(self.path), identity=Held(name, number) if name else None)
        self._after.callback(client.close)
        return client

    def yes(self, name: str, shown: Proposal, number: int = 0) -> Any:
        """A signed approval, over HTTP."""
        client = self.client(name, number)
        signed = Held(name, number).vote(client, shown, "approve")
        return client.approve(shown.id, shown.digest, "seen and wanted", signed)

    def effects(self) -> int:
        count = select(func.count()).select_from(EFFECT)
        return self.loop.call(lambda engine: engine.recorded(lambda c: c.execute(count).scalar_one()))

    def types(self) -> list[str]:
        """Of all audit records."""
        query = select(record_table.c.type).order_by(record_table.c.seq)
        return self.loop.call(lambda engine: engine.recorded(lambda c: list(c.execute(query).scalars())))

    def drain(self, name: str = "alice", node: str = "g0", **more: Any) -> Proposal:
        """What needs the vote of another person."""
        return self.client(name).propose(msgspec.structs.replace(asks("drain", (node,)), **more))

    def node(self, node: str = "g0") -> str:
        return self.loop.call(lambda engine: engine.node(node).state)


def lab_of(after: ExitStack, policy: Policy = PEOPLE, journal: Path | None = None) -> Lab:
    loop = after.enter_context(running_loop(journal))
    clock = Clock()
    gate = loop.call(lambda engine: gate_of(engine, policy, clock))
    path = after.enter_context(served_on_unix(loop, gate=gate))
    return Lab(loop, gate, clock, path, after)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ExitStack]:
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "none.toml"))
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def lab(after: ExitStack) -> Lab:
    return lab_of(after)


# -- the approval protocol, on every path -----------------------------------------------------------------------------


def test_nothing_is_executed_without_approval_on_any_path(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    shown = lab.drain()
    state = lab.loop.call(lambda engine: engine.state.digest())
    tries: list[Callable[[], object]] = [
        lambda: lab.client().execute(shown.id),
        lambda: lab.client("alice").execute(shown.id),
        lambda: lab.client().resume(shown.id, True),
        lambda: lab.client().confirm(shown.id, "1"),
        lambda: lab.client().rollback(shown.id),
        lambda: lab.client().approve(shown.id, shown.digest),
        lambda: lab.client().command(Drain(ids=("g0",))),
        lambda: lab.loop.call(lambda _: lab.gate.execute(Actor(subject="person:me", account=OWNER), shown.id)),
        lambda: lab.loop.call(lambda _: lab.gate.execute(Actor(subject="system", kind="system"), shown.id)),
    ]
    for attempt in tries:
        with pytest.raises(RefusedError):
            attempt()
    for command in ("execute", "resume"):
        assert lab.shell("proposal", command, shown.id) == 4
    assert lab.shell("proposal", "approve", shown.id, "--digest", shown.digest) != 0, "without a key there is no vote"
    assert lab.shell("proposal", "confirm", shown.id, "1") == 4
    capsys.readouterr()
    assert lab.effects() == 0
    assert lab.loop.call(lambda engine: engine.state.digest()) == state
    assert lab.client().proposal(shown.id).state == "awaiting"


def test_a_service_and_a_model_draft_and_never_vote(after: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    bot = ServiceIdentity(id="bot", accounts=(OWNER,))
    lab = lab_of(after, team(ALICE, BOB, services=(bot,)))
    client = lab.client()
    shown = client.propose(asks("cordon", ("g0",)))
    assert (shown.plan.author.kind, shown.plan.origin, shown.self_approvable) == ("service", "recommender", False)
    with pytest.raises(RefusedError, match="not human"):
        client.approve(shown.id, shown.digest)
    with pytest.raises(RefusedError, match="not human"):
        client.vote(shown.id, shown.digest, "reject")
    assert lab.shell("proposal", "approve", shown.id, "--digest", shown.digest) == 4
    assert "not human" in capsys.readouterr().err
    for change in (
        lambda: client.command(Submit(workloads=(gpu_job("a"),))),
        lambda: client.command(AddQueues(queues=(QueueSpec(name="q"),))),
        lambda: client.execute(shown.id),
        lambda: client.import_runs(RunBatch(runs=())),
        lambda: client.import_samples(SampleBatch(source="x", series=())),
        lambda: client.break_glass(shown.id, shown.digest, "the rack is on fire"),
    ):
        with pytest.raises(RefusedError):
            change()
    assert lab.effects() == 0


def test_nobody_approves_what_they_wrote_and_a_new_revision_has_no_votes(lab: Lab) -> None:
    shown = lab.drain("alice", steps=(StepRequest(act=Act(action="drain", targets=("g0",))),), start="asked")
    for number in (0, 1):
        with pytest.raises(RefusedError, match="author"):
            lab.yes("alice", shown, number)
    with pytest.raises(RefusedError, match="own key"):
        lab.client().approve(shown.id, shown.digest)
    assert lab.yes("bob", shown).state == "approved"
    new = lab.client("alice").revise(shown.id, asks("drain", ("g1",)))
    assert (new.revision, new.votes, new.needs, new.state) == (2, (), 1, "awaiting")
    with pytest.raises(RefusedError, match="digest"):
        lab.yes("bob", shown)
    with pytest.raises(RefusedError):
        lab.client("bob").execute(shown.id)
    with pytest.raises(RefusedError, match="person:alice's"):
        lab.client().revise(shown.id, asks("drain", ("g2",)))
    assert lab.effects() == 0


def test_one_person_counts_once_whatever_keys_and_connections_they_use(lab: Lab) -> None:
    lab.loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("first", tasks=4),))))
    shown = lab.client("sue").propose(asks("cancel", ("first",)))
    assert (shown.tier, shown.needs) == ("T3", 2)
    assert lab.yes("alice", shown).state == "awaiting"
    for number in (0, 1):
        with pytest.raises(RefusedError, match="voted so"):
            lab.yes("alice", shown, number)
    assert lab.client().proposal(shown.id).needs == 1
    assert lab.effects() == 0
    assert lab.yes("bob", shown).state == "verified"
    assert lab.effects() == 1


def test_a_vote_is_for_one_plan_of_one_proposal(lab: Lab) -> None:
    a, b = lab.drain("alice", "g0"), lab.drain("alice", "g1")
    bob = lab.client("bob")
    for_a = Held("bob").vote(bob, a, "approve")
    with pytest.raises(RefusedError, match="digest"):
        bob.approve(b.id, a.digest, "", for_a)
    with pytest.raises(RefusedError, match="not by a key"):
        bob.approve(b.id, b.digest, "", for_a)
    assert lab.effects() == 0


def test_forged_and_replayed_signatures_are_refused_on_record(lab: Lab) -> None:
    shown = lab.drain("alice")
    bob = lab.client("bob")
    good = Held("bob").vote(bob, shown, "approve")
    forged = msgspec.structs.replace(Held("alice").vote(bob, shown, "approve"), subject="person:bob")
    other = msgspec.structs.replace(good, nonce="ab" * 20)
    early = msgspec.structs.replace(good, at_ms=good.at_ms - HOUR_MS)
    rejected = Held("bob").vote(bob, shown, "reject")
    for signed in (forged, other, early, rejected):
        with pytest.raises(RefusedError):
            bob.approve(shown.id, shown.digest, "", signed)
    assert lab.types().count("vote.refused") == 4
    assert bob.approve(shown.id, shown.digest, "", good).state == "verified"
    again = lab.drain("alice", "g1")
    with pytest.raises(RefusedError):
        bob.approve(again.id, again.digest, "", good)
    assert lab.effects() == 1


def test_what_has_expired_is_not_approved_and_a_clock_set_back_revives_nothing(lab: Lab) -> None:
    shown, other = lab.drain("alice", "g0"), lab.drain("alice", "g1")
    lab.clock.now_ms = shown.expires_ms - 1000
    lab.loop.call(lambda _: lab.gate.tick())
    assert lab.client().proposal(shown.id).state == "awaiting"
    lab.clock.now_ms = shown.expires_ms
    assert GateTicker(lab.loop, lab.gate).turn()
    assert lab.client().proposal(shown.id).state == "expired"
    lab.clock.now_ms -= HOUR_MS
    with pytest.raises(RefusedError, match="expired"):
        lab.yes("bob", shown)
    with pytest.raises(RefusedError):
        lab.yes("bob", other)
    assert lab.effects() == 0


def test_a_freeze_between_approval_and_execution_and_between_two_steps(lab: Lab) -> None:
    steps = (
        StepRequest(id="one", act=Act(action="cordon", targets=("g0",))),
        StepRequest(id="two", act=Act(action="cordon", targets=("g1",)), confirm="operator"),
    )
    me = lab.client()
    shown = lab.client("alice").propose(Request(steps=steps, start="asked"))
    assert (shown.tier, lab.yes("bob", shown).state) == ("T2", "approved")
    freeze = FreezeSpec(name="launch", tier="T0", from_ms=lab.clock.now_ms, until_ms=lab.clock.now_ms + HOUR_MS)
    me.freeze(freeze)
    with pytest.raises(RefusedError, match="freeze 'launch'"):
        me.execute(shown.id)
    assert (me.proposal(shown.id).state, lab.effects()) == ("approved", 0)
    me.thaw("launch")
    assert me.execute(shown.id).state == "paused"
    assert (lab.node("g0"), lab.node("g1"), lab.effects()) == ("cordoned", "ready", 1)
    me.freeze(msgspec.structs.replace(freeze, name="again"))
    assert me.confirm(shown.id, "two").state == "paused"
    assert "again" in me.proposal(shown.id).note
    assert lab.node("g1") == "ready"
    me.thaw("again")
    assert me.resume(shown.id).state == "verified"
    assert (lab.node("g1"), lab.effects()) == ("cordoned", 2)


def test_the_glass_is_broken_with_a_reason_and_once_until_it_is_reviewed(lab: Lab) -> None:
    shown, next_ = lab.drain("alice", "g0"), lab.drain("alice", "g1")
    sue = lab.client("sue")

    def broken(shown: Proposal, reason: str) -> Any:
        return sue.break_glass(shown.id, shown.digest, reason, Held("sue").vote(sue, shown, "approve", "breakglass"))

    for who, reason in (("bob", "the rack is on fire"), ("sue", ""), ("sue", "  fire   ")):
        client = lab.client(who)
        with pytest.raises(RefusedError):
            client.break_glass(shown.id, shown.digest, reason, Held(who).vote(client, shown, "approve", "breakglass"))
    assert lab.effects() == 0
    assert broken(shown, "the rack is on fire").state == "verified"
    with pytest.raises(RefusedError, match="not reviewed"):
        broken(next_, "the rack burns still")
    [review] = sue.reviews()
    assert (review.forced, review.closed_ms, review.proposal) == (True, 0, shown.id)
    with pytest.raises(RefusedError, match="your own action"):
        sue.close_review(review.id, "all was well, it burned")
    lab.client("bob").close_review(review.id, "it did burn, and this was right")
    assert sue.reviews()[0].closed_by == "person:bob"
    assert broken(next_, "the rack burns still").state == "verified"
    told = select(OUTBOX.c.text)
    texts = lab.loop.call(lambda engine: engine.recorded(lambda c: list(c.execute(told).scalars())))
    assert sum("used break-glass" in text for text in texts) == 2


# -- claims of authority ----------------------------------------------------------------------------------------------


def test_words_that_claim_an_approval_are_words(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    claim = "already approved by alice 2/2\n✓ yes  alice\n\x1b[2Jbreak-glass active"
    assert lab.shell("proposal", "new", "node", "drain", "g0", "--reason", claim) == 2, "a reason is one line"
    assert (
        lab.shell("proposal", "new", "node", "drain", "g0", "--reason", "already approved by alice 2/2 \u2713 yes") == 0
    )
    capsys.readouterr()
    assert lab.shell("proposal", "show", "P-1") == 0
    out = capsys.readouterr().out
    assert "no votes yet" in out
    assert all(line.strip().startswith("┃") for line in out.splitlines() if "already approved" in line)
    assert lab.shell("proposal", "execute", "P-1") == 4
    assert lab.effects() == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps: [{action: cordon, targets: [g0]}]\ntier: T0\n", "2: unknown key 'tier'"),
        ("steps: [{action: cordon, targets: [g0], need_approvals: 0}]\n", "unknown key 'need_approvals'"),
        ("steps: [{action: cordon, targets: [g0]}]\napproved_by: [alice]\n", "unknown key 'approved_by'"),
        ("steps: [{action: cordon, targets: [g0]}]\norigin: person\n", "unknown key 'origin'"),
        ("steps: [{action: cordon, targets: [g0]}]\nexpires_ms: 9999999999999\n", "unknown key 'expires_ms'"),
        ("steps: [{action: run_shell, targets: [g0]}]\n", "steps[0].action"),
        ("steps: [{action: disable_audit, targets: [g0]}]\n", "steps[0].action"),
        ("steps: [{action: cordon, target: [g0]}]\n", "Did you mean 'targets'?"),
        ("steps:\n  - action: cordon\n    targets: [g0]\n    onfail: pause\n", "4: unknown key 'onfail'"),
        ("steps:\n  - action: cordon\n    targets: '*'\n", "3: steps[0].targets"),
        ("steps: [{action: cordon, targets: [g0], verify: [{check: node_state, of: g0, eq: ready}]}]\n", "'eq'"),
        ("steps: [{action: cordon, targets: [g0], rollback: [{action: uncordon, targts: [g0]}]}]\n", "'targets'"),
        ("steps: [{targets: [g0]}]\n", "has no action"),
        ("steps: []\n", "no list of steps"),
        ("- drain\n", "is not a mapping"),
        ("limits: {gpu: 3}\nsteps: [{action: cordon, targets: [g0]}]\n", "Did you mean 'gpus'?"),
        ("when_asked: 1\nsteps: [{action: cordon, targets: [g0]}]\n", "must be true or false"),
        ("steps: &x [{action: cordon, targets: [g0]}]\n", "anchor"),
        ("steps: [{action: cordon, action: drain, targets: [g0]}]\n", "action"),
    ],
)
def test_a_plan_file_cannot_claim_what_only_the_gate_decides(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan_of(read(text.encode(), "plan.yaml"))
    assert told in str(caught.value)


def test_who_looks_is_told_what_waits_for_them_and_how_to_go_on(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    shown = lab.drain()
    assert lab.client().health().awaiting == 1
    for asker, wanted in (("me", True), ("bob", True), ("alice", False), ("sue", False)):
        assert lab.shell("proposal", "list", "--as", asker) == 0
        assert (f"waiting for your vote: {shown.id}" in capsys.readouterr().out) is wanted, asker
    assert lab.shell("overview") == 0
    assert "1 proposal waiting for votes" in capsys.readouterr().out
    lab.client("alice").cancel(shown.id)
    assert (lab.shell("proposal", "show", "1"), lab.shell("proposal", "approve", "p-1")) == (0, 4), "short ids will do"
    told = capsys.readouterr()
    assert "muster proposal new --again P-1" in told.out
    assert "muster proposal new --again P-1" in told.err
    assert lab.shell("proposal", "new", "--again", "1") == 0
    again = lab.client().proposal("P-2")
    assert (again.plan.steps, again.state) == (shown.plan.steps, "awaiting")
    assert lab.shell("proposal", "new", "--again", "1", "node", "cordon", "g1") == 2


# -- what needs no vote needs a role ----------------------------------------------------------------------------------


def test_a_viewer_submits_defines_and_rejects_nothing(after: ExitStack) -> None:
    lab = lab_of(after, team(ALICE, BOB))
    client = lab.client()
    assert client.overview().pools
    for change in (
        lambda: client.command(Submit(workloads=(gpu_job("a"),))),
        lambda: client.command(AddQueues(queues=(QueueSpec(name="q"),))),
        lambda: client.reject_recommendation("R-1", "no"),
        lambda: client.propose(asks("cordon", ("g0",))),
        lambda: client.freeze(FreezeSpec(name="x", weekly=("daily 22:00 - 06:00",))),
    ):
        with pytest.raises(RefusedError, match=r"not an? "):
            change()
    assert lab.loop.call(lambda engine: engine.overview().states.get("queued", 0)) == 0
    assert lab.types().count("command.refused") >= 4


def test_definitions_are_on_record_with_what_they_add(after: ExitStack) -> None:
    lab = lab_of(after, SOLO)
    client = lab.client()
    client.command(Submit(workloads=(gpu_job("a"),)))
    assert "config.changed" not in lab.types()
    client.command(AddQueues(queues=(QueueSpec(name="night"),)))
    query = select(record_table.c.body).where(record_table.c.type == "config.changed")
    [body] = lab.loop.call(lambda engine: engine.recorded(lambda c: list(c.execute(query).scalars())))
    told = json.loads(body)
    assert told["data"]["adds"] == {"queues": {"count": 1, "names": ["night"]}}
    assert told["actor"]["subject"] == OWNER
    with pytest.raises(MusterError):
        client.command(AddQueues(queues=(QueueSpec(name="night"),)))
    assert lab.types().count("config.changed") == 1, "what was refused was not done, and is not on record as done"


# -- a database that cannot be written --------------------------------------------------------------------------------


def read_only(lab: Lab, journal: Path, after: ExitStack) -> Callable[[], None]:
    def turn(on: str) -> None:
        lab.loop.call(lambda engine: engine.recorded(lambda c: c.exec_driver_sql(f"PRAGMA query_only={on}")))

    turn("ON")
    return lambda: turn("OFF")


def full(lab: Lab, journal: Path, after: ExitStack) -> Callable[[], None]:
    def most(count: int) -> None:
        lab.loop.call(lambda engine: engine.recorded(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={count}")))

    most(1)  # which is as many as there are
    return lambda: most(2**30)


def locked(lab: Lab, journal: Path, after: ExitStack) -> Callable[[], None]:
    other = sqlite3.connect(journal, isolation_level=None)
    after.callback(other.close)
    other.execute("BEGIN IMMEDIATE")
    return lambda: other.execute("ROLLBACK") and None


@pytest.mark.parametrize("break_it", [read_only, full, pytest.param(locked, marks=pytest.mark.thorough)])
@pytest.mark.about_files("what keeps it from being written")
def test_where_nothing_can_be_recorded_nothing_is_done_and_all_can_be_looked_at(
    after: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    break_it: Callable[[Lab, Path, ExitStack], Callable[[], None]],
) -> None:  # fmt: skip
    journal = tmp_path / "journal.db"
    lab = lab_of(after, SOLO, journal)
    lab.loop.paused = True
    client = lab.client()
    ids = tuple(f"workload-with-a-long-name-{number:03}" for number in range(90))
    client.command(Submit(workloads=tuple(gpu_job(each, tasks=4) for each in ids[1:])))
    shown = client.propose(asks("hold", ids[2:]))
    before = lab.loop.call(lambda engine: (engine.version, engine.state.digest()))
    mend = break_it(lab, journal, after)
    with pytest.raises(JournalError):
        client.approve(shown.id, shown.digest, "seen and wanted")
    if break_it is not locked:  # each try waits for the lock
        assert lab.shell("proposal", "approve", shown.id, "--digest", shown.digest, "--comment", "wanted") == 6
        assert lab.shell("node", "cordon", "g0", "--yes") == 6
    assert lab.loop.call(lambda engine: (engine.version, engine.state.digest())) == before
    assert lab.effects() == 0
    capsys.readouterr()
    for command in (
        (
            "proposal",
            "list",
        ),
        ("proposal", "show", shown.id),
        ("overview",),
    ):
        assert lab.shell(*command) == 0, command
    assert "Hold 88 workloads" in capsys.readouterr().out
    keeper = GateTicker(lab.loop, lab.gate)
    if break_it is not full:  # there an approval may be under way
        assert keeper.turn(), "nothing is due, so nothing is written"
    mend()
    assert keeper.turn()
    assert keeper.error == ""
    if client.proposal(shown.id).state == "awaiting":  # else there was room for the claim alone, and it went on by now
        client.approve(shown.id, shown.digest, "seen and wanted")
    assert client.proposal(shown.id).state == "verified"
    assert lab.effects() == 1
    if break_it is not full:  # there may be room for what follows
        other = client.propose(asks("cordon", ("g0",)))
        mend = break_it(lab, journal, after)
        lab.clock.now_ms = other.expires_ms
        assert not keeper.turn(), "what is due cannot be written"
        assert keeper.error.startswith(NOTHING_RUNS)
        mend()
        assert keeper.turn()
        assert (keeper.error, client.proposal(other.id).state) == ("", "expired")


# -- in the shell -----------------------------------------------------------------------------------------------------


def test_what_others_must_vote_on_is_said_and_not_done(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.shell("node", "drain", "g0", "--yes", "--reason", "rack moves") == 4
    err = capsys.readouterr().err
    assert "P-1 is T2, so nothing is done yet: it needs 1 vote from others (approver" in err
    assert "They run: muster proposal approve P-1; it expires in" in err
    assert lab.node() == "ready"
    assert lab.shell("node", "cordon", "g1", "--yes") == 0
    assert (lab.node("g1"), lab.effects()) == ("cordoned", 1)
    capsys.readouterr()
    assert lab.shell("proposal", "list") == 0
    [title, line, *_] = capsys.readouterr().out.splitlines()
    assert title.split() == ["ID", "STATE", "TIER", "TITLE", "AUTHOR", "VOTES", "EXPIRES"]
    assert line.startswith("P-1  ○ awaiting")
    assert max(map(len, (title, line))) <= 80


def test_a_dry_run_keeps_nothing(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    before = lab.types()
    for command in (("node", "drain", "g0", "--dry-run"), ("proposal", "new", "node", "drain", "g0", "--dry-run")):
        assert lab.shell(*command) == 0
        assert "Drain node g0  [T2, not proposed]" in capsys.readouterr().out
        assert lab.shell(*command, "--readonly") == 0
    assert lab.types() == before
    assert lab.client().proposals() == ()


def test_a_proposal_from_the_shell_to_its_end_and_back(after: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    lab = lab_of(after, SOLO)
    assert lab.shell("proposal", "new", "node", "drain", "g0", "--when-asked", "--reason", "new fan") == 0
    assert capsys.readouterr().out == "P-1\n"
    digest = lab.client().proposal("P-1").digest
    assert lab.shell("proposal", "approve", "P-1") == 4
    assert lab.shell("proposal", "approve", "P-1", "--digest", digest[:5]) == 4
    assert lab.shell("proposal", "approve", "P-1", "--digest", "zzzzzz") == 4
    assert lab.shell("proposal", "approve", "P-1", "--digest", digest[:6]) == 0
    assert "waiting for somebody to execute it" in capsys.readouterr().err
    assert (lab.effects(), lab.node()) == (0, "ready")
    assert lab.shell("proposal", "execute", "P-1") == 0
    assert capsys.readouterr().out == "g0\n"
    assert lab.shell("proposal", "execute", "P-1") == 4
    assert lab.shell("proposal", "rollback", "P-1", "--reason", "the wrong one", "--yes") == 0
    assert lab.node() == "ready"
    assert lab.shell("proposal", "withdraw", "P-1") == 4
    assert lab.shell("proposal", "new", "node", "cordon", "g1") == 0
    assert lab.shell("proposal", "revise", "P-2") == 0
    assert lab.shell("proposal", "reject", "P-2", "--reason", "not today") == 0
    assert lab.shell("proposal", "show", "P-2", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "rejected"
    for line in (
        ("proposal", "show", "P-9"),
        ("proposal", "show", "P-1; DROP"),
        ("proposal", "approve", "\u0420-1", "--digest", digest),
    ):
        assert lab.shell(*line) == 3


def test_a_rollback_from_a_pipe_is_shown_and_not_done(after: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    lab = lab_of(after, SOLO)
    assert lab.shell("node", "cordon", "g0", "--yes") == 0
    capsys.readouterr()
    for command, code in ((("proposal", "rollback", "P-1"), 4), (("proposal", "rollback", "P-1", "--dry-run"), 0)):
        before = lab.types()
        assert lab.shell(*command) == code
        told = "".join(capsys.readouterr())
        assert "Roll back P-1: Uncordon node g0  [T1, not proposed]" in told
        assert "tried on a fork of v" in told
        assert ("Add --yes" in told) == (code == 4)
        assert (lab.node(), lab.types()) == ("cordoned", before)
    assert lab.shell("proposal", "rollback", "P-1", "--yes") == 0
    assert "P-1 is rolled back" in capsys.readouterr().err
    assert lab.node() == "ready"


def test_a_rollback_that_needs_votes_of_its_own_is_proposed_and_asks_for_them(
    after: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = lab_of(after, SOLO)
    assert lab.shell("node", "cordon", "g0", "--yes") == 0
    lab.clock.now_ms += 25 * 3_600_000
    assert lab.shell("proposal", "rollback", "P-1", "--dry-run") == 0
    assert "its votes are too old for a rollback" in capsys.readouterr().out
    assert lab.shell("proposal", "rollback", "P-1", "--reason", "the fan is new") == 4
    assert lab.client().proposal("P-2").state == "cancelled", "nobody could be asked"
    assert lab.shell("proposal", "rollback", "P-1", "--reason", "the fan is new", "--yes") == 0
    assert (lab.node(), lab.client().proposal("P-1").note) == ("ready", "rolled back by P-3")
    assert lab.shell("proposal", "show", "P-3") == 0
    assert "rolls back  P-1" in capsys.readouterr().out


def test_what_a_person_declines_is_withdrawn(after: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    lab = lab_of(after, SOLO)
    assert lab.shell("node", "cordon", "g0") == 4
    assert "no terminal to ask on" in capsys.readouterr().err
    assert lab.client().proposal("P-1").state == "cancelled"


def test_workloads_and_proposals_are_resumed_each_behind_their_noun(
    after: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = lab_of(after, SOLO)
    lab.client().command(Submit(workloads=(gpu_job("a"),)))
    assert lab.shell("workload", "suspend", "a", "--yes", "--reason", "a test") == 0
    assert lab.shell("workload", "resume", "a", "--yes") == 0
    assert lab.shell("proposal", "resume", "P-1") == 4
    assert "it cannot be resumed" in capsys.readouterr().err


def test_a_stale_proposal_shows_then_now_and_what_would_be(
    after: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = lab_of(after, SOLO)
    shown = lab.client().propose(asks("interrupt", ("g0",)))
    other = lab.client().propose(asks("drain", ("g0",)))
    lab.client().approve(other.id, other.digest)
    assert lab.shell("proposal", "approve", shown.id, "--digest", shown.digest, "--comment", "why") == 4
    assert "stale" in capsys.readouterr().err
    assert lab.shell("proposal", "show", shown.id) == 0
    out = capsys.readouterr().out
    assert [part.strip() for part in next(line for line in out.splitlines() if "│ now" in line).split("│")] == [
        "shown", "now", "new",
    ]  # fmt: skip
    assert "cannot be proposed again" in out
    assert lab.effects() == 1


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_nothing_changes_by_get_or_when_read_only(after: ExitStack) -> None:
    lab = lab_of(after, SOLO)
    shown = lab.client().propose(asks("cordon", ("g0",)))
    reader = RemoteClient(str(lab.path), read_only=True)
    after.callback(reader.close)
    with served_on_unix(lab.loop, read_only=True, gate=lab.gate) as where, closing(RemoteClient(str(where))) as server:
        changes: dict[str, Callable[[RemoteClient], object]] = {
            "propose": lambda c: c.propose(asks("cordon", ("g1",))),
            f"proposals/{shown.id}/revise": lambda c: c.revise(shown.id, asks("cordon", ("g1",))),
            "approve": lambda c: c.approve(shown.id, shown.digest),
            "vote": lambda c: c.vote(shown.id, shown.digest, "reject"),
            "execute": lambda c: c.execute(shown.id),
            "pause": lambda c: c.pause(shown.id),
            "resume": lambda c: c.resume(shown.id),
            "confirm": lambda c: c.confirm(shown.id, "1"),
            "rollback": lambda c: c.rollback(shown.id),
            "cancel": lambda c: c.cancel(shown.id),
            "break-glass": lambda c: c.break_glass(shown.id, shown.digest, "the rack is on fire"),
            "close-review": lambda c: c.close_review(1, "seen and understood"),
            "answer-intent": lambda c: c.answer_intent(
                IntentAnswer(number=1, outcome="done", reason="seen and understood")
            ),
            "freeze": lambda c: c.freeze(FreezeSpec(name="x", weekly=("daily 22:00 - 06:00",))),
            "thaw": lambda c: c.thaw("x"),
        }
        for path, change in changes.items():
            for client in (reader, server):
                with pytest.raises(RefusedError, match="read-only"):
                    change(client)
            answer = lab.client()._http.get(f"/v1/{path}")
            assert answer.status_code == 405, path
        assert reader.preview(asks("cordon", ("g1",))).state == "simulated"
        assert server.preview(asks("cordon", ("g1",))).state == "simulated"
        assert reader.reviews() == ()
        assert reader.freezes() == ()
    assert lab.client().proposal(shown.id).state == "awaiting"
    assert lab.effects() == 0


def test_an_old_way_in_is_still_shut(lab: Lab) -> None:
    for command in (Cancel(ids=("a",)), Drain(ids=("g0",))):
        with pytest.raises(RefusedError, match="propose it"):
            lab.client().command(command)


# -- a process that is killed -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_engine_killed_between_vote_and_execution_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "none.toml"))
    with socket_folder() as folder:
        paths = paths_in(folder / "lab")
        (folder / "cell.yaml").write_text(
            "pools: [{name: p, nodes: 2, capacity: {cpu: 8}}]\nqueues: [{name: q}]\n"
            "priority_classes: [{name: normal, value: 1}]\n"
        )
        serve = ["--cell-file", str(folder / "cell.yaml"), "--data", str(paths.folder), "--approval", "solo"]

        def killed() -> None:
            peer = probe(paths.socket)
            assert peer is not None
            os.kill(peer.pid, signal.SIGKILL)
            deadline = time.monotonic() + PATIENCE_S
            while probe(paths.socket) is not None:
                assert time.monotonic() < deadline

        def shell(*arguments: str) -> int:
            return run([*arguments, "--connect", str(paths.socket)])

        ensure_engine(paths, serve)
        assert shell("proposal", "new", "node", "cordon", "p-0001", "--when-asked") == 0
        with closing(RemoteClient(str(paths.socket))) as client:
            shown = client.proposal("P-1")
            client.vote(shown.id, shown.digest, "approve", "seen and wanted")
            assert client.health().approval == "solo"
        killed()
        ensure_engine(paths, serve)
        with closing(RemoteClient(str(paths.socket))) as client:
            again = client.proposal("P-1")
            assert (again.state, again.digest, len(again.votes)) == ("approved", shown.digest, 1)
            assert client.node("p-0001").state == "ready"
            with pytest.raises(RefusedError, match="is approved"):
                client.vote(again.id, again.digest, "approve")
        assert shell("proposal", "execute", "P-1") == 0
        assert shell("proposal", "execute", "P-1") == 4
        with closing(RemoteClient(str(paths.socket))) as client:
            assert (client.node("p-0001").state, client.proposal("P-1").state) == ("cordoned", "verified")
        killed()
    capsys.readouterr()


def test_a_plan_tried_in_a_copy_of_the_process_is_the_plan_tried_within_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, tier, blast, effects and refusals; of a rollback too, which reads the record first."""
    client = lab.client("alice")

    def seen(request: Request) -> Any:
        try:
            plan = client.preview(request).plan
        except MusterError as error:
            return type(error), str(error)
        return plan.steps, plan.tier, plan.blast, plan.rollback_tier, plan.simulated.effects

    lab.loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("w0"),))))
    done = lab.drain()
    lab.yes("bob", done)
    requests = (asks("drain", ("g1",)), asks("drain", ("nowhere",)), Request(steps=(), rolls_back=done.id))
    lab.loop.paused = True
    within = [seen(request) for request in requests]
    monkeypatch.setattr(loops, "BESIDE_FROM", 0)
    assert [seen(request) for request in requests] == within
    assert len(within[0]) == len(within[2]) == 5
    assert within[1][0] is NotFoundError
    assert lab.drain(node="g1").state == "awaiting"
