"""The declaration of an action, and the parts that declarations share.

An `Action` says everything that is known of one action: its words, its parameters, its risk, the engine command that it
becomes, how the effect is seen, and how it is taken back. Shell, console, runbooks, models, catalogue and manual are
made from it. The declarations are in `cell`, `nodes`, `queues`, `slurm`, `taints` and
`workloads`; look one up by
`runbooks.actions.catalogue`.

Tiers: T0 tells somebody, T1 can be taken back, T2 disrupts, T3 is hard to undo. A declared tier is a floor: targets can
only raise it.

A runbook's step gives a parameter as a reference to an input or as a literal. Ids are whole ids: nothing stands for
"all". Durations are in ms.

The shell imports this module before each command and must not load msgspec then. `LateModule` stands for the modules
that are needed only when an action is used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

from engine.model.errors import SpecError
from engine.model.quantities import counted, lasting, shortlist, utc
from runbooks.plans.amounts import amount, size

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
    from engine.model.details import WorkloadDetail
    from engine.model.reports import PoolSize
    from engine.model.spec_parts import BudgetSpec
    from engine.model.specs import Policy, QueueSpec
    from runbooks.plans.checks import CheckName, Operator
    from runbooks.plans.typed_plan import Act, ActionName, RequestChange, Target, Tier


InputType = Literal[
    "node_id", "workload_id", "queue", "pool", "zone", "reservation", "tenant", "budget", "channel", "name",
    "int", "duration", "choice",
]  # fmt: skip
INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
ParameterType = InputType | Literal["text", "object"]
"""Of a parameter; `object` is an id of any kind."""

MAX_NODES = 100_000
MAX_GPUS = 1_000_000
MAX_CPUS = 100_000_000
MAX_TEXT = 500
MAX_ID = 128
MAX_DURATION_MS = 30 * 24 * 3_600_000
MAX_LITERALS = 50
"""Ids written out in a list."""
POLICIES: tuple[Policy, ...] = ("fcfs", "easy", "easy-sjbf", "conservative", "kueue")
ORDERS = ("best_effort", "strict_fifo", "fair")

ANYTHING = frozenset(("all", "any", "every", "everything", "none", "null", "nil", "true", "false", "default"))
"""Words that are no ids here, though the cell would let something be called so: they read as a selector."""
PATTERN = re.compile(r"[*?\[\](){}|^$\\+<>=~,;`'\"!&%#@\s]")
"""Characters of globs, of expressions and of shells; no id has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One value of an action, as a runbook's step and a model's answer give it."""

    type: ParameterType
    many: bool = False
    required: bool = False
    target: bool = False
    """It names what the action acts on."""
    least: int = 0
    most: int = 0
    """Of an int; of a duration, in ms; of a text, characters."""
    choices: tuple[str, ...] = ()
    for_models: bool = True
    """A model may give it."""
    counts: bool = False
    """It says how much the action touches, where its targets do not."""


def ids(type_: ParameterType) -> Parameter:
    """The targets, by their ids."""
    return Parameter(type=type_, many=True, required=True, target=True)


def one(type_: ParameterType) -> Parameter:
    """The one target."""
    return Parameter(type=type_, required=True, target=True)


def number(most: int, least: int = 0, *, required: bool = False, counts: bool = False) -> Parameter:
    return Parameter(type="int", least=least, most=most, required=required, counts=counts)


def choice(*choices: str, required: bool = False) -> Parameter:
    return Parameter(type="choice", choices=choices, required=required)


def duration(most: int = MAX_DURATION_MS, *, required: bool = False, least: int = 0) -> Parameter:
    return Parameter(type="duration", least=least, most=most, required=required)


def why_not_id(text: str) -> str:
    """The reason that a text cannot stand for one object in a runbook or an input; empty when it can."""
    if not text:
        return "is empty, which could mean all"
    if not text.isascii():
        odd = next(char for char in text if not char.isascii())
        return f"holds U+{ord(odd):04X}, a look-alike or invisible character"
    if len(text) > MAX_ID:
        return "is longer than any id"
    if PATTERN.search(text):
        return "is a pattern or an expression, not an id"
    return "could mean more than one object" if text.lower() in ANYTHING else ""


# -- behind the command -----------------------------------------------------------------------------------------------

Form = Literal[
    "word", "names", "count", "positive", "integer", "ratio", "percent", "share", "money", "duration", "moment",
    "quantities", "weights", "schedule", "settings",
]  # fmt: skip
"""How an argument is written, and what it is read as:

    word        as it stands                      names       ids with commas between, as a tuple
    count       a number from 0 on                positive    a number from 1 on
    integer     any whole number                  ratio       a number with a fraction, from 0 on
    percent     a count, as permille              share       95% or 0.95, as permille
    money       an amount, as micro-USD           duration    30m, as ms
    moment      now, +2h or a time in UTC, as ms  quantities  gpu=24 memory=1TiB, as resource -> quantity or None
    weights     a profile or pack=100, as a dict  schedule    +2h=40, as (ms, nodes)
    settings    scan_every=30s, as field -> value
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """A command-line argument behind an action's name, in the shell and in the `:` bar."""

    name: str
    """`--flag`, or the name of what stands by its place."""
    form: Form = "word"
    metavar: str | None = None
    help: str | None = None
    many: bool = False
    required: bool = True
    """Of one that stands by its place, or a flag that must be given; see `flag`."""
    default: Any = None
    choices: tuple[str, ...] | None = None
    apart: str = ""
    """At most one is given of those that share this word; exactly one where it ends in `!`."""
    of: ParameterType | None = None
    """What it names, where it can be completed."""

    @property
    def key(self) -> str:
        """Its name among what was read."""
        return self.name.lstrip("-").replace("-", "_")


def flag(name: str, form: Form = "word", metavar: str | None = None, help: str | None = None, **more: Any) -> Argument:
    """An optional argument."""
    return Argument(f"--{name}", form, metavar, help, required=more.pop("required", False), **more)


class LateModule:
    """A module that is imported when the first name is read from it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


if TYPE_CHECKING:
    import msgspec as msgspec

    from engine.model import commands as commands
    from engine.model import consolidation_queries as consolidation_queries
    from engine.model import spec_parts as spec_parts
    from engine.model import specs as model
    from engine.twin import consolidation as consolidation
    from runbooks.plans import typed_plan as plan
else:
    commands, consolidation, consolidation_queries, model, msgspec, plan, spec_parts = (
        LateModule("engine.model.commands"),
        LateModule("engine.twin.consolidation"),
        LateModule("engine.model.consolidation_queries"),
        LateModule("engine.model.specs"),
        LateModule("msgspec"),
        LateModule("runbooks.plans.typed_plan"),
        LateModule("engine.model.spec_parts"),
    )

__all__ = ("commands", "consolidation", "consolidation_queries", "model", "msgspec", "plan", "spec_parts")


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


class EffectProof(NamedTuple):
    """A check that holds for each target once the action has brought about what it is for."""

    check: CheckName
    op: Operator
    value: int | str = ""
    of: str = ""
    """Parameter that gives the value instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """The declaration of one action. A function that is left out stands for the behaviour of most actions."""

    # -- what it is called, and what is typed and read
    name: ActionName
    shell: str = ""
    """Noun and verb in the shell: "queue hold". Left out where the noun follows from what it acts on, the verb from its
    name."""
    verb: str
    """A plan's title begins with it."""
    label: str = ""
    """On the console's pages: "Hold queue"; empty: the verb."""
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
    otherwise: str = "Nothing to do"
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
    only_outside: str = ""
    """Given for what only cells have that another scheduler decides on: what to do where Muster does."""

    # -- how risky it is
    tier: Tier
    """The least tier a plan with it can have."""
    raised: str = ""
    """What raises the tier, for people; the rules are in `runbooks.actions.declaration`."""
    impact: tuple[Impact, ...] = ()
    lost: str = ""
    """What becomes of the work that it stops; empty: it goes back to its queue."""
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
    proof: tuple[EffectProof, ...] = ()
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

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.verb)
        if not self.shell:
            noun = NOUNS[self.kind]
            words = [word for word in self.name.split("_") if word != noun]
            object.__setattr__(self, "shell", f"{noun} {'-'.join(words)}")

    @property
    def word(self) -> str:
        """Its name as people type it in the `:` bar and read it in a plan: "hold-queue"."""
        return self.name.replace("_", "-")

    @property
    def interrupts(self) -> bool:
        """True when it stops targets that run, but also applies to targets that do not run."""
        return "stops_targets" in self.impact and not set(self.states) <= set(BOUND)

    @property
    def stops_others(self) -> bool:
        """True when it may stop work besides its targets: `Target.work`."""
        return "displaces" in self.impact or "stops_residents" in self.impact

    @property
    def stops_named(self) -> bool:
        """True when it stops work that is known before it is done."""
        return not {"discards", "stops_targets", "stops_residents"}.isdisjoint(self.impact)

    def act(self, targets: tuple[str, ...], given: Given | Typed) -> Act:
        """An act that says its targets, and no more than what they get (`to`) or what people are told (`text`)."""
        note = plan.Note(text=given["text"]) if "text" in given else None
        return plan.Act(action=self.name, targets=targets, to=str(given.get("to", "")), note=note)

    def is_done(self, act: Act, before: Target, now: Target) -> bool:
        """True when the second reading of a target shows the effect."""
        return now.state in self.after if self.done is None else self.done(act, before, now)

    def express_act(self, act: Act) -> AnyCommand:
        """The engine command. Raises SpecError."""
        if self.express is not None:
            return self.express(act)
        type_ = getattr(commands, self.command)
        made: AnyCommand = type_(**{type_.__struct_fields__[0]: act.targets})
        return made


NOUNS: Mapping[Kind, str] = {
    "workload": "workload", "node": "node", "queue": "queue", "reservation": "node", "policy": "cell", "pool": "pool",
    "budget": "budget", "scaling": "pool", "canary": "cell", "channel": "cell", "review": "proposal",
}  # fmt: skip
"""Noun of the shell behind which actions on such a target stand."""
METAVARS: Mapping[Kind, str] = {
    "workload": "WORKLOAD", "node": "NODE", "queue": "QUEUE", "reservation": "NAME", "policy": "POLICY",
    "pool": "POOL", "budget": "NAME", "scaling": "POOL", "canary": "QUEUE", "channel": "CHANNEL", "review": "ABOUT",
}  # fmt: skip


def required(given: T | None, where: str) -> T:
    """Raises SpecError for what is left out."""
    if given is None or given == "":
        raise SpecError(where, "is missing", "Give a value")
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
    """The action that leads back to the state that was shown, by state. A state without an action needs no way back: a
    node that was draining before stays out of use."""

    def back(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
        for action in dict.fromkeys(actions.values()):
            ids = tuple(target.id for target in shown if actions.get(_state(target)) == action)
            if ids:
                yield plan.Act(action=action, targets=ids)

    return back


def _state(target: Target) -> str:
    """The state that was shown. A node that drains with work on it counts as `STILL_BUSY`: draining it again on the way
    back would stop that work. Slurm shows each drained node with running jobs so."""
    return STILL_BUSY if target.state == "draining" and target.work else target.state


def to_former(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """The same action with what each target had, which may differ: a priority class, or a queue."""
    for value in dict.fromkeys(target.was for target in shown if target.was):
        yield plan.Act(action=act.action, targets=tuple(t.id for t in shown if t.was == value), to=value)


def former(act: Act, shown: tuple[Target, ...]) -> str:
    """The former values of the targets, as text."""
    return ", ".join(dict.fromkeys(target.was for target in shown))


SHOWN = 6
"""Entries of a schedule that are spelled out."""
Schedule = tuple[tuple[int, int], ...]
"""(cell ms, nodes from then on), by time."""


def nodes_of(size: PoolSize) -> int:
    """Nodes that a pool has or has on order, whatever their state."""
    return size.ready + size.booting + size.other + size.ordered


def nodes_now(size: PoolSize) -> str:
    """As in "4 nodes, 2 more boot, 1 more on order"."""
    there = size.ready + size.other
    more = [f"{count:,} more {what}" for count, what in ((size.booting, "boot"), (size.ordered, "on order")) if count]
    return ", ".join([counted(there, "node"), *more])


def schedule_words(targets: Schedule) -> str:
    """As in "6 nodes from 2026-03-01 08:00:00 UTC, 0 from …"."""
    told = [f"{nodes:,}{' nodes' if not i else ''} from {utc(at_ms)}" for i, (at_ms, nodes) in enumerate(targets)]
    return shortlist(told, SHOWN) or "nothing set"


def floors(was: Schedule, to: Schedule) -> list[tuple[int, int]]:
    """(nodes that were set, nodes that shall be set) from each time of either schedule on."""
    return [(floor(was, at_ms), floor(to, at_ms)) for at_ms in sorted({at_ms for at_ms, _ in (*was, *to)})]


def floor(schedule: Schedule, at_ms: int) -> int:
    """Nodes set for that time: the last entry that has begun by then."""
    return max(((begins_ms, nodes) for begins_ms, nodes in schedule if begins_ms <= at_ms), default=(0, 0))[1]


LARGE_SHARE_PERMILLE = 100
"""Taking more than this share of a pool (and more than one node) out of use is a tier riskier, and so is stopping more
than this share of the cell's running workloads (and more than one) by way of their queue."""
MANY = 10
"""Stopping more workloads than this by name, and more than that share of all that run, is a tier riskier too."""
LARGE_GROWTH = 2
"""Letting a pool become more than so many times as large as it is, by more than MANY nodes, is a tier riskier: it is
what runs up a bill."""


def tier_and_why(
    action: Action, act: Act, targets: tuple[Target, ...], pool_nodes: Mapping[str, int], running: int
) -> tuple[Tier, tuple[str, ...]]:
    """The tier of acting on these targets now, and what raised it above the action's own. `pool_nodes` is pool name ->
    how many nodes it has, `running` how many workloads of the cell are bound."""
    raises = (
        ("it discards completed work", discards_work(action, targets)),
        ("it takes a large share of a pool out of service", takes_large_share(action, act, targets, pool_nodes)),
        ("it stops running work", interrupts_work(action, targets)),
        ("it stops a large share of the cell's work", stops_large_share(action, targets, running)),
        ("it may grow a pool a lot", grows_much(action, act, targets)),
    )
    why = tuple(text for text, is_so in raises if is_so)
    return plan.TIERS[min(plan.TIERS.index(action.tier) + len(why), len(plan.TIERS) - 1)], why


def discards_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when it ends work that runs for good, or throws away what earlier attempts did."""
    return "discards" in action.impact and any(target.state in BOUND or target.worked_ms for target in targets)


def takes_large_share(action: Action, act: Act, targets: tuple[Target, ...], pool_nodes: Mapping[str, int]) -> bool:
    """True when the action takes a large share of any one pool out of use, or keeps it for some."""
    taken: Counter[str] = Counter()
    if "takes_nodes" in action.impact:
        taken.update(target.pool for target in targets)
    for target in targets:
        taken.update(pool for _, pool, _ in target.keeps)
        if target.size is not None and action.fewer is not None:
            taken[target.id] += action.fewer(act, target.size)
    return any(n > 1 and n * 1000 > LARGE_SHARE_PERMILLE * pool_nodes.get(pool, 0) for pool, n in taken.items())


def interrupts_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when an action that may leave running work alone stops some."""
    if action.interrupts:
        return any(target.state in BOUND for target in targets)
    return "displaces" in action.impact and any(target.work for target in targets)


def stops_large_share(action: Action, targets: tuple[Target, ...], running: int) -> bool:
    """True when what is done stops a large share of the cell's work: by way of queues, or many workloads by name."""
    if action.kind == "workload":
        stopped = {target.id for target in targets if loses_work(action, target)}
        least = MANY
    else:
        stopped = {id_ for target in targets for id_ in target.work} if action.kind == "queue" else set()
        least = 1
    return len(stopped) > least and len(stopped) * 1000 > LARGE_SHARE_PERMILLE * running


def grows_much(action: Action, act: Act, targets: tuple[Target, ...]) -> bool:
    """True when a pool may become much larger than it is."""
    for target in targets:
        if target.size is not None and action.more is not None:
            more, have = action.more(act, target.size), nodes_of(target.size)
            if more > MANY and have + more > LARGE_GROWTH * have:
                return True
    return False


# -- work that is stopped ---------------------------------------------------------------------------------------------


def loses_work(action: Action, target: Target) -> bool:
    """True when the action can lose work done by this workload, which is a target or is stopped besides the targets."""
    if "discards" in action.impact:
        return target.state in BOUND or target.worked_ms > 0
    if target.state not in BOUND:
        return False
    # What gets another priority is a target, and goes on; what has to give way to it was read for itself.
    return "stops_targets" in action.impact or (action.stops_others and not target.was)


def loss_ms(action: Action, target: Target) -> int:
    """Run time lost if it happened now: all of it where that is discarded, else what no checkpoint has saved."""
    return target.worked_ms if "discards" in action.impact else target.unsaved_ms


def lost_by(stopped: Iterable[tuple[Action, Target]]) -> str:
    """Work lost when these actions stop these workloads: device hours, or core hours where none has devices."""
    pairs = list(stopped)
    gpu = sum(work.gpu_milli * loss_ms(action, work) for action, work in pairs)
    if gpu:
        return f"{gpu / 3_600_000_000:,.1f} GPU-h"
    return f"{sum(work.cpu_milli * loss_ms(action, work) for action, work in pairs) / 3_600_000_000:,.1f} CPU-h"


def lost(action: Action, stopped: Iterable[Target]) -> str:
    """As `lost_by`, where one action stops them all."""
    return lost_by((action, work) for work in stopped)


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
        facts.append(f"{lasting(loss_ms(action, target))} of work lost")
    return ", ".join(facts)


def asked_now(target: Target, change: RequestChange) -> dict[str, int]:
    """The request of one task of the group, of the resources that the change names."""
    of_group = next((request for group, request in target.asks if change.group in ("", group)), {})
    return {name: of_group.get(name, 0) for name in change.request}


def request_of(target: Target, change: RequestChange) -> str:
    """`asked_now` in words, as in "4 CPU, 2 GiB memory"."""
    return ", ".join(amount(name, quantity) for name, quantity in asked_now(target, change).items())
