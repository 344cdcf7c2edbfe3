"""What is declared of an action, and the effects and ways back that several actions share.

Everything that is known of an action stands in its one declaration: what a person types and reads, what a runbook or a
model may give, how risky it is, the engine command it becomes, how that is seen to have worked, and how it is taken
back. Tiers: T0 tells somebody, T1 can be taken back, T2 disrupts, T3 is hard to undo. A declared tier is a floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from engine.model.errors import SpecError
from runbooks.actions.lazy_modules import commands, plan
from runbooks.actions.parameters import Argument, Parameter

if TYPE_CHECKING:
    from engine.elasticity.scaling_report import PoolSize
    from engine.model.commands import AnyCommand
    from engine.model.money import BudgetSpec
    from engine.model.queries import Consolidation, ConsolidationRequest, WorkloadDetail
    from engine.model.specs import QueueSpec
    from runbooks.plans.checks import CheckName, Operator
    from runbooks.plans.typed_plan import Act, ActionName, Target, Tier

Kind = Literal[
    "workload", "node", "queue", "reservation", "policy", "pool", "budget", "scaling", "canary", "channel", "review"
]
Impact = Literal["discards", "stops_targets", "stops_residents", "displaces", "takes_nodes"]
"""What work and nodes may meet because of an action:

    discards          all that a target has done is thrown away
    stops_targets     targets that run are stopped, and lose what no checkpoint has saved
    stops_residents   so does the work on, or in, the targets
    displaces         other work may have to give way, as a fork finds
    takes_nodes       ready nodes are taken out of use
"""
MAX_TARGETS = 1_000
"""Of one act, where it may have many."""
SOON_MS, MINUTES_MS, BOOTED_MS = 30_000, 600_000, 1_800_000
"""Within which an effect is seen: of what is so at once, of what takes its time, and of nodes that boot."""
BOUND = ("placed", "running")
"""States in which a workload holds capacity, so that stopping it loses work."""
WAITS = ("queued", "held", "waiting", "suspended")
LIVE = (*WAITS, *BOUND)
STARTABLE = ("queued", "waiting", *BOUND)
"""States of work that may start, or has."""
STILL_BUSY = "draining with work"
LARGE_POOL = ">10% of a pool"
LARGE_WORK = ">10 workloads and >10% of the cell's"
Given = Mapping[str, Any]
"""Parameter -> value: ids as a tuple where it takes several, durations in ms."""
Typed = Mapping[str, Any]
"""Argument -> what was read of it; None, or its default, where it was not given."""
Done = Callable[["Act", "Target", "Target"], bool]
"""Whether the second reading shows the act's effect; the first is from before it."""
Back = Callable[["Act", "tuple[Target, ...]"], "Iterator[Act]"]
"""The acts that take an act back, from what was shown of its targets before it."""
T = TypeVar("T")


class PlannedCell(Protocol):
    """The cell as it will be after the acts that were made before."""

    @property
    def name(self) -> str: ...
    @property
    def now_ms(self) -> int: ...
    def queue(self, name: str) -> QueueSpec: ...
    def budget(self, name: str) -> BudgetSpec: ...
    def size(self, pool: str) -> PoolSize | None: ...
    def nodes(self, pool: str) -> int: ...
    def consolidation(self, request: ConsolidationRequest) -> Consolidation: ...


class SeenCell(Protocol):
    """The cell as a client shows it to who types."""

    @property
    def name(self) -> str: ...
    def queue(self, name: str) -> QueueSpec: ...
    def budgets(self) -> Iterable[BudgetSpec]: ...
    def consolidation(self, request: ConsolidationRequest) -> Consolidation: ...


class Proof(NamedTuple):
    """A check that holds for each target once the action has brought about what it is for."""

    check: CheckName
    op: Operator
    value: int | str = ""
    of: str = ""
    """Parameter that gives the value instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One action, whole. A function that is left out stands for what most actions do."""

    # -- what it is called, and what is typed and read
    name: ActionName
    label: str
    """On the console's pages: "Hold queue"."""
    verb: str
    """A plan's title begins with it."""
    summary: str
    """For the shell's help: one line."""
    past: str = ""
    """"cancelled"; given for what can be done to what is selected on a page."""
    key: str = ""
    footer: bool = False
    """It stands in the footer of its pages."""
    example: str = ""
    """What is typed; given for what needs more than a selection."""
    metavar: str | None = None
    """Of what it acts on."""
    arguments: tuple[Argument, ...] = ()
    """Behind its name, besides its targets; see `typed_arguments`."""
    read: Callable[[Typed, SeenCell], Act] | None = None
    """The act that was typed. Raises SpecError naming the argument. None: its targets, and what `to` or `text` says."""

    # -- what a runbook or a model gives
    parameters: Mapping[str, Parameter]
    one_of: tuple[tuple[str, ...], ...] = ()
    """Of each of these exactly one is given."""
    at_most_one: tuple[tuple[str, ...], ...] = ()
    some: tuple[str, ...] = ()
    """At least one of these is given: else nothing would change."""
    make: Callable[[Given, PlannedCell], Act] | None = None
    """The act for the cell as it is planned. Raises NotFoundError for what does not exist, and RefusedError for what
    cannot be made there. None: its targets, and what `to` or `text` says."""
    not_for_models: str = ""
    """Why no model drafts it, whoever would vote on it; empty: it may."""

    # -- what it applies to
    kind: Kind
    """Of its targets."""
    fields: tuple[str, ...] = ()
    """Fields of Act that are given for it, besides the targets: all of these, and no others."""
    most: int = MAX_TARGETS
    """Targets at a time."""
    states: tuple[str, ...] = ()
    """States of a target in which the action makes sense: what must hold before it is done. Not used for policies."""
    with_work: tuple[str, ...] = ()
    """Those of `states` in which it makes sense only while work is left on the target."""
    otherwise: str = "Nothing needs doing"
    """What a person can do when a target is in another state."""
    refuse: Callable[[Act, tuple[Target, ...]], None] | None = None
    """Raises RefusedError for targets that the act was not thought out for, or that are so already."""
    replaces: Callable[[WorkloadDetail], str] | None = None
    """What a workload has that it is given something else for: `Target.was`."""
    depends: tuple[str, ...] = ("state",)
    """What a vote on it rests on of a target, besides settings: its `state`, that no `work` arrives there, what it
    `asks` for, on which `nodes` it is."""
    of_cell: bool = False
    """It acts on the cell as a whole, and can be verified by that."""
    only_outside: bool = False
    """It is for cells that another scheduler decides on: there is no such thing where Muster does."""

    # -- how risky it is
    tier: Tier
    """The least tier a plan with it can have."""
    raised: str = ""
    """What raises the tier, for people; the rules are in `runbooks.actions.risk`."""
    impact: tuple[Impact, ...] = ()
    lost: str = "Requeued"
    """What becomes of the work that it stops."""
    fewer: Callable[[Act, PoolSize], int] | None = None
    """Most nodes of a pool that may go because of it."""
    more: Callable[[Act, PoolSize], int] | None = None
    """Most nodes that a pool may come to have because of it, besides those it might have had anyway."""
    dearer: Callable[[Act, Target], int] | None = None
    """Micro-USD by which an hour may cost more, besides what more nodes cost."""

    # -- what it does, and how that is seen
    command: str = ""
    """Name of the engine command it becomes; empty: nothing happens in the cell itself."""
    express: Callable[[Act], AnyCommand] | None = None
    """Raises SpecError for an act that no command can express. None: the command says its targets alone."""
    after: tuple[str, ...] = ()
    """States that its targets may be in once it has worked, where states show it."""
    done: Done | None = None
    """None: a target is in one of the states of `after`."""
    done_outside: Done | None = None
    """Where another scheduler decides, and the effect looks otherwise there."""
    seen_outside: Callable[[Target], bool] = lambda now: True
    """Whether a reading of the cell can show it there; else only what the other scheduler says does."""
    verified: str
    """What `done` reads back, for people."""
    proof: tuple[Proof, ...] = ()
    edit: str = ""
    """The twin's edit that comes nearest to it, by its word; empty: it has none."""
    waits: bool = False
    """The effect may take its time: until the timeout, what is not done yet is not failed either."""
    timeout_ms: int = SOON_MS
    """Wall time within which the effect must be seen."""

    # -- how it is taken back
    inverse: str
    """`{them}` stands for the targets, `{was}` for what is in force instead."""
    back: Back | None = None
    """None: it cannot be taken back, whatever the state: work has ended or was stopped, machines are gone, words were
    read."""
    no_way_back: str = ""
    """The sentence where `back` finds nothing in the state that was shown."""
    undoes: tuple[ActionName, ...] = ()
    """Those that it makes pointless on the same target, or that make it so."""

    # -- how a plan with it reads
    title: Callable[[Act], str] | None = None
    was: Callable[[Act, tuple[Target, ...]], str] | None = None
    """What the plan puts an end to, where the way back has to name it."""
    steps: Callable[[Action, Act, tuple[Target, ...]], list[str]] | None = None
    """A line for each target: what is done, and what it costs."""
    change: Callable[[Act, Target], tuple[str, str]] | None = None
    """What is in force and what shall be, of a setting that it changes; the same words where it changes nothing."""
    found: Callable[[Target, Target, bool], str] | None = None
    """What a target is read back as: before, now, whether it is done; empty: its state."""

    @property
    def shell(self) -> str:
        """Its name as people type it: "hold-queue"."""
        return self.name.replace("_", "-")

    @property
    def interrupts(self) -> bool:
        """Whether it stops targets that run, and may as well find them not running."""
        return "stops_targets" in self.impact and not set(self.states) <= set(BOUND)

    @property
    def stops_others(self) -> bool:
        """Whether it may stop work besides its targets: `Target.work`."""
        return "displaces" in self.impact or "stops_residents" in self.impact

    @property
    def stops_named(self) -> bool:
        """Whether it stops work that can be told beforehand."""
        return not {"discards", "stops_targets", "stops_residents"}.isdisjoint(self.impact)

    def act(self, targets: tuple[str, ...], given: Given | Typed) -> Act:
        """An act that says its targets, and no more than what they get (`to`) or what people are told (`text`)."""
        note = plan.Note(text=given["text"]) if "text" in given else None
        return plan.Act(action=self.name, targets=targets, to=str(given.get("to", "")), note=note)

    def is_done(self, act: Act, before: Target, now: Target) -> bool:
        """Whether the second reading of a target shows its effect."""
        return now.state in self.after if self.done is None else self.done(act, before, now)

    def express_act(self, act: Act) -> AnyCommand:
        """The engine command. Raises SpecError."""
        if self.express is not None:
            return self.express(act)
        type_ = getattr(commands, self.command)
        made: AnyCommand = type_(**{type_.__struct_fields__[0]: act.targets})
        return made


METAVARS: Mapping[Kind, str] = {
    "workload": "WORKLOAD", "node": "NODE", "queue": "QUEUE", "reservation": "NAME", "policy": "POLICY",
    "pool": "POOL", "budget": "NAME", "scaling": "POOL", "canary": "QUEUE", "channel": "CHANNEL", "review": "ABOUT",
}  # fmt: skip


def required(given: T | None, where: str) -> T:
    """Raises SpecError for what is left out."""
    if given is None or given == "":
        raise SpecError(where, "is missing", "Say what it shall be")
    return given


# -- effects that several share ---------------------------------------------------------------------------------------


def becomes(*states: str) -> Done:
    return lambda act, before, now: now.state in states


def leaves(*states: str) -> Done:
    return lambda act, before, now: now.state not in states


def empty_and(*states: str) -> Done:
    return lambda act, before, now: now.state in states and not now.work


def stopped(act: Act, before: Target, now: Target) -> bool:
    """A scheduling cycle may have started it again already: then it is a later attempt."""
    return now.state not in BOUND or now.attempts > before.attempts


def has_given(act: Act, before: Target, now: Target) -> bool:
    return now.was == act.to


# -- ways back that several share -------------------------------------------------------------------------------------


def by(action: ActionName) -> Back:
    """Another action on all of the targets."""

    def back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
        yield plan.Act(action=action, targets=act.targets)

    return back


def by_state(actions: Mapping[str, ActionName]) -> Back:
    """State that was shown -> the action that leads back to it. One that is not named needs no way back: a node that
    drained before is out of use as before."""

    def back(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
        for action in dict.fromkeys(actions.values()):
            ids = tuple(target.id for target in shown if actions.get(_state(target)) == action)
            if ids:
                yield plan.Act(action=action, targets=ids)

    return back


def _state(target: Target) -> str:
    """The state that was shown. A node that drains with work on it was only kept from new work: to drain it on the way
    back would stop what nobody meant to stop. Slurm shows every drained node that jobs still run on so."""
    return STILL_BUSY if target.state == "draining" and target.work else target.state


def to_former(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """The same action with what each target had, which may differ: a priority class, or a queue."""
    for value in dict.fromkeys(target.was for target in shown if target.was):
        yield plan.Act(action=act.action, targets=tuple(t.id for t in shown if t.was == value), to=value)


def former(act: Act, shown: tuple[Target, ...]) -> str:
    """What the targets had, in words."""
    return ", ".join(dict.fromkeys(target.was for target in shown))
