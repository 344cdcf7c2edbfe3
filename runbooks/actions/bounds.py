"""Bounds of everything an act may hold: whole ids, numbers that are possible, one line of text where text is meant.

The check knows nothing of single actions. It walks all that is given, so a field that is added later is bound too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from engine.model.autoscaling import MAX_POOL_NODES
from engine.model.commands import MAX_EVIDENCE
from engine.model.errors import SpecError
from engine.model.specs import MAX_QUANTITY, check_id
from runbooks.plans.typed_plan import Act

MAX_TEXT = 500
"""Characters of words for people."""
TEXTS = {"note.text": MAX_TEXT, "resize.evidence": MAX_EVIDENCE}
"""Where an act holds words, and how many characters of them. Everywhere else a text is an id, or a name from a list."""
MAX_ENTRIES = 10_000
"""Of any list or table in an act."""
MINUTE_MS, WEEK_MS = 60_000, 7 * 24 * 3_600_000
NUMBERS = {
    "nodes": (0, MAX_POOL_NODES),
    "canary.window_ms": (MINUTE_MS, WEEK_MS),
    "canary.worst_permille": (1_000, 10_000),
    "canary.least_starts": (1, 100_000),
}
"""(least, most) where an act itself is narrower than the engine, which has the last word on specs."""


def check_bounds(act: Act) -> None:
    """Raises SpecError naming the first field that is out of bounds: what could stand for more than one object, cannot
    be typed, only looks like another letter, or is larger than anything there is."""
    for where, value in _leaves(msgspec.to_builtins(act), ""):
        if isinstance(value, str):
            if where in TEXTS:
                check_line(value, where, TEXTS[where])
            elif value:
                check_id(value, where)
        elif isinstance(value, int) and not isinstance(value, bool):
            least, most = NUMBERS.get(where, (-MAX_QUANTITY, MAX_QUANTITY))
            if not least <= value <= most:
                raise SpecError(where, f"{value} is not between {least} and {most}", "Give a number between them")
    for i, target in enumerate(act.targets):
        check_id(target, f"targets[{i}]")
    if act.note is not None and not act.note.text.strip():
        raise SpecError("note.text", "is empty", "Say something")


def check_line(value: str, where: str, most: int) -> None:
    """Kept in the audit for ever and shown on terminals: one printable line of bounded length."""
    if len(value) > most:
        raise SpecError(where, f"{len(value):,} characters", f"Give at most {most}")
    if not value.isprintable():
        raise SpecError(where, "has characters that cannot be printed", "Give one line of plain text")


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that is no list or table, the keys of tables among them."""
    if isinstance(value, dict):
        _check_size(value, where)
        for key, inner in value.items():
            yield where, key
            yield from _leaves(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        _check_size(value, where)
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{where}[{i}]")
    else:
        yield where, value


def _check_size(value: Any, where: str) -> None:
    if len(value) > MAX_ENTRIES:
        raise SpecError(where, f"has {len(value):,} entries", f"Give at most {MAX_ENTRIES:,}")
