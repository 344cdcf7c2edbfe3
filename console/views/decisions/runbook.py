"""View models of runbooks: the shelf, and one of them. No Textual in here.

The typed front matter is shown as the engine understood it; the prose is a foreign text, framed.
"""

from __future__ import annotations

from collections.abc import Sequence

from console.text.terminal_text import cut, printable, wrap
from console.text.tones import state_look
from console.views.decisions.proposal import framed, hanging
from console.views.lists import Heading, Row, Span
from console.views.sections import Line, Section, text_line
from runbooks.procedures.queries import RunbookLine, RunbookRun, RunbookView

HEADINGS = (
    Heading("id", "ID", most=28),
    Heading("version", "VER", right=True, most=5),
    Heading("status", "STATUS", most=12),
    Heading("problems", "PROBLEMS", right=True, most=8),
    Heading("title", "TITLE", most=48),
    Heading("note", "NOTE", most=200),
)
STATUS = {
    "draft": "not approved here: it can be tried, not run",
    "approved": "its exact bytes are approved",
    "changed": "the file is not the one that was approved: it can be tried, not run",
    "retired": "its use was ended, for good",
    "faulty": "it has problems: it cannot be run",
}


def row_of(line: RunbookLine) -> Row:
    glyph, tone = state_look(line.status)
    cells: tuple[Span, ...] = (
        (printable(line.id), ""),
        (str(line.version), "dim"),
        (f"{glyph} {line.status}", tone),
        (f"{line.problems:,}" if line.problems else "–", "bad" if line.problems else "faint"),
        (printable(line.title), ""),
        (printable(line.note), "dim"),
    )
    return Row(line.id, cells, line.status)


def columns(view: RunbookView, tried: RunbookRun | str | None, width: int) -> tuple[list[Section], list[Section]]:
    """`tried`: a dry run with what is selected and by default, why there is none, or not asked yet."""
    left = [_head(view.line, width)]
    if view.problems:
        left.append(_problems(view, width))
    left += [_inputs(view, width), _applies(view, tried, width), _steps(view, width)]
    right = []
    if view.votes:
        votes = [line for vote in view.votes for line in hanging("", printable(vote), width)]
        right.append(Section("Approved by", tuple(votes)))
    prose = framed(view.prose, width) if view.prose else [text_line("none", "dim")]
    right.append(Section("Prose", tuple(prose), "not checked, decides nothing"))
    return left, right


def _head(line: RunbookLine, width: int) -> Section:
    glyph, tone = state_look(line.status)
    lines = [Line(((f"{glyph} {line.status}", tone), (f"   {STATUS[line.status]}", "dim")))]
    lines += hanging("", printable(line.note), width) if line.note else []
    for name, value in (("owner", line.owner), ("file", line.source), ("sha256", line.sha256)):
        lines += hanging(f"{name:<8}", printable(value), width)
    return Section(cut(printable(line.title), width - 12), tuple(lines), f"version {line.version}")


def _problems(view: RunbookView, width: int) -> Section:
    lines: list[Line] = []
    for each in view.problems:
        lines += hanging("✗ ", printable(f"{each.where}: {each.problem} ({each.rule})"), width, "bad")
        lines += hanging("  ", printable(each.remedy), width, "", "dim")
    return Section("Problems", tuple(lines), f"{len(view.problems):,}")


def _inputs(view: RunbookView, width: int) -> Section:
    lines: list[Line] = []
    for each in view.inputs:
        lines += hanging(f"{printable(each.name)}  ", printable(f"{each.type}, {each.bounds}"), width, "accent")
        lines += hanging("    ", printable(each.help), width, "", "dim") if each.help else []
    return Section("Inputs", tuple(lines or [text_line("none", "dim")]), "A asks for them")


def _applies(view: RunbookView, tried: RunbookRun | str | None, width: int) -> Section:
    lines: list[Line] = []
    note = ""
    if isinstance(tried, RunbookRun):
        note = "yes" if tried.applies else "no"
        lines += findings(tried, width)
    else:
        lines += [line for text in view.when for line in hanging("·  ", printable(text), width)]
        if isinstance(tried, str):
            lines += hanging("cannot tell yet: ", printable(tried), width, "warn")
    return Section("Applies now?", tuple(lines or [text_line("always", "dim")]), note)


def findings(run: RunbookRun, width: int) -> list[Line]:
    """Each condition, and whether it holds."""
    looks = {"success": ("✓ ", "ok"), "failure": ("✗ ", "bad"), "inconclusive": ("? ", "warn")}
    return [
        line
        for each in run.when
        for line in hanging(looks[each.verdict][0], printable(each.found), width, looks[each.verdict][1])
    ]


def _steps(view: RunbookView, width: int) -> Section:
    lines = [
        line
        for text in view.steps
        for line in hanging("      " if text.startswith(" ") else "  ", printable(text.strip()), width)
    ]
    lines += [text_line(line, "dim") for line in wrap(printable(view.limits), width)] if view.limits else []
    return Section("Steps", tuple(lines or [text_line("none can be read", "dim")]))


def run_lines(run: RunbookRun, width: int) -> list[Line]:
    """Above the plan of a run: whether it applies, and what its inputs are."""
    lines = findings(run, width)
    if not run.applies:
        lines.append(text_line("it does NOT apply now: it can be looked at, not proposed", "bad"))
    for each in run.inputs:
        value = ", ".join(each.values) or "–"
        lines += hanging(f"{printable(each.name)}  ", printable(f"{value} ({each.source})"), width, "accent")
    if run.skipped:
        lines += hanging("left out, with nothing to act on: ", printable(", ".join(run.skipped)), width, "warn")
    return lines


def request_words(line: str) -> tuple[str, dict[str, str]]:
    """`ID node=n1 pool=gpu` as id and inputs. Raises ValueError saying what is wrong."""
    import shlex

    words: Sequence[str] = shlex.split(line)
    if not words:
        raise ValueError("name a runbook, as in :run ID node=n1")
    inputs: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"'{printable(word)[:40]}' is not NAME=VALUE")
        if name in inputs:
            raise ValueError(f"{printable(name)[:40]} is given twice")
        inputs[name] = value
    return words[0], inputs
