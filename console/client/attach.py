"""The engine that a command talks to, and the client for it.

Loaded before the first paint: httpx is imported only when it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from console.forms.settings import (
    DEFAULT_CELL,
    CellPaths,
    ConsoleSettings,
    Environment,
    cell_paths,
    cells_folder,
    environment_of,
    environments,
    load,
    paths_in,
)
from console.text.terminal_text import printable
from engine.model.errors import MusterError, SpecError, UnreachableError, of_code

if TYPE_CHECKING:
    from console.client.credentials import Identity
    from console.client.protocol import Client
    from engine.model.past_queries import PastStatus

WAIT_S = 0.5
"""Between two looks at how far the copy of an earlier time is."""


def settings_of(arguments: argparse.Namespace) -> ConsoleSettings:
    """Settings with the flags of this command on top. Raises SpecError."""
    return load(vars(arguments))


def settings_with_cell(arguments: argparse.Namespace) -> ConsoleSettings:
    """Settings of a command about a cell that exists: without a name it is the one that runs on this machine. Raises
    SpecError when several run."""
    settings = settings_of(arguments)
    if settings.cell or settings.connect:
        return settings
    return replace(settings, cell=only_running(settings) or DEFAULT_CELL)


def only_running(settings: ConsoleSettings) -> str:
    """Name of the one cell that runs on this machine; empty when none does. Raises SpecError when several do."""
    found = running_cells(settings)
    if len(found) > 1:
        raise SpecError(
            "--cell", f"several cells run here: {', '.join(map(printable, found))}",
            f"Choose one, for example --cell {printable(found[0])}",
        )  # fmt: skip
    return found[0] if found else ""


def connect(arguments: argparse.Namespace) -> Client:
    """A client of the running engine. Raises UnreachableError that names the cells that do run when there is none."""
    client = client_of(settings_with_cell(arguments), identity_of(arguments))
    text = getattr(arguments, "at", None)
    return client if text is None else as_of(client, text)


def client_of(settings: ConsoleSettings, identity: Identity) -> Client:
    """A client of the engine that the settings name, in the name of `identity`. Errors as `connect`."""
    from console.client.remote import RemoteClient

    where = settings.connect or str(running_paths(settings).socket)
    return RemoteClient(where, settings.readonly, identity)


def as_of(client: Client, text: str) -> Client:
    """A client that asks as of the time that a person wrote, once that can be shown. Raises SpecError for a time that
    cannot."""
    from console.forms.past_times import past_ms
    from engine.traces.progress import counter

    known = client.past(0)
    at_ms = past_ms(text, known.earliest_ms, known.now_ms)
    tell = counter("permille of that time rebuilt", 1000)
    wait_until_shown(client, at_ms, lambda status: tell(status.permille) if tell is not None else None)
    return client.as_of(at_ms)


def wait_until_shown(client: Client, at_ms: int, told: Callable[[PastStatus], object], since_ms: int = 0) -> PastStatus:
    """Wait for the copy of the cell as of then, and with `since_ms` for what happened in between. `told` hears how far
    it is; what it raises ends the wait and the copy. Raises MusterError where it cannot be made."""
    try:
        while (status := client.past(at_ms, since_ms, WAIT_S)).state == "building":
            told(status)
    except BaseException:
        with contextlib.suppress(MusterError):
            client.leave_past(at_ms, since_ms)
        raise
    if status.state == "failed":
        raise of_code(status.code, status.problem, status.remedy)
    return status


def environment_at(client: Client, settings: ConsoleSettings) -> Environment:
    """The environment of the settings file that the client's cell belongs to."""
    health = client.health()
    return environment_of((health.cell, health.name), environments(os.environ), settings)


def identity_of(arguments: argparse.Namespace) -> Identity:
    """The identity that this command acts under. It is made once for all requests, so that a passphrase is asked for
    once."""
    from console.client.credentials import Identity

    if getattr(arguments, "identity", None) is None:
        arguments.identity = Identity(settings_of(arguments))
    found: Identity = arguments.identity
    return found


def running_paths(settings: ConsoleSettings) -> CellPaths:
    """Paths of the cell if its engine runs. Raises UnreachableError otherwise."""
    from console.client.launch import running

    paths = cell_paths(settings)
    if running(paths.socket) is None:
        others = [printable(name) for name in running_cells(settings) if name != paths.folder.name]
        remedy = f"Running now: {', '.join(others)}; choose with --cell {others[0]}" if others else _START
        raise UnreachableError(f"no engine runs for cell '{printable(paths.folder.name)}'", remedy)
    return paths


def running_cells(settings: ConsoleSettings) -> list[str]:
    """Names of the cells on this machine whose engine answers."""
    from console.client.launch import running

    folder = cells_folder(settings)
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    return [entry.name for entry in found if running(paths_in(entry).socket) is not None]


_START = "Start one with `muster`, `muster --demo` or `muster serve`"
