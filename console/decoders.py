"""Decoders of JSON, made one at a time. What msgspec 0.22 knows of a struct it fills in while it makes a decoder that
needs it: another thread that meets it half filled ends the process by a segmentation fault."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

_MAKING = threading.Lock()
_MADE: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder for a type, whole. Safe to call from any thread."""
    found = _MADE.get(kind)
    if found is None:
        with _MAKING:
            found = _MADE.get(kind) or msgspec.json.Decoder(kind)
            _MADE[kind] = found
    return found
