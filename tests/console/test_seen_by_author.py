"""Who changed something reads it next: every change that a client can make waits for nothing else."""

from __future__ import annotations

import inspect

from console.client import Client
from console.local_client import LocalClient
from console.remote_client import RemoteClient


def _using(kind: type, *names: str) -> set[str]:
    """What every client can do, where a class does it by one of these."""
    return {
        name
        for name, _ in inspect.getmembers(Client, inspect.isfunction)
        if not name.startswith("_") and set(inspect.unwrap(getattr(kind, name)).__code__.co_names) & set(names)
    }


def test_the_author_of_any_change_sees_it_in_what_they_read_next() -> None:
    changes = _using(LocalClient, "_refuse_if_read_only", "_done")
    noted = {name for name in changes if "_note_written" in getattr(LocalClient, name).__code__.co_names}
    assert changes - noted == set()
    assert len(changes) > 20


def test_what_one_kind_of_client_calls_a_change_the_other_does_too() -> None:
    assert _using(RemoteClient, "_change") == _using(LocalClient, "_refuse_if_read_only", "_done")
