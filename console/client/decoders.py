"""Decoders of JSON, made one at a time. What msgspec 0.22 knows of a struct it fills in while it first makes a decoder
that needs it: another thread that meets it half filled ends the process by a segmentation fault.

A process that decodes on several threads calls `know_structs` before the first of them starts; what is decoded on
threads of the console, which cannot wait for all modules, goes through `decoder`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
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


def know_structs() -> None:
    """Has msgspec fill in every struct of the modules loaded so far: some 40 ms for those of an engine. Those that hold
    what cannot be decoded, or what is imported only for types, are never decoded and are left alone."""
    with _MAKING:
        for kind in _below(msgspec.Struct):
            with contextlib.suppress(TypeError, NameError):
                msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
