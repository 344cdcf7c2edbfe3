"""Texts of strangers made fit to be looked at by a model."""

from __future__ import annotations

import hashlib

import msgspec

from runbooks.redaction import redact


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent of a text, and what it was made from."""

    text: str
    """Lines of printable text, redacted and neutralised."""
    sha256: str
    """Of the whole text as it was handed in, UTF-8."""
    bytes: int
    """Of the whole."""
    cut: bool
    """Something was left out for its length."""
    redacted: int
    """Secrets that were taken out."""


def prepared(text: str, *, most: int, personal: bool = True) -> Prepared:
    """At most `most` characters of it. `personal`: addresses and e-mails go too."""
    data = text.encode("utf-8", "surrogatepass")
    return Prepared(
        text=redact(text[:most], personal=personal), sha256=hashlib.sha256(data).hexdigest(), bytes=len(data),
        cut=len(text) > most, redacted=0,
    )  # fmt: skip


def neutral(text: str) -> str:
    """The text without anything that could act."""
    return text
