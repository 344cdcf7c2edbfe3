"""Made-up proposals, runbooks and records, as strangers might have written them: for `FakeClient` and for pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runbooks.plans.checks import Check, Finding
from runbooks.plans.queries import AuditRow, AuditText, FileProblem, InputLine, RunbookLine, RunbookView
from runbooks.plans.typed_plan import (
    Act,
    Blast,
    Difference,
    Effect,
    EvidenceRef,
    Limits,
    Note,
    Party,
    Plan,
    Proposal,
    RunbookRef,
    Simulated,
    Source,
    Step,
    StepStanding,
    Tier,
    VoteLine,
)

NOW_MS = 1_772_366_400_000
MINUTE = 60_000
ALICE, BOB, CAROL = "person:alice", "person:bob", "person:carol"
IMITATION = "✔ approved 2/2\n\nVotes ──────────── 2/2\n✓ yes  alice\n  n  no, cancel   y  yes, drain"
"""Looks like our own page."""
FLOOD = "z" + "\u0335\u0336\u0337\u0338" * 40 + " flood"
Text = Callable[[int, str], str]


def plain(_number: int, text: str) -> str:
    return text


def proposal(
    number: int = 1, *, state: str = "awaiting", tier: Tier = "T2", text: Text = plain, **changes: Any
) -> Proposal:
    """Two steps on two nodes, by alice. `text` gives what is foreign in it."""
    nodes = ("node-00001", "node-00002")
    blast = Blast(
        gpu_milli=16_000, nodes=((text(1, "h100"), 2),), workloads=3, tenants=(text(2, "acme"), text(3, "globex")),
        cost_microusd_hour=12_500_000,
    )  # fmt: skip
    effects = (
        Effect(label="running workloads", before="150", after="147"),
        Effect(label=text(4, "GPU in use"), before="211", after="195"),
        Effect(label="wait p95", before="41m", after="44m"),
    )
    cordon, drain = Act(action="cordon", targets=nodes), Act(action="drain", targets=nodes)
    back = (Act(action="uncordon", targets=nodes),)
    steps = (
        Step(
            id="cordon", act=cordon, shown=(), tier="T1", blast=Blast(), rollback=back, timeout_ms=30_000,
            pre=(Check(check="pool_free_gpus", of="h100", op=">=", value=8),),
            verify=(Check(check="node_state", of="node-00001", op="==", value="cordoned", within_ms=30_000),),
            on_fail="rollback",
        ),
        Step(id="drain", act=drain, shown=(), tier=tier, blast=blast, rollback=back, timeout_ms=20 * MINUTE,
             confirm="operator"),
    )  # fmt: skip
    if changes.pop("notes", False):
        note = Act(action="notify", targets=("oncall",), note=Note(text=text(5, IMITATION)))
        steps = (*steps, Step(id="tell", act=note, shown=(), tier="T0", blast=Blast(), timeout_ms=30_000))
    plan = Plan(
        proposal=f"P-{number}", revision=1, author=Party(subject=ALICE, kind="human", account="unix:1001", signed=True),
        origin="runbook", source=Source(kind="runbook", id="drain-failing-node"),
        steps=steps, tier=tier, blast=blast, limits=Limits(nodes=2, gpus=16),
        simulated=Simulated(version=1_000, at_ms=NOW_MS, effects=effects),
        evidence=(EvidenceRef(id=text(6, "ecc-errors-node-00001"), sha256="ab" * 32),), policy_digest="0" * 64,
        runbook=RunbookRef(id="drain-failing-node", version=3, sha256="cd" * 32),
        expires_ms=NOW_MS + 60 * MINUTE,
    )  # fmt: skip
    values: dict[str, Any] = {
        "id": plan.proposal, "plan": plan, "digest": plan.digest(), "tier": tier,
        "title": text(7, "Cordon 2 nodes, and 1 more step"),
        "steps": (
            "cordon node-00001 (ready, 8 GPU)", "cordon node-00002 (ready, 8 GPU)",
            text(8, "drain node-00001 (2 workloads requeued, 3.2 h of work lost)"),
            "drain node-00002 (1 workload requeued, 12 min of work lost)",
        ),
        "effects": effects, "inverse": text(9, "uncordon makes them take work again; what was requeued starts anew"),
        "version": 1_000, "expires_ms": plan.expires_ms, "state": state, "created_ms": NOW_MS - MINUTE,
        "reason": text(10, "ECC errors rise on both since this morning"), "needs": 1 if tier == "T2" else 2,
        "need": "approver, neither its author nor who asked for it, signed with their own key", "signed": True,
        "typed": "digest", "why_tier": ("it takes 2 of 16 nodes of h100, which is more than 5%",),
        "standing": (StepStanding(id="cordon"), StepStanding(id="drain")),
    }  # fmt: skip
    if state not in ("awaiting", "drafted", "simulated"):
        values |= {"needs": 0, "need": ""}
    return Proposal(**(values | changes))


def voted(text: Text = plain) -> tuple[VoteLine, ...]:
    """One that counts, one that does not, one from the author's own account."""
    return (
        VoteLine(subject=BOB, verdict="approve", at_ms=NOW_MS, comment=text(0, "seen on the dashboard too")),
        VoteLine(subject=ALICE, verdict="approve", at_ms=NOW_MS, counts="is the author"),
        VoteLine(subject=CAROL, verdict="approve", at_ms=NOW_MS, one_account=True, comment=text(1, "fine")),
    )


def halfway(text: Text = plain) -> tuple[StepStanding, ...]:
    """The first step is verified, the second was done and is not seen to have worked."""
    return (
        StepStanding(id="cordon", state="verified", at_ms=NOW_MS, version=1_001, changed=("node-00001",),
                     verified=("verified: node-00001 is cordoned", "verified: node-00002 is cordoned")),
        StepStanding(id="drain", state="inconclusive", at_ms=NOW_MS, version=1_002,
                     verified=(text(3, "NOT verified: node-00001 has 2 workloads"),)),
    )  # fmt: skip


def changed_since(text: Text = plain) -> tuple[Difference, ...]:
    return (
        Difference(what="node-00001", shown="ready", now=text(4, "down"),
                   text="node-00001 was shown as ready and is down now"),
        Difference(what="node-00002", shown="1 workloads", now="2 workloads",
                   text=text(5, "node-00002 now has work that was not shown: wl-000042")),
    )  # fmt: skip


def shelf(text: Text = plain) -> tuple[RunbookLine, ...]:
    made = (
        ("drain-failing-node", "approved", "approved by bob, carol", 0),
        ("spot-storm", "draft", "2 votes are missing", 0),
        ("stuck-gang", "changed", "version 2 was approved", 0),
        ("old-way", "retired", "retired by bob", 0),
        ("half-done", "faulty", text(1, "vacuous check: it always holds"), 3),
    )
    return tuple(
        RunbookLine(
            id=name, version=3, title=text(number, f"How to {name.replace('-', ' ')}"),
            owner=text(number + 1, "muster"), status=status, note=note, source="built in",
            sha256="ef" * 32, problems=problems,  # type: ignore[arg-type]
        )
        for number, (name, status, note, problems) in enumerate(made)
    )  # fmt: skip


def book(line: RunbookLine, text: Text = plain) -> RunbookView:
    prose = f"## Why\n\n{text(2, 'A node that fails under its work fails again.')}\n\n## Evidence\n\n{IMITATION}"
    problem = FileProblem(
        where="half-done.md:12", rule="vacuous_check", problem=text(3, "node_workloads >= 0 always holds"),
        remedy="Compare with something that may be otherwise",
    )  # fmt: skip
    return RunbookView(
        line=line,
        inputs=(
            InputLine(name="node", type="node_id", help=text(4, "the node that fails"), bounds="required"),
            InputLine(name=text(5, "pool"), type="pool", help="", bounds="optional"),
            InputLine(name="wait", type="duration", help="", bounds="1m to 2h, default 20m"),
        ),
        when=("node ${inputs.node} is not down",), limits="at most 1 node, 64 GPUs, 30m",
        steps=("cordon: cordon nodes ${inputs.node}", "  then: node ${inputs.node} is cordoned, within 30s",
               "  rollback: the inverse action, to the old values", "drain: drain nodes ${inputs.node}"),
        prose=prose, votes=("bob approved it on 2026-02-27",), problems=(problem,) * line.problems,
    )  # fmt: skip


def finding() -> Finding:
    check = Check(check="node_state", of="node-00001", op="!=", value="down")
    return Finding(check=check, verdict="success", found="node node-00001 is ready")


def records(count: int, text: Text = plain) -> tuple[AuditRow, ...]:
    """Oldest first."""
    kinds = ("proposal.drafted", "vote.approve", "vote.refused", "exec.effect", "command.refused", "breakglass.used")
    return tuple(
        AuditRow(
            seq=seq, at_ms=NOW_MS - (count - seq) * 1_000, type=kinds[seq % len(kinds)],
            subject=text(seq, (ALICE, BOB, "system")[seq % 3]), kind="human", account="unix:1001", signed=seq % 3 == 1,
            key="SHA256:abc", session="", proposal=f"P-{seq // 6 + 1}", revision=1,
            step="drain" if seq % 6 == 3 else "",
            plan="12" * 32, policy="34" * 32,
            data={"why": text(seq + 1, "is the author"), "targets": [text(seq + 2, "node-00001")], "version": 1_000},
            private=(AuditText(ref="ab12", text=text(seq + 3, IMITATION)), AuditText(ref="cd34", text=None))
            if seq % 6 == 1 else (),
            hash="56" * 32,
        )
        for seq in range(1, count + 1)
    )  # fmt: skip
