"""Secrets and personal data taken out of a text before it leaves the cell."""

from __future__ import annotations

REDACTION_VERSION = 1


def is_secret(text: str) -> bool:
    return False


def redact(text: str, *, personal: bool = True) -> str:
    return text


def mask_unknown(text: str) -> str:
    return text
