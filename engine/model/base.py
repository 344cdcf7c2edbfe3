"""The base of everything that people or files may say to the engine: immutable structs, and checks of single fields."""

from __future__ import annotations

import re

import msgspec

from engine.model.errors import SpecError

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
MAX_QUANTITY = 2**48
"""Largest accepted quantity of one resource; the sum over 30,000 such nodes still fits 64 bits."""
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all specs: unknown fields are an error, equality is by value."""


def check_id(value: str, where: str) -> None:
    """Ids are typed by people and shown on screens: refuse what cannot be typed or could act on a terminal."""
    if not ID_PATTERN.fullmatch(value):
        shown = value[:40].encode("unicode_escape").decode() + ("…" if len(value) > 40 else "")
        raise SpecError(
            where,
            f"'{shown}' is not a valid id",
            "Use 1 to 128 letters, digits, '.', '_', '-' or '/', starting with a letter or digit",
        )


def check_quantity(value: int, where: str, *, least: int = 0, most: int = MAX_QUANTITY) -> None:
    """Refuse negative and absurd sizes before they meet arithmetic."""
    if value < least:
        raise SpecError(where, f"{value} is below {least}", f"Give a whole number from {least} to {most}")
    if value > most:
        raise SpecError(where, f"{value} is above {most}", f"Give a whole number from {least} to {most}")
