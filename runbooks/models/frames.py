"""Frames between the engine's process and the child that calls a model: kind, length and bytes.

The child has no other handle. Both sides refuse a frame that is too long before reading it. This module is small
because both processes import it, and the engine's must not load the child's SDK.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct(">cI")
"""Kind and length of what follows."""
MAX_REQUEST = 2**20
"""Bytes of a frame to the child."""
MAX_EXTRA = 64 * 1024
"""Bytes of a frame from the child beside the body in it."""

SETTINGS = b"s"
"""To the child, once: JSON of where to ask (`runbooks.models.child_process.EndpointSettings`)."""
CALL = b"c"
"""To the child: JSON of what to ask. It answers with any number of PROGRESS and one OUTCOME."""
READY = b"r"
"""From the child: it has read its settings. Empty."""
PROGRESS = b"p"
"""From the child: JSON [phase, bytes received]."""
OUTCOME = b"o"
"""From the child: four bytes of length, JSON of what happened, then the body as it came, if it is to be read."""
LENGTH = struct.Struct(">I")


def frame(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload
