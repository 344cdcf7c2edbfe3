"""Every setting with its value, source, meaning and problem, and one key of a settings file changed in place.

For display; `console.forms.settings.load` decides which value holds. A change to the TOML file keeps comments, order
and all other lines. The file is replaced as a whole or not at all, and only when the result reads as intended.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from console.forms import settings
from console.forms.settings import ENVIRONMENT, ConsoleSettings
from engine.model.errors import RefusedError, SpecError

Source = Literal["default", "file", "environment", "flag"]
Effect = Literal["at once", "next console", "next engine"]
AT_ONCE = ("theme",)
OF_ENGINES = (
    "database", "speed", "keep_minutes", "keep_fives", "keep_hours", "keep_events", "keep_runs", "keep_series",
    "approval", "audit_key", "runbooks", "audit_anchors", "socket_group", "log_format", "trace_url", "trace_percent",
)  # fmt: skip
"""Read by an engine when it is started from here, beside those of the model."""
SUBJECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Console", ("theme", "linear", "start_page", "restore", "production", "readonly")),
    ("Which engine", ("environment", "cell", "connect", "state_dir", "database", "socket_group", "speed")),
    ("Who you are", ("operator", "key", "key_passphrase_file")),
    ("Approval and audit", ("approval", "runbooks", "audit_key", "audit_anchors")),
    ("Log and traces", ("log_format", "trace_url", "trace_percent")),
    ("History", ("keep_minutes", "keep_fives", "keep_hours", "keep_events", "keep_runs", "keep_series")),
)
"""What belongs together; the rest is of the model."""


class Setting(NamedTuple):
    name: str
    value: Any
    default: Any
    source: Source
    where: str
    """File and line, variable, or flag; empty for the default."""
    also: tuple[str, ...]
    """Where it is set too, and does not count."""
    meaning: str
    effect: Effect
    problem: str
    """Why what it is set to does not hold; empty while it does."""


def settings_told(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> tuple[list[Setting], str]:
    """All settings, and the problem of the file as a whole. A setting with a problem reads as its default."""
    env = os.environ if environment is None else environment
    path = settings.config_file(env)
    table, text, problem = _file(path)
    unknown = sorted(name for name in table if name not in meanings() and name not in settings.TABLES)
    if unknown and not problem:
        problem = f"{settings.place(path, text, unknown[0])}: unknown key '{unknown[0]}'"
    return [
        _setting(field.name, field.default, flags, env, path, table, text) for field in fields(ConsoleSettings)
    ], problem


def _file(path: Path) -> tuple[dict[str, Any], str, str]:
    try:
        return *settings.read_file(path), ""
    except SpecError as error:
        return {}, "", str(error)


def _setting(
    name: str,
    default: Any,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    path: Path,
    table: Mapping[str, Any],
    text: str,
) -> Setting:
    """The setting by its nearest source: flag, environment, file."""
    found: list[tuple[Source, str, Any]] = []
    variable = ENVIRONMENT + name.upper()
    if flags.get(name) is not None:
        found.append(("flag", "--as" if name == "operator" else f"--{name.replace('_', '-')}", flags[name]))
    if env.get(variable):
        found.append(("environment", variable, settings.from_text(name, env[variable])))
    if name in table:
        found.append(("file", settings.place(path, text, name), table[name]))
    value, source, where, problem = default, "default", "", ""
    if found:
        source, where, given = found[0]
        try:
            value = settings.checked(name, given, where)
        except SpecError as error:
            problem = f"{error.problem}. {error.remedy}".strip()
    return Setting(
        name, value, default, source, where, tuple(place for _, place, _ in found[1:]), meanings()[name],  # type: ignore[arg-type]
        effect_of(name), problem,
    )  # fmt: skip


def effect_of(name: str) -> Effect:
    """When a change of the setting takes effect."""
    if name in AT_ONCE:
        return "at once"
    return "next engine" if name in OF_ENGINES or name.startswith("model") else "next console"


@cache
def meanings() -> dict[str, str]:
    """Meaning of each setting by name, from the docstrings of its definition."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(ConsoleSettings))).body
    assert isinstance(definition, ast.ClassDef)
    told: dict[str, str] = {}
    name = ""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            told[name] = ""
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            told[name] = " ".join(str(node.value.value).split())
            name = ""
    return told


def subjects() -> list[tuple[str, tuple[str, ...]]]:
    """Every setting once, grouped by subject."""
    named = {name for _, names in SUBJECTS for name in names}
    rest = tuple(field.name for field in fields(ConsoleSettings) if field.name not in named)
    return [*SUBJECTS, ("Model", rest)]


def shown(value: Any) -> str:
    """A value as the file has it, with secrets removed. Loads the detection of secrets: not for the first paint."""
    from runbooks.untrusted.stranger_texts import redact

    return redact(literal(value), personal=False)


def refuse_secret(name: str, value: Any) -> None:
    """Raises SpecError where a value is or holds a secret: the settings file is no place for one."""
    from runbooks.untrusted.stranger_texts import is_secret

    texts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(text, str) and is_secret(text) for text in texts):
        raise SpecError(
            name, "the value contains a secret; settings must not hold secrets",
            f"Keep it in a file that only you can read (model_key_file, key), or in {settings.MODEL_KEY}",
        )  # fmt: skip


Value = str | bool | int | float | tuple[str, ...]


class LineSpan(NamedTuple):
    """Lines of a file that set one key, counted from 0; the last is not one of them."""

    first: int
    last: int


def write(path: Path, key: str, value: Value | None) -> None:
    """Set a key in the file, or remove it (None). Raises SpecError for a file that is not TOML, RefusedError when it
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
        raise RefusedError(
            f"{path} cannot be written ({error.strerror})", "Check the permissions of its folder"
        ) from None


def changed(text: str, key: str, value: Value | None, where: str) -> str:
    """The text with the key set to the value, or without it. Raises SpecError, RefusedError."""
    table = settings.parsed(text, where)
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
    if (key in table and span is None) or settings.parsed(after, where) != wanted:
        raise RefusedError(f"'{key}' cannot be changed in {where} without other changes", "Change it in an editor")
    return after


def find(text: str, key: str) -> LineSpan | None:
    """Lines that set a key of the top level; None where there are none, or they cannot be told apart."""
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
    """The lines with one of them replaced, or with a new one at the end of the top level."""
    if span is not None:
        return [*lines[: span.first], line + _comment(lines[span.first : span.last]) + "\n", *lines[span.last :]]
    end = next((row for row, each in enumerate(lines) if each.lstrip().startswith("[")), len(lines))
    before = lines[:end]
    if before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    return [*before, line + "\n", *lines[end:]]


def _comment(lines: list[str]) -> str:
    """Comment behind a value in its line, with the blanks before it."""
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


def _read(path: Path) -> str:
    return settings.read_file(path)[1]


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
            raise RefusedError(f"{path} was changed by somebody else in the meantime", "Reload and try again")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
