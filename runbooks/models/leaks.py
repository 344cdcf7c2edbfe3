"""Whether an answer gives away what a model was told in confidence: the canary of its prompt, or our instructions."""

from __future__ import annotations

import base64
import contextlib
import re
import unicodedata
from collections.abc import Iterable, Iterator

from runbooks.drafts.typed_draft import DraftRejected
from runbooks.untrusted import strict_json
from runbooks.untrusted.confusable_names import drawn_alike

MIN_QUOTED = 40
"""Letters and digits in a row of our instructions that are no accident."""
MIN_TEXT = 4
_RUN = re.compile(r"[A-Za-z0-9+/_-]{48,}=*")
_HEX = re.compile(r"[0-9A-Fa-f]{80,}")


def refuse_leak(content: str, canary: str, instructions: Iterable[str]) -> None:
    """Raises DraftRejected `leak_detected` for an answer that holds the canary, or a passage of the instructions, in
    whatever case, spacing or punctuation, across fields, backwards, or in base64 or hex. What it holds is not told."""
    texts = [content, *_decoded(content)]
    whole = _squeezed("".join(texts[1:]) or content)
    if canary:
        marks = {_squeezed(canary), _squeezed(canary)[::-1], canary.encode().hex()}
        if any(mark in text for mark in marks for text in (whole, _squeezed(content))) or any(
            piece in text for piece in _in_base64(canary) for text in texts
        ):
            raise DraftRejected("leak_detected", "the answer holds the mark of its own instructions", "It is dropped")
    readings = (whole, whole[::-1], *(_squeezed(text) for text in _unpacked(texts)))
    for instruction in instructions:
        if any(_quoted(_squeezed(instruction), reading) for reading in readings):
            raise DraftRejected("leak_detected", "the answer quotes its own instructions", "It is dropped")


def _decoded(content: str) -> list[str]:
    """The texts of an answer as a reader sees them: escapes resolved, without the names of fields and the ids between
    them, so that a passage that was spread over several is in one piece."""
    try:
        value = strict_json.loads(content.encode("utf-8", "surrogatepass"))
    except strict_json.NotJson:
        return []
    found: list[str] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and len(one) >= MIN_TEXT:
            found.append(one)
        elif isinstance(one, dict):
            waiting += reversed(list(one.values()))
        elif isinstance(one, list):
            waiting += reversed(one)
    return found


def _squeezed(text: str) -> str:
    """Letters and digits alone, in their plainest form, and those of other scripts as the Latin ones they look like."""
    folded = drawn_alike(unicodedata.normalize("NFKD", text).casefold())
    return re.sub(r"[\W_]+", "", folded)


def _unpacked(texts: Iterable[str]) -> Iterator[str]:
    """What long runs of base64 and hex in them read as."""
    for text in texts:
        for run in _RUN.findall(re.sub(r"\s+", "", text)):
            packed = run.rstrip("=").replace("-", "+").replace("_", "/")
            with contextlib.suppress(ValueError):
                yield base64.b64decode(packed[: len(packed) // 4 * 4]).decode("latin-1")
        for run in _HEX.findall(re.sub(r"\s+", "", text)):
            yield bytes.fromhex(run[: len(run) // 2 * 2]).decode("latin-1")


def _in_base64(word: str) -> Iterable[str]:
    """How a word looks inside of longer base64, at each of the three places where it may begin."""
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + word.encode()).decode().rstrip("=")
        # The first and last characters mix with what stands beside.
        yield coded[(0, 2, 3)[shift] : -1]


def _quoted(instruction: str, text: str) -> bool:
    if len(instruction) < MIN_QUOTED or len(text) < MIN_QUOTED:
        return False
    pieces = {instruction[at : at + MIN_QUOTED] for at in range(len(instruction) - MIN_QUOTED + 1)}
    return any(text[at : at + MIN_QUOTED] in pieces for at in range(len(text) - MIN_QUOTED + 1))
