"""Texts of strangers made fit for a model to look at: short, without secrets, without anything that acts.

Of a text its beginning and its end are taken, as it reads; secrets go before anything is cut, so that no half of one is
left at an edge; lines that differ in numbers alone become one, with how often it came; and what a model's server, a
terminal or a page could take for more than text is drawn as text. What a text costs does not grow with its size, but
for the hash of the whole.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from runbooks.untrusted.redaction import SecretSpan, applied, merged, secrets_in, visible

WINDOW = 2_000
"""Characters of either end that are looked at, at least."""
MARGIN = 2_000
"""Beyond them, so that a secret that reaches over the edge is seen whole."""
_MAX_CHUNKS = 16
"""Pieces of twice that length, of a text in which next to nothing can be seen."""
_MAX_LINE = 400
CUT = "[...]"
"""Where something was left out."""

_NUMBER = re.compile(r"\b0x[0-9a-f]+\b|\d+(?:[.,:]\d+)*|\b[0-9a-f]{8,}\b", re.IGNORECASE)
_BRACKETED = re.compile(r"\[(/?[A-Z][A-Z_ ]{1,40})\]")
_SPEAKER = re.compile(
    r"\b(system|assistant|user|human|ai|developer|tool|function|operator|instructions?|prompt)(\s*)(?::|\uff1a)",
    re.IGNORECASE,
)
_DRAWN = str.maketrans({"<": "‹", ">": "›", "`": "'", "\t": " "})
"""What opens and closes marks of chat templates, of fences and of code, as signs that do neither."""
_ESCAPED = re.compile(r"\\[nrt]")


class SentExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent of a text, and what it was made from."""

    text: str
    """Lines of printable text, redacted and neutralised."""
    sha256: str
    """Of the whole text as it was handed in, UTF-8."""
    bytes: int
    """Of the whole."""
    cut: bool
    """Something was left out for its length."""


def prepared(text: str, *, most: int, personal: bool = True, known: frozenset[str] = frozenset()) -> SentExcerpt:
    """At most `most` characters of it. The same text always gives the same.

    `personal`: addresses, names of hosts and e-mails go too. `known`: words that are ids of ours, however they look.
    """
    data = text.encode("utf-8", "surrogatepass")
    window = max(WINDOW, most * 3 // 4)
    if len(text) <= 2 * (window + MARGIN):
        shown = visible(text)
        parts = [applied(shown, secrets_in(shown, personal=personal, known=known), upto=len(shown))]
    else:
        shown = _first(text, window + MARGIN)
        found = secrets_in(shown, personal=personal, known=known)
        parts = [applied(shown, found, upto=window)]
        goes_on = bool(found) and found[-1].end >= len(shown)
        shown = _last(text, window + MARGIN)
        # A secret that goes on where the beginning ends may go on until the line ends.
        begun = (SecretSpan(0, (shown + "\n").index("\n")),) if goes_on else ()
        found = merged((*begun, *secrets_in(shown, personal=personal, known=known)))
        parts.append(applied(shown, found, since=len(shown) - window))
    lines = [line for i, part in enumerate(parts) for line in (*((CUT,) if i else ()), *_templated(part))]
    kept, cut = _fitted(lines, most)
    return SentExcerpt(
        text=neutral(kept), sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), cut=cut or len(parts) > 1
    )


def neutral(text: str) -> str:
    """Text that is drawn as it is and does nothing: no marks of chat templates, no fences, nobody who speaks."""
    text = _BRACKETED.sub(r"(\1)", _ESCAPED.sub(" ", text)).translate(_DRAWN)
    return _SPEAKER.sub(r"\1\2 -", text)


def _first(text: str, count: int) -> str:
    """The first `count` characters that can be seen."""
    found = ""
    for start in range(0, min(len(text), _MAX_CHUNKS * 2 * count), 2 * count):
        found += visible(text[start : start + 2 * count])
        if len(found) >= count:
            break
    return found[:count]


def _last(text: str, count: int) -> str:
    """The last of them."""
    found = ""
    for end in range(len(text), max(0, len(text) - _MAX_CHUNKS * 2 * count), -2 * count):
        found = visible(text[max(0, end - 2 * count) : end]) + found
        if len(found) >= count:
            break
    return found[-count:]


def _templated(text: str) -> list[str]:
    """Its lines; those that differ in numbers alone stand once, as the first of them, with how many there are."""
    like: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.strip():
            like.setdefault(_NUMBER.sub("#", line), []).append(line.rstrip())
    return [
        lines[0] if len(lines) == 1 else f"{lines[0]} [and {len(lines) - 1} more like it]" for lines in like.values()
    ]


def _fitted(lines: list[str], most: int) -> tuple[str, bool]:
    """The lines in at most `most` characters: those in the middle go, then the middles of lines."""
    longest = max(_MAX_LINE, most // max(1, 2 * len(lines)))
    shown = [line if len(line) <= longest else f"{line[: longest // 2]}{CUT}{line[-longest // 2 :]}" for line in lines]
    whole = "\n".join(shown)
    if len(whole) <= most:
        return whole, shown != lines
    half = max(0, most - len(CUT) - 2) // 2
    head, tail = whole[:half], whole[len(whole) - half :]
    return f"{head}\n{CUT}\n{tail}"[:most], True
