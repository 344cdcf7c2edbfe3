"""JSON from a stranger: bytes in, plain values out, or a named refusal. Nothing is guessed, repaired or read twice.

Python's own parser takes what RFC 8259 does not (NaN, duplicate keys, UTF-16, integers of any length) and falls over
deep nesting. Here size and depth are known before anything is parsed, and every value that two readers might read
differently is refused.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import Any

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_ITEMS = 20_000
"""Values of all kinds together, members' names not counted; an empty container counts twice."""
MAX_DIGITS = 19
"""Of an integer: what 64 bits hold and a little more."""
MAX_NUMBER = 40
"""Characters of a number with a point or an exponent."""

# Both quantifiers are possessive: a string that does not end costs one pass, not one for every quote in it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[]{},")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NotJson(Exception):
    """The bytes are not JSON as we take it. `reason` is a stable token, `problem` says what and where.

    Reasons: too_large, encoding, depth, items, duplicate_key, number, string, syntax.
    """

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem


def loads(data: bytes, *, most_bytes: int = MAX_BYTES, most_depth: int = MAX_DEPTH, most_items: int = MAX_ITEMS) -> Any:
    """The one value in `data`: dict, list, str, int, float, bool or None. Raises NotJson and nothing else.

    Refused: more bytes, nesting or values than allowed; anything but UTF-8 without a byte order mark; an object with
    a key twice; NaN and the infinities, also as a number too large for a float; integers over 19 digits; raw control
    characters in strings; half a surrogate pair; anything before or after the value but white space.
    """
    if len(data) > most_bytes:
        raise NotJson("too_large", f"{len(data)} bytes where at most {most_bytes} are taken")
    if data.startswith(_BOMS):
        raise NotJson("encoding", "it begins with a byte order mark")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson("encoding", f"byte {error.start} is not UTF-8") from None
    _measure(data, most_depth, most_items)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Invalid control character"):
            raise NotJson("string", f"raw control character in a string at character {error.pos}") from None
        raise NotJson("syntax", f"{error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise NotJson("syntax", type(error).__name__) from None
    if _ESCAPED_SURROGATE.search(text):
        _refuse_surrogates(value)
    return value


def _measure(data: bytes, most_depth: int, most_items: int) -> None:
    """Depth and number of values, told by brackets and commas outside of strings, before anything is built."""
    marks = _STRING.sub(b"", data).translate(None, _NOT_STRUCTURE)
    # One for each comma, one for what each container begins with, one for the whole.
    if marks.count(b",") + marks.count(b"[") + marks.count(b"{") + 1 > most_items:
        raise NotJson("items", f"more than {most_items} values")
    depth = 0
    for mark in marks.replace(b",", b""):
        if mark in b"[{":
            depth += 1
            if depth > most_depth:
                raise NotJson("depth", f"nested deeper than {most_depth}")
        else:
            depth -= 1


def _refuse_surrogates(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if _SURROGATE.search(one):
                raise NotJson("string", "half a surrogate pair in a string")
        elif isinstance(one, dict):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Which one is not said: no word of a stranger's is in what we say.
        raise NotJson("duplicate_key", "a key twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise NotJson("number", f"an integer of {len(digits)} digits where at most {MAX_DIGITS} are taken")
    return int(digits)


def _float(number: str) -> float:
    if len(number) > MAX_NUMBER:
        raise NotJson("number", f"a number of {len(number)} characters where at most {MAX_NUMBER} are taken")
    found = float(number)
    if not math.isfinite(found):
        raise NotJson("number", "a number too large for a float")
    return found


def _constant(name: str) -> Any:
    raise NotJson("number", f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)
