"""Actions that exist only in a cell that Slurm decides on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.model.errors import SpecError
from runbooks.actions.declaration import (
    MINUTES_MS,
    WAITS,
    Action,
    Parameter,
    by,
    commands,
    flag,
    former,
    has_given,
    number,
    required,
    to_former,
)
from runbooks.actions.nodes import NODES
from runbooks.actions.workloads import GIVES_WAY, TO, WORKLOADS, qos_of, refuse_same, steps_to, works

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from runbooks.plans.typed_plan import Act, Target

NO_JOB_PRIORITY = 0xFFFFFFFE
"""Slurm's own mark for none. 0 is its mark for held."""


def express_job_priority(act: Act) -> AnyCommand:
    """Raises SpecError for what is no number that Slurm takes."""
    told = required(act.to, "to")
    if not told.isascii() or not told.isdecimal() or not 0 < int(told) < NO_JOB_PRIORITY:
        raise SpecError("to", f"'{told[:40]}' is not a priority", f"Give a number from 1 to {NO_JOB_PRIORITY - 1}")
    return commands.SetJobPriority(ids=act.targets, priority=int(told))


def never_shown(now: Target) -> bool:
    return False


def not_observed(act: Act, before: Target, now: Target) -> bool:
    """The cell holds nothing that shows it: only who decides there can say (`runbooks.actions.target_readings`)."""
    return False


ACTIONS: tuple[Action, ...] = (
    Action(
        name="set_qos",
        label="Set QOS",
        verb="Set the QOS of",
        summary="change the quality of service of waiting Slurm jobs",
        example=":set-qos ID --to QOS",
        parameters={**WORKLOADS, "to": Parameter(type="name", required=True)},
        arguments=(flag("to", metavar="QOS", required=True),),
        kind="workload",
        fields=TO,
        states=WAITS,
        otherwise="Only waiting work can change its QOS",
        refuse=refuse_same,
        replaces=lambda work: qos_of(work.priority_class),
        only_outside="Use set-priority",
        tier="T1",
        raised=GIVES_WAY,
        impact=("displaces",),
        command="SetQos",
        express=lambda act: commands.SetQos(ids=act.targets, qos=required(act.to, "to")),
        done=has_given,
        # Where QOS do not preempt, the cell holds no QOS.
        seen_outside=lambda now: bool(now.was),
        verified="Slurm shows it with the QOS given",
        waits=True,
        inverse="Set the QOS of {them} back to {was}; work preempted until then waits its turn",
        back=to_former,
        no_way_back="Cannot be undone: no QOS was set for {them} before",
        title=lambda act: f"Set the QOS of {works(act)} to {act.to}",
        was=former,
        steps=steps_to,
        found=lambda before, now, done: f"{now.id} has QOS {now.was or 'none'}",
    ),
    Action(
        name="set_job_priority",
        label="Set job priority",
        verb="Set the job priority of",
        summary="set a fixed priority for waiting Slurm jobs",
        example=":set-job-priority ID --to 5000",
        parameters={**WORKLOADS, "to": number(NO_JOB_PRIORITY - 1, 1, required=True)},
        arguments=(flag("to", metavar="NUMBER", required=True),),
        kind="workload",
        fields=TO,
        states=("queued", "waiting"),
        otherwise="Only waiting work has an order; release held work first",
        only_outside="Use set-priority, or the order of its queue",
        tier="T1",
        command="SetJobPriority",
        express=express_job_priority,
        done=not_observed,
        seen_outside=never_shown,
        verified="Slurm shows it with the priority given",
        waits=True,
        inverse="Cannot be undone: Slurm no longer recomputes a priority that was set",
        title=lambda act: f"Set the job priority of {works(act)} to {act.to}",
        steps=steps_to,
    ),
    Action(
        name="power_up",
        verb="Power up",
        summary="have Slurm start nodes that it powers on demand",
        example=":power-up NODE",
        parameters=NODES,
        kind="node",
        states=("ready", "cordoned", "draining"),
        otherwise="Only nodes that Slurm powers, and that are not down, can be powered up",
        only_outside="Use scale-pool, or set-targets",
        tier="T1",
        command="PowerUp",
        done=not_observed,
        seen_outside=never_shown,
        verified="Slurm no longer shows it powered down",
        waits=True,
        timeout_ms=MINUTES_MS,
        inverse="Power down {them}, if nothing runs on them",
        back=by("power_down"),
    ),
    Action(
        name="power_down",
        verb="Power down",
        summary="have Slurm stop nodes that it powers on demand",
        example=":power-down NODE",
        parameters=NODES,
        kind="node",
        states=("ready", "cordoned", "draining"),
        otherwise="Only nodes that Slurm powers, and that are not down, can be powered down",
        only_outside="Use scale-pool, or set-targets",
        tier="T1",
        command="PowerDown",
        done=not_observed,
        seen_outside=never_shown,
        verified="Slurm shows it powering down, or down",
        waits=True,
        timeout_ms=MINUTES_MS,
        inverse="Power up {them}; they boot anew",
        back=by("power_up"),
    ),
)
