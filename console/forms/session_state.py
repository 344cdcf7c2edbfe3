"""Choices, bookmarks, input history and position that the console keeps for a person between two runs.

Choices are one JSON file per cell, shared by several consoles: each change is made under a lock to the file's present
content, and the file is replaced as a whole. The position belongs to one console and has a file of its own, which that
console keeps locked while it lives. An unlocked one is of a console that did not end by its person's wish, and the next
console continues from it.

A file that cannot be read is reported, set aside and begun anew. No problem here keeps a console from working.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from console.text.terminal_text import printable

MAX_BYTES = 1 << 20
"""A file that is longer was not written by a console."""
KEPT_S = 7 * 86_400
"""Seconds for which the position of a lost console is remembered."""
MAX_LOST = 20
"""Files of lost consoles that are examined."""

LOST, ALWAYS = "lost", "always"
"""What a new console goes on from."""
_LEFT = "left"

Json = Any


class SessionState:
    """Choices of one cell, and the position of one console. Safe on any thread."""

    def __init__(self, folder: Path | None = None, name: str = "console", *, restore: str = LOST) -> None:
        """Without a folder nothing outlives the process. `name` tells apart what shares a folder. `restore`: LOST goes
        on where a console was lost, ALWAYS also where one was left."""
        self._folder = folder
        self._restore = restore
        self._name = name
        self._lock = threading.Lock()
        self._known: dict[str, Json] = {}
        self._place: tuple[int, Path] | None = None
        """Descriptor, which is locked, and path of the file that says where the person is."""
        self._closed = False
        self.problems: list[str] = []
        """What could not be read or written, for the person to know."""
        if folder is not None:
            self._known = self._read(self._file) or {}

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}.json"

    # --- choices

    def recall(self, key: str) -> Json:
        """Value remembered under a key, by this console or another; None when there is none."""
        with self._lock:
            return self._known.get(key)

    def remember(self, key: str, value: Json) -> None:
        """Keep a choice. Blocks for a small file: call it on a thread where key presses wait."""
        self.alter(key, lambda _: value)

    def alter(self, key: str, change: Callable[[Json], Json]) -> Json:
        """Replace the kept value by what `change` makes of it, including changes of other consoles; None removes it.
        Returns the new value."""
        with self._lock:
            if self._folder is None:
                return self._changed(key, change)
            try:
                with self._alone():
                    fresh = self._read(self._file)
                    if fresh is not None:
                        self._known = fresh
                    value = self._changed(key, change)
                    self._replace(self._file, self._known)
            except OSError as error:
                value = self._changed(key, change)
                self._report(f"{self._file} cannot be written ({error.strerror}): choices last for this session only")
            return value

    def _changed(self, key: str, change: Callable[[Json], Json]) -> Json:
        value = change(self._known.get(key))
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = value
        return value

    # --- where the person is

    def begin(self) -> tuple[dict[str, Json], bool]:
        """Position at which the new console begins ({} for the start), and True when a console was lost there."""
        lost = self.lost()
        if lost:
            return lost, True
        left = self.recall(_LEFT) if self._restore == ALWAYS else None
        return left if isinstance(left, dict) else {}, False

    def lost(self) -> Json:
        """Position of the last console that did not end by its person's wish, which is this console's from now on. None
        when there is none."""
        for path in self._places():
            held = self._take(path)
            if held is None:
                continue
            with held:
                old = time.time() - os.fstat(held.fileno()).st_mtime > KEPT_S
                place = None if old else self._read(path)
                path.unlink(missing_ok=True)
            if place is not None:
                return place
        return None

    def _places(self) -> list[Path]:
        """Files of positions, the newest first."""
        if self._folder is None:
            return []
        found: list[tuple[float, Path]] = []
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{self._name}-at-*.json"):
                with contextlib.suppress(OSError):
                    found.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)[:MAX_LOST]]

    def _take(self, path: Path) -> IO[str] | None:
        """The file, locked; None while a living console holds it."""
        try:
            held = path.open("r+", encoding="utf-8")
        except OSError:
            return None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            return None
        return held

    def note_place(self, place: Json) -> None:
        """Note the present position, for the next console should this one be lost. Blocks for a small file."""
        with self._lock:
            if self._folder is None or self._closed:
                return
            try:
                if self._place is None:
                    self._place = self._new_place()
                descriptor = self._place[0]
                # In one go and never shorter than before: a console that is killed meanwhile leaves one or the other.
                text = json.dumps(place).encode()
                os.pwrite(descriptor, text.ljust(os.fstat(descriptor).st_size), 0)
                os.ftruncate(descriptor, len(text))
            except OSError as error:
                self._report(f"{self._folder} cannot be written ({error.strerror}): a lost console cannot be restored")

    def _new_place(self) -> tuple[int, Path]:
        assert self._folder is not None
        _private(self._folder)
        path = self._folder / f"{self._name}-at-{os.getpid()}-{secrets.token_hex(4)}.json"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor, path

    def leave(self, place: Json = None) -> None:
        """End the console by its person's wish: the next one starts afresh, unless the setting `restore` says
        otherwise."""
        if self._restore == ALWAYS:
            self.remember(_LEFT, place)
        with self._lock:
            if self._place is not None:
                self._place[1].unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """End the console for any reason: the position is noted no more, and another console may continue from it."""
        with self._lock:
            self._closed = True
            if self._place is not None:
                os.close(self._place[0])
                self._place = None

    # --- files

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        assert self._folder is not None
        _private(self._folder)
        descriptor = os.open(self._folder / f"{self._name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> dict[str, Json] | None:
        """Content of a file; None when there is none. A file that is not ours is set aside."""
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("it has no choices")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report(f"{path} cannot be read ({error.strerror})")
            return None
        except (ValueError, RecursionError) as error:
            self._set_aside(path, str(error))
            return None
        return found

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_suffix(".bad")
        try:
            path.replace(aside)
        except OSError:
            self._report(f"{path} cannot be read ({why})")
        else:
            self._report(f"{path} cannot be read ({why}): moved to {aside.name}, starting fresh")

    def _replace(self, path: Path, value: Json) -> None:
        text = json.dumps(value, indent=1)
        if len(text) > MAX_BYTES:
            raise OSError(0, "too large to save")
        temporary = path.with_suffix(f".{os.getpid()}.new")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(printable(problem))


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
