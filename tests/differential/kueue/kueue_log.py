"""What Kueue says in its log of the workloads that it will look at again.

Kueue has what waits looked at again one second after quota was given back. In that second nothing shows that more is to
come but its log: the handler of a deleted, finished or evicted workload writes a line, and whoever moves the waiting
ones of the cohort back writes another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOVED = "Attempting to move workloads"
HANDLED = ("Workload delete event", "Workload update event")


class KueueLog:
    """Follows the file. A root cohort is due from the line that says that quota of it was given back until the line
    that says that what waits for it is looked at."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("rb")
        self._rest = b""
        self._queues: dict[tuple[str, str], str] = {}
        """(namespace, local queue) -> root cohort."""
        self.due: set[str] = set()

    def register(self, space: str, queue: str, root: str) -> None:
        self._queues[space, queue] = root

    def close(self) -> None:
        self._file.close()

    def read(self) -> None:
        """Take in what was written since."""
        text = self._rest + self._file.read()
        *lines, self._rest = text.split(b"\n")
        for line in lines:
            if any(words.encode() in line for words in (MOVED, *HANDLED)):
                self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        message = entry.get("msg")
        if message == MOVED:
            self.due.discard(entry["rootCohort"])
        elif message in HANDLED and self._gives_back(entry):
            root = self._queues.get((entry["workload"]["namespace"], entry["queue"]))
            if root is not None:
                self.due.add(root)

    def _gives_back(self, entry: dict[str, Any]) -> bool:
        if entry["msg"] == HANDLED[0] or entry.get("status") == "finished":
            return True
        return entry.get("prevStatus") in ("admitted", "quotaReserved") and entry.get("status") == "pending"
