"""When a model is not asked: for a while after several failures or one that asking again does not mend, and when it was
asked often enough.

Clocks are monotonic, in seconds. Methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

from runbooks.draft import DraftRejected

FAILURES = 5
WITHIN_S = 60.0
OPEN_S = 120.0
"""How long it stays open; then one call is let through, and how that ends decides."""
FAULTS = frozenset(
    ("connection", "deadline", "content_type", "response_too_large", "encoding", "redirect", "auth", "model_missing",
     "other_model", "envelope_shape", "choices_count", "message_shape", "content_shape", "worker")
)  # fmt: skip
"""What is the endpoint's fault, beside http_NNN. What a model says, and what we or a person end, is not."""
AT_ONCE = {
    "auth": ("the server did not take the key", "Set a valid MUSTER_MODEL_KEY or model_key_file"),
    "model_missing": ("the server has no such model", "Look at the settings model and model_url"),
    "other_model": ("the server answered with another model", "List its name in model_aliases if that is right"),
}
"""What a setting must mend, and asking again does not: what it is, and what to do. One of these opens the circuit."""

State = Literal["closed", "open", "half_open"]


def is_fault(reason: str) -> bool:
    return reason in FAULTS or reason.startswith("http_")


class Circuit:
    """The circuit breaker of one endpoint."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: deque[float] = deque(maxlen=FAILURES)
        self._until = 0.0
        """Open until then; 0: closed."""
        self._why = ""
        self._trying = False
        """The one call of a half-open circuit is under way."""

    @property
    def state(self) -> State:
        with self._lock:
            return self._state()

    def _state(self) -> State:
        if not self._until:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    def refuse(self) -> None:
        """Raises DraftRejected while nothing is asked. Else the caller asks, and says how it ended."""
        with self._lock:
            state = self._state()
            if state == "open" or (state == "half_open" and self._trying):
                left_s = max(1, round(self._until - self._clock()))
                when = f"in {left_s} s" if state == "open" else "when the call that tries it has ended"
                if self._why in AT_ONCE:
                    problem, remedy = AT_ONCE[self._why]
                    remedy += f" and restart the engine; as it is, the model may be asked again {when}"
                else:
                    problem, remedy = f"there were failures before ({self._why})", f"It is tried again {when}"
                raise DraftRejected(
                    "circuit_open", f"the model is not asked for now: {problem}", f"{remedy}; see `muster model`"
                )
            self._trying = state == "half_open"

    def ended(self, reason: str = "") -> None:
        """How a call ended: a token of `runbooks.draft.REASONS`, empty where it was answered."""
        with self._lock:
            half_open = self._state() == "half_open"
            self._trying = False
            if is_fault(reason):
                now = self._clock()
                self._failed.append(now)
                self._why = reason
                many = len(self._failed) == FAILURES and now - self._failed[0] <= WITHIN_S
                if many or half_open or reason in AT_ONCE:
                    self._until = now + OPEN_S
                    self._failed.clear()
            elif not reason:
                self._until = 0.0
                self._failed.clear()


class Bucket:
    """A token bucket: so many calls a minute, as many at once."""

    def __init__(self, a_minute: int, clock: Callable[[], float]) -> None:
        self._a_minute = a_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(a_minute)
        self._at = clock()

    def take(self) -> None:
        """Raises DraftRejected where none is left."""
        with self._lock:
            now = self._clock()
            self._left = min(self._a_minute, self._left + max(0.0, now - self._at) * self._a_minute / 60)
            self._at = now
            if self._left < 1:
                raise DraftRejected(
                    "rate_limited",
                    f"the model is asked at most {self._a_minute} times a minute (setting model_calls_minute)",
                    "Wait a little, then ask again",
                )
            self._left -= 1

    def give_back(self) -> None:
        """One that was taken and not used."""
        with self._lock:
            self._left = min(self._a_minute, self._left + 1)
