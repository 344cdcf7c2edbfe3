"""What an action is: its names and keys, where it is possible, what it acts on, and what does it from the shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from console.text.terminal_text import printable

ScreenName = Literal[
    "overview",
    "queues",
    "workloads",
    "nodes",
    "events",
    "whatif",
    "mirror",
    "intents",
    "intent",
    "workload",
    "node",
    "pools",
    "orders",
    "recommendations",
    "forecast",
    "proposals",
    "proposal",
    "runbooks",
    "runbook",
    "audit",
    "record",
    "draft",
    "drafts",
    "queue",
    "topology",
    "cost",
    "settings",
    "tasks",
    "bookmarks",
    "reservations",
    "policy",
    "reviews",
    "fleet",
    "output",
]
TargetKind = Literal["", "workload", "node", "queue", "proposal", "runbook", "draft", "policy", "review", "intent"]
SCREENS: tuple[ScreenName, ...] = get_args(ScreenName)
LISTS: tuple[ScreenName, ...] = ("queues", "workloads", "nodes", "pools", "orders", "reservations")


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """Something an action would act on, in the state the screen shows."""

    id: str
    state: str
    unverified: bool = False
    """Of a proposal: its last step could not be verified."""
    waits_for_word: bool = False
    """Of a proposal: its next step is done once somebody says go."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where a person is and what is selected there."""

    screen: ScreenName = "overview"
    kind: TargetKind = ""
    targets: tuple[ActionTarget, ...] = ()
    connected: bool = True
    depth: int = 1
    """How many pages Back could leave, counting this one."""


Why = Callable[[Context], str]
"""Why an action is not possible here; empty when it is."""


def _always(_context: Context) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person can do."""

    id: str
    title: str
    keys: tuple[str, ...] = ()
    screens: tuple[ScreenName, ...] = SCREENS
    tier: Literal["", "T0", "T1", "T2", "T3"] = ""
    """The least tier a proposal of this action can have; empty for what only looks."""
    targets: TargetKind = ""
    shell: str = ""
    """What does the same from the shell; `{ids}` stands for the targets."""
    commands: tuple[str, ...] = ()
    """Names in the `:` bar."""
    argument: Literal["", "filter", "id", "ids", "flags", "columns", "edit", "words"] = ""
    """What stands behind its name in the `:` bar. `flags`: what stands behind it in the shell."""
    footer: bool = False
    why_not: Why = field(default=_always)
    changes: bool = False
    """It leads to a change though it has no plan of its own: not for a session that only reads."""
    fleeting: bool = False
    """In the footer only while it is possible."""
    jump: str = ""
    """The key that leads here behind `g`, from any page."""

    @property
    def mutates(self) -> bool:
        return bool(self.tier)

    def disabled_reason(self, context: Context) -> str:
        """Why it cannot be done now, in words for the footer, help and palette; empty when it can."""
        if context.screen not in self.screens:
            return f"only on {', '.join(self.screens)}"
        if self.targets and not context.targets:
            return "nothing is selected"
        if self.targets and self.mutates and context.kind != self.targets:
            return f"acts on {self.targets}s"
        if (self.mutates or self.changes) and not context.connected:
            return "no connection to the engine"
        return self.why_not(context)

    def shell_line(self, ids: Sequence[str]) -> str:
        return self.shell.format(ids=" ".join(printable(name) for name in ids))
