"""JSON from a stranger: what is taken is what it says, and everything that may be read in two ways is refused."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.untrusted.strict_formats import NotJson, loads
from tests.support.effort import examples

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN, st.booleans())
@settings(max_examples=examples(100), deadline=None, derandomize=True)
def test_what_is_json_is_taken_as_it_is(value: Any, escaped: bool) -> None:
    found = loads(json.dumps(value, ensure_ascii=escaped).encode())
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "syntax"),
        (b"   ", "syntax"),
        (b"{} {}", "syntax"),
        (b"[1,]", "syntax"),
        (b"{'a':1}", "syntax"),
        (b"01", "syntax"),
        (b"+1", "syntax"),
        (b".5", "syntax"),
        (b"0x10", "syntax"),
        (b"tru", "syntax"),
        (b'"\\x41"', "syntax"),
        (b'"abc', "syntax"),
        (b"[/**/]", "syntax"),
        ("\u00a0{}".encode(), "syntax"),
        (b"{}\0", "syntax"),
        (b"NaN", "number"),
        (b'{"a":-Infinity}', "number"),
        (b"1e999", "number"),
        (b"9" * 20, "number"),
        (b"-" + b"9" * 20, "number"),
        (b"0." + b"1" * 50, "number"),
        (b'{"a":1,"a":1}', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b'[{"b":[{"a":1,"a":2}]}]', "duplicate_key"),
        (b'"\\ud800"', "string"),
        (b'{"\\udfff":1}', "string"),
        (b'"\\udc00\\ud800"', "string"),
        (b'"a\x01b"', "string"),
        (b'"a\nb"', "string"),
        (b'{"a\tb":1}', "string"),
        (b'"\xff"', "encoding"),
        (b'"\xc0\xaf"', "encoding"),
        (b'"\xed\xa0\x80"', "encoding"),
        (b"\xef\xbb\xbf{}", "encoding"),
        ("{}".encode("utf-16"), "encoding"),
        ("{}".encode("utf-32-le"), "syntax"),
        (b"[" * 33 + b"]" * 33, "depth"),
        (b'{"a":' * 5_000, "depth"),
        (b"[" * 200_000, "items"),
        (b"[" + b"0," * 20_000 + b"0]", "items"),
        (b"[]" * 40_000, "items"),
        (b" " * 300_000, "too_large"),
    ],
    ids=lambda given: given if isinstance(given, str) else ascii(given[:20]),
)
def test_what_is_not_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(NotJson) as refused:
        loads(data, most_bytes=2**18 if reason == "too_large" else 2**21)
    assert refused.value.reason == reason
    assert refused.value.problem.isprintable()


def test_brackets_and_commas_in_strings_are_text() -> None:
    text = '[{,"\\' * 9_000
    assert loads(json.dumps([text]).encode(), most_items=2, most_depth=1) == [text]
    assert loads(b'"\\ud83d\\ude00 \\\\ud800"') == "😀 \\ud800"


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(st.binary(max_size=60) | st.text('[]{}",:\\u0dDeE1.-aNntf\n', max_size=40).map(str.encode))
def test_nothing_but_notjson_is_raised_and_nothing_taken_that_json_refuses(data: bytes) -> None:
    try:
        found = loads(data)
    except NotJson:
        return
    assert json.loads(data.decode(), parse_constant=lambda _: pytest.fail("a constant")) == found
    assert not isinstance(found, float) or math.isfinite(found)


@pytest.mark.parametrize(
    "unit",
    [b"[", b'{"a":', b'"', b'\\"', b'["', b"{}", b"1,", b'"\\', b"\xf0\x9f\x98\x80", b'{"\\u0061":1},', b"-", b"e"],
)
def test_no_answer_of_the_longest_takes_long(unit: bytes) -> None:
    """In a quarter of a mebibyte: the event loop beside it may stand still for 100 ms, not counting what others
    have the machine do meanwhile."""
    best = math.inf
    for _ in range(3):
        began = time.thread_time()
        with pytest.raises(NotJson):
            loads(b'{"x":"' + unit * (250_000 // len(unit)))
        with pytest.raises(NotJson):
            loads(b"[" + unit * (250_000 // len(unit)))
        best = min(best, time.thread_time() - began)
    assert best < 0.1
