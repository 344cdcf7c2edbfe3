"""Files that decide something are read in one way only, and what could be read in two is refused where it stands."""

from __future__ import annotations

import time

import msgspec
import pytest

from engine.model.errors import SpecError
from runbooks.untrusted.strict_formats import MAX_BYTES, load, read


def test_plain_values_are_read_as_written() -> None:
    text = """\
a: 12
b: [x, "no", 'on', true, null, -3]
c: {d: 10m, e: gpu-007}
f: |
  one
  two
"""
    assert load(text.encode(), "f") == {
        "a": 12,
        "b": ["x", "no", "on", True, None, -3],
        "c": {"d": "10m", "e": "gpu-007"},
        "f": "one\ntwo\n",
    }


@pytest.mark.parametrize(
    "word",
    ["no", "Yes", "ON", "off", "y", "N", "True", "NULL", "~", "=",
     "1:30", "12:30:45", "010", "0o17", "0x1F", "0b1", "1_000", "1,000", "+1", "-0", "9" * 19,
     "1.5", "1e5", ".5", "5.", ".nan", ".inf", "-.INF", "1.2.3", "2026-11-22", "2026-11-22T10:00:00Z"],
)  # fmt: skip
def test_a_word_that_readers_of_yaml_disagree_on_is_refused_and_can_be_quoted(word: str) -> None:
    with pytest.raises(SpecError, match=r"^f:2: "):
        load(f"ok: fine\na: {word}".encode(), "f")
    assert load(f"a: '{word}'".encode(), "f") == {"a": word}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: &x 1\nb: 2", 1, "anchor '&x'"),
        ("a: 1\nb: *x", 2, "alias '*x'"),
        ("a: 1\nb: !!python/object/apply:os.system [id]", 2, "tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a: !!str 1", 1, "tag"),
        ("a: !x 1", 1, "tag '!x'"),
        ("<<: {a: 1}", 1, "merge key"),
        ("'<<': {a: 1}", 1, "merge key"),
        ("a: 1\nb: 2\na: 3", 3, "key 'a' is given twice"),
        ("a: 1\n\"a\": 3", 2, "key 'a' is given twice"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("a: 1\n...\nb: 2", 3, ""),
        ("%YAML 1.1\n---\na: 1", 1, "directive"),
        ("%TAG ! tag:evil,2026:\n---\na: 1", 1, "directive"),
        ("a: 1\nb:", 2, "no value"),
        ("1: x", 1, "key '1' is not text"),
        ("true: x", 1, "key 'true' is not text"),
        ("on: x", 1, "'on' means different things"),
        ("? [a, b]\n: x", 1, "a key must be text"),
        ("", 1, "is empty"),
        ("# only words", 1, "is empty"),
        ("a: `id`", 1, "is not valid YAML"),
        ("a: [1, 2", 1, "is not valid YAML"),
        ("a: 1\n\tb: 2", 2, "is not valid YAML"),
        ("\u0430: 1", 1, r"key '\u0430' is not of printable ASCII"),  # a Cyrillic a
        ("'': 1", 1, "key '' is not of printable ASCII"),
        ("a\u200b: 1", 1, "U+200B (zero width space)"),
        ("# \u202e\na: 1", 1, "U+202E (right-to-left override)"),
        ("a: 1\nb: x\u2066y", 2, "U+2066"),
        ('a: "x\\u202ey"', 1, "U+202E"),
        ('a: "x\\0y"', 1, "U+0000"),
        ("\ufeffa: 1", 1, "U+FEFF"),
        ("a: x\u2028b: 2", 1, "U+2028"),
        ("a: x\x85b: 2", 1, "U+0085"),
        ("a: 1\rb: 2", 1, "U+000D"),
        ("a: x\x1b[2J", 1, "U+001B"),
        ("a: x\ufe0f", 1, "U+FE0F"),
        ("a: x\U000e0041", 1, "U+E0041"),
        ("a: x\u3164", 1, "U+3164"),
    ],
)  # fmt: skip
def test_what_can_hide_something_is_named_with_file_and_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        load(text.encode(), "f")
    assert str(refused.value).startswith(f"f:{line}: ")
    assert problem in str(refused.value)
    assert str(refused.value).isascii()


def test_bytes_that_are_no_text_are_named() -> None:
    with pytest.raises(SpecError, match="f:2: byte 8 is not UTF-8"):
        load(b"a: 1\nb: \xff", "f")
    with pytest.raises(SpecError, match="f:1: is larger than 64 KiB"):
        load(b"a: " + b"x" * MAX_BYTES, "f")


@pytest.mark.parametrize("levels", [17, 200, 60_000])
def test_depth_is_bounded_without_using_the_stack(levels: int) -> None:
    with pytest.raises(SpecError, match="f:1: is nested more than 16 levels deep"):
        load(b"[" * min(levels, 30_000) + b"]" * min(levels, 30_000), "f")
    with pytest.raises(SpecError, match=r"16 levels|not YAML"):
        load(b"{a: " * min(levels, 16_000), "f")
    assert load(b"[" * 16 + b"]" * 16, "f") is not None


def test_an_alias_bomb_costs_nothing() -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    begun = time.process_time()
    with pytest.raises(SpecError, match="anchor '&a0'"):
        load("\n".join(lines).encode(), "f")
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    "text", ["{{ self.__init__ }}", "${jndi:ldap://x}", "$(curl x)", "`id`", "; rm -rf /", "%(x)s", "{0.__class__}"]
)
def test_templates_are_characters(text: str) -> None:
    assert load(f"a: '{text}'".encode(), "f") == {"a": text}


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    most: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    parts: list[Inner]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: x\nparts:\n- most: 1\n- most: x", r"f:14: parts\[1\].most: is text; it must be a whole number"),
        ("title: x\nparts:\n- most: true", r"f:13: parts\[0\].most: is true or false; it must be a whole number"),
        ("title: x\nparts:\n- most: 1\n  shell: id", r"f:14: parts\[0\]: there is no field 'shell'"),
        ("parts: []", r"f:11: title is missing"),
        ("title: 3\nparts: []", r"f:11: title: is a number; it must be text"),
    ],
)
def test_a_value_of_another_type_is_named_on_its_line_of_the_file(text: str, message: str) -> None:
    """The text begins on line 11 of the file."""
    with pytest.raises(SpecError, match=f"^{message}"):
        read(text.encode(), "f", first_line=11).convert(Outer)
