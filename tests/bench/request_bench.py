"""A request's way: the modules of the project that are entered between a client's call and its receipt, over HTTP on a
Unix socket, with the engine in the same process. Any thread enters a module by calling one of its functions.

Each request is made several times on a warm engine: some of the work is placed at once and some waits, and the engine
may do work of its own meanwhile. The figure is of the try that entered most; beside it, what every try entered.
`python tests/bench/request_bench.py` names the modules.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

from console.client.remote import RemoteClient
from engine.model.commands import Submit
from tests.support.gates import asked
from tests.support.served import gpu_job, running_loop, served_on_unix

PACKAGES = ("console", "recommender", "runbooks", "engine")
TRIES = 7
WARM = 2
MAX_SUBMIT, MAX_PROPOSE = 40, 60
"""Wanted: a person who follows a request can read so many modules."""


class Entered:
    """The modules that any thread enters while it counts. Made before the threads begin."""

    def __init__(self) -> None:
        self._names: set[str] | None = None
        threading.setprofile(self._note)

    def during(self, do: Callable[[], object]) -> frozenset[str]:
        names = self._names = set()
        sys.setprofile(self._note)
        try:
            do()
        finally:
            sys.setprofile(None)
            self._names = None
        return frozenset(names)

    def close(self) -> None:
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        names = self._names
        if names is not None and event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.partition(".")[0] in PACKAGES:
                names.add(name)


def ways() -> dict[str, list[frozenset[str]]]:
    """Request -> the modules entered by each try."""
    entered = Entered()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            running_loop(Path(folder) / "journal.db") as loop,
            served_on_unix(loop) as path,
            closing(RemoteClient(str(path))) as client,
        ):
            return {
                "submit": _tries(entered, lambda number: _submit(client, f"w{number}")),
                "propose": _tries(entered, lambda number: _propose(client, f"w{number}")),
            }
    finally:
        entered.close()


def _tries(entered: Entered, request: Callable[[int], object]) -> list[frozenset[str]]:
    for number in range(WARM):
        request(number)
    return [entered.during(lambda n=number: request(n)) for number in range(WARM, WARM + TRIES)]


def _submit(client: RemoteClient, name: str) -> None:
    client.command(Submit(workloads=(gpu_job(name),)))


def _propose(client: RemoteClient, name: str) -> None:
    client.propose(asked("cancel", [name], "no longer wanted"))


def request() -> Iterator[dict[str, Any]]:
    limits = {"submit": MAX_SUBMIT, "propose": MAX_PROPOSE}
    for name, tries in ways().items():
        most, always = max(tries, key=len), frozenset.intersection(*tries)
        by_package = {each: sum(module.partition(".")[0] == each for module in most) for each in PACKAGES}
        rooms = ", ".join(f"{count} {each}" for each, count in by_package.items() if count)
        yield {
            "at": f"{name} over HTTP, {TRIES} times",
            "result": f"{len(most)} modules",
            "modules": len(most),
            "modules_in_every_try": len(always),
            "by_package": by_package,
            "reference": f"{limits[name]} wanted; {rooms}; {len(always)} in every try",
        }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for row in request():
        print(f"{row['at']}: {row['result']} ({row['reference']})")
    for name, tries in ways().items():
        print(f"\n{name}", *sorted(max(tries, key=len)), sep="\n  ")
