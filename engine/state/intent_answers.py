"""What a person says of an intent in doubt: that it is done, that it is not, or that it is to be carried again.

Only a doubt is answered: what is under way is the driver's affair, and what is settled is known. A submission that is
carried again keeps its token, so that a first copy that comes to light is found beside the second, and one of the two
is cancelled. An act is never carried again from here: it was approved for the cell as it was then, so it is proposed
anew; once the same is wanted again, the doubt of the first is answered by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import NotFoundError, RefusedError
from engine.state.intents import Intent, Phase, replaced, wanted

if TYPE_CHECKING:
    from engine.admission.definitions import Checked
    from engine.state.cell_state import State


def in_doubt(state: State, number: int) -> Intent:
    """The intent, if it waits for a person. Raises NotFoundError, and RefusedError for one that does not."""
    intent = state.intents.known(number)
    if intent is None:
        raise NotFoundError(f"there is no intent i{number}", "The last 500 that were settled are kept: muster intents")
    phase = Phase(intent.phase)
    if phase != Phase.IN_DOUBT:
        why = "it is settled" if phase.settled else "it is under way, and what comes of it is found out without you"
        raise RefusedError(f"i{number} is {phase.label}: {why}", "Only what is in doubt waits for a word")
    return intent


def answer(state: State, command: cmd.AnswerIntent) -> Checked:
    """Raises NotFoundError and RefusedError."""
    intent = in_doubt(state, command.number)
    changed = (f"i{command.number}",)
    if command.outcome == "done":
        return [ev.IntentAnswered(command.number, Phase.DONE, f"{command.by} says that it is done")], changed
    if command.outcome == "undone":
        return [ev.IntentAnswered(command.number, Phase.UNDONE, f"{command.by} says that it is not done")], changed
    submission = wanted(intent)
    if not isinstance(submission, cmd.Submit):
        raise RefusedError(
            f"i{command.number} is an act: it was approved for the cell as it was then",
            f"Propose it anew: muster intents retry i{command.number} does that",
        )
    name = submission.workloads[0].id
    if name in state.intents.ids and state.intents.named.get(intent.token) != name:
        raise RefusedError(
            f"'{name}' is another workload by now", f"Submit it under a name of its own; i{command.number}: settle it"
        )
    again = state.intents.issued
    told = f"{command.by} has it carried again, as i{again}"
    return [
        ev.IntentAnswered(command.number, Phase.RETRIED, told),
        ev.Intended(again, intent.token, intent.command),
    ], (*changed, f"i{again}")


def answered_by(state: State, number: int, command: bytes) -> list[ev.AnyEvent]:
    """The same act is wanted again, as intent `number`: whether it happened the first time no longer matters."""
    told = f"the same was wanted again, as i{number}"
    return [
        ev.IntentAnswered(intent.number, Phase.RETRIED, told)
        for intent in state.intents.ended
        if intent.phase == Phase.IN_DOUBT and intent.command == command
    ]


def answered(state: State, event: ev.IntentAnswered) -> None:
    intents = state.intents
    at = next((at for at, intent in enumerate(intents.ended) if intent.number == event.number), None)
    if at is None:
        return  # a snapshot of a release that dropped doubts is without it, though a replay of all had it
    intents.doubts -= intents.ended[at].phase == Phase.IN_DOUBT
    intent = intents.ended[at] = replaced(intents.ended[at], state.now_ms, phase=event.phase, text=event.text)
    if event.phase == Phase.UNDONE:
        intents.free(intent.token)
