"""The cluster that an engine mirrors: which one it is, where that is kept, and who answers for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from console.service.kubernetes_cell import KubernetesAt, KubernetesCell
from console.service.slurm_cell import SlurmAt, SlurmCell
from engine.external.mirror_report import NOT_MIRRORED, Mirrored, MirrorReport
from engine.model.errors import NotFoundError, RefusedError
from engine.model.external_cells import SCHEDULERS
from recommender.history.metrics import OutsideNames

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.executors.task_files import OutputPart, OutputRequest
    from engine.loop import EngineLoop
    from engine.model.external_cells import FarLook
    from engine.state.external_cell import Intent

ClusterAt = SlurmAt | KubernetesAt
_SERVED = {"slurm": "--slurm WHERE", "kubernetes": "--kubernetes [CONTEXT]"}


class NoMirror:
    """The answers of an engine that mirrors no cluster: Muster decides its cell, or it was not told of one."""

    def __init__(self, loop: EngineLoop) -> None:
        self._engine = loop.engine

    def start(self) -> None:
        """There is nothing to follow."""

    def stop(self) -> None:
        """There is nothing to end."""

    def report(self) -> MirrorReport:
        decides = self._engine.state.settings.decided_by
        if decides == "muster":
            return NOT_MIRRORED
        return MirrorReport(
            where="",
            state="lost",
            scheduler=SCHEDULERS[decides],
            error=f"this engine has no address of the cluster: muster serve --cell NAME {_SERVED[decides]}",
        )

    def trouble(self) -> str:
        """Reason why the view of the cluster is old; empty where Muster decides."""
        from console.views.external_scheduler import mirror_trouble

        return mirror_trouble(self.report(), time.time())

    def mirrored(self, workload_id: str) -> Mirrored:
        """Raises NotFoundError."""
        raise NotFoundError(f"nobody else schedules workload '{workload_id}'", "muster cell mirror shows who does")

    def job_output(self, request: OutputRequest) -> OutputPart:
        """Raises NotFoundError."""
        raise NotFoundError(f"which files '{request.id}' has written is not known", "It has no job elsewhere")

    def outside_names(self, ids: Sequence[str]) -> OutsideNames:
        """Of a cell that Muster decides they are its own."""
        return OutsideNames(jobs={name: name for name in ids})

    def evidence(self, intent: Intent) -> FarLook | None:
        """None: there is nobody to ask."""

    def has_output(self) -> bool:
        return False

    def shown(self, ids: Sequence[str]) -> None:
        """Nothing has to be kept fresh."""


MirroredCluster = SlurmCell | KubernetesCell | NoMirror
_AT: dict[str, type[SlurmAt] | type[KubernetesAt]] = {"slurm": SlurmAt, "kubernetes": KubernetesAt}
"""Who decides the cell -> what is kept of its cluster, in a file of that name in the cell's folder."""


def decider(at: ClusterAt) -> str:
    """Who decides a cell that mirrors it."""
    return next(name for name, kind in _AT.items() if isinstance(at, kind))


def check_cell(engine: Engine, at: ClusterAt | None) -> None:
    """Raises RefusedError for a cell that somebody else decides: its work would be taken for the cluster's."""
    decides = engine.state.settings.decided_by
    if at is not None and decides != decider(at):
        raise RefusedError(
            f"cell '{engine.state.cell}' is scheduled by {decides.capitalize()} and already has a journal",
            f"Mirror {decider(at).capitalize()} into a cell of its own: use another --cell name",
        )


def of_cell(engine: Engine, at: ClusterAt | None, folder: Path | None) -> ClusterAt | None:
    """The cluster to mirror: the given one, which is kept in the cell's folder, or for a cell of another scheduler the
    one kept there, because consoles start engines without knowing it. Secrets are not kept, only the path of one."""
    decides = engine.state.settings.decided_by
    if decides not in _AT or folder is None:
        return at
    kept = folder / f"{decides}.json"
    if at is not None:
        kept.write_bytes(msgspec.json.encode(at, enc_hook=str))
        return at
    try:
        found: ClusterAt = msgspec.json.decode(
            kept.read_bytes(), type=_AT[decides], dec_hook=lambda kind, text: kind(text)
        )
    except (OSError, msgspec.MsgspecError):
        return None
    return found
