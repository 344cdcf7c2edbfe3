"""Every setting with its value, where that came from, what it means, and what is wrong with it. For faces; nothing here
decides what holds: `console.forms.settings.load` does."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from console.forms import settings
from console.forms.settings import ENVIRONMENT, ConsoleSettings
from engine.model.errors import SpecError

Source = Literal["default", "file", "environment", "flag"]
Effect = Literal["at once", "next console", "next engine"]
AT_ONCE = ("theme",)
OF_ENGINES = (
    "database", "speed", "keep_minutes", "keep_fives", "keep_hours", "keep_runs", "keep_series", "approval",
    "audit_key", "runbooks", "audit_anchors", "socket_group",
)  # fmt: skip
"""Read by an engine when it is started from here, beside those of the model."""
SUBJECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Console", ("theme", "linear", "start_page", "restore", "production", "readonly")),
    ("Which engine", ("cell", "connect", "state_dir", "database", "socket_group", "speed")),
    ("Who you are", ("operator", "key", "key_passphrase_file")),
    ("Approval and audit", ("approval", "runbooks", "audit_key", "audit_anchors")),
    ("History", ("keep_minutes", "keep_fives", "keep_hours", "keep_runs", "keep_series")),
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
    """All of them, and what is wrong with the file as a whole. One that is wrong reads as its default."""
    env = os.environ if environment is None else environment
    path = settings.config_file(env)
    table, text, problem = _file(path)
    unknown = sorted(name for name in table if name not in meanings())
    if unknown and not problem:
        problem = f"{settings.place(path, text, unknown[0])}: unknown key '{unknown[0]}'"
    return [
        _setting(field.name, field.default, flags, env, path, table, text) for field in fields(ConsoleSettings)
    ], problem


def _file(path: Path) -> tuple[dict[str, Any], str, str]:
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), text, ""
    except FileNotFoundError:
        return {}, "", ""
    except (OSError, UnicodeDecodeError) as error:
        return {}, "", f"{path} cannot be read ({getattr(error, 'strerror', '') or 'not UTF-8'})"
    except tomllib.TOMLDecodeError as error:
        return {}, "", f"{path} is not TOML: {error}"


def _setting(
    name: str,
    default: Any,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    path: Path,
    table: Mapping[str, Any],
    text: str,
) -> Setting:
    """The nearest that sets it counts: flag, environment, file."""
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
    """When a change is felt."""
    if name in AT_ONCE:
        return "at once"
    return "next engine" if name in OF_ENGINES or name.startswith("model") else "next console"


@cache
def meanings() -> dict[str, str]:
    """Name of each setting -> what it means, as its definition says."""
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
    """Every setting once, by what belongs together."""
    named = {name for _, names in SUBJECTS for name in names}
    rest = tuple(field.name for field in fields(ConsoleSettings) if field.name not in named)
    return [*SUBJECTS, ("Model", rest)]


def shown(value: Any) -> str:
    """A value as the file has it, without what is secret in it. Loads what knows secrets: not for the first paint."""
    from console.forms.settings_file import literal
    from runbooks.untrusted.redaction import redact

    return redact(literal(value), personal=False)


def refuse_secret(name: str, value: Any) -> None:
    """Raises SpecError where a value is, or holds, a secret: the file is no place for one."""
    from runbooks.untrusted.redaction import is_secret

    texts = value if isinstance(value, tuple) else (value,)
    if any(isinstance(text, str) and is_secret(text) for text in texts):
        raise SpecError(
            name, "the value holds a secret, and settings are no place for one",
            f"Keep it in a file that only you can read (model_key_file, key), or in {settings.MODEL_KEY}",
        )  # fmt: skip
