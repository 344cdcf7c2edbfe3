"""The commands `muster config check` and `muster config keys`: the settings file, and the keys as they are bound."""

from __future__ import annotations

import argparse
import os

from console.actions.key_map import key_map, rows
from console.actions.registry import PREFIX, SCREENS, ConsoleAction
from console.commands.show import write_json, write_lines
from console.forms.setting_sources import literal
from console.forms.settings import config_file, given_keys, problems, unknown_environment
from console.text.terminal_text import fit, printable
from engine.model.errors import SpecError


def check(arguments: argparse.Namespace) -> int:
    """Print all that is wrong with the file and the variables, each with its place. The exit code is 1 when something
    is."""
    found = [*problems(os.environ), *slips()]
    if arguments.json:
        write_json([{"where": each.where, "problem": each.problem, "remedy": each.remedy} for each in found])
    else:
        path = config_file(os.environ)
        good = f"ok: {path}" if path.exists() else f"ok: {path} does not exist, so the defaults hold"
        write_lines([printable(str(each)) for each in found] or [printable(good)])
    return 1 if found else 0


def slips() -> list[SpecError]:
    """What is wrong and keeps nothing from starting: keys, which are then the usual ones, and variables that mean
    nothing."""
    unknown = [SpecError(name, "unknown variable", "Check its spelling") for name in unknown_environment(os.environ)]
    try:
        return [*key_map(given_keys(os.environ)).problems, *unknown]
    except SpecError:  # the file as a whole: one of `problems`
        return unknown


def keys(arguments: argparse.Namespace) -> None:
    """Print every action with its keys as the file could have it. Raises SpecError for a key map that cannot be."""
    mapped = key_map(given_keys(os.environ))
    if mapped.problems:
        raise mapped.problems[0]
    found = [action for action in rows(mapped.bound) if action.argument != "flags" or action.keys]
    if arguments.json:
        write_json([{"action": each.id, "keys": _keys(each), "pages": each.screens} for each in found])
    else:
        write_lines(["[keys]", *(_line(action) for action in found)])


def _line(action: ConsoleAction) -> str:
    keys = literal(tuple(_keys(action)))
    pages = "every page" if action.screens == SCREENS else ", ".join(action.screens[:4])
    more = ", …" if action.screens != SCREENS and len(action.screens) > 4 else ""
    return f"{fit(action.id, 16)} = {fit(keys, 28)}  # {action.title}: {pages}{more}"


def _keys(action: ConsoleAction) -> list[str]:
    return [*action.keys, *([f"{PREFIX} {action.jump}"] if action.jump else [])]
