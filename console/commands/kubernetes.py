"""Commands that ask a Kubernetes cluster itself, without an engine: `muster kubernetes look` and `watch`. They only
read."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from console.commands.show import tell_lines, write_json, write_lines
from console.text.plain_tables import facts, table
from console.text.terminal_text import printable
from engine.external.kubernetes_api.capabilities import KubernetesCapabilities, capabilities
from engine.external.kubernetes_api.kinds import KINDS, ObjectKind
from engine.external.kubernetes_api.kubeconfig import reach_of
from engine.external.kubernetes_api.observation import ClusterObservation
from engine.external.kubernetes_api.reflector import ChangeBatch, ObjectChange, Reflector, ReflectorReport
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.model.errors import MusterError, NotFoundError, RefusedError
from engine.model.quantities import duration_ms

LOOK_S = 0.5
"""Seconds between two looks at how kinds are followed."""


class KindSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A kind as `look` found it. `objects` is None where they could not be listed, for what `why` says."""

    kind: str
    api: str
    can: str
    objects: int | None = None
    list_s: float = 0.0
    why: str = ""


class ClusterSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as `look` found it."""

    context: str
    server: str
    acts_as: str
    kubernetes: str
    kueue: tuple[str, ...]
    beside: dict[str, bool]
    kinds: tuple[KindSeen, ...]
    requests: int
    put_off: int


def look(arguments: argparse.Namespace) -> int:
    """Print what can be read of the cluster, and how much there is. 1 where something of it cannot be read that is
    there."""
    with _line(arguments) as line:
        able = capabilities(line)
        kinds = {kind.resource: kind for kind in KINDS}
        rows = tuple(
            _seen(line, kinds[each.resource])
            if each.can == "read"
            else KindSeen(kind=each.resource, api=each.group_version, can=each.can, why=each.why)
            for each in able.kinds
        )
        seen = _cluster(line, able, rows)
    if arguments.json:
        write_json(seen)
    else:
        write_lines(cluster_lines(seen))
    return 1 if any(each.can in ("denied", "failed") or (each.objects and each.why) for each in rows) else 0


def _seen(line: KubernetesTransport, kind: ObjectKind) -> KindSeen:
    """The objects of a kind, listed now."""
    reflector = Reflector(line, kind, lambda _: None)
    try:
        reflector.list_now()
    except MusterError as error:
        return KindSeen(kind=kind.resource, api=kind.group_version, can="failed", why=str(error))
    told = reflector.report
    return KindSeen(
        kind=kind.resource,
        api=kind.group_version,
        can="read",
        objects=told.objects,
        list_s=round(told.list_s, 3),
        why=f"{told.unreadable} could not be read: {told.unreadable_why}" if told.unreadable else "",
    )


def _cluster(line: KubernetesTransport, able: KubernetesCapabilities, kinds: tuple[KindSeen, ...]) -> ClusterSeen:
    return ClusterSeen(
        context=line.reach.name,
        server=line.reach.cluster.server,
        acts_as=line.credentials.acts_as,
        kubernetes=able.version,
        kueue=able.kueue,
        beside=able.beside,
        kinds=kinds,
        requests=line.requests,
        put_off=line.put_off,
    )


def cluster_lines(seen: ClusterSeen) -> list[str]:
    """The cluster, then a row for each kind."""
    about = [("context", seen.context), ("server", seen.server.partition("://")[2])]
    about += [("as", seen.acts_as)] if seen.acts_as else []
    about += [("kubernetes", seen.kubernetes), ("kueue", ", ".join(seen.kueue) or "not installed")]
    missing = [what for what, there in seen.beside.items() if not there]
    about += [("not there", ", ".join(missing))] if missing else []
    slowed = f", {seen.put_off} of them put off by the server" if seen.put_off else ""
    about.append(("requests", f"{seen.requests}{slowed}"))
    rows = [
        [
            printable(each.kind),
            printable(each.api),
            each.can,
            "-" if each.objects is None else f"{each.objects:,}",
            "-" if each.objects is None else f"{each.list_s:.2f} s",
            printable(each.why),
        ]
        for each in seen.kinds
    ]
    titles = ["KIND", "API", "STATE", "OBJECTS", "LISTED IN", ""]
    shown = [(name, printable(value)) for name, value in about]
    return [*facts(shown), "", *table(titles, rows, [False, False, False, True, True, False])]


# -- what changes -----------------------------------------------------------------------------------------------------


def watch(arguments: argparse.Namespace) -> int:
    """Print each change until interrupted, or for the time that was given. 1 where a kind is not followed at the
    end."""
    until = time.monotonic() + duration_ms(arguments.duration) / 1000 if arguments.duration else float("inf")
    with _line(arguments) as line:
        kinds = _chosen(arguments.kinds, capabilities(line))
        with ClusterObservation(line, kinds) as observation:
            with suppress(KeyboardInterrupt):
                _follow(observation, until, arguments.json)
            reports = observation.reports()
    _tell_end(reports, arguments.json)
    return 0 if all(each.state == "following" for each in reports.values()) else 1


def _chosen(names: list[str], able: KubernetesCapabilities) -> list[ObjectKind]:
    readable = {kind.resource: kind for kind in able.readable()}
    abilities = {each.resource: each for each in able.kinds}
    for name in names:
        if name not in abilities:
            known = ", ".join(abilities)
            raise NotFoundError(f"there is no kind {name!r} that is followed", f"Choose of {known}")
        if name not in readable:
            raise RefusedError(f"{name}: {abilities[name].why}", "See what can be read: muster kubernetes look")
    if not readable:
        raise RefusedError("nothing of this cluster can be read", "See why: muster kubernetes look")
    return [readable[name] for name in dict.fromkeys(names)] if names else list(readable.values())


def _follow(observation: ClusterObservation, until: float, as_json: bool) -> None:
    """What is there at first is counted only; from then on each change is told."""
    whole: set[str] = set()
    troubles: dict[str, str] = {}
    while (left := until - time.monotonic()) > 0:
        for batch in observation.take(min(left, LOOK_S)):
            name = batch.kind.resource
            if name in whole:
                _write(batch, as_json)
            elif batch.version:
                whole.add(name)
                tell_lines([f"{name}: {observation.reports()[name].objects:,} there"])
        for name, report in observation.reports().items():
            if report.trouble != troubles.get(name, ""):
                troubles[name] = report.trouble
                tell_lines([f"{name}: {report.trouble or 'followed again'}"])


def _write(batch: ChangeBatch, as_json: bool) -> None:
    if as_json:
        for change in batch.changes:
            write_json({"kind": batch.kind.resource, **_plain(change)})
    else:
        at = time.strftime("%H:%M:%S")
        write_lines(f"{at}  {batch.kind.resource:<16}  {each.happened:<7}  {_name(each)}" for each in batch.changes)


def _plain(change: ObjectChange) -> dict[str, str]:
    names = ("happened", "namespace", "name", "uid", "version")
    return {name: getattr(change, name) for name in names}


def _name(change: ObjectChange) -> str:
    return printable(f"{change.namespace}/{change.name}" if change.namespace else change.name)


def _tell_end(reports: dict[str, ReflectorReport], as_json: bool) -> None:
    """How each kind was followed, on standard error: what was asked for is the changes."""
    if as_json:
        return
    now = time.monotonic()
    tell_lines(["", *table(["KIND", "STATE", "OBJECTS", "HEARD OF", "LISTS", "EVENTS"], *_rows(reports.items(), now))])


def _rows(reports: Iterable[tuple[str, ReflectorReport]], now: float) -> tuple[list[list[str]], list[bool]]:
    rows = [
        [
            name,
            each.state,
            f"{each.objects:,}",
            f"{now - each.heard_s:.0f} s ago" if each.heard_s else "-",
            str(each.lists),
            f"{each.events:,}",
        ]
        for name, each in reports
    ]
    return rows, [False, False, True, True, True, True]


def _line(arguments: argparse.Namespace) -> KubernetesTransport:
    reach = reach_of(
        os.environ,
        file=arguments.kubeconfig or "",
        context=arguments.context or "",
        in_cluster=arguments.in_cluster,
        insecure=arguments.insecure,
    )
    return KubernetesTransport(reach)
