"""`:` lines that lead to a page and do nothing else: what a link, a bookmark or what others may have written can be.

What acts, asks a model, writes a file or leaves the console has to be typed, or chosen by its key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from console.actions.command_line import ParsedCommand, parse_command
from console.text.terminal_text import printable
from engine.model.errors import SpecError

if TYPE_CHECKING:
    from console.actions.action_types import Action


def page_command(line: str, available: Iterable[Action]) -> ParsedCommand:
    """What the line says. Raises SpecError for one that does not lead to a page."""
    command = parse_command(line, list(available))
    if not _leads(command):
        raise SpecError("", f"':{printable(line)[:80]}' does not lead to a page", "Type it yourself if you mean it")
    return command


def _leads(command: ParsedCommand) -> bool:
    from console.tui.navigator import known

    if command.action.id == "draft":
        # Anything but the id of one, or a choice of it for the rules, is a question to be drafted.
        from console.tui.screens.draft import is_draft_id, is_pick

        return is_draft_id(command.argument) or is_pick(command.argument)
    return command.action.id == "open" or known(command.action.id)
