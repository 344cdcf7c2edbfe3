"""The command `muster doctor`: checks of this machine and the cell, with remedies."""

from __future__ import annotations

import argparse
import locale
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Literal

import msgspec

from console import VERSION
from console.cli.config import slips
from console.client.attach import connect, settings_of, settings_with_cell
from console.commands.show import write_json, write_lines
from console.forms.settings import CellPaths, ConsoleSettings, cell_paths, config_file, problems
from console.text.terminal_text import printable
from engine.model.errors import JournalBusy, JournalError, MusterError
from engine.model.quantities import counted
from recommender.history.metrics import HOUR_MS, HistoryRequest

LOW_DISK_BYTES = 512 * 2**20
SLOW_ANSWER_S = 0.5


class DoctorFinding(msgspec.Struct, frozen=True):
    """One line of the report."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def doctor(arguments: argparse.Namespace) -> int:
    """Print every finding. The exit code is 1 when something fails."""
    findings = list(examine(arguments))
    if arguments.json:
        write_json(findings)
    else:
        write_lines(_line(finding) for finding in findings)
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def examine(arguments: argparse.Namespace) -> Iterator[DoctorFinding]:
    yield DoctorFinding("muster", "ok", f"{VERSION}, Python {sys.version.split()[0]}")
    yield _terminal()
    yield _colour()
    yield _locale()
    try:
        settings_of(arguments)
    except MusterError as error:
        for each in problems(os.environ) or [error]:
            yield DoctorFinding("settings", "fail", each.problem, each.remedy)
        return
    yield from _settings()
    try:
        settings = settings_with_cell(arguments)
    except MusterError as error:
        yield DoctorFinding("engine", "fail", error.problem, error.remedy)
        return
    if not settings.connect:
        paths = cell_paths(settings)
        checks = _CELL_CHECKS[:-1] if settings.database else _CELL_CHECKS
        yield from (check(paths) for check in checks)
        if settings.database:
            yield _database(settings)
    yield _engine(arguments, settings)
    yield from _followed(arguments)
    yield _model(arguments)


def _line(finding: DoctorFinding) -> str:
    remedy = f"\n      {'':<10}  {printable(finding.remedy)}" if finding.remedy else ""
    return f"{finding.state:<4}  {finding.name:<10}  {printable(finding.found)}{remedy}"


def _terminal() -> DoctorFinding:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return DoctorFinding("terminal", "warn", "not a terminal", "Only the console needs one")
    size = shutil.get_terminal_size()
    found = f"{os.environ.get('TERM', 'TERM is not set')}, {size.columns}x{size.lines}"
    if size.columns < 80 or size.lines < 24:
        return DoctorFinding("terminal", "warn", found, "The console needs 80x24 or more")
    return DoctorFinding("terminal", "ok", found)


def _colour() -> DoctorFinding:
    if os.environ.get("NO_COLOR"):
        return DoctorFinding("colour", "ok", "off, because NO_COLOR is set")
    term = os.environ.get("TERM", "")
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return DoctorFinding("colour", "ok", "16 million")
    return DoctorFinding("colour", "ok", "256" if "256color" in term else "16")


def _locale() -> DoctorFinding:
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") == "utf8":
        return DoctorFinding("locale", "ok", encoding)
    return DoctorFinding("locale", "warn", encoding, "Boxes and bars need UTF-8: export LC_ALL=C.UTF-8")


def _settings() -> Iterator[DoctorFinding]:
    path, found = config_file(os.environ), slips()
    for error in found:
        yield DoctorFinding("settings", "warn", error.problem, error.remedy)
    if not found:
        yield DoctorFinding("settings", "ok", str(path) if path.exists() else f"defaults; {path} does not exist")


def _state_folder(paths: CellPaths) -> DoctorFinding:
    nearest = next(folder for folder in (paths.folder, *paths.folder.parents) if folder.exists())
    if os.access(nearest, os.W_OK | os.X_OK):
        return DoctorFinding("state", "ok", str(paths.folder))
    return DoctorFinding("state", "fail", f"{nearest} cannot be written", "Set state_dir, or fix its permissions")


def _disk(paths: CellPaths) -> DoctorFinding:
    nearest = next(folder for folder in (paths.folder, *paths.folder.parents) if folder.exists())
    free = shutil.disk_usage(nearest).free
    found = f"{free / 2**30:.1f} GiB free"
    if free < LOW_DISK_BYTES:
        return DoctorFinding("disk", "fail", found, "Free disk space: a journal that cannot grow stops the cell")
    return DoctorFinding("disk", "ok", found)


def _journal(paths: CellPaths) -> DoctorFinding:
    """Verify every batch and snapshot, unless an engine has the journal: that one did so when it started."""
    if not paths.journal.exists():
        return DoctorFinding("journal", "ok", "none yet")
    from engine.journal.event_journal import Journal

    size = f"{paths.journal.stat().st_size / 2**20:.1f} MiB"
    try:
        with closing(Journal(paths.journal, 0)) as journal:
            return DoctorFinding("journal", "ok", f"{journal.verify():,} events verified, {size}")
    except JournalBusy:
        return DoctorFinding("journal", "ok", f"{size}, in use by the engine")
    except JournalError as error:
        return DoctorFinding("journal", "fail", error.problem, error.remedy)


def _database(settings: ConsoleSettings) -> DoctorFinding:
    """Check that the server answers and keeps the cell in a known format. Its events are not read."""
    from engine.journal import tables
    from engine.journal.database import Schema, place_of, schema_for
    from engine.journal.event_journal import head_of
    from engine.journal.outside_readers import read
    from engine.journal.postgres_store import exists

    try:
        place = place_of(settings.database, schema_for(settings.cell))
        if isinstance(place, Schema) and not exists(place):
            return DoctorFinding("database", "ok", f"{place}: reachable, no such cell yet")
        head = read(place, lambda connection: head_of(connection, place))
        had = read(place, lambda connection: tables.refuse_other(connection, place, head))
    except MusterError as error:
        return DoctorFinding("database", "fail", error.problem, error.remedy)
    lacks = len(tables.MIGRATIONS) - had
    found = f"{place}: version {head['last_version']:,}" + (f", lacks {lacks} migrations" if lacks else "")
    return DoctorFinding("database", "ok", found, "The next engine start applies them" if lacks else "")


_CELL_CHECKS: tuple[Callable[[CellPaths], DoctorFinding], ...] = (_state_folder, _disk, _journal)


def _engine(arguments: argparse.Namespace, settings: ConsoleSettings) -> DoctorFinding:
    begun = time.monotonic()
    try:
        with closing(connect(arguments)) as client:
            health = client.health()
    except MusterError as error:
        return DoctorFinding("engine", "warn", error.problem, error.remedy)
    took = time.monotonic() - begun
    found = f"'{health.name}', process {health.pid}, version {health.version:,}, answered in {took * 1000:.0f} ms"
    if health.journal_error:
        return DoctorFinding("engine", "fail", health.journal_error, "No changes are accepted until this is fixed")
    if health.audit_error:
        return DoctorFinding("engine", "fail", health.audit_error, "Running work continues; check its disk")
    if health.mirror_error:
        return DoctorFinding("engine", "fail", health.mirror_error, "See what it looks at: `muster cell mirror`")
    if health.history_error:
        return DoctorFinding("engine", "warn", health.history_error, "The cell continues; check its disk")
    if health.software != VERSION:
        return DoctorFinding("engine", "warn", f"{found}, Muster {health.software}", "Restart it: `muster stop`")
    if took > SLOW_ANSWER_S:
        return DoctorFinding("engine", "warn", found, "It is busy; check its log")
    return DoctorFinding("engine", "ok", found)


def _followed(arguments: argparse.Namespace) -> Iterator[DoctorFinding]:
    """The Prometheus that the engine follows; nothing where it follows none, or none runs."""
    try:
        with closing(connect(arguments)) as client:
            report = client.history(HistoryRequest(metric="idle_gpu", last_ms=HOUR_MS)).followed
    except MusterError:
        return
    if report is not None and report.trouble:
        yield DoctorFinding("prometheus", "warn", f"{report.source}: {report.trouble}")
    elif report is not None:
        told = f"{report.source}: {counted(report.devices, 'GPU')}, {report.joined:,} of them held by known work"
        yield DoctorFinding("prometheus", "ok", told)


def _model(arguments: argparse.Namespace) -> DoctorFinding:
    """Model that the engine would ask for drafts. It is not called: that would cost something."""
    try:
        with closing(connect(arguments)) as client:
            standing = client.model()
    except MusterError as error:
        return DoctorFinding(
            "model", "warn", f"not known: {error.problem}", "Start the engine; drafts by rule need no model"
        )
    if not standing.configured:
        return DoctorFinding("model", "ok", "none: drafts are made by rule")
    found = f"{standing.model or 'no name'} at {standing.endpoint or 'no endpoint'}, {standing.egress or 'not usable'}"
    if standing.problem:
        return DoctorFinding("model", "warn", f"{found}: {standing.problem}", "Drafts by rule still work")
    return DoctorFinding("model", "ok", found)
