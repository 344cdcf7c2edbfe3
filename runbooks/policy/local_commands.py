"""Who may have commands run where work runs for real: each runs as the account that owns the engine, so it is as if
they were that account. No role gives that, only whoever starts the engine: by default to themselves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.fleet.routing_policy import BY_TAG
from engine.model.errors import RefusedError, SpecError
from runbooks.people.identity import OWNER

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.model.commands import Submit
    from runbooks.people.identity import Actor

ROOT = "unix:0"
"""May become anybody anyway."""


def check_commands(engine: Engine, actor: Actor, command: Submit) -> None:
    """Raises RefusedError for somebody who may not have this machine run anything, SpecError for work that says
    nothing that could be run. In other cells a command is kept and nothing here runs it."""
    if engine.processes is None:
        return
    # A fleet comes as the account it runs as, whoever told it to.
    accounts = {actor.account, *(spec.tags.get(BY_TAG, actor.account) for spec in command.workloads)}
    if not accounts <= {OWNER, ROOT} and not getattr(engine.processes, "open_door", False):
        raise RefusedError(
            "commands run here only for the account that owns the engine, through its Unix socket",
            "It may be opened to all who may submit: muster serve --here --for-others",
        )
    for i, spec in enumerate(command.workloads):
        if spec.run is None:
            where = f"workloads[{i}].run" if len(command.workloads) > 1 else "workload.run"
            raise SpecError(where, "is missing: this cell runs commands", "Write for example run: [python3, train.py]")
