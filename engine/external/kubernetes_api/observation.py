"""All kinds of a cluster, followed at once: a thread and a connection for each, and one place to take changes from.

    with Observation(line, kinds) as observation:
        while True:
            for batch in observation.take(timeout_s=1.0):
                ...

Batches of one kind come in their order; between kinds there is no order, as Kubernetes has none. Whoever takes too
slowly holds up the reading: at most MAX_WAITING batches wait.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Self

import msgspec

from engine.external.kubernetes_api.kinds import ObjectKind
from engine.external.kubernetes_api.reflector import ChangeBatch, Reflector, ReflectorReport
from engine.external.kubernetes_api.transport import KubernetesTransport

MAX_WAITING = 1_000
JOIN_S = 10.0


class ClusterObservation:
    """Follows from `start` on, until it is closed; it closes the line as well. `take` is for one thread."""

    def __init__(self, line: KubernetesTransport, kinds: Sequence[ObjectKind]) -> None:
        self._line = line
        self._waiting: queue.Queue[ChangeBatch] = queue.Queue(MAX_WAITING)
        self._reflectors = [Reflector(line, kind, self._put) for kind in kinds]
        self._threads = [
            threading.Thread(target=each.run, name=f"kubernetes {each.kind.resource}", daemon=True)
            for each in self._reflectors
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        for thread in self._threads:
            thread.join(JOIN_S)

    def take(self, timeout_s: float) -> list[ChangeBatch]:
        """All batches that wait; when none does, what comes first within `timeout_s`, else nothing."""
        try:
            found = [self._waiting.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while True:
            try:
                found.append(self._waiting.get_nowait())
            except queue.Empty:
                return found

    def reports(self) -> dict[str, ReflectorReport]:
        """Resource -> how it is followed now."""
        return {each.kind.resource: msgspec.structs.replace(each.report) for each in self._reflectors}

    def _put(self, batch: ChangeBatch) -> None:
        while not self._line.closed.is_set():
            try:
                self._waiting.put(batch, timeout=0.5)
                return
            except queue.Full:
                continue
