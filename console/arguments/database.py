"""The commands about where a cell is kept, as they are typed."""

from __future__ import annotations

from typing import Any

from console.arguments.parsing import command, reach

_WHERE = "URL of a database or path of a file (default: that of the cell)"


def database_commands(commands: Any) -> None:
    database = command(commands, "database", "console.cli.database:show", "where a cell is kept: look, check, move")
    parts = database.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shown = command(parts, "show", "console.cli.database:show", "what is there, who writes it, and who stands by")
    shown.add_argument("where", nargs="?", default="", metavar="WHERE", help=_WHERE)
    reach(shown, sub=True)
    checked = command(parts, "check", "console.cli.database:check", "read every event and snapshot, and verify them")
    checked.add_argument("where", nargs="?", default="", metavar="WHERE", help=_WHERE)
    reach(checked, sub=True)
    copied = command(
        parts, "copy", "console.cli.database:copy", "copy a cell that no engine serves, whole, to a new place"
    )
    copied.add_argument("source", metavar="FROM", help="file or URL")
    copied.add_argument("target", metavar="TO", help="file or URL; must be new")
    reach(copied, sub=True)
