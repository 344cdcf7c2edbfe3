"""The line of the `:` bar, read: which action it names, and what stands behind the name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from console.actions.action_types import Action
from console.actions.registry import ACTIONS, READ_ONLY
from console.text.terminal_text import printable
from engine.model.errors import SpecError
from engine.model.queries import Kind


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """One line of the `:` bar, understood."""

    action: Action
    argument: str = ""


class CommandError(SpecError):
    """A line of the `:` bar that cannot be understood. `start` and `end` bound the offending characters."""

    def __init__(self, start: int, end: int, problem: str, remedy: str = "", near: bool = False) -> None:
        super().__init__("", problem, remedy)
        self.start = start
        self.end = end
        self.near = near
        """A command has a name much like it."""


def parse_command(line: str, available: Sequence[Action]) -> ParsedCommand:
    """Read a line of the `:` bar. Raises SpecError naming the nearest command, or why one is not `available`."""
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    for action in available:
        if name in action.commands:
            if argument and not action.argument:
                at = len(name) + 1
                raise CommandError(at, at + len(argument), f":{name} takes nothing behind it")
            if not argument and action.argument == "id":
                raise CommandError(len(name) + 1, len(name) + 2, f":{name} needs an id")
            return ParsedCommand(action, argument)
    if any(name in action.commands for action in ACTIONS):
        raise CommandError(0, len(name), f":{name} is not possible here: {READ_ONLY}")
    names = [command for action in available for command in action.commands]
    near = get_close_matches(name, names, 1)
    hint = f"Did you mean :{near[0]}?" if near else ":help lists them all"
    raise CommandError(0, len(name), f"there is no command '{printable(name)[:40]}'", hint, bool(near))


def kind_of(action: Action) -> Kind:
    """What the list lists that an action leads to."""
    kinds: dict[str, Kind] = {
        "nodes": "nodes", "queues": "queues", "pools": "pools", "orders": "orders", "reservations": "reservations",
    }  # fmt: skip
    return kinds.get(action.id, "workloads")
