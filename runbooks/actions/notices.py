"""The actions that tell people something, and change nothing of the cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbooks.actions.declaration import Action
from runbooks.actions.parameters import MAX_TEXT, Parameter, flag, ids, one
from runbooks.plans.amounts import listed

if TYPE_CHECKING:
    from runbooks.plans.typed_plan import Act, Target

TEXT = Parameter(type="text", required=True, most=MAX_TEXT)
ONE_LINE = flag("text", help="one line", required=True)


def steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    text = act.note.text if act.note is not None else ""
    return [f"{action.shell} {target.id}: {text}" for target in targets]


ACTIONS: tuple[Action, ...] = (
    Action(
        name="notify",
        label="Notify",
        verb="Tell",
        summary="tell channels of the policy something",
        example=":notify CHANNEL --text 'pool h100 is short of nodes'",
        parameters={"channels": ids("channel"), "text": TEXT},
        arguments=(ONE_LINE,),
        kind="channel",
        fields=("note",),
        most=16,
        states=("known",),
        otherwise="Only channels of the policy can be told",
        tier="T0",
        done=lambda act, before, now: True,
        verified="it is in the outbox; what comes of it is in the audit",
        inverse="Cannot be undone: what was said was said",
        title=lambda act: f"Tell {listed(act.targets)}",
        steps=steps,
        found=lambda before, now, done: f"{now.id} is told",
    ),
    Action(
        name="open_review",
        label="Open review",
        verb="Open a review of",
        summary="have a proposal, or anything else with an id, looked at by others",
        example=":open-review ID --text 'why twice?'",
        parameters={"about": one("object"), "text": TEXT},
        arguments=(ONE_LINE,),
        kind="review",
        fields=("note",),
        most=1,
        states=("known",),
        otherwise="Name a proposal or another object",
        tier="T0",
        done=lambda act, before, now: True,
        verified="it is open",
        inverse="Cannot be undone: somebody closes it",
        steps=steps,
        found=lambda before, now, done: f"a review of {now.id} is open",
    ),
)
