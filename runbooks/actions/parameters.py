"""What an action is told: the types of its parameters and their bounds, in plans, in runbooks and behind its command.

A parameter of a runbook's step is a reference to an input, or the value itself; ids are whole ids, one by one. Nothing
stands for "all", and nothing is computed but what is written out: a quantity more or less than what there is, and a
time from now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from engine.model.specs import Policy
    from runbooks.procedures.program import InputType

    Type = InputType | Literal["text", "object"]
    """`object`: an id of any kind."""
else:
    Type = str

MAX_NODES = 100_000
MAX_GPUS = 1_000_000
MAX_CPUS = 100_000_000
MAX_TEXT = 500
MAX_ID = 128
MAX_DURATION_MS = 30 * 24 * 3_600_000
MAX_LITERALS = 50
"""Ids written out in a list."""
POLICIES: tuple[Policy, ...] = ("fcfs", "easy", "easy-sjbf", "conservative")
ORDERS = ("best_effort", "strict_fifo", "fair")

ANYTHING = frozenset(("all", "any", "every", "everything", "none", "null", "nil", "true", "false", "default"))
"""Words that are no ids here, though the cell would let something be called so: they read as a selector."""
PATTERN = re.compile(r"[*?\[\](){}|^$\\+<>=~,;`'\"!&%#@\s]")
"""Characters of globs, of expressions and of shells; no id has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One value of an action, as a runbook's step and a model's answer give it."""

    type: Type
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


def ids(type_: Type) -> Parameter:
    """The targets, by their ids."""
    return Parameter(type=type_, many=True, required=True, target=True)


def one(type_: Type) -> Parameter:
    """The one target."""
    return Parameter(type=type_, required=True, target=True)


def number(most: int, least: int = 0, *, required: bool = False, counts: bool = False) -> Parameter:
    return Parameter(type="int", least=least, most=most, required=required, counts=counts)


def choice(*choices: str, required: bool = False) -> Parameter:
    return Parameter(type="choice", choices=choices, required=required)


def duration(most: int = MAX_DURATION_MS, *, required: bool = False, least: int = 0) -> Parameter:
    return Parameter(type="duration", least=least, most=most, required=required)


def why_not_id(text: str) -> str:
    """Why a text written in a runbook, or given for an input, cannot stand for one object; empty when it can."""
    if not text:
        return "is empty, which could mean all"
    if not text.isascii():
        odd = next(char for char in text if not char.isascii())
        return f"holds U+{ord(odd):04X}, which only looks like another letter or cannot be seen"
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
    """What stands behind an action's name, in the shell as in the `:` bar."""

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
    of: Type | None = None
    """What it names, where it can be completed."""

    @property
    def key(self) -> str:
        """Its name among what was read."""
        return self.name.lstrip("-").replace("-", "_")


def flag(name: str, form: Form = "word", metavar: str | None = None, help: str | None = None, **more: Any) -> Argument:
    """One that may be left out."""
    return Argument(f"--{name}", form, metavar, help, required=more.pop("required", False), **more)
