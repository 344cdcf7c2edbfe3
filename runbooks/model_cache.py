"""Answers of a model that are good for a while: the same question about the same facts is not paid for twice.

An entry is found by the SHA-256 of everything that matters to an answer, so that what differs in any of it is another
question. What is found is checked again as if it had just come: the cell may have changed since.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from runbooks.model_call import Answer
from runbooks.model_endpoint import Endpoint

TTL_MS = 600_000
"""Of the facts that an answer rests on, in wall time and in cell time."""
MOST_KEPT = 64


def key_of(endpoint: Endpoint, max_tokens: int, prompt_sha256: str) -> str:
    """`prompt_sha256` is `runbooks.prompt.Prompt.sha256`: messages without the nonce, facts, schema, and the versions
    of the rules by which they were made."""
    basis = [
        endpoint.base_url, endpoint.model, endpoint.egress, max_tokens, endpoint.most_bytes, prompt_sha256,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(basis).encode()).hexdigest()


class Kept(NamedTuple):
    answer: Answer
    read_s: float
    """Monotonic, when the facts were read that it rests on."""
    now_ms: int
    """Cell time of that."""


class Cache:
    """The answers of one engine, in its memory. `clock` is monotonic, in seconds. For any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def get(self, key: str, now_ms: int) -> Answer | None:
        """None where there is none, or none whose facts are fresh. `now_ms` is cell time."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            wall_ms = (self._clock() - found.read_s) * 1000
            if not (0 <= wall_ms < TTL_MS and 0 <= now_ms - found.now_ms < TTL_MS):
                del self._kept[key]
                return None
            return found.answer

    def put(self, key: str, answer: Answer, *, read_s: float, now_ms: int) -> None:
        """Keep what was found to be of use."""
        with self._lock:
            self._kept[key] = Kept(answer, read_s, now_ms)
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
