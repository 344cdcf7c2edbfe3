"""The starting points of the approval policy, and what each lets one person do: every answer is found by asking the
policy, with that person's vote alone.

The command, docs/approval.md and the console's settings show the table that `table` makes.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from runbooks.gate import run_limits
from runbooks.gate.approval_policy import (
    BUILT_IN,
    Person,
    Policy,
    Vote,
    fingerprints,
    may,
    need,
    tally,
)
from runbooks.gate.run_limits import LimitUsage, Size
from runbooks.plans.identity import OWNER, Actor
from runbooks.plans.typed_plan import Blast, Origin, Party, Tier

FOR_WHOM = {"solo": "one person", "pair": "two people on call", "team": "more; holds until you choose"}


class PlanKind(NamedTuple):
    """A kind of plan that somebody makes."""

    what: str
    examples: tuple[str, ...]
    tier: Tier
    origin: Origin = "person"
    own: bool = False

    def words(self) -> str:
        return f"{self.what} ({', '.join(self.examples)})" if self.examples else self.what


CASES = (
    PlanKind("what can be rolled back", ("hold", "release", "cordon"), "T1"),
    PlanKind("what disrupts", ("requeue", "drain"), "T2"),
    PlanKind("what is hard to undo", ("cancel work that runs",), "T3"),
    PlanKind("all that with work you submitted", ("cancel", "hold", "requeue"), "T3", own=True),
    PlanKind("what a machine drafted, to be rolled back", (), "T1", "recommender"),
    PlanKind("what a machine drafted, that disrupts", (), "T2", "recommender"),
)
POOLS = (4, 100)
"""Sizes of pools for which the table says how many nodes may be out of service."""
ALONE = "you alone"


class AloneAnswer(NamedTuple):
    what: str
    answer: str


def asked(policy: Policy, actor: Actor, owner: str = OWNER) -> tuple[AloneAnswer, ...]:
    """What this person may do alone under a policy, and what needs whom."""
    return tuple(AloneAnswer(case.words(), _alone(policy, actor, case, owner)) for case in CASES)


def _alone(policy: Policy, actor: Actor, case: PlanKind, owner: str) -> str:
    why_not = may(policy, actor, "propose", case.tier, None, owner=owner)
    if why_not:
        return f"not you: {why_not}"
    key = next(iter(sorted(fingerprints(policy, actor.subject))), "")
    author = Party(subject=actor.subject, kind=actor.kind, account=actor.account, signed=bool(key))
    needed = need(policy, case.tier, case.origin, own=case.own and bool(policy.own_work))
    vote = Vote(subject=actor.subject, kind=actor.kind, account=actor.account, verdict="approve", at_ms=0, key=key)
    counted = tally(policy, [vote], author, "", needed, owner=owner)
    how = [*(["signed"] if needed.signed else []), *(["with a reason"] if needed.reason else [])]
    if not counted.missing:
        return ", ".join((ALONE, *how))
    who, besides = " and ".join(needed.roles) or "operator", "" if needed.self_ok else "other "
    whom = f"{counted.missing} {besides}{who}{'' if counted.missing == 1 else 's'}"
    return ", ".join((whom, *how))


# -- before there are people ------------------------------------------------------------------------------------------

_YOURS = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPmVYrp2Op3GIhpzhfInsVprMi+hts4zDY3d5KF3b7vr"
"""Any key: only that there is one counts."""
YOU = Person(id="you", accounts=("unix:1",), keys=(_YOURS,), roles=("operator", "approver"), on_call=True)
_ACTOR = Actor(subject=YOU.subject, account=YOU.accounts[0])


def one_person(name: str) -> tuple[AloneAnswer, ...]:
    """What an operator and approver with a key may do alone at night under a starting point that names them."""
    policy = msgspec.structs.replace(BUILT_IN[name], people=(YOU,))
    why_not = may(policy, _ACTOR, "break_glass", "T3")
    return (
        *asked(policy, _ACTOR),
        AloneAnswer(
            "anything, by break-glass, if you are on call", f"no: {why_not}" if why_not else f"{ALONE}, reviewed later"
        ),
        *(AloneAnswer(f"nodes out of service, of a pool of {size}", str(_nodes(policy, size))) for size in POOLS),
    )


def _nodes(policy: Policy, size: int) -> int:
    """Most nodes of a pool of that size that may be taken out of service."""
    cell = Size(nodes={"pool": size}, gpu_milli=0)
    return max(
        n
        for n in range(size + 1)
        if not run_limits.over(policy.limits, LimitUsage(), "T1", Blast(nodes=(("pool", n),)), cell)
    )


def table() -> tuple[tuple[str, ...], ...]:
    """Head, and a row for each kind of plan: what it is, then the answer under each starting point."""
    columns = [one_person(name) for name in BUILT_IN]
    head = ("one person may", *(f"{name} ({FOR_WHOM[name]})" for name in BUILT_IN))
    rows = zip(*columns, strict=True)
    return (head, *((row[0].what, *(answer.answer for answer in row)) for row in rows))
