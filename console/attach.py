"""Which engine a command talks to, and the client for it. Loaded before first paint: httpx waits until it is used."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from console.settings import CellPaths, Settings, cell_paths, cells_folder, load, paths_in
from engine.errors import UnreachableError

if TYPE_CHECKING:
    from console.client import Client
    from console.identity import Identity


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Settings with the flags of this command on top. Raises SpecError."""
    return load(vars(arguments))


def connect(arguments: argparse.Namespace) -> Client:
    """A client of the engine that runs. Raises UnreachableError naming the cells that do run when there is none."""
    from console.remote_client import RemoteClient

    settings = settings_of(arguments)
    where = settings.connect or str(running_paths(settings).socket)
    return RemoteClient(where, settings.readonly, identity_of(arguments))


def identity_of(arguments: argparse.Namespace) -> Identity:
    """In whose name this command acts, and what signs for them: the same for all it asks, so that a passphrase is asked
    for once."""
    from console.identity import Identity

    if getattr(arguments, "identity", None) is None:
        arguments.identity = Identity(settings_of(arguments))
    found: Identity = arguments.identity
    return found


def running_paths(settings: Settings) -> CellPaths:
    """Paths of the cell, if its engine runs. Raises UnreachableError otherwise."""
    from console.launch import running

    paths = cell_paths(settings)
    if running(paths.socket) is None:
        others = [name for name in running_cells(settings) if name != settings.cell]
        remedy = f"Running now: {', '.join(others)}; choose with --cell {others[0]}" if others else _START
        raise UnreachableError(f"no engine runs for cell '{settings.cell}'", remedy)
    return paths


def running_cells(settings: Settings) -> list[str]:
    """Names of the cells on this machine whose engine answers."""
    from console.launch import running

    folder = cells_folder(settings)
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return [entry.name for entry in found if running(paths_in(entry).socket) is not None]


_START = "Start one with `muster`, `muster --demo` or `muster serve`"
