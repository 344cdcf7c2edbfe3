"""A client of which every word is a stranger's: whatever text an answer holds is one of `PAYLOADS` instead.

What programs branch on stays what it is: texts of which the type says all the words there are, and the few plain ones
that are named here.
"""

from __future__ import annotations

import types
import typing
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from tests.support.hostile_text import PAYLOADS

KEPT = {
    "state", "status", "columns", "kind", "states", "capacity", "used", "free", "in_use", "physical", "allocatable",
    "overcommit", "unit", "digest", "action", "verdict", "tier", "matched", "qos", "flags", "what", "domains",
    "required", "preferred", "within", "level", "name", "type", "origin", "to", "finding",
}  # fmt: skip
"""Fields that are words of a closed list although their type does not say so."""


class Poisoned:
    """Answers as the client does, with each text replaced; the same text in the same field by the same payload."""

    def __init__(self, client: Any, offset: int = 0, kept: frozenset[str] = frozenset(), without: str = "") -> None:
        self._client = client
        self._offset = offset
        self._kept = KEPT - {"name", "what", "to", "finding", "type"} | kept
        self._payloads = [text for name, text in PAYLOADS.items() if name != without]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not callable(value) or name.startswith("_"):
            return value

        def asked(*arguments: Any, **named: Any) -> Any:
            return self._of(value(*arguments, **named), Any, name)

        return asked

    def _word(self, text: str, field: str) -> str:
        number = zlib.crc32(f"{field} {text}".encode(errors="replace")) + self._offset
        return self._payloads[number % len(self._payloads)]

    def _of(self, value: Any, hint: Any, field: str) -> Any:
        if field in self._kept or value is None or isinstance(value, bool | int | float | bytes):
            return value
        if isinstance(value, str):
            return value if _closed(hint) else self._word(value, field)
        if isinstance(value, msgspec.Struct):
            hints = _hints(type(value))
            named = {
                each: self._of(getattr(value, each), hints.get(each, Any), each) for each in value.__struct_fields__
            }
            return msgspec.structs.replace(value, **named)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            hints = _hints(type(value))
            return type(value)(*(self._of(each, hints.get(name, Any), name)
                                 for name, each in zip(value._fields, value, strict=True)))  # fmt: skip
        if isinstance(value, tuple | list | set | frozenset):
            inner = _inner(hint, len(value))
            return type(value)(self._of(each, one, field) for each, one in zip(value, inner, strict=True))
        if isinstance(value, dict):
            of = get_args(hint)[1] if len(get_args(hint)) == 2 else Any
            return {
                self._word(key, field) if isinstance(each, str) else key: self._of(each, of, field)
                for key, each in value.items()
            }
        return value


def _inner(hint: Any, count: int) -> list[Any]:
    for each in (hint, *get_args(hint)):
        if get_origin(each) in (tuple, list, set, frozenset):
            found = get_args(each)
            return [found[0]] * count if len(found) != count or found[-1] is ... else list(found)
    return [Any] * count


@cache
def _hints(of: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(of)


def _closed(hint: Any) -> bool:
    """Whether the type lists the words."""
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (Union, types.UnionType):
        return any(_closed(each) for each in get_args(hint))
    if isinstance(hint, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        return _closed(hint.__value__)
    return False
