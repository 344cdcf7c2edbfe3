"""What in a text leads somewhere else: addresses, links and markup, found wherever a reader or a terminal might follow
them, and written so that neither does."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container

_SCHEMES = r"[A-Za-z][A-Za-z0-9+.-]{1,20}"
_PATTERNS = (
    # Markdown images and links, with what they point to; references and definitions of them.
    r"!?\[[^\]\n]{0,300}\]\s?\([^)\n]{0,500}\)?",
    r"!\[[^\]\n]{0,300}\](?:\s?\[[^\]\n]{0,100}\])?",
    r"\[[^\]\n]{1,300}\]\s?\[[^\]\n]{0,100}\]",
    r"^\s{0,3}\[[^\]\n]{1,100}\]:\s*\S+",
    # Markup of terminals' toolkits and of browsers.
    r"\[/[\w.@-]{0,30}\]",
    r"\[/?(?:@[^\]\n]{0,300}|(?:link|url|img|href|on )\b[^\]\n]{0,300})\]",
    r"</?[A-Za-z!][^>\n]{0,500}>",
    r"&#?[A-Za-z0-9]{2,10};",
    # Addresses with a scheme, also one that was taken apart.
    rf"\b{_SCHEMES}\s?:\s?//\s?[^\s<>]+",
    r"\bh(?:xx|tt)ps?\[?:\]?//[^\s<>]+",
    r"\b(?:mailto|javascript|data|vbscript|file|tel|sms|magnet|urn|blob|ssh|git|s3|gs):[^\s,;]+",
    r"(?<![\w/])//[\w-]+(?:\.[\w-]+)+[^\s<>]*",
    r"\\\\[\w.-]+\\[^\s]*",
    r"\bwww\.[^\s<>]+",
    # Mailboxes and numbers of machines.
    r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+",
    r"(?<![\w.])[0-9]{1,3}(?:\s?(?:\.|\[\.\]|\(dot\))\s?[0-9]{1,3}){3}(?::[0-9]{1,5})?(?:/[^\s<>]*)?(?![\w])",
    r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{0,4}(?:::?[0-9A-Fa-f]{1,4})*(?![\w:])",
    r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){1,6}:(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*)?(?:%\w+)?(?![\w:])",
    r"\b0x[0-9A-Fa-f]{8}\b(?:/[^\s<>]*)?",
)
_LINK = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.MULTILINE)
_DOMAIN = re.compile(
    r"(?<![\w.@/-])(?:[^\W_](?:[\w-]{0,61}[^\W_])?\s?(?:\[\.\]|\(dot\)|\[dot\]|\.|\u3002|\uff61)){1,8}"
    r"(?P<top>[^\W\d_]{2,24}|xn--[\w-]{2,59})(?::[0-9]{1,5})?(?P<path>[/?#][^\s<>]*)?(?![\w-])"
)
_ABBREVIATIONS = frozenset(("e.g", "i.e", "a.k.a", "u.s", "p.s", "et.al", "vs.the"))
_DOTS = re.compile("[.\u3002\uff0e\uff61]")


def links(text: str, ids: Container[str] = ()) -> list[tuple[int, int]]:
    """(start, end) of each, in order. `ids` are names of ours: one that has the form of a host is none."""
    folded = "".join(one if len(one := unicodedata.normalize("NFKC", char)) == 1 else char for char in text)
    found = [match.span() for match in _LINK.finditer(folded) if match[0].strip() and not _is_time(match[0])]
    for match in _DOMAIN.finditer(folded):
        word = match[0].rstrip(".,;:!?")
        if word in ids or word.lower() in _ABBREVIATIONS or _is_sentence_end(match):
            continue
        found.append((match.start(), match.start() + len(word)))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_time(text: str) -> bool:
    """03:15:00 has the form of an address of machines."""
    return re.fullmatch(r"[0-9]{1,2}(?::[0-9]{2}){1,3}", text) is not None


def _is_sentence_end(match: re.Match[str]) -> bool:
    """Whether it is the end of a sentence with the blank forgotten: "it is down.Then". Hosts have no capital there."""
    top = match["top"]
    return match["path"] is None and top[:1].isupper() and top[1:].islower() and match[0].count(".") == 1


def defanged(text: str) -> str:
    """The same in a form that nothing follows, and that a person still reads."""
    text = re.sub(r"\]\s?([(\[])", r"] \1 ", text)
    text = re.sub(r"\s?:\s?//", "[:]//", text)
    text = re.sub(r"^(\w+):(?!\[)(?=\S)", r"\1[:]", text)
    text = text.replace("@", "[at]").replace("<", "‹").replace(">", "›")
    return _DOTS.sub("[.]", text.replace("[.]", "."))
