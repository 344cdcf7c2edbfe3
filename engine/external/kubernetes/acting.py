"""Abilities to act on a cluster, dry runs, and changes as files for those who keep their objects elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine.external.kubernetes.change_requests import ChangeApi, ChangeRequest, KubernetesChange, look, steps_of
from engine.external.kubernetes.job_manifests import APPLIED_MARK, MARK
from engine.external.kubernetes_api.capabilities import is_allowed
from engine.external.kubernetes_api.errors import EvictionBlocked, KubernetesStale
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.model import commands as cmd
from engine.model.errors import MusterError, RefusedError

ActBy = Literal["api", "patch"]
"""By requests to the API server, or by files that somebody else applies."""
KUEUE_GROUP = "kueue.x-k8s.io"
NEEDS: tuple[tuple[str, str, str, tuple[type[cmd.Command], ...]], ...] = (
    ("patch", KUEUE_GROUP, "workloads", (cmd.Hold, cmd.Release)),
    ("patch", KUEUE_GROUP, "clusterqueues", (cmd.HoldQueues, cmd.DrainQueues, cmd.OpenQueues, cmd.ChangeQueue)),
    ("patch", "batch", "jobs", (cmd.Cancel, cmd.SetPriority)),
    ("delete", "batch", "jobs", (cmd.Cancel,)),
    ("patch", "", "nodes", (cmd.Cordon, cmd.Uncordon, cmd.TaintNodes, cmd.Drain)),
    ("create", "", "pods/eviction", (cmd.Drain,)),
)
"""(verb, group, resource, the commands that need it). Who may create jobs is a matter of each namespace."""
NO_FILE: tuple[type[cmd.Command], ...] = (cmd.Cancel, cmd.Drain)
"""What no file of the wanted state can say."""
MAX_REHEARSED = 50
"""Steps of one act that are tried."""
MAX_STALE = 5


def lacks_of(line: KubernetesTransport, act_by: ActBy) -> dict[type[cmd.Command], str]:
    """Commands for which there is no way to this cluster, and why. Raises KubernetesUnavailable, KubernetesRefused."""
    if act_by == "patch":
        return dict.fromkeys(NO_FILE, "a patch file cannot say it (--act-by=patch): use kubectl")
    lacks: dict[type[cmd.Command], str] = {}
    for verb, group, resource, commands in NEEDS:
        if not is_allowed(line, verb, group, resource):
            lacks |= dict.fromkeys(commands, f"this user may not {verb} {resource} (docs/kubernetes-act.yaml)")
    return lacks


def ways_of(lacks: Iterable[type[cmd.Command]], act_by: ActBy) -> dict[type[cmd.Command], str]:
    way = "a patch file" if act_by == "patch" else "the API server"
    return {command: way for command in cmd.CARRIED["kubernetes"] if command not in set(lacks)}


def rehearse(api: ChangeApi, command: cmd.AnyCommand, token: str) -> tuple[str, ...]:
    """Have the API server try it without doing it, so that its webhooks, policies and managers speak before anybody
    votes; return what it says. Raises RefusedError with all that it refuses, and KubernetesUnavailable."""
    lines: list[str] = []
    refused: dict[str, str] = {}
    """What is refused -> what to do."""
    steps = steps_of(command)
    for step in steps[:MAX_REHEARSED]:
        try:
            lines.append(_rehearsed(api, step, token))
        except EvictionBlocked as error:
            lines.append(f"{error.problem}: it would wait")
        except RefusedError as error:
            refused[error.problem] = error.remedy
    if refused:
        remedy = ". ".join(dict.fromkeys(filter(None, refused.values())))
        raise RefusedError(f"the dry run is refused: {'; '.join(list(refused)[:5])}", remedy)
    more = (f"{len(steps) - MAX_REHEARSED} more were not tried",) if len(steps) > MAX_REHEARSED else ()
    return (*lines, *more)


def _rehearsed(api: ChangeApi, step: KubernetesChange, token: str) -> str:
    """Objects change all the time: one that did between reading and trying is read again."""
    for left in reversed(range(MAX_STALE)):
        seen = look(api, step, token)
        if seen.standing != "to do":
            return f"{seen.text}: nothing to do"
        try:
            for request in seen.requests:
                api.send(request, dry_run=True)
            break
        except KubernetesStale:
            if not left:
                raise
    return f"{seen.text}; the API server would take the change"


class PatchFiles:
    """A folder of changes that were approved, one file for each intent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, number: int, token: str, requests: Sequence[ChangeRequest]) -> Path:
        """Write the file of an intent, unless it is there. Raises MusterError."""
        path = self._folder / f"i{number}-{token.rpartition('-')[2][:8]}.yaml"
        if path.exists():
            return path
        import yaml

        heads = [f"# Muster intent i{number}, approved. Apply it, or merge it into your repository.\n"]
        documents = [yaml.safe_dump(document, sort_keys=False) for document in _documents(requests)]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".part")
            partial.write_text("".join(heads) + "---\n".join(documents))
            os.replace(partial, path)
        except OSError as error:
            raise MusterError(f"{path} cannot be written: {error.strerror}", "Is the folder writable?") from None
        return path


def _documents(requests: Iterable[ChangeRequest]) -> Iterator[object]:
    """The wanted state alone: whose version it was, and our mark, are of no use to who applies it."""
    for request in requests:
        document = msgspec.json.decode(msgspec.json.encode(request.body))
        about = document["metadata"]
        about.pop("uid", None)
        about.pop("resourceVersion", None)
        for mark in (MARK, APPLIED_MARK):
            about["annotations"].pop(mark, None)
        if not about["annotations"]:
            del about["annotations"]
        yield document
