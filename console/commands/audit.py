"""Commands of the audit: `muster audit show`, `verify`, `export`, `redact`, `anchor`, `key`.

`verify` reads files by itself, as `runbooks/audit/verify.py` does alone, and needs no engine.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from console.client.attach import connect, settings_with_cell
from console.commands.show import tell_lines, write_json, write_lines
from console.forms.settings import audit_key_path, cell_paths
from console.text.guarded_streams import exact_output
from console.text.plain_tables import harmless, unformed
from console.text.terminal_text import cut, printable, read_value, wall_time
from console.views.audit import parse_words
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.quantities import duration_ms, utc
from runbooks.audit import verify as verifier
from runbooks.plans.queries import FOR_MACHINES, AuditPage, AuditRange, AuditRow, AuditState

if TYPE_CHECKING:
    from console.client.protocol import Client


WIDTH = 80


# -- looking ----------------------------------------------------------------------------------------------------------


def show(arguments: argparse.Namespace) -> None:
    """Records, newest last; one record whole; or, without a filter, how the log stands too."""
    found = parse_words(" ".join(arguments.filter), time.time_ns() // 1_000_000)
    query = msgspec.structs.replace(
        found,
        since_ms=_since(arguments.since) or found.since_ms,
        seq=arguments.seq or 0,
        before=arguments.before or 0,
        limit=arguments.limit,
    )
    with closing(connect(arguments)) as client:
        page = client.audit_page(query)
        state = client.audit_state()
    if arguments.json:
        write_json(page)
        return
    if arguments.seq:
        if not page.rows:
            raise NotFoundError(f"the audit has no record {arguments.seq}", f"The last one is {page.last}")
        write_lines(record_lines(page.rows[0]))
        return
    write_lines(page_lines(page))
    tell_lines(state_lines(state, page))


def _since(text: str) -> int:
    """Unix milliseconds of a time, or of so long ago."""
    if not text:
        return 0
    try:
        return time.time_ns() // 1_000_000 - duration_ms(text)
    except ValueError:
        pass
    try:
        return read_value("time", text)
    except ValueError:
        raise SpecError(
            "--since", f"{text[:40]!a} is not a time", "Give an age such as 24h, or a UTC time such as 2026-03-01T12:00"
        ) from None


def page_lines(page: AuditPage) -> Iterator[str]:
    """A line for each day, record, and text that is kept apart."""
    day = ""
    for row in page.rows:
        when = utc(row.at_ms)
        if when[:10] != day:
            day = when[:10]
            yield f"{day} UTC (wall)"
        yield cut(f"{row.seq:>7} {when[11:19]} {printable(row.type):<18} {_about(row)}", WIDTH)
        for private in row.private:
            told = "erased" if private.text is None else f'"{printable(private.text)}"'
            yield cut(f"        {printable(private.ref)}: {told}", WIDTH)


def _about(row: AuditRow) -> str:
    """Actor, proposal, step, and further facts of the record."""
    words = [row.subject, row.proposal, row.step]
    shown = {name: value for name, value in row.data.items() if name not in FOR_MACHINES}
    told = {name: value for name, value in shown.items() if value not in ("", [], None)}
    if "to" in told:
        # A proposal that went along an edge: where to is enough, the line before says where from.
        told.pop("from", None)
    words += [f"{name}={_short(value)}" for name, value in told.items()]
    return " ".join(printable(word) for word in words if word)


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def record_lines(row: AuditRow) -> Iterator[str]:
    """A record whole."""
    facts = [
        ("record", f"{row.seq:,}"), ("when", wall_time(row.at_ms)), ("type", row.type),
        ("who", f"{row.subject} ({row.kind}{', signed with ' + row.key if row.signed else ''})"),
        ("from", row.account), ("session", row.session), ("proposal", row.proposal),
        ("revision", str(row.revision) if row.revision else ""), ("step", row.step), ("plan", row.plan),
        ("policy", row.policy),
    ]  # fmt: skip
    facts += [(f"  {name}", _short(value)) for name, value in row.data.items()]
    facts += [(f"  text {one.ref}", "erased" if one.text is None else one.text) for one in row.private]
    facts.append(("hash", row.hash))
    for name, value in facts:
        if value:
            yield f"{printable(name):<10} {printable(value)}"


def state_lines(state: AuditState, page: AuditPage) -> Iterator[str]:
    """State of the log, for people."""
    yield f"{len(page.rows):,} of {page.matched:,} matching records, {page.last:,} total"
    if page.rows and len(page.rows) < page.matched:
        yield f"older: --before {page.rows[0].seq}"
    yield from note_lines(state)


def note_lines(state: AuditState) -> Iterator[str]:
    """The newest checkpoint and where it is remembered."""
    if state.checkpoint:
        signed = "not signed" if state.key == verifier.UNSIGNED else "signed"
        yield f"checkpoint of {verifier.counted(state.covered, 'record')}, {signed}"
    else:
        yield "no checkpoint yet"
    yield f"anchors: {', '.join(map(printable, state.anchors)) or 'none (see audit_anchors)'}"
    if state.error:
        yield f"WRONG: {printable(state.error)}"


# -- checking ---------------------------------------------------------------------------------------------------------


def verify(arguments: argparse.Namespace) -> int:
    """Check the log of the cell, or files. Exit codes of its own: those of `runbooks/audit/verify.py`."""
    with contextlib.ExitStack() as after:
        files = [verifier.named(file) for file in arguments.files] or [_log_of_cell(arguments, after)]
        try:
            if not arguments.files:
                _know_own_note(arguments, files[0])
            code, reports = verifier.run(files, arguments)
        except verifier.Flaw as bad:
            print(f"muster: {printable(bad.what)}", file=sys.stderr)
            return bad.code
        compared = _compare(files, code)
    differences = [difference for _, found in compared for difference in found]
    code = code or (verifier.CHAIN if differences else 0)
    if arguments.json:
        told = [{"record": difference.record, "what": difference.what} for difference in differences]
        effects = sum(count for count, _ in compared)
        write_json(
            {
                "code": code, "files": [verifier.as_data(report) for report in reports],
                "journal": {"effects": effects, "differences": told},
            }
        )  # fmt: skip
        return code
    for report in reports:
        write_lines(printable(line) for line in verifier.as_text(report))
    for count, found in compared:
        agree = "agrees with the audit" if not found else "does NOT agree with the audit"
        acts = verifier.counted(count, "executed action")
        write_lines([f"  the engine's journal has {acts} and {agree}"])
        write_lines(f"  BAD: {printable(difference.what)}" for difference in found)
    if code == 0:
        where = f"ok, and matches {printable(str(arguments.against))}"
        write_lines([where if arguments.against else "ok" if arguments.keys else OWN_WORD])
    return code


OWN_WORD = "ok, checked only against itself: --key or --against compares it with what you know"


def _log_of_cell(arguments: argparse.Namespace, after: contextlib.ExitStack) -> Path | str:
    """The journal of a cell of this machine, or of its database; of another, an export of it."""
    settings = settings_with_cell(arguments)
    if not settings.connect and settings.database:
        from engine.journal.database import url_with

        return url_with(settings.database, settings.cell)
    if not settings.connect:
        path = cell_paths(settings).journal
        if not path.exists():
            raise SpecError("--cell", f"'{settings.cell}' has no journal at {path}", "Name the cell, or give a file")
        return path
    folder = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="muster-audit-")))
    path = folder / "export.jsonl"
    try:
        with closing(connect(arguments)) as client, open(path, "w", encoding="utf-8", newline="") as file:
            file.writelines(export_lines(client, AuditRange()))
    except MusterError as error:
        # Its own exit code would say something else of the log.
        raise MusterError(error.problem, error.remedy) from error
    return path


def _know_own_note(arguments: argparse.Namespace, journal: Path | str) -> None:
    """The last checkpoint that this machine's engine signed is known, where nothing else is said to be."""
    from runbooks.audit.witnesses import remembered_at

    settings = settings_with_cell(arguments)
    if settings.connect or arguments.against or arguments.since > 1 or arguments.until:
        return
    source = verifier.open_source(journal)
    source.close()
    note = remembered_at(audit_key_path(settings, settings.cell, cell_paths(settings)), source.log)
    if note.exists():
        arguments.against = note


def _compare(files: list[Path | str], code: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Effects in the journals compared with the audits among the files."""
    from runbooks.audit.witnesses import differences

    if code:
        return []
    found = []
    for path in files:
        if isinstance(path, str):
            found.append(differences(path))
            continue
        with open(path, "rb") as file:
            if file.read(16) == b"SQLite format 3\0":
                found.append(differences(path))
    return found


# -- taking along -----------------------------------------------------------------------------------------------------


def export(arguments: argparse.Namespace) -> None:
    """Records with what it takes to check them elsewhere."""
    first, last = _range(arguments.range)
    wanted = AuditRange(first=first, last=last, private=not arguments.redact)
    with contextlib.ExitStack() as after:
        client = after.enter_context(closing(connect(arguments)))
        parts = export_lines(client, wanted)
        # Nothing is made before the engine has agreed.
        parts = chain((next(parts),), parts)
        out = _created(arguments.out, after)
        count = _write_jsonl(out, parts) if arguments.format == "jsonl" else _write_csv(out, parts)
    print(f"{verifier.counted(count, 'record')} exported", file=sys.stderr)


def _range(text: str) -> tuple[int, int]:
    """(first, last) of `A:B`, `A:` or nothing."""
    first, colon, last = text.partition(":")
    try:
        found = int(first or 0), int(last or 0)
    except ValueError:
        found = -1, -1
    if (text and not colon) or found[0] < 0 or found[1] < 0:
        raise SpecError("--range", f"{text[:40]!a} is not a range", "Give the first and the last record, such as 1:500")
    return found


def export_lines(client: Client, wanted: AuditRange) -> Iterator[str]:
    """An export, part by part, each some whole lines."""
    part = client.audit_part(wanted)
    yield part.lines
    while part.after:
        part = client.audit_part(AuditRange(first=part.first, last=part.last, private=wanted.private, after=part.after))
        yield part.lines


def _created(path: str, after: contextlib.ExitStack) -> IO[str]:
    """A new file that this user alone can read; `-` is standard output."""
    if path == "-":
        return exact_output()
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RefusedError(f"{path} already exists", "Give the name of a new file") from None
    except OSError as error:
        raise SpecError("--out", f"{path} cannot be created: {error.strerror}", "Check the folder") from None
    return after.enter_context(open(made, "w", encoding="utf-8", newline=""))


def _write_jsonl(out: IO[str], parts: Iterable[str]) -> int:
    count = 0
    for part in parts:
        out.write(part)
        count += part.count('\n{"hash":"') + part.startswith('{"hash":"')
    return count


def _write_csv(out: IO[str], parts: Iterable[str]) -> int:
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(CSV_COLUMNS)
    count = 0
    for part in parts:
        for line in part.splitlines():
            if line.startswith('{"hash":'):
                found = json.loads(line)
                writer.writerow(csv_row(found["record"], found["hash"]))
                count += 1
    return count


CSV_COLUMNS = (
    "seq", "at", "type", "subject", "kind", "account", "signed", "session", "key", "proposal", "revision", "step",
    "plan", "policy", "data", "private", "v", "log", "at_ms", "hash",
)  # fmt: skip
"""`at` is for people: UTC of `at_ms`."""


def csv_row(record: dict[str, Any], hash_: str) -> list[str]:
    """Cells as CSV_COLUMNS has them, none of which a spreadsheet takes for a formula."""
    cells = record | record["actor"] | {"at": utc(record["at_ms"]), "hash": hash_}
    return [_cell(cells[name]) for name in CSV_COLUMNS]


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return unformed(harmless(text))


# -- changing ---------------------------------------------------------------------------------------------------------


def redact(arguments: argparse.Namespace) -> None:
    """Erase a text that is kept apart."""
    _agree(arguments, f"Erase the text {arguments.ref} for good? The record stays; its text cannot be restored")
    with closing(connect(arguments)) as client:
        erased = client.redact_audit(arguments.ref, arguments.reason)
    if arguments.json:
        write_json(erased)
        return
    write_lines([f"{printable(erased.ref)} is erased; record {erased.record:,} has the reason"])
    if not erased.scrubbed:
        print("the database is being read: its log drops the text a little later", file=sys.stderr)
    print("older exports and backups still have it", file=sys.stderr)


def anchor(arguments: argparse.Namespace) -> None:
    """A checkpoint now, wherever checkpoints are remembered; printed as `verify --against` reads it."""
    with closing(connect(arguments)) as client:
        state = client.anchor_audit()
    if arguments.json:
        write_json(state)
        return
    exact_output().write(state.checkpoint.rstrip("\n") + "\n")
    tell_lines(note_lines(state))


def key(arguments: argparse.Namespace) -> None:
    """The public key that signs the log; with --rotate, another from now on."""
    if arguments.rotate:
        _agree(arguments, "Sign with a new key from now on? The old key signs the change and is then deleted")
    with closing(connect(arguments)) as client:
        state = client.rotate_audit_key() if arguments.rotate else client.audit_state()
    if arguments.json:
        write_json({"log": state.log, "key": state.key, "file": state.key_file})
        return
    write_lines([state.key])
    if state.key == verifier.UNSIGNED:
        print("nothing is signed: whoever can write the journal can rewrite the audit", file=sys.stderr)
    else:
        print(
            f"the private key is in {printable(state.key_file)}; use --key with `verify` on other machines",
            file=sys.stderr,
        )


def _agree(arguments: argparse.Namespace, question: str) -> None:
    """Raises RefusedError unless the person says yes."""
    if arguments.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RefusedError("no terminal to ask on, so nothing was done", "Add --yes")
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was done", "")
