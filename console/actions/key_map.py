"""Keys as a person has bound them: `[keys]` of the settings file, checked against the registry and put into it.

A key map is taken as a whole or not at all: half of one could put an action where a person expects another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from string import ascii_lowercase
from typing import NamedTuple

from console.actions.registry import ACTIONS, BEFORE, FIRST, PREFIX, SIGN_NAMES, ConsoleAction, key_label
from console.forms.settings import GivenKeys
from console.text.terminal_text import printable
from engine.model.errors import SpecError, did_you_mean

RESERVED: dict[str, str] = {
    "escape": "goes back", "enter": "opens", "space": "marks", "tab": "completes", "shift+tab": "completes",
    "ctrl+c": "quits", "ctrl+z": "suspends the console", "ctrl+l": "draws anew", "ctrl+p": "lists all actions",
    **dict.fromkeys(("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "j", "k"), "moves"),
    **dict.fromkeys(("shift+up", "shift+down"), "moves"), PREFIX: "begins a jump to a page",
}  # fmt: skip
"""Keys that keep their meaning on every page, and what that is."""
_SENT_ALIKE = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+j": "enter", "ctrl+h": "backspace"}
"""Keys that a terminal sends as another."""
_NAMED = frozenset(
    (
        *("insert", "delete", "backspace", *RESERVED),
        *(f"f{number}" for number in range(1, 25)),
        *(f"{held}+{letter}" for held in ("ctrl", "alt") for letter in ascii_lowercase),
    )
)
_SHORT = {"esc": "escape", "pgup": "pageup", "pgdn": "pagedown", "del": "delete", "ins": "insert"}
_TAKES = "A key is a character, ctrl+LETTER, alt+LETTER, f1 to f24, insert, delete or backspace"


class BoundKeys(NamedTuple):
    keys: tuple[str, ...]
    """Textual's names; none: it has no key."""
    jump: str
    """The character behind `g`; empty for none."""


class KeyMap(NamedTuple):
    bound: dict[str, BoundKeys]
    """Id of an action -> its keys; actions that are not here keep theirs. Empty where there is a problem."""
    problems: tuple[SpecError, ...]


DEFAULT = KeyMap({}, ())


def key_map(given: Mapping[str, GivenKeys]) -> KeyMap:
    """The keys of a settings file, or all that is wrong with them."""
    problems: list[SpecError] = []
    bound: dict[str, BoundKeys] = {}
    places: dict[str, str] = {}
    for name, wish in given.items():
        try:
            action = _action(name, wish.where)
            if action.id in places:
                raise SpecError(wish.where, f"'{action.id}' is bound at {places[action.id]} too", "Leave one line out")
            places[action.id] = wish.where
            bound[action.id] = _read(action, wish)
        except SpecError as error:
            problems.append(error)
    problems += _twice(rows(bound), places)
    return KeyMap({} if problems else bound, tuple(problems))


def rows(bound: Mapping[str, BoundKeys]) -> tuple[ConsoleAction, ...]:
    """The registry with these keys."""
    return tuple(
        action if (own := bound.get(action.id)) is None else replace(action, keys=own.keys, jump=own.jump)
        for action in ACTIONS
    )


_shown: dict[str, ConsoleAction] = {action.id: action for action in ACTIONS}


def show(actions: Iterable[ConsoleAction]) -> None:
    """Have pages name the keys of these rows. One console runs in a process."""
    _shown.update((action.id, action) for action in actions)


def key_of(action: str) -> str:
    """The first key of an action as screens name it; its `:` line where it has none."""
    row = _shown[action]
    if row.keys:
        return key_label(row.keys[0])
    return f":{row.commands[0]}" if row.commands else "no key"


def _action(name: str, where: str) -> ConsoleAction:
    """Raises SpecError for a name that is no action's, or of one that a key cannot do."""
    wanted = name.strip().lower().replace("-", "_")
    found = next((action for action in ACTIONS if wanted == action.id.replace("-", "_")), None)
    if found is None:
        remedy = did_you_mean(wanted, [action.id for action in ACTIONS], "`muster config keys` lists them")
        raise SpecError(where, f"there is no action '{printable(name)[:40]}'", remedy)
    if found.argument == "flags" and not found.keys:
        raise SpecError(
            where, f"'{found.id}' needs values, which no key can give", f"Type :{found.commands[0]} with its values"
        )
    return found


def _read(action: ConsoleAction, wish: GivenKeys) -> BoundKeys:
    """Raises SpecError. Keys that are reserved for the action stay with it."""
    texts = [wish.value] if isinstance(wish.value, str) else wish.value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SpecError(
            wish.where,
            f"'{action.id}' is {printable(repr(wish.value))[:40]}",
            'Give a key such as "D", or a list of them',
        )
    jump, keys = action.jump, []
    for text in texts:
        if match := re.fullmatch(rf"{PREFIX} ?(\S)", text.strip()):
            jump = _jump(action, match[1], wish.where)
        else:
            keys.append(_key(action, text, wish.where))
    if not keys and jump != action.jump:
        keys = list(action.keys)
    kept = [key for key in action.keys if key in RESERVED]
    return BoundKeys(tuple(dict.fromkeys([*keys, *kept])), jump)


def _jump(action: ConsoleAction, character: str, where: str) -> str:
    if action.mutates or action.changes or action.targets:
        raise SpecError(where, f"{PREFIX} {character} leads to a page, and '{action.id}' is none", _TAKES)
    if character in (FIRST, BEFORE):
        does = "goes to the first row" if character == FIRST else "goes to the page before"
        raise SpecError(where, f"{PREFIX}{character} {does} on every page", "Give another letter")
    return character


def _key(action: ConsoleAction, text: str, where: str) -> str:
    """Textual's name of a key. Raises SpecError."""
    key = _named(text)
    shown = printable(text)[:20]
    if key is None:
        raise SpecError(where, f"there is no key '{shown}'", did_you_mean(text.strip(), _NAMED, _TAKES))
    if key in _SENT_ALIKE:
        raise SpecError(where, f"a terminal sends {shown} as {_SENT_ALIKE[key]}", "Give another key")
    if key in RESERVED and key not in action.keys:
        raise SpecError(where, f"'{shown}' {RESERVED[key]} on every page", f"Give '{action.id}' another key")
    if (
        (action.mutates or action.changes)
        and not (len(key) == 1 and key.isupper())
        and "+" not in key
        and (not re.fullmatch(r"f\d+", key))
    ):
        raise SpecError(
            where, f"'{action.id}' acts on the cluster, and '{shown}' is too easily hit",
            "Give a capital letter, ctrl+LETTER, alt+LETTER or f1 to f24",
        )  # fmt: skip
    return key


def _named(text: str) -> str | None:
    """Textual's name of what a person wrote; None for no key."""
    text = text.strip()
    if len(text) == 1:
        return text if text.isalnum() else SIGN_NAMES.get(text)
    word = _SHORT.get(text.lower(), text.lower())
    return word if word in _NAMED or word in SIGN_NAMES.values() else None


def _written(key: str) -> str:
    """As a person would write it in the file."""
    return key_label(key) if key in SIGN_NAMES.values() else key


def _twice(bound: Iterable[ConsoleAction], places: Mapping[str, str]) -> list[SpecError]:
    """Keys that would mean two things on one page, told at the line of the file that does it."""
    taken: dict[tuple[str, str], ConsoleAction] = {}
    found: dict[tuple[str, str], SpecError] = {}
    for action in bound:
        spots = [(f"the page {screen}", _written(key)) for screen in action.screens for key in action.keys]
        spots += [("every page", f"{PREFIX} {action.jump}")] if action.jump else []
        for page, key in spots:
            other = taken.setdefault((page, key), action)
            mine, theirs = (action, other) if action.id in places else (other, action)
            if other is not action and (mine.id, theirs.id) not in found:
                found[mine.id, theirs.id] = _clash(key, mine, theirs, page, places)
    return list(found.values())


def _clash(key: str, mine: ConsoleAction, theirs: ConsoleAction, page: str, places: Mapping[str, str]) -> SpecError:
    there = f" (bound at {places[theirs.id]})" if theirs.id in places else ""
    return SpecError(
        places.get(mine.id, ""), f"'{key}' would be both '{mine.id}' and '{theirs.id}'{there} on {page}",
        "Give one of them another key in [keys]",
    )  # fmt: skip
