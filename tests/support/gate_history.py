"""A cell whose gate has seen everything once: every table of it has rows, and every kind of decision is on record."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from audit_logs import signer
from gate_cells import Clock, busy_engine
from runbook_texts import SOUND

from engine.control import Engine
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import Candidate, Policy, PolicyChange, PolicyVote
from runbooks.gate.policy_files import text_of
from runbooks.gate.policy_versions import Policies
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.identity import Actor, Signed
from runbooks.plans.incidents import AlertReport
from runbooks.plans.keys import decision_bytes
from runbooks.plans.queries import RunbookVote
from runbooks.plans.typed_plan import Act, Note, Proposal, Request, StepRequest
from runbooks.procedures.registry import RunbookRegistry, RunbookVoteSubject
from tests.support.team import NUMBERS, Member, changed, members, private_key, public_key, team

ACT = Note(text="look at it")


@dataclass
class Lived:
    """A gate with a past, under a team's policy; its log is signed."""

    engine: Engine
    gate: Gate
    clock: Clock
    of: dict[str, Member]
    folder: Path

    def checkpoint(self) -> None:
        self.gate.audit.after(at_once=True)
        assert self.gate.audit.error == ""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Lived]:
    """A gate on a cell that is new."""
    clock = Clock()
    with contextlib.closing(busy_engine(path)) as engine:
        yield gate_on(engine, clock, path.parent)


def gate_on(engine: Engine, clock: Clock, folder: Path) -> Lived:
    audit = Audit(engine, clock, log_id="lab", signer=signer())
    wide = msgspec.structs.replace(team().limits, nodes_permille=500, nodes_least=8, gpus_permille=500, gpus_least=64)
    policy = team(channels=(("pager", "log:"),), limits=wide)
    gate = Gate(engine, Policies(engine, audit, clock, default=policy), audit, clock)
    return Lived(engine, gate, clock, members(gate), folder)


def live(lived: Lived) -> None:
    """Everything that a gate can see, and then a checkpoint."""
    of, gate = lived.of, lived.gate
    voted(lived)
    of["pat"].propose("cordon", ["n0"])
    rejected = of["ann"].propose("cordon", ["n1"])
    of["ben"].vote(rejected, "reject")
    broken(lived, "sue", of["ann"].propose("cancel", ["w1"]))
    gate.close_review(of["cat"].actor, gate.reviews()[0].id, "it was needed, the rack was hot")
    broken(lived, "pat", of["ann"].propose("release", ["h0"]))
    several_steps(lived)
    another_policy(lived)
    gate.policies.freeze(of["cat"].actor, FreezeSpec(name="release", tier="T3", weekly=("daily 01:00 - 02:00",)))
    gate.policies.freeze(of["cat"].actor, FreezeSpec(name="over", tier="T3", weekly=("daily 01:00 - 02:00",)))
    gate.policies.thaw(of["cat"].actor, "over")
    an_incident(lived)
    runbook(lived)
    nonce = sign(lived, "ann", kind="author", digest="a" * 64)
    gate.policies.identified(of["ann"].actor.account, signed=nonce, digest="a" * 64)
    gate.outbox.send = lambda channel, key, text: None
    gate.tick()
    back = of["ben"].propose("cordon", ["n1"])
    of["ben"].yes(back)
    gate.rollback(of["ben"].actor, back.id, "it was the other one")
    lived.checkpoint()


def voted(lived: Lived) -> None:
    """T2 with one vote, and T3 with two."""
    of = lived.of
    assert of["cat"].yes(of["ann"].propose("suspend", ["r0"])).state == "verified"
    cancel = of["ben"].propose("cancel", ["r1"])
    assert [of[name].yes(cancel).state for name in ("cat", "dan")] == ["awaiting", "verified"]


def broken(lived: Lived, name: str, shown: Proposal) -> None:
    member = lived.of[name]
    signed = member.sign(shown, "approve", "breakglass")
    lived.gate.break_glass(member.actor, shown.id, shown.digest, "the rack is on fire", signed)


def several_steps(lived: Lived) -> None:
    """A plan that tells people, has something looked at, and waits for a word."""
    steps = (
        StepRequest(act=Act(action="notify", targets=("pager",), note=ACT)),
        StepRequest(act=Act(action="open_review", targets=("n2",), note=ACT)),
        StepRequest(act=Act(action="uncordon", targets=("n2",)), confirm="operator"),
    )
    shown = lived.gate.propose(lived.of["ben"].actor, Request(steps=steps, reason="the fan is new"))
    lived.of["ben"].yes(shown)
    lived.gate.confirm(lived.of["ben"].actor, shown.id, "3")


def an_incident(lived: Lived) -> None:
    """Opened by an alert, claimed, and closed."""
    source = Actor(subject="service:alerts", kind="service", account="token:service:alerts", deeds=("alert",))
    lived.gate.incidents.report(source, AlertReport(title="waits are long", labels={"queue": "a"}))
    lived.gate.incidents.claim(lived.of["cat"].actor, "I-1")
    lived.gate.incidents.close(lived.of["cat"].actor, "I-1", "a burst of short jobs")


def another_policy(lived: Lived) -> None:
    """Two are proposed; another admin votes for one."""
    now = lived.gate.policies.latest()
    for policy in (changed(now, "eve", roles=("operator",)), changed(now, "eve", roles=("approver",))):
        last = propose_policy(lived, policy)
    vote_policy(lived, last, "tom")


def propose_policy(lived: Lived, policy: Policy) -> Candidate:
    return lived.gate.policies.propose(lived.of["sue"].actor, PolicyChange(text=text_of(policy)))


def vote_policy(lived: Lived, shown: Candidate, name: str) -> None:
    about = {"proposal": shown.id, "revision": shown.revision, "digest": shown.digest, "verdict": "approve"}
    signed = sign(lived, name, kind="policy", **about)
    vote = PolicyVote(candidate=shown.id, digest=shown.digest, signed=signed)
    lived.gate.policies.vote(lived.of[name].actor, vote)


def sign(lived: Lived, name: str, **about: object) -> Signed:
    said = {
        "subject": f"person:{name}", "nonce": hashlib.sha256(str(next(NUMBERS)).encode()).hexdigest(),
        "at_ms": lived.clock(), "cell": lived.engine.record(lived.gate.policies.cell), **about,
    }  # fmt: skip
    signature = private_key(name).sign(decision_bytes(**said))  # type: ignore[arg-type]
    return Signed(
        subject=f"person:{name}", nonce=str(said["nonce"]), at_ms=lived.clock(), key=public_key(name).fingerprint,
        signature=base64.b64encode(signature).decode(),
    )  # fmt: skip


def runbook(lived: Lived) -> None:
    """One is approved."""
    (lived.folder / "drain-one.md").write_bytes(SOUND.encode())
    shelf = RunbookRegistry(lived.engine, lived.gate, (lived.folder,), lived.clock)
    line = next(line for line in shelf.lines() if line.source != "built in")
    signed = lived.of["cat"].sign(RunbookVoteSubject(f"runbook:{line.id}", line.version, line.sha256))  # type: ignore[arg-type]
    shelf.approve(lived.of["cat"].actor, RunbookVote(id=line.id, sha256=line.sha256, signed=signed))
