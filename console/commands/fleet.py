"""Commands behind `muster fleet`, and the fleet file.

Errors in a fleet file name file, line and field.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from console.client.attach import settings_of
from console.client.sockets import probe, tls_given
from console.commands.show import write_json, write_lines
from console.fleet.queries import FleetPaths, fleet_client, fleet_paths
from console.fleet.wording import decision_lines, jobs_lines, status_lines, submission_lines
from console.forms.documents import LocatedDocument, read_document
from console.text.terminal_text import printable
from engine.admission.fleet_routing import DATASET_TAG, RESIDENCY_TAG, FleetSpec, check_fleet
from engine.model.errors import RefusedError, SpecError, UnreachableError, misfit
from engine.model.quantities import cpu_milli, duration_ms, gpu_milli, memory_mib, money_microusd, shown

if TYPE_CHECKING:
    from console.fleet.queries import FleetClient
    from engine.journal.database import Place
    from engine.model.specs import WorkloadSpec


STOP_S = 30.0


def serve(arguments: argparse.Namespace) -> None:
    """The fleet of a file, until it is told to stop."""
    from console.fleet.server import serve_fleet
    from engine.journal.database import Schema

    spec, settings, paths = read_fleet(arguments.file), settings_of(arguments), _paths(arguments)
    place = _place(arguments, spec.name, paths)
    if arguments.standby and not isinstance(place, Schema):
        raise SpecError("--standby", "needs a database server", "Add --database postgresql://USER@HOST/DATABASE")
    group = arguments.socket_group or settings.socket_group
    tls, listen = tls_given(arguments), arguments.listen or ""
    serve_fleet(spec, paths, group, place, standby=arguments.standby, listen=listen, tls=tls)


def _place(arguments: argparse.Namespace, fleet: str, paths: FleetPaths) -> Place:
    """Location of its journal. Raises SpecError, also where a new journal would begin beside an old one."""
    from console.client.launch import noted, refuse_file
    from engine.journal.database import SqliteFile, place_of, schema_for_fleet

    wanted = settings_of(arguments).database
    place = place_of(wanted, schema_for_fleet(fleet)) if wanted else SqliteFile(paths.journal)
    if isinstance(place, SqliteFile):
        refuse_file(f"fleet '{fleet}'", paths.folder, paths.journal)
        return place
    from engine.journal.postgres_store import exists

    if paths.journal.exists() and not noted(paths.folder, paths.journal) and not exists(place):
        raise SpecError(
            "--database",
            f"has no data of fleet '{fleet}', which is stored in {paths.journal}",
            f"Copy it there: muster fleet copy --file FILE {paths.journal} URL",
        )
    if arguments.database and place.has_password:
        print("muster: other users of this machine can see a password on the command line: use ~/.pgpass or "
              "MUSTER_DATABASE", file=sys.stderr)  # fmt: skip
    return place


def copy(arguments: argparse.Namespace) -> None:
    """A fleet's journal to another place, whole or not at all."""
    from console.fleet.journal import FleetJournal
    from console.fleet.journal import copy as copied
    from engine.journal.database import SqliteFile, place_of, schema_for_fleet
    from engine.journal.postgres_store import exists

    schema = schema_for_fleet(read_fleet(arguments.file).name)
    source, target = place_of(arguments.source, schema), place_of(arguments.target, schema)
    if not (source.path.exists() if isinstance(source, SqliteFile) else exists(source)):
        raise SpecError("FROM", f"there is no fleet at {source}", "Give the journal of a fleet, or its database")
    with closing(FleetJournal(source)) as old, closing(FleetJournal(target)) as new:
        counts = copied(old, new)
    told = ", ".join(f"{name} {rows:,}" for name, rows in counts.items())
    write_lines(
        [printable(f"{target}: {told}"), printable(f"{source} is unchanged: from now on serve only one of the two")]
    )


def check(arguments: argparse.Namespace) -> None:
    """Says what a file means, or what is wrong with it."""

    spec = read_fleet(arguments.file)
    told = f"fleet {spec.name}: {len(spec.cells)} cells, {len(spec.tenants)} tenants, {len(spec.datasets)} datasets"
    write_lines([printable(told)])


def stop(arguments: argparse.Namespace) -> None:
    """Ends the process; what it has taken is in its journal."""
    if settings_of(arguments).readonly:
        raise RefusedError("this session is read-only", "Start without --readonly to act")
    with closing(_client(arguments)) as client:
        pid = client.view().pid
    paths = _paths(arguments)
    peer = probe(paths.socket)  # the system's word, not that of whoever answers there
    if peer is None or peer.pid not in (pid, -1) or pid <= 1:
        raise RefusedError(
            f"the process that listens on {paths.socket} is not the fleet's process {pid}", "Stop it with `kill`"
        )
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while time.monotonic() < until:
        if not paths.pid.exists():
            write_json({"pid": pid}) if arguments.json else print(f"fleet process {pid:d} has stopped", file=sys.stderr)
            return
        time.sleep(0.02)
    raise UnreachableError(f"fleet process {pid} did not stop within {STOP_S:g} s", "Look for it with `ps`")


def status(arguments: argparse.Namespace) -> None:
    with closing(_client(arguments)) as client:
        view = client.view()
    write_json(view) if arguments.json else write_lines(status_lines(view))


def submit(arguments: argparse.Namespace) -> None:
    """All workloads are taken or none; the same again changes nothing."""
    from console.commands.acting import asked_for
    from console.forms.work_files import placed, workloads_of

    document = asked_for(arguments)
    now_ms = time.time_ns() // 1_000_000
    with closing(_client(arguments)) as client, placed(document):
        workloads = [_tagged(spec, arguments) for spec in workloads_of(document, lambda: now_ms)]
        if arguments.dry_run:
            found = client.preview(workloads, arguments.to)
            if arguments.json:
                write_json(found)
                return
            for spec, decision in zip(workloads, found, strict=True):
                write_lines([f"{printable(spec.id)}: not submitted", *decision_lines(decision)])
            return
        taken = client.submit(workloads, arguments.to)
    if arguments.json:
        write_json(taken)
        return
    write_lines(printable(each.id) for each in taken)
    for each in taken[:SAID]:
        where = f"{each.state} {each.cell}" if each.cell else each.state
        print(printable(f"{each.id}: {where}; {each.why or 'not checked yet'}"), file=sys.stderr)
    if len(taken) > SAID:
        print(f"and {len(taken) - SAID:,} more; follow them with: muster fleet jobs", file=sys.stderr)


SAID = 10
"""Workloads whose cell is printed one by one."""


def _tagged(spec: WorkloadSpec, arguments: argparse.Namespace) -> WorkloadSpec:
    tags = dict(spec.tags)
    if arguments.residency:
        tags[RESIDENCY_TAG] = ",".join(arguments.residency)
    if arguments.dataset:
        tags[DATASET_TAG] = ",".join(arguments.dataset)
    return msgspec.structs.replace(spec, tags=tags)


def jobs(arguments: argparse.Namespace) -> None:
    with closing(_client(arguments)) as client:
        page = client.page(arguments.state, arguments.before, arguments.limit)
    if arguments.json:
        write_json(page)
        return
    write_lines(jobs_lines(page.items, page.now_ms))
    if page.next_before:
        print(f"older ones: muster fleet jobs --before {page.next_before:d}", file=sys.stderr)


def show(arguments: argparse.Namespace) -> None:
    with closing(_client(arguments)) as client:
        found = client.submission(arguments.id)
    if arguments.json:
        write_json(found)
        return
    write_lines(submission_lines(found, time.time_ns() // 1_000_000))


def withdraw(arguments: argparse.Namespace) -> None:
    with closing(_client(arguments)) as client:
        gone = client.withdraw(arguments.ids)
    write_json(gone) if arguments.json else write_lines(printable(name) for name in gone)


def close(arguments: argparse.Namespace) -> None:
    _set_closed(arguments, closed=True)


def open(arguments: argparse.Namespace) -> None:
    _set_closed(arguments, closed=False)


def _set_closed(arguments: argparse.Namespace, *, closed: bool) -> None:
    with closing(_client(arguments)) as client:
        view = client.set_closed(arguments.cell, closed=closed, reason=arguments.reason)
    write_json(view) if arguments.json else write_lines(status_lines(view))


def _client(arguments: argparse.Namespace) -> FleetClient:
    settings = settings_of(arguments)
    return fleet_client(settings, read_only=settings.readonly)


def _paths(arguments: argparse.Namespace) -> FleetPaths:
    return fleet_paths(settings_of(arguments))


EXAMPLE = """\
cells:
  - name: here
    connect: /run/muster/here/engine.sock
"""
Forms = dict[str, tuple[str, Callable[[Any], Any]]]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _percent(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d)?)%", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{shown(value)} is not a share such as 90%")
    return int(Decimal(match[1]) * 10)


def _rate(value: Any) -> int:
    if not (isinstance(value, str) and value.endswith("/s")):
        raise ValueError(f"{shown(value)} is not a rate such as 100MiB/s")
    return memory_mib(value.removesuffix("/s"))


_CELL: Forms = {"residency": ("residency", _listed)}
_DATASET: Forms = {"cells": ("cells", _listed), "size": ("size_mib", memory_mib)}
_TENANT: Forms = {"residency": ("residency", _listed), "cells": ("cells", _listed)}
_QUOTA: Forms = {
    "cpu": ("cpu_milli", cpu_milli),
    "gpu": ("gpu_milli", gpu_milli),
    "memory": ("memory_mib", memory_mib),
    "disk": ("disk_mib", memory_mib),
}
_TRANSFER: Forms = {"price_usd_gib": ("microusd_gib", money_microusd), "rate": ("mib_s", _rate)}
_ROUTING: Forms = {
    "hour_usd": ("hour_microusd", money_microusd),
    "crowded": ("crowded_permille", _percent),
    "bind_within": ("bind_within_ms", duration_ms),
    "bind_after": ("bind_after_ms", duration_ms),
    "move_after": ("move_after_ms", duration_ms),
    "horizon": ("horizon_ms", duration_ms),
    "answer_within": ("answer_within_ms", duration_ms),
}


def read_fleet(path: str) -> FleetSpec:
    """Raises SpecError naming file, line and column. Relative paths in it are relative to its folder."""
    return fleet_of(read_document(path))


def fleet_of(document: LocatedDocument) -> FleetSpec:
    """Raises SpecError naming the place in the document."""
    top = document.value
    if not isinstance(top, dict):
        document.fail("", "is not a fleet", f"Write it like:\n{EXAMPLE}")
    values = dict(top)
    for key, forms in (("cells", _CELL), ("datasets", _DATASET), ("tenants", _TENANT)):
        if isinstance(values.get(key), list):
            values[key] = [_renamed(document, each, forms, f"{key}[{i}]") for i, each in enumerate(values[key])]
    for i, tenant in enumerate(values.get("tenants") or ()):
        if isinstance(tenant, dict) and "quota" in tenant:
            tenant["quota"] = _renamed(document, tenant["quota"], _QUOTA, f"tenants[{i}].quota")
    for key, forms in (("transfer", _TRANSFER), ("routing", _ROUTING)):
        if key in values:
            values[key] = _renamed(document, values[key], forms, key)
    try:
        spec = msgspec.convert(values, FleetSpec)
    except msgspec.ValidationError as error:
        wrong = misfit(str(error))
        at = f"{wrong.path}.{wrong.field}" if wrong.field else wrong.path
        document.fail(at.lstrip("."), wrong.problem, f"{wrong.remedy}; docs/fleet.md has all fields")
    try:
        check_fleet(spec)
    except SpecError as error:
        document.fail(error.where, error.problem.removeprefix(f"{error.where}: "), error.remedy)
    return _absolute(spec, Path(document.name).parent)


def _renamed(document: LocatedDocument, raw: Any, forms: Forms, path: str) -> Any:
    """A copy with what people write turned into raw fields."""
    if not isinstance(raw, dict):
        document.fail(path, "is not a mapping", f"Write it like:\n{EXAMPLE}")
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name, convert = forms.get(key, (key, None))
        try:
            values[name] = convert(value) if convert else value
        except ValueError as error:
            document.fail(f"{path}.{key}", str(error))
    return values


def _absolute(spec: FleetSpec, folder: Path) -> FleetSpec:
    def of(path: str) -> str:
        return str((folder / Path(path).expanduser()).absolute()) if path and "://" not in path else path

    links = (
        msgspec.structs.replace(link, connect=of(link.connect.removeprefix("unix:")), token_file=of(link.token_file))
        for link in spec.cells
    )
    return msgspec.structs.replace(spec, cells=tuple(links))
