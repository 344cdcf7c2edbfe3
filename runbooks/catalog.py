"""The closed set of actions: what each applies to and needs to be told, how risky it is, how it is taken back, which
engine command it becomes, and what must be true afterwards. How acts read is in `runbooks.wording`, what takes them
back exactly in `runbooks.inverse`, what they touch in `runbooks.blast`, what raises a tier in `runbooks.risk`.

Tiers: T0 tells somebody, T1 can be taken back, T2 disrupts, T3 is hard to undo. An action's own tier is a floor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from engine.commands import (
    AnyCommand,
    ApproveSpending,
    Cancel,
    Cordon,
    Drain,
    DrainQueues,
    Hold,
    HoldQueues,
    Interrupt,
    OpenQueues,
    PowerDown,
    PowerUp,
    Preempt,
    Release,
    RemoveBudgets,
    Requeue,
    Resume,
    Suspend,
    Uncordon,
    Unreserve,
)
from engine.errors import SpecError
from runbooks import as_commands, effects
from runbooks.as_commands import POLICIES as POLICIES
from runbooks.bounds import check_bounds
from runbooks.checks import Verdict
from runbooks.effects import Done
from runbooks.plan import Act, ActionName, Target, Tier
from runbooks.risk import BOUND as BOUND
from runbooks.risk import LARGE_SHARE_PERMILLE as LARGE_SHARE_PERMILLE
from runbooks.risk import loses_work as loses_work
from runbooks.risk import loss_ms as loss_ms
from runbooks.risk import lost as lost
from runbooks.risk import lost_by as lost_by
from runbooks.risk import tier_and_why as tier_and_why

Kind = Literal[
    "workload", "node", "queue", "reservation", "policy", "pool", "budget", "scaling", "canary", "channel", "review"
]
MANY = 1_000
"""Targets of one act, where it may have many."""
SOON_MS, MINUTES_MS = 30_000, 600_000
"""Within which an effect is seen: of what is so at once, and of what takes its time."""
BOOTED_MS = 1_800_000
MARGIN_MS = 600_000
"""After the window of a canary, within which it must have been judged."""
LIVE = frozenset(("queued", "held", "waiting", "suspended", "placed", "running"))
WAITS = frozenset(("queued", "held", "waiting", "suspended"))


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    name: ActionName
    kind: Kind
    """Of its targets."""
    verb: str
    tier: Tier
    """The least tier a plan with this action can have."""
    raised: str = ""
    """What raises the tier, for people; the rules are in `runbooks.risk`."""
    fields: tuple[str, ...] = ()
    """Fields of Act that are given for it, besides the targets: all of these, and no others."""
    most: int = MANY
    """Targets at a time."""
    states: frozenset[str]
    """States of a target in which the action makes sense: what must hold before it is done. Not used for policies."""
    with_work: frozenset[str] = frozenset()
    """Those of `states` in which it makes sense only while work is left on the target."""
    otherwise: str = "Nothing needs doing"
    """What a person can do when a target is in another state."""
    inverse: str
    """How it is taken back; `{them}` stands for the targets, `{was}` for what is in force instead."""
    command: Callable[[Act], AnyCommand] | None
    """Raises SpecError for an act that no command can express. None: nothing happens in the cell itself."""
    done: Done
    only_outside: bool = False
    """It is for cells that another scheduler decides on: there is no such thing where Muster does."""
    verified: str
    """What `done` reads back, for people."""
    waits: bool = False
    """The effect may take its time: until the timeout, what is not done yet is not failed either."""
    timeout_ms: int = SOON_MS
    """Wall time within which the effect must be seen."""


_LOSES = "stops running work; >10 workloads and >10% of the cell's"
_SHARE = ">10% of a pool"

ROWS: tuple[Action, ...] = (
    Action(
        name="cancel",
        kind="workload",
        verb="Cancel",
        tier="T2",
        raised="it runs, or has run: work done is thrown away",
        states=LIVE,
        otherwise="Only work that has not ended can be cancelled",
        inverse="Cannot be undone: submit {them} again under a new id; work done so far is lost",
        command=lambda act: Cancel(ids=act.targets),
        done=effects.becomes("cancelled"),
        verified="is cancelled",
    ),
    Action(
        name="hold",
        kind="workload",
        verb="Hold",
        tier="T1",
        states=frozenset(("queued", "waiting")),
        otherwise="Only queued or waiting work can be held; requeue running work first",
        inverse="Release {them}",
        command=lambda act: Hold(ids=act.targets),
        done=effects.becomes("held"),
        verified="is held",
    ),
    Action(
        name="release",
        kind="workload",
        verb="Release",
        tier="T1",
        states=frozenset(("held",)),
        otherwise="Only held work can be released",
        inverse="Hold {them} while not yet started",
        command=lambda act: Release(ids=act.targets),
        done=effects.leaves("held"),
        verified="is no longer held",
    ),
    Action(
        name="requeue",
        kind="workload",
        verb="Requeue",
        tier="T2",
        raised=">10 workloads and >10% of the cell's",
        states=BOUND,
        otherwise="Only placed or running work can be requeued",
        inverse="Cannot be undone: work since the last checkpoint is lost; place in the queue is kept",
        command=lambda act: Requeue(ids=act.targets),
        done=effects.stopped,
        verified="holds nothing, or runs in a later attempt",
    ),
    Action(
        name="suspend",
        kind="workload",
        verb="Suspend",
        tier="T1",
        raised=_LOSES,
        states=BOUND | {"queued", "waiting"},
        otherwise="Only work that runs or waits can be suspended; release held work first",
        inverse="Resume {them}; work since the last checkpoint is lost",
        command=lambda act: Suspend(ids=act.targets),
        done=effects.becomes("suspended"),
        verified="is suspended",
    ),
    Action(
        name="resume",
        kind="workload",
        verb="Resume",
        tier="T1",
        states=frozenset(("suspended",)),
        otherwise="Only suspended work can be resumed",
        inverse="Suspend {them}",
        command=lambda act: Resume(ids=act.targets),
        done=effects.leaves("suspended"),
        verified="is no longer suspended",
    ),
    Action(
        name="cordon",
        kind="node",
        verb="Cordon",
        tier="T1",
        raised=_SHARE,
        states=frozenset(("ready", "draining")),
        otherwise="Only ready or draining nodes can be cordoned",
        inverse="Uncordon {them}",
        command=lambda act: Cordon(ids=act.targets),
        done=effects.becomes("cordoned"),
        verified="is cordoned",
    ),
    Action(
        name="uncordon",
        kind="node",
        verb="Uncordon",
        tier="T1",
        states=frozenset(("cordoned", "draining")),
        otherwise="Only cordoned or draining nodes can be uncordoned",
        inverse="Cordon {them}",
        command=lambda act: Uncordon(ids=act.targets),
        done=effects.becomes("ready"),
        verified="is ready",
    ),
    Action(
        name="drain",
        kind="node",
        verb="Drain",
        tier="T2",
        raised=_SHARE,
        states=frozenset(("ready", "cordoned", "draining")),
        with_work=frozenset(("draining",)),
        otherwise="Only nodes that are ready or cordoned, or drain with work left on them, can be drained",
        inverse="Uncordon {them}; work since the last checkpoint is lost and does not return by itself",
        command=lambda act: Drain(ids=act.targets),
        done=effects.empty_and("draining", "cordoned"),
        verified="is draining or cordoned, and empty",
        waits=True,
        timeout_ms=MINUTES_MS,
    ),
    Action(
        name="interrupt",
        kind="node",
        verb="Interrupt",
        tier="T3",
        states=frozenset(("ready", "cordoned")),
        otherwise="Only ready or cordoned nodes can be interrupted; one that drains may have had its notice",
        inverse="Cannot be undone: gone after the notice are {them}; order or add others",
        command=lambda act: Interrupt(ids=act.targets),
        done=effects.becomes("draining"),
        verified="is draining to its end",
    ),
    Action(
        name="hold_queue",
        kind="queue",
        verb="Hold",
        tier="T1",
        states=frozenset(("open", "draining")),
        otherwise="Only open or draining queues can be held",
        inverse="Open {them}",
        command=lambda act: HoldQueues(names=act.targets),
        done=effects.becomes("held"),
        verified="is held",
    ),
    Action(
        name="drain_queue",
        kind="queue",
        verb="Drain",
        tier="T2",
        raised=">1 workload and >10% of the cell's",
        states=frozenset(("open", "held")),
        otherwise="Only open or held queues can be drained",
        inverse="Open {them}; work since the last checkpoint is lost",
        command=lambda act: DrainQueues(names=act.targets),
        done=effects.empty_and("draining"),
        verified="is draining, and nothing of it runs",
        waits=True,
        timeout_ms=MINUTES_MS,
    ),
    Action(
        name="open_queue",
        kind="queue",
        verb="Open",
        tier="T1",
        states=frozenset(("held", "draining")),
        otherwise="Only held or draining queues can be opened; look for one above that holds it",
        inverse="Hold {them}; what has started by then goes on",
        command=lambda act: OpenQueues(names=act.targets),
        done=effects.becomes("open"),
        verified="is open",
    ),
    Action(
        name="set_quota",
        kind="queue",
        verb="Set quota of",
        tier="T1",
        raised="work has to go; >10% of the cell's",
        states=frozenset(("open", "held", "draining")),
        inverse="Set quota of {them} back to {was}",
        command=as_commands.change_queue,
        done=lambda act, before, now: act.queue is not None and now.queue == act.queue.to,
        verified="has the spec given",
        fields=("queue",),
        most=1,
    ),
    Action(
        name="reserve",
        kind="reservation",
        verb="Make",
        tier="T1",
        raised=_SHARE,
        states=frozenset(("not made",)),
        otherwise="Give it another name, or take that one back first",
        inverse="Unreserve {them}",
        command=as_commands.reserve,
        done=lambda act, before, now: now.reservation == act.reservation,
        verified="is made as described",
        fields=("reservation",),
        most=1,
    ),
    Action(
        name="unreserve",
        kind="reservation",
        verb="Take back",
        tier="T1",
        states=frozenset(("made",)),
        inverse="Reserve {was}; others may have taken the nodes by then",
        command=lambda act: Unreserve(names=act.targets),
        done=effects.becomes("not made"),
        verified="is not made any more",
    ),
    Action(
        name="set_policy",
        kind="policy",
        verb="Set policy to",
        tier="T1",
        raised="work has to give way",
        states=frozenset(),
        inverse="Set policy to {was}",
        command=as_commands.set_policy,
        done=lambda act, before, now: now.state == now.id,
        verified="is in force",
        most=1,
    ),
    Action(
        name="set_price",
        kind="pool",
        verb="Set price of",
        tier="T1",
        states=frozenset(("priced",)),
        inverse="Set price of {them} back to {was}; what was charged meanwhile stays charged",
        command=as_commands.set_price,
        done=lambda act, before, now: (
            act.money is not None and now.price_microusd_hour == act.money.price_microusd_hour
        ),
        verified="has the price given",
        fields=("money",),
        most=1,
    ),
    Action(
        name="set_budget",
        kind="budget",
        verb="Set",
        tier="T1",
        states=frozenset(("set", "not set")),
        inverse="Set {them} back to what it was ({was}); if that is none, remove it",
        command=as_commands.set_budget,
        done=lambda act, before, now: act.money is not None and now.budget == act.money.budget,
        verified="says what was given",
        fields=("money",),
        most=1,
    ),
    Action(
        name="remove_budget",
        kind="budget",
        verb="Remove",
        tier="T1",
        states=frozenset(("set",)),
        inverse="Set {them} to {was} again",
        command=lambda act: RemoveBudgets(names=act.targets),
        done=effects.becomes("not set"),
        verified="is not set any more",
    ),
    Action(
        name="approve_spending",
        kind="workload",
        verb="Approve the spending of",
        tier="T1",
        states=WAITS,
        otherwise="Only the spending of work that waits can be approved; what runs goes on without",
        inverse="Cannot be undone: hold {them} instead",
        command=lambda act: ApproveSpending(ids=act.targets),
        done=lambda act, before, now: now.approved,
        verified="its spending is approved",
    ),
    Action(
        name="set_scaling",
        kind="scaling",
        verb="Set the size of pool",
        tier="T1",
        raised=">10% of a pool may go; it may more than double",
        states=frozenset(("growing", "fixed")),
        inverse="Set scaling of {them} back to {was}; nodes that were given back by then are ordered anew",
        command=as_commands.set_scaling,
        done=effects.scaled,
        verified="has what was given",
        fields=("scaling",),
        most=1,
    ),
    Action(
        name="set_targets",
        kind="scaling",
        verb="Set targets of pool",
        tier="T1",
        raised=">10% of a pool may go; it may more than double",
        states=frozenset(("growing",)),
        otherwise="Only a pool that grows by itself can have targets: set-scaling it first",
        inverse="Set targets of {them} back: {was}",
        command=as_commands.set_targets,
        done=effects.has_targets,
        verified="has the schedule given",
        fields=("scaling",),
        most=1,
    ),
    Action(
        name="set_autoscaling",
        kind="scaling",
        verb="Set the",
        tier="T1",
        states=frozenset(("set",)),
        inverse="Set autoscaling back to {was}",
        command=as_commands.set_autoscaling,
        done=effects.set_autoscaling,
        verified="has the settings given",
        fields=("scaling",),
        most=1,
    ),
    Action(
        name="resize",
        kind="workload",
        verb="Resize",
        tier="T1",
        raised=_LOSES,
        states=LIVE,
        otherwise="Only work that has not ended can be resized",
        inverse="Resize {them} back to {was}",
        command=as_commands.resize,
        done=effects.resized,
        verified="asks for what was given",
        fields=("resize",),
    ),
    Action(
        name="consolidate",
        kind="workload",
        verb="Move",
        tier="T2",
        raised=">10 workloads and >10% of the cell's",
        states=BOUND,
        otherwise="Only placed or running work can be moved; plan the moves again",
        inverse="Cannot be undone: work since the last checkpoint is lost; moving {them} back would lose more",
        command=as_commands.consolidate,
        done=lambda act, before, now: now.state in BOUND and now.attempts > before.attempts,
        verified="holds capacity in a later attempt",
        fields=("moves",),
        waits=True,
        timeout_ms=MINUTES_MS,
    ),
    Action(
        name="preempt",
        kind="workload",
        verb="Preempt",
        tier="T2",
        raised=">10 workloads and >10% of the cell's",
        states=BOUND,
        otherwise="Only placed or running work can be preempted",
        inverse="Cannot be undone: work since the last checkpoint is lost; place in the queue is kept",
        command=lambda act: Preempt(ids=act.targets),
        done=effects.stopped,
        verified="holds nothing, or runs in a later attempt",
    ),
    Action(
        name="move",
        kind="workload",
        verb="Move to another queue",
        tier="T1",
        raised="work has to give way",
        fields=("to",),
        states=WAITS,
        otherwise="Only work that waits can be moved; requeue or suspend it first",
        inverse="Move {them} back to {was}, while not yet started",
        command=as_commands.move,
        done=lambda act, before, now: now.was == act.to,
        verified="is in the queue given",
    ),
    Action(
        name="set_priority",
        kind="workload",
        verb="Set the priority of",
        tier="T1",
        raised="work has to give way",
        fields=("to",),
        states=LIVE,
        otherwise="Only work that has not ended has a priority",
        inverse="Set the priority of {them} back to {was}; what gave way meanwhile waits its turn",
        command=as_commands.set_priority,
        done=lambda act, before, now: now.was == act.to,
        verified="is of the class given",
    ),
    Action(
        name="scale_pool",
        kind="scaling",
        verb="Scale pool",
        tier="T1",
        raised=">10% of a pool goes; it more than doubles",
        fields=("nodes",),
        most=1,
        states=frozenset(("growing",)),
        otherwise="Only a pool that grows by itself can be scaled: set-scaling it first",
        inverse="Scale {them} back to {was}, and to the targets it had; nodes that went are ordered anew",
        command=as_commands.scale_pool,
        done=effects.has_size,
        verified="has the nodes given",
        waits=True,
        timeout_ms=BOOTED_MS,
    ),
    Action(
        name="canary",
        kind="canary",
        verb="Try another setting on",
        tier="T1",
        raised="work has to give way",
        fields=("canary",),
        states=frozenset(("open", "held", "draining", *POLICIES)),
        inverse="Set {them} back to {was}",
        command=as_commands.canary,
        done=effects.tried,
        verified="has it; then waits in the window against those before it and those of the others",
        waits=True,
        timeout_ms=MARGIN_MS,
    ),
    Action(
        name="set_qos",
        kind="workload",
        verb="Set the QOS of",
        tier="T1",
        raised="work has to give way",
        fields=("to",),
        states=WAITS,
        otherwise="Only the QOS of work that waits can be changed",
        inverse="Set the QOS of {them} back to {was}; what gave way meanwhile waits its turn",
        command=as_commands.set_qos,
        done=effects.has_qos,
        only_outside=True,
        verified="Slurm shows it with the QOS given",
        waits=True,
    ),
    Action(
        name="set_job_priority",
        kind="workload",
        verb="Set the job priority of",
        tier="T1",
        fields=("to",),
        states=frozenset(("queued", "waiting")),
        otherwise="Only work that waits is ordered; release held work first",
        inverse="Cannot be undone: a priority that was set stays as it is, where Slurm counted it anew before",
        command=as_commands.set_job_priority,
        done=effects.not_observed,
        only_outside=True,
        verified="Slurm shows it with the priority given",
        waits=True,
    ),
    Action(
        name="power_up",
        kind="node",
        verb="Power up",
        tier="T1",
        states=frozenset(("ready", "cordoned", "draining")),
        otherwise="Only nodes that Slurm powers, and that are not down, can be powered up",
        inverse="Power down {them}, where nothing runs by then",
        command=lambda act: PowerUp(ids=act.targets),
        done=effects.not_observed,
        only_outside=True,
        verified="Slurm no longer shows it powered down",
        waits=True,
        timeout_ms=MINUTES_MS,
    ),
    Action(
        name="power_down",
        kind="node",
        verb="Power down",
        tier="T1",
        states=frozenset(("ready", "cordoned", "draining")),
        otherwise="Only nodes that Slurm powers, and that are not down, can be powered down",
        inverse="Power up {them}; they boot anew",
        command=lambda act: PowerDown(ids=act.targets),
        done=effects.not_observed,
        only_outside=True,
        verified="Slurm shows it powering down, or down",
        waits=True,
        timeout_ms=MINUTES_MS,
    ),
    Action(
        name="notify",
        kind="channel",
        verb="Tell",
        tier="T0",
        fields=("note",),
        most=16,
        states=frozenset(("known",)),
        otherwise="Only channels of the policy can be told",
        inverse="Cannot be undone: what was said was said",
        command=None,
        done=lambda act, before, now: True,
        verified="it is in the outbox; what comes of it is in the audit",
    ),
    Action(
        name="open_review",
        kind="review",
        verb="Open a review of",
        tier="T0",
        fields=("note",),
        most=1,
        states=frozenset(("known",)),
        otherwise="Name a proposal or another object",
        inverse="Cannot be undone: somebody closes it",
        command=None,
        done=lambda act, before, now: True,
        verified="it is open",
    ),
)

CATALOG: Mapping[str, Action] = {row.name: row for row in ROWS}
PARAMETERS = tuple(field for field in Act.__struct_fields__ if field not in ("action", "targets"))


def find(name: str) -> Action:
    """The catalogue's row. Raises SpecError when there is no such action."""
    row = CATALOG.get(name)
    if row is None:
        shown = name[:40].encode("unicode_escape").decode()
        raise SpecError("action", f"'{shown}' is not in the catalogue", f"Give one of {', '.join(CATALOG)}")
    return row


def check(act: Act) -> None:
    """Raises SpecError for an act whose parameters are not those of its action, that is out of bounds, or that no
    command can express."""
    row = find(act.action)
    for field in PARAMETERS:
        given = getattr(act, field) not in (None, (), "")
        if given and field not in row.fields:
            raise SpecError(field, f"has no meaning for {act.action}", "Leave it out")
        if field in row.fields and not given and act.targets:
            raise SpecError(field, "is missing", "Say what it shall be")
    if not act.targets:
        raise SpecError("targets", "is empty", f"Name each {row.kind}")
    if len(act.targets) > row.most:
        at_once = "one" if row.most == 1 else f"at most {row.most:,}"
        raise SpecError("targets", f"are {len(act.targets):,}", f"Give {at_once} at a time")
    check_bounds(act)
    if row.command is not None:
        row.command(act)


def command(act: Act) -> AnyCommand:
    """The one engine command an act stands for. Raises SpecError for what no command can express."""
    check(act)
    made = find(act.action).command
    assert made is not None, f"{act.action} does nothing in the cell"
    return made(act)


def why_not(action: Action, target: Target) -> str:
    """Why the action does not apply to a target in its present state; empty when it does."""
    if action.kind == "policy":
        return f"{target.id} is in force already" if target.id == target.state else ""
    if target.state in action.with_work and not target.work:
        return f"{target.id} is {target.state}, and no work is left there"
    return "" if target.state in action.states else f"{target.id} is {target.state}"


def needless(act: Act, now: Target) -> bool:
    """Whether a target is as the act would make it already, or beyond it: work that has ended, a node that is down."""
    row = find(act.action)
    if row.kind == "workload" and now.state not in LIVE:
        return True
    if row.kind == "node" and now.state not in ("ready", "cordoned", "draining"):
        return True
    return row.done(act, now, now)


def verdict(act: Act, before: Target, now: Target, *, in_time: bool) -> Verdict:
    """What reading a target back says: done; not yet, where that takes its time and some is left; or failed."""
    row = find(act.action)
    if row.done(act, before, now):
        return "success"
    return "inconclusive" if row.waits and in_time else "failure"


def timeout_ms(act: Act) -> int:
    """Wall time within which the effect must be seen. A canary is judged when its window, in cell time, is over."""
    least = find(act.action).timeout_ms
    return least if act.canary is None else act.canary.window_ms + least
