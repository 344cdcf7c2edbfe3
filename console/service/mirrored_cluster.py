"""The cluster that an engine mirrors: which one it is, where that is kept, and who answers for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from console.service.kubernetes_cell import KubernetesAt, KubernetesCell
from console.service.slurm_cell import SlurmAt, SlurmCell
from engine.model.errors import RefusedError

if TYPE_CHECKING:
    from engine.control import Engine

ClusterAt = SlurmAt | KubernetesAt
MirroredCluster = SlurmCell | KubernetesCell
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
