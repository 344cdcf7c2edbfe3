"""What the gate does as time passes: about once a second, on the engine's thread, what has run out expires and what
takes long is looked at again. Where it cannot be done `error` says why, and what that keeps from being done."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate

EVERY_S = 1.0
AFTER_FAILURE_S = 5.0
"""A database that another program holds keeps the engine's thread waiting at every try."""
NOTHING_RUNS = "nothing can be proposed, voted on or executed"


class GateTicker:
    """One gate's clock."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self.error = ""
        """Why the gate can do nothing; empty while all is well."""
        self._loop = loop
        self._gate = gate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doorkeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = EVERY_S
        while not self._stopping.wait(pause_s):
            pause_s = EVERY_S if self.turn() else AFTER_FAILURE_S

    def turn(self) -> bool:
        """One look. Returns whether it could be done."""
        try:
            self._loop.call(lambda _: self._gate.tick())
        except UnreachableError:
            return False  # The engine stops, or is busy: that is told elsewhere.
        except MusterError as error:
            self.error = f"{NOTHING_RUNS}: {error.problem}"
            return False
        self.error = ""
        return True
