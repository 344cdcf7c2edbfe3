"""What needs no vote: submissions and definitions, which add to a cell and touch nothing that is there. They need a
role all the same, and what changes what the cell is made of is on record, in the transaction that does it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.model.commands import AddNodes, AddPools, AddPriorityClasses, AddQueues, AnyCommand, Define, Submit
from engine.model.errors import MusterError, RefusedError
from runbooks.people.identity import Scope
from runbooks.policy.local_commands import check_commands

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from engine.control import Engine
    from engine.model.commands import Receipt
    from runbooks.gate.approval_gate import Gate
    from runbooks.people.identity import Actor

ADMITTED = (Submit, Define, AddPools, AddNodes, AddQueues, AddPriorityClasses)
MAX_NAMES = 50
"""Of each kind of thing that is added, in the record."""


def check_admitted(command: AnyCommand) -> None:
    """Raises RefusedError for a command that changes what is there: those go through propose and approve."""
    if not isinstance(command, ADMITTED):
        raise RefusedError(
            f"{tag_of(command)} needs approval: propose it", "Use propose, look at the plan, then approve it"
        )


def admit(engine: Engine, gate: Gate, actor: Actor, command: AnyCommand) -> Receipt:
    """Do it in the actor's name. On the engine's thread. Raises RefusedError for what needs approval and for whom the
    policy does not let, and whatever the engine refuses."""
    check_admitted(command)
    if isinstance(command, Submit):
        gate.refuse_unless(actor, "submit", touched_by(command, outside=not engine.decides))
        check_commands(engine, actor, command)
        return engine.command(command)
    gate.refuse_unless(actor, "configure")

    def beside(connection: Connection) -> None:
        gate.audit.append(connection, "config.changed", actor, data=told(command))

    return engine.command(command, beside=beside)


def touched_by(command: Submit, *, outside: bool = False) -> Scope:
    """What submissions draw on: their queues, their tenants, and the pools that they are limited to. One that takes any
    pool is for no role that is limited to pools. `outside`: Slurm decides on the cell, where tags may name another
    partition and another account than queue and tenant do."""
    queues = {spec.queue for spec in command.workloads}
    tenants = {spec.tenant for spec in command.workloads}
    if outside:
        queues |= {name for spec in command.workloads for name in spec.tags.get("partition", "").split(",") if name}
        tenants |= {spec.tags["account"] for spec in command.workloads if spec.tags.get("account")}
    bound = all(group.pools for spec in command.workloads for group in spec.groups)
    pools = {pool for spec in command.workloads for group in spec.groups for pool in group.pools} if bound else set()
    return Scope(pools=tuple(pools), queues=tuple(queues), tenants=tuple(tenants))


def told(command: AnyCommand) -> dict[str, object]:
    """What the audit says of a definition: what kinds of things it adds, by name, and the hash of all of it."""
    body = msgspec.json.encode(command, order="sorted")
    whole = command.cell if isinstance(command, Define) else command
    adds: dict[str, object] = {}
    for field in ("pools", "nodes", "queues", "priority_classes"):
        names = [str(getattr(thing, "id", "") or getattr(thing, "name", "")) for thing in getattr(whole, field, ())]
        if names:
            adds[field] = {"count": len(names), "names": names[:MAX_NAMES]}
    return {"command": tag_of(command), "adds": adds, "sha256": hashlib.sha256(body).hexdigest()}


def tag_of(command: AnyCommand) -> str:
    return str(type(command).__struct_config__.tag)


def admit_all(
    engine: Engine,
    gate: Gate,
    wanted: Sequence[tuple[Actor, Submit]],
    answered: Callable[[Connection, Sequence[Receipt | MusterError]], None] | None = None,
) -> list[Receipt | MusterError]:
    """Submissions that came together, in one transaction, each accepted or refused on its own. `answered` writes what
    came of each in the same transaction, if one is accepted. On the engine's thread."""
    answers: list[Receipt | MusterError | None] = []
    allowed: list[Submit] = []
    for actor, command in wanted:
        try:
            gate.refuse_unless(actor, "submit", touched_by(command, outside=not engine.decides))
            check_commands(engine, actor, command)
        except MusterError as error:
            answers.append(error)
            continue
        answers.append(None)
        allowed.append(command)
    if not allowed:
        return [answer for answer in answers if answer is not None]

    def whole(of_allowed: Sequence[Receipt | MusterError]) -> list[Receipt | MusterError]:
        coming = iter(of_allowed)
        return [next(coming) if answer is None else answer for answer in answers]

    if answered is None:
        return whole(engine.commands(allowed))
    return whole(engine.commands(allowed, answered=lambda connection, found: answered(connection, whole(found))))
