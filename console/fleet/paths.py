"""Where a fleet keeps its files, and so where its process is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from console.forms.settings import ConsoleSettings, cells_folder, paths_in

FOLDER = "fleet"
"""Among the folders of the cells, when no other is named."""


class FleetPaths(NamedTuple):
    folder: Path
    journal: Path
    socket: Path
    pid: Path


def fleet_paths(settings: ConsoleSettings) -> FleetPaths:
    """Paths of a fleet's files; nothing is created."""
    at = Path(settings.fleet).expanduser().absolute() if settings.fleet else cells_folder(settings) / FOLDER
    socket = paths_in(at).socket
    # The short stand-in for a path that is too long for a socket is told apart from that of a cell.
    in_folder = socket.parent == Path(os.path.realpath(at))
    socket = socket.with_name("fleet.sock") if in_folder else socket.with_suffix(".fleet")
    return FleetPaths(at, at / "fleet.db", socket, at / "fleet.pid")
