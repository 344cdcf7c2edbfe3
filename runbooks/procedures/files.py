"""The files of runbooks: those that are built in, and those of folders."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from runbooks.untrusted.strict_yaml import MAX_BYTES

LIBRARY = Path(__file__).parent / "library"
BUILT_IN = "built in"
MAX_FILES = 500
"""Of one folder."""


class RunbookFile(NamedTuple):
    """A file as it was read."""

    name: str
    source: str
    account: str
    """OS account that the file belongs to, as "unix:1000"; empty for one that is built in."""
    data: bytes
    unreadable: str


def files_of(folder: Path, *, built_in: bool = False) -> list[RunbookFile]:
    """The .md files of a folder, by name; README.md is not one. What cannot be read is there with the reason."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".md" and path.name != "README.md")
    except OSError as error:
        return [RunbookFile(folder.name, str(folder), "", b"", f"the folder cannot be read ({error.strerror})")]
    if len(paths) > MAX_FILES:
        unreadable = f"it holds {len(paths):,} files; the first {MAX_FILES} are read"
        return [file_of(path, built_in) for path in paths[:MAX_FILES]] + [
            RunbookFile(folder.name, str(folder), "", b"", unreadable)
        ]
    return [file_of(path, built_in) for path in paths]


def file_of(path: Path, built_in: bool = False) -> RunbookFile:
    """Reads a regular file, no more than a runbook may be long; a pipe or a device does not hold anybody up."""
    source = BUILT_IN if built_in else str(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            regular = stat.S_ISREG(about.st_mode)
            data = _bytes(handle) if regular else b""
        finally:
            os.close(handle)
    except OSError as error:
        return RunbookFile(path.name, source, "", b"", f"cannot be read ({error.strerror})")
    account = "" if built_in else f"unix:{about.st_uid}"
    return RunbookFile(path.name, source, account, data, "" if regular else "is no regular file")


def _bytes(handle: int) -> bytes:
    """At most one byte more than a runbook may have."""
    found = b""
    while len(found) <= MAX_BYTES and (part := os.read(handle, MAX_BYTES + 1 - len(found))):
        found += part
    return found
