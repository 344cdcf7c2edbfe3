"""Something large that all processes of a test run share: the first one in starts it, the last one out stops it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def shared_by_processes(folder: Path, up: Callable[[], object], down: Callable[[], object]) -> Iterator[None]:
    """`up` starts it in that folder or, where it is up, finds it. What a run left that was killed is taken down."""
    users = folder.with_suffix(".users")
    mine = users / f"{os.getpid()}-{random.getrandbits(32):08x}"
    with locked(folder):
        users.mkdir(exist_ok=True)
        if folder.exists() and not any(_alive(user) for user in users.iterdir()):
            # Half of it may be gone.
            down()
        up()
        mine.touch()
    try:
        yield
    finally:
        with locked(folder):
            mine.unlink(missing_ok=True)
            if not any(_alive(user) for user in users.iterdir()):
                down()
                shutil.rmtree(users, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _alive(user: Path) -> bool:
    """The process that wrote its name there still lives; a name left behind by one that was killed is removed."""
    if Path(f"/proc/{user.name.split('-')[0]}").exists():
        return True
    user.unlink(missing_ok=True)
    return False
