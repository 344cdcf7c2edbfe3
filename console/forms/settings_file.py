"""One key of a TOML file of settings, changed in place: comments, order and all other lines stay as they were written.

The file is replaced as a whole or not at all, and only when what comes out reads as it should.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from engine.model.errors import RefusedError, SpecError

Value = str | bool | int | float | tuple[str, ...]


class LineSpan(NamedTuple):
    """Lines of a file that set one key, counted from 0; the last is not one of them."""

    first: int
    last: int


def write(path: Path, key: str, value: Value | None) -> None:
    """Set a key in the file, or take it out (None). Raises SpecError for a file that is not TOML, RefusedError when it
    cannot be written, or not without changing more than that."""
    path = path.resolve()
    before = _read(path)
    after = changed(before, key, value, str(path))
    if after == before:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, before, after)
    except OSError as error:
        raise RefusedError(f"{path} cannot be written ({error.strerror})", "Check its folder's rights") from None


def changed(text: str, key: str, value: Value | None, where: str) -> str:
    """The text with the key set to the value, or without it. Raises SpecError, RefusedError."""
    table = _parsed(text, where)
    lines = text.splitlines(keepends=True)
    span = find(text, key)
    wanted = {name: held for name, held in table.items() if name != key}
    if value is None:
        if span is None and key not in table:
            return text
        made = [] if span is None else lines[: span.first] + lines[span.last :]
    else:
        wanted[key] = list(value) if isinstance(value, tuple) else value
        made = _with(lines, span, f"{key} = {literal(value)}")
    after = "".join(made)
    if (key in table and span is None) or _parsed(after, where) != wanted:
        raise RefusedError(f"'{key}' cannot be changed in {where} without touching more", "Change it with an editor")
    return after


def find(text: str, key: str) -> LineSpan | None:
    """The lines that set a key of the top level; None where there are none, or they cannot be told apart."""
    import tomllib

    lines = text.splitlines(keepends=True)
    row = 0
    while row < len(lines):
        name = lines[row].split("=", 1)[0].strip()
        if name.startswith("["):
            return None
        if "=" not in lines[row] or name.startswith("#"):
            row += 1
            continue
        # A value may go over several lines: it ends where what there is reads as TOML.
        for last in range(row + 1, len(lines) + 1):
            try:
                tomllib.loads("".join(lines[row:last]))
            except tomllib.TOMLDecodeError:
                continue
            break
        else:
            return None
        if name.strip("\"'") == key:
            return LineSpan(row, last)
        row = last
    return None


def literal(value: Value) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(literal(part) for part in value)}]"
    if isinstance(value, str):
        # What JSON escapes reads the same in TOML, but for one sign.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _with(lines: list[str], span: LineSpan | None, line: str) -> list[str]:
    """The lines with another in the place of those, or at the end of the top level."""
    if span is not None:
        return [*lines[: span.first], line + _comment(lines[span.first : span.last]) + "\n", *lines[span.last :]]
    end = next((row for row, each in enumerate(lines) if each.lstrip().startswith("[")), len(lines))
    before = lines[:end]
    if before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    return [*before, line + "\n", *lines[end:]]


def _comment(lines: list[str]) -> str:
    """What stands behind a value in its line, with the blanks before it."""
    import tomllib

    last = lines[-1].rstrip("\r\n")
    for at, sign in enumerate(last):
        if sign != "#":
            continue
        try:
            tomllib.loads("".join(lines[:-1]) + last[:at])
        except tomllib.TOMLDecodeError:
            continue
        return "  " + last[at:]
    return ""


def _parsed(text: str, where: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(where, f"is not TOML: {error}", "Mend the line with an editor") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), f"cannot be read ({getattr(error, 'strerror', '') or 'not UTF-8'})", "") from None


def _replace(path: Path, before: str, after: str) -> None:
    """Raises OSError, and RefusedError when somebody else has written meanwhile."""
    old = path.stat() if path.exists() else None
    mode = 0o600 if old is None else old.st_mode & 0o777
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".muster-", suffix=".toml")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as made:
            made.write(after)
            made.flush()
            os.fsync(made.fileno())
        new = os.stat(name)
        if old is not None and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.chown(name, old.st_uid, old.st_gid)  # replacing it must not take it from its owner
        os.chmod(name, mode)
        if _read(path) != before:
            raise RefusedError(f"{path} was changed by somebody else meanwhile", "Look at it again")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
