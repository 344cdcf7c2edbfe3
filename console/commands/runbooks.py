"""`muster runbook`: what there is, what one says, whether a file is sound, what a run would do, and who approves it."""

from __future__ import annotations

import argparse
import hashlib
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from console.client.attach import connect, identity_of
from console.commands.acting import approved_or_refused, proposal_lines
from console.commands.show import tell_lines, write_json, write_lines
from console.forms.filters import parse_filter
from console.text.plain_tables import facts, table
from console.text.terminal_text import cut, printable
from console.views.lists import rows_that_match
from console.views.policy import HEADINGS, row_of
from engine.model.errors import RefusedError, SpecError
from runbooks.plans.queries import RunbookAsk, RunbookVote

if TYPE_CHECKING:
    from runbooks.plans.queries import FileProblem, RunbookLine, RunbookRun, RunbookView


WIDTH = 78
MAX_TITLE = 43
"""Characters of a title in the list, so that a line of it fits a terminal."""
FAULTY = 2
"""Exit code of a lint that found something."""
GUTTER = "  | "
"""Prefix of untrusted text."""


def list_(arguments: argparse.Namespace) -> None:
    terms = parse_filter("runbooks", arguments.filter)
    with closing(connect(arguments)) as client:
        found = {line.id: line for line in client.runbooks()}
    rows = rows_that_match([row_of(line) for line in found.values()], HEADINGS, terms)
    lines = tuple(found[row.id] for row in rows)
    write_json(lines) if arguments.json else write_lines(list_lines(lines))


def list_lines(lines: tuple[RunbookLine, ...]) -> list[str]:
    """A line per runbook, with the reason below one that cannot be used."""
    if not lines:
        return ["no runbooks"]
    rows = [
        [printable(line.id), str(line.version or "–"), line.status, cut(printable(line.title), MAX_TITLE)]
        for line in lines
    ]
    told = table(("RUNBOOK", "VER", "STATUS", "TITLE"), rows, (False, True, False, False))
    notes = [
        f"{printable(line.id)}: {printable(line.note)}" for line in lines if line.status in ("faulty", "changed")
    ]  # fmt: skip
    return [*told, *(["", *notes] if notes else [])]


def show(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        view = client.runbook(arguments.id)
    write_json(view) if arguments.json else write_lines(view_lines(view))


def view_lines(view: RunbookView) -> list[str]:
    line = view.line
    lines = [
        *facts(
            [
                ("runbook", f"{printable(line.id)} version {line.version}"),
                ("title", printable(line.title)),
                ("status", f"{line.status}: {printable(line.note)}"),
                ("owner", printable(line.owner)),
                ("file", printable(line.source)),
                ("sha256", line.sha256),
                ("limits", printable(view.limits)),
            ]
        ),
        *_section("inputs", _inputs(view)),
        *_section("applies when", map(printable, view.when)),
        *_section("steps", map(printable, view.steps)),
        *_section("votes", map(printable, view.votes)),
        *_section("problems", map(problem_line, view.problems)),
    ]
    if view.prose:
        lines += ["", "text of the file (unverified):"]
        lines += [GUTTER + part for text in view.prose.split("\n") for part in _wrapped(printable(text))]
    return lines


def _inputs(view: RunbookView) -> Iterator[str]:
    for one in view.inputs:
        told = f": {printable(one.help)}" if one.help else ""
        yield f"{one.name}  {one.type}, {printable(one.bounds)}{told}"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    told = [part for text in lines for part in _wrapped(printable(text), "  ")]
    return ["", f"{title}:", *told] if told else []


def _wrapped(text: str, indent: str = "") -> list[str]:
    lead = indent + " " * (len(text) - len(text.lstrip()))
    found = textwrap.wrap(text.strip(), WIDTH, initial_indent=lead, subsequent_indent=lead + "  ")
    return found or [""]


def lint(arguments: argparse.Namespace) -> int:
    """Look at files without an engine. Returns 2 when one has a problem."""
    from runbooks.procedures.linter import lint_file

    problems: list[FileProblem] = []
    for name in arguments.files:
        problems += lint_file(_bytes(name), printable(name))
    if arguments.json:
        write_json(problems)
    else:
        write_lines(map(problem_line, problems))
        files = f"{len(arguments.files)} file{'s' if len(arguments.files) > 1 else ''}"
        count = f"{len(problems) or 'no'} problem{'s' if len(problems) != 1 else ''}"
        tell_lines([f"{files}, {count}"])
    return FAULTY if problems else 0


def _bytes(name: str) -> bytes:
    from pathlib import Path

    from runbooks.procedures.program import file_of
    from runbooks.untrusted.strict_formats import MAX_BYTES

    if name == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    file = file_of(Path(name))
    if file.unreadable:
        raise SpecError(printable(name), file.unreadable, "Check the path and its permissions")
    return file.data


def problem_line(problem: FileProblem) -> str:
    return printable(f"{problem.where}: {problem.rule}: {problem.problem}. {problem.remedy}")


def run(arguments: argparse.Namespace) -> None:
    """Print the effect of a runbook; without --dry-run, propose it."""
    ask = RunbookAsk(
        id=arguments.id, inputs=inputs_of(arguments.input), dry_run=arguments.dry_run, reason=arguments.reason
    )
    with closing(connect(arguments)) as client:
        made = client.run_runbook(ask)
    write_json(made) if arguments.json else write_lines(run_lines(made))


def inputs_of(given: list[str]) -> dict[str, str]:
    """Raises SpecError for what is not NAME=VALUE, and for a name that is given twice."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise SpecError("--input", f"{ascii(text)[:60]} is not NAME=VALUE", "Write it like --input node=gpu-007")
        if name in found:
            raise SpecError("--input", f"{ascii(name)[:40]} is given twice", "Separate several ids with commas")
        found[name] = value
    return found


def run_lines(made: RunbookRun) -> list[str]:
    line = made.line
    applies = "yes" if made.applies else "NO"
    lines = [
        f"{printable(line.id)} version {line.version}: {printable(line.title)}",
        *_wrapped(f"{line.status}: {printable(line.note)}"),
        *_section(
            "inputs", (f"{one.name} = {', '.join(map(printable, one.values))}  ({one.source})" for one in made.inputs)
        ),
        *_section(f"applies now: {applies}", (f"{_mark(f.verdict)} {f.found}" for f in made.when)),
        "",
    ]
    if made.proposal is None:
        return [*lines, *_wrapped(f"cannot run now: {printable(made.refused)}")]
    lines += proposal_lines(made.proposal)
    lines += _section("skipped, nothing to act on", made.skipped)
    lines += _section("checked after each step", map(printable, made.checks))
    lines += _section("rollback, last step first", map(printable, made.rollback))
    if made.dry_run:
        return [*lines, "", "dry run: nothing was proposed, nothing was done"]
    waits = f" by {printable(made.proposal.need)}" if made.proposal.need else ""
    return [
        *lines,
        "",
        *_wrapped(f"{made.proposal.id} waits for approval{waits}: muster proposal approve {made.proposal.id}"),
    ]


def _mark(verdict: str) -> str:
    return {"success": "+", "failure": "-"}.get(verdict, "?")


def approve(arguments: argparse.Namespace) -> None:
    """Show the file, ask, and approve exactly its bytes."""
    with closing(connect(arguments)) as client:
        view = client.runbook(arguments.id)
        sha256 = _sha256(view, arguments)
        if not arguments.yes:
            tell_lines(view_lines(view))
            approved_or_refused(arguments)
        signed = None
        if view.line.signed:
            shown = hashlib.sha256("\n".join(view_lines(view)).encode()).hexdigest()
            signed = identity_of(arguments).sign(
                client.whoami(), kind="vote", proposal=f"runbook:{view.line.id}", revision=view.line.version,
                digest=sha256, verdict="approve", screen=shown,
            )  # fmt: skip
        vote = RunbookVote(id=view.line.id, sha256=sha256, comment=arguments.comment, signed=signed)
        line = client.approve_runbook(vote)
    _decided(arguments, line)


def _sha256(view: RunbookView, arguments: argparse.Namespace) -> str:
    """Hash of the version shown. With --yes, unseen, the person names the bytes they mean."""
    given: str = arguments.sha256 or ""
    if not given:
        if arguments.yes:
            raise SpecError("--yes", "approves a file that was not shown", "Add --sha256 of the file you reviewed")
        return view.line.sha256
    if len(given) < 12 or not view.line.sha256.startswith(given.lower()):
        raise RefusedError(
            f"{printable(view.line.id)} is {view.line.sha256} now, not {ascii(given)[:64]}",
            "Review it again: muster runbook show",
        )
    return view.line.sha256


def retire(arguments: argparse.Namespace) -> None:
    """End the use of what a runbook says now, for good."""
    approved_or_refused(arguments)
    with closing(connect(arguments)) as client:
        line = client.retire_runbook(RunbookVote(id=arguments.id, comment=arguments.reason))
    _decided(arguments, line)


def _decided(arguments: argparse.Namespace, line: RunbookLine) -> None:
    if arguments.json:
        write_json(line)
    else:
        write_lines([f"{printable(line.id)} version {line.version}: {line.status}, {printable(line.note)}"])
