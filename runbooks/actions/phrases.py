"""Phrases about targets of which the lines of a plan are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbooks.actions.declaration import Action
from runbooks.actions.risk import loses_work, loss_ms
from runbooks.plans.amounts import amount, hours, size

if TYPE_CHECKING:
    from runbooks.plans.typed_plan import Act, RequestChange, Target


def subject(action: Action, act: Act) -> str:
    """As in "node n1" or "3 nodes"."""
    if len(act.targets) == 1:
        return f"{action.kind} {act.targets[0]}"
    return f"{len(act.targets)} {action.kind}s"


def state_of(target: Target) -> str:
    return f"{target.id} is {target.state}"


def workload_facts(action: Action, target: Target) -> str:
    """As in "running, 64 GPU, 3.2 h of work lost"."""
    facts = [target.state, size(target.gpu_milli, target.cpu_milli)]
    if loses_work(action, target):
        facts.append(f"{hours(loss_ms(action, target))} of work lost")
    return ", ".join(facts)


def request_of(target: Target, change: RequestChange) -> str:
    """What a task of the group asks for now of what the change names, as in "4 CPU, 2 GiB memory"."""
    asked = next((request for group, request in target.asks if change.group in ("", group)), {})
    return ", ".join(amount(name, asked.get(name, 0)) for name in change.request)
