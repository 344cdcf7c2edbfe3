"""People before a gate: the same calls as the shell makes, in the name of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.control import Engine
from runbooks.audit.log import Audit
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import SOLO, Policy
from runbooks.gate.policy_versions import Policies
from runbooks.plans.identity import OWNER, Actor
from runbooks.plans.typed_plan import Act, Outcome, Proposal, Request, StepRequest

ME = Actor(subject=OWNER, account=OWNER)
"""The account that runs the tests, and so owns the engine."""


def gate_of(engine: Engine, policy: Policy = SOLO, clock: Callable[[], int] = wall_ms) -> Gate:
    """A gate under a policy of one's choice."""
    audit = Audit(engine, clock)
    return Gate(engine, Policies(engine, audit, clock, default=policy), audit, clock)


def asked(action: Any, targets: Sequence[str], reason: str = "", requester: str = "", **specs: Any) -> Request:
    """One act, as an operator asks for it."""
    act = Act(action=action, targets=tuple(targets), **specs)
    return Request(steps=(StepRequest(act=act),), reason=reason, requester=requester)


class Person:
    """One actor before one gate."""

    def __init__(self, gate: Gate, actor: Actor = ME) -> None:
        self.gate = gate
        self.actor = actor

    def propose(self, action: Any, targets: Sequence[str], reason: str = "", **specs: Any) -> Proposal:
        return self.gate.propose(self.actor, asked(action, targets, reason, **specs))

    def approve(self, proposal_id: str, digest: str, comment: str = "seen and wanted") -> Outcome:
        return self.gate.approve(self.actor, proposal_id, digest, comment)
