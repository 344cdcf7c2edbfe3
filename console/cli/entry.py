"""The `muster` command as it is installed: a command is run by a command server of this user, or else right here.

Most of what a short command costs is loading Python modules. An engine keeps a command server
(`console.cli.command_server`) that has them loaded; `console.cli.command_client` asks it. Whatever is unusual is run
here, as is everything where no engine runs.

Loads nothing: a command that a server runs pays for this file.
"""

import os
import sys

from console.forms.runtime_folder import COMMANDS, runtime_folder

STARTING = ("serve", "stop", "web", "here", "tour", "mcp", "doctor", "completion", "help")
MEASURING = ("bench", "drill", "replay", "pack", "backtest", "eval")
ALONE = frozenset(STARTING + MEASURING)
"""Commands that start something or take long: no command server is asked for them."""


def main() -> None:
    """Run the command of this process, and exit with its code."""
    try:
        code = _asked(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    if code is None:
        from console.cli.main import main as run_here

        run_here()
    os._exit(code)  # nothing was opened or begun that has to be ended


def _asked(arguments: list[str]) -> int | None:
    """Exit code of the command as a command server ran it; None where it has to be run here, and nothing was done."""
    if sys.platform != "linux" or not arguments or arguments[0] in ALONE or arguments[0].startswith("-"):
        return None
    try:
        sockets = _sockets(runtime_folder())
        if not sockets:
            return None
        from console.cli.command_client import ask

        return ask(sockets, arguments)
    except OSError:
        return None


def _sockets(folder: str) -> list[str]:
    """Sockets of command servers, in a folder that nobody else can change. Raises OSError without one."""
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        return []
    return [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.startswith(COMMANDS)]
