"""Opens the envelope of a chat completion: raw bytes in, one finished text of the assistant out, or a named refusal.

Everything about an answer is the server's claim. Tokens are counted by us where its figures cannot be.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from runbooks.untrusted import strict_json

MAX_DEPTH = 16
MAX_ITEMS = 4_000
MAX_MODEL_NAME = 200
BYTES_A_TOKEN = 3
"""Of our estimate, on the high side: English has 4 a token, JSON and identifiers 2.5 to 3."""
SCARCE_BYTES_A_TOKEN = 16
"""A server that counts fewer tokens than one for each of these is not believed."""
TEMPLATE_TOKENS = 512
"""What a server's chat template may put around the messages."""


class EnvelopeContent(NamedTuple):
    content: str
    model: str
    """As the server calls itself: untrusted. Empty where it does not."""
    tokens_in: int
    tokens_out: int
    estimated: bool


class Unusable(Exception):
    """The answer is no finished text. `reason` is one of runbooks.drafts.typed_draft.REASONS."""

    def __init__(self, reason: str, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem
        self.remedy = remedy


def read(body: bytes, *, prompt_bytes: int, max_tokens: int, most_bytes: int) -> EnvelopeContent:
    """The text in the body of a 200 answer to `chat.completions`. Raises Unusable and nothing else."""
    try:
        answer = strict_json.loads(body, most_bytes=most_bytes, most_depth=MAX_DEPTH, most_items=MAX_ITEMS)
    except strict_json.NotJson as error:
        reason = "response_too_large" if error.reason == "too_large" else "envelope_shape"
        raise Unusable(reason, f"the answer is not JSON as we take it: {error.problem}") from None
    if not isinstance(answer, dict) or answer.get("error") is not None:
        raise Unusable("envelope_shape", "the answer is no chat completion, though its status is 200")
    name = answer.get("model", "")
    if not isinstance(name, str) or len(name) > MAX_MODEL_NAME:
        raise Unusable("envelope_shape", "the model's name in the answer is no name")
    message, finish = _only_choice(answer.get("choices"))
    content = _content(message, finish)
    tokens_in, tokens_out, estimated = _tokens(answer.get("usage"), prompt_bytes, len(content.encode()), max_tokens)
    return EnvelopeContent(content, name, tokens_in, tokens_out, estimated)


def _only_choice(choices: Any) -> tuple[dict[str, Any], Any]:
    """(message, finish_reason) of the one choice."""
    if not isinstance(choices, list) or len(choices) != 1:
        count = len(choices) if isinstance(choices, list) else "no list of"
        raise Unusable("choices_count", f"the answer has {count} choices where one was asked for")
    choice = choices[0]
    if not isinstance(choice, dict):
        raise Unusable("message_shape", "the answer's choice is no object")
    index = choice.get("index", 0)
    if type(index) is not int or index != 0:
        raise Unusable("choices_count", "the answer's only choice is not its first")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unusable("message_shape", "the answer has no message")
    return message, choice.get("finish_reason")


def _content(message: dict[str, Any], finish: Any) -> str:
    if message.get("role") != "assistant":
        raise Unusable("message_shape", "the message is not the assistant's")
    if message.get("tool_calls") or message.get("function_call") or finish in ("tool_calls", "function_call"):
        raise Unusable("unexpected_tool_call", "the model calls a tool, and was given none")
    refusal = message.get("refusal")
    if refusal is not None and not isinstance(refusal, str):
        raise Unusable("message_shape", "the message's refusal is no text")
    if refusal:
        raise Unusable("refusal", "the model declines to answer")
    if finish == "length":
        raise Unusable("finish_reason", "the answer was cut at its most tokens", "Raise model_max_tokens")
    if finish == "content_filter":
        raise Unusable("finish_reason", "the server's content filter held the answer back")
    if finish != "stop":
        raise Unusable("finish_reason", "the answer does not say that it is finished")
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        raise Unusable("content_shape", "the message holds no text")
    return content


def _tokens(usage: Any, prompt_bytes: int, content_bytes: int, max_tokens: int) -> tuple[int, int, bool]:
    """(in, out, whether estimated). A figure of the server's counts only if it can be true."""
    if isinstance(usage, dict):
        tokens_in, tokens_out = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if (
            type(tokens_in) is int
            and type(tokens_out) is int
            and prompt_bytes // SCARCE_BYTES_A_TOKEN <= tokens_in <= prompt_bytes + TEMPLATE_TOKENS
            and max(1, content_bytes // SCARCE_BYTES_A_TOKEN) <= tokens_out <= max_tokens
        ):
            return tokens_in, tokens_out, False
    return estimate(prompt_bytes), estimate(content_bytes), True


def estimate(size: int) -> int:
    """Tokens of a text of `size` bytes, on the high side."""
    return math.ceil(size / BYTES_A_TOKEN)
