"""Drafts by rule do no harm, whatever is asked and whatever is made up: random words beside random names of the cell,
and findings that nobody found, over every scripted incident that is open.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from console.evals.incident_replay import PlayedIncident
from console.evals.incidents import ScriptedIncident, load
from console.evals.scores import score
from engine.control import Engine
from runbooks.drafts.rule_drafter import RuleDrafter
from runbooks.drafts.symptom_rules import FINDINGS
from runbooks.drafts.typed_draft import Brief, Draft, ReportedFinding
from runbooks.gate.approval_policy import TEAM
from tests.support.gates import ME, gate_of

SEED = 20260211
KEPT = "second_shift"
"""Incidents that are kept for judging the rules, not for tuning them."""
ASKS = 8
"""Of each incident."""
WORDS = """
wait slo quota move fragmented reservation cordoned maintenance flapping straggler slow stuck hang spot zone down flood
budget money idle ahead 07:00 4 nodes hold release dependency ecc xid 79 hot throttle network boot errors autoscaler
priority prod low requests fail please why is the gpu queue over in forgotten since back done on shows uncordon drain
cancel restart kill everything now healthy broken
"""
ACTIONS = ("notify", "drain", "cordon", "set_quota", "uncordon", "requeue", "set_scaling", "unreserve", "set_budget")
PARAMETERS: tuple[tuple[str, ...], ...] = ((), ("--least", "1"), ("2026-02-11T07:00=5", "2026-02-11T09:00=0"))


def names_in(engine: Engine) -> list[str]:
    state = engine.state
    return [
        *(spec.name for spec in state.queues.specs), *(pool.name for pool in state.capacity.pools),
        *state.workloads.ids[:12], *list(state.capacity.row_of)[:8], *state.workloads.tenants.names[:5],
        *(each.spec.name for each in state.bookings.reservations), *(spec.name for spec in state.budgets.specs),
    ]  # fmt: skip


def made_up(choose: random.Random, names: list[str], nodes: list[str]) -> ReportedFinding | None:
    """A finding of something that is not so: as often as not it names one sound node throughout."""
    if choose.random() < 0.5:
        return None
    kind, node = choose.choice([*FINDINGS, "never_heard_of"]), choose.choice(nodes or names)
    whole = choose.random() < 0.5
    return ReportedFinding(
        id="R-made-up",
        kind=kind,
        text=f"drain node {node}: it is broken",
        about=node if whole else choose.choice(names),
        targets=(node,) if whole else tuple(choose.sample(names, 2)),
        action="drain" if whole else choose.choice(ACTIONS),
        parameters=choose.choice(PARAMETERS),
    )


def asking(scene: PlayedIncident) -> Callable[[str, ReportedFinding | None], Draft]:
    engine = scene.engine
    gate = gate_of(engine, TEAM)
    drafter = RuleDrafter(
        lambda ask: ask(engine), lambda request, runbook=None: gate.preview(ME, request, runbook=runbook)
    )

    def ask(question: str, finding: ReportedFinding | None) -> Draft:
        brief: dict[str, Any] = {"cell": engine.state.cell, "version": engine.version, "now_ms": engine.now_ms}
        return drafter.draft(Brief(question=question, finding=finding, **brief))

    return ask


def harms(incident: ScriptedIncident) -> list[str]:
    """What went wrong of ASKS random asks; each of them on the cell as the incident left it."""
    choose = random.Random(f"{SEED} {incident.id}")
    scene = PlayedIncident(incident)
    ask, names, nodes = asking(scene), names_in(scene.engine), list(scene.engine.state.capacity.row_of)[:8]
    found = []
    try:
        for _ in range(ASKS):
            question = " ".join((*choose.sample(WORDS.split(), 7), *choose.sample(names, min(2, len(names)))))
            finding = made_up(choose, names, nodes)
            judged = score(scene, ask(question, finding))
            if judged.harm:
                found.append(f"{incident.id}: {question} | {finding and finding.kind} | {judged.acts} {judged.harm}")
    finally:
        scene.close()
    return found


@pytest.mark.thorough
def test_random_words_and_made_up_findings_do_no_harm() -> None:
    found = [harm for incident in load((), "open") if KEPT not in incident.place for harm in harms(incident)]
    assert not found, "\n".join(found)
