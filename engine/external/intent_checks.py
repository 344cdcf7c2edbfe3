"""The check at the door of a cell that Slurm decides on: what is asked of Slurm becomes an intent, or is refused."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec

from engine.admission.definitions import Checked
from engine.admission.id_lookup import listed
from engine.admission.submissions import check_submission
from engine.command_checks import check
from engine.external.slurm.job_submission import check as check_job
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import RefusedError, SpecError
from engine.model.external_commands import CARRIED, why_not
from engine.state.cell_state import State
from engine.state.intent_answers import answered_by

MAX_OPEN = 100_000
"""Beyond this nothing more is taken: the other scheduler has been away for very long."""
TOKEN_BYTES = 10


def intend(
    state: State, command: cmd.AnyCommand, now_ms: int, *, acts: bool, lacks: Mapping[type[cmd.Command], str]
) -> Checked:
    """As `engine.command_checks.check`, in a cell that Slurm decides on: what is asked of Slurm becomes an intent.
    Everything that can be refused at once is. Raises SpecError, NotFoundError or RefusedError."""
    _refuse_impossible(type(command), acts=acts, lacks=lacks)
    if not isinstance(command, CARRIED):
        checked = check(state, command, now_ms)
        if any(isinstance(event, ev.Intended) for event in checked[0]):
            # A submission that is carried again: it is one like the first.
            _refuse_impossible(cmd.Submit, acts=acts, lacks=lacks)
            _refuse_too_many(state)
        return checked
    _refuse_too_many(state)
    if isinstance(command, cmd.Submit):
        return _submissions(state, command, now_ms)
    changed = _about(state, command, now_ms)
    intended = new_intent(state.intents.issued, command)
    return [intended, *answered_by(state, intended.number, intended.command)], changed


def _refuse_impossible(command: type[cmd.Command], *, acts: bool, lacks: Mapping[type[cmd.Command], str]) -> None:
    why = why_not(command, acts=acts, lacks=lacks)
    if why:
        name = str(command.__struct_config__.tag).replace("_", " ")
        raise RefusedError(f"cannot {name} in a cell that Slurm decides on: {why}", "")


def _refuse_too_many(state: State) -> None:
    if len(state.intents.open) >= MAX_OPEN:
        raise RefusedError(
            f"{len(state.intents.open):,} intents wait for Slurm", "See what it says: muster intents; then try again"
        )


def new_intent(number: int, command: cmd.AnyCommand) -> ev.Intended:
    """The command as an intent of that number, under a token that nobody can guess."""
    # Lower case and digits only: it is read by people, and goes through shells.
    token = f"{number:x}-{secrets.token_hex(TOKEN_BYTES)}"
    return ev.Intended(number, token, msgspec.msgpack.encode(command))


def _submissions(state: State, command: cmd.Submit, now_ms: int) -> Checked:
    """Each workload is an intent of its own: Slurm takes or refuses them one by one."""
    taken = [spec.id for spec in command.workloads if spec.id in state.intents.ids]
    if taken:
        raise SpecError("workload.id", f"{listed(taken)} was asked for already", "Give each workload its own id")
    for i, spec in enumerate(command.workloads):
        check_job(spec, f"workloads[{i}]" if len(command.workloads) > 1 else "workload")
    known = state.workloads.priority_of
    # Slurm itself chooses what is not said; which classes there are is known only as far as they were met.
    specs = tuple(
        spec if spec.priority_class in known else msgspec.structs.replace(spec, priority_class=min(known, default=""))
        for spec in command.workloads
    )
    if known:
        changed = check_submission(state, cmd.Submit(workloads=specs), now_ms)[1]
    else:
        changed = tuple(spec.id for spec in command.workloads)
        for spec in command.workloads:
            state.queues.row(spec.queue)
    first = state.intents.issued
    return [new_intent(first + i, cmd.Submit(workloads=(spec,))) for i, spec in enumerate(command.workloads)], changed


def _about(state: State, command: cmd.AnyCommand, now_ms: int) -> tuple[str, ...]:
    """Ids of what it would change. The check is that of a cell that Muster decides on, where it has one: a wish that
    makes no sense there makes none here."""
    return check(state, command, now_ms)[1]
