"""The envelope of an answer: whatever JSON comes in it, one text or a named refusal, and tokens that can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.drafts.typed_draft import REASONS
from runbooks.untrusted.strict_formats import Unusable, read_completion
from tests.support.effort import examples

SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 10**18) | st.text(max_size=5) | st.just("stop") | st.just("assistant")
)
NAMES = st.sampled_from(
    ("choices", "message", "role", "content", "finish_reason", "index", "tool_calls", "function_call", "refusal",
     "usage", "prompt_tokens", "completion_tokens", "model", "error", "x")
)  # fmt: skip
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=25,
)


def opened(answer: Any, **more: int) -> Any:
    sizes = {"prompt_bytes": 3_000, "max_tokens": 500, "most_bytes": 10_000, **more}
    return read_completion(json.dumps(answer).encode(), **sizes)


def outcome(answer: Any) -> Any:
    try:
        return opened(answer)
    except Unusable as unusable:
        return unusable


def whole(**changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "x" * 300, **changes.pop("message", {})}
    choice = {"index": 0, "finish_reason": "stop", "message": message, **changes.pop("choice", {})}
    return {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 900, "completion_tokens": 90}, **changes}


def test_a_good_answer() -> None:
    assert opened(whole()) == ("x" * 300, "m", 900, 90, False)


@given(JUNK, JUNK, JUNK)
@settings(max_examples=examples(100), deadline=None, derandomize=True)
def test_junk_anywhere_is_a_named_refusal_or_text(top: Any, choice: Any, message: Any) -> None:
    for answer in (top, whole(choices=top), whole(choice={"message": message, "index": choice}), whole(usage=message)):
        found = outcome(answer)
        if isinstance(found, Unusable):
            assert found.reason in REASONS
            assert found.problem.isprintable()
        else:
            assert found.content.strip()
            assert min(found.tokens_in, found.tokens_out) > 0


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out"),
    [(-1, 90), (900, -90), (0, 90), (900, 0), (10**18, 90), (900, 10**18), (900, 501), (5_000, 90), (10, 90), (900, 1),
     (900.0, 90), (True, 90), ("900", 90), (None, None)],
)  # fmt: skip
def test_tokens_that_cannot_be_are_counted_by_us(tokens_in: Any, tokens_out: Any) -> None:
    """Also too few of them: whoever is paid by the token would not say so, but whoever wants to be asked more would."""
    found = opened(whole(usage={"prompt_tokens": tokens_in, "completion_tokens": tokens_out}))
    assert (found.tokens_in, found.tokens_out, found.estimated) == (1_000, 100, True)


def test_a_tool_call_is_never_overlooked() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "drain", "arguments": "{}"}}
    for answer in (
        whole(message={"tool_calls": [call]}),
        whole(message={"tool_calls": call}),
        whole(message={"function_call": {"name": "drain"}}),
        whole(choice={"finish_reason": "tool_calls"}),
        whole(message={"tool_calls": [call], "content": None, "refusal": "no"}),
    ):
        with pytest.raises(Unusable) as unusable:
            opened(answer)
        assert unusable.value.reason == "unexpected_tool_call"


def test_a_cut_answer_says_what_to_do() -> None:
    with pytest.raises(Unusable) as unusable:
        opened(whole(choice={"finish_reason": "length"}))
    assert (unusable.value.reason, unusable.value.remedy) == ("finish_reason", "Raise model_max_tokens")


def test_the_most_bytes_are_the_endpoints() -> None:
    with pytest.raises(Unusable) as unusable:
        opened(whole(), most_bytes=100)
    assert unusable.value.reason == "response_too_large"
