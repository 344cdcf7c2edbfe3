"""The folder of a user's sockets: where short ones of cells are, and where a command looks for a command server.

Loads nothing: a command that is run by a command server pays for this file.
"""

import os

COMMANDS = "commands-"
"""How the sockets of command servers begin, one for each engine of this user."""
MAX_SOCKET_BYTES = 100


def runtime_folder() -> str:
    """$XDG_RUNTIME_DIR/muster, or where that is missing or too long /tmp/muster-UID. Nothing is created."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(os.fsencode(runtime)) < MAX_SOCKET_BYTES - 30:
        return f"{runtime}/muster"
    return f"/tmp/muster-{os.getuid()}"
