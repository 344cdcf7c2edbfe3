"""Commands of drafts: `draft`, `handover`, `incident summary` and `cell model`. None of them changes the cell.

The rules' draft is written first, then the model's or the reason why there is none. An interrupt stops the model only.
Drafts go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from console.client.attach import connect
from console.commands.acting import STOPPED_SHORT, proposal_lines, votes
from console.commands.show import tell_lines, write_json, write_lines
from console.text.guarded_streams import write_over
from console.text.plain_tables import facts
from console.text.terminal_text import printable
from console.views.draft import (
    SINCE_MS,
    commands,
    draft_columns,
    fact_section,
    list_line,
    model_sections,
    standing_rows,
    thinking_spans,
)
from console.views.sections import section_lines
from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import duration_ms
from runbooks.drafts.typed_draft import (
    MAX_EXCERPT_BYTES,
    MAX_EXCERPTS,
    DraftAsk,
    DraftRun,
    Excerpt,
    ModelStanding,
    Task,
    picked,
)

if TYPE_CHECKING:
    from console.client.protocol import Client


WIDTH = 78
WAIT_S = 10.0
"""Longest wait of one question for news."""
TOLD_EVERY_S = 0.5
"""Interval of progress lines while a person watches."""
_DRAFT = re.compile(r"D-[0-9]{1,11}")
_RUNBOOK = re.compile(r"[a-z0-9][a-z0-9-]*")


def draft(arguments: argparse.Namespace) -> int:
    """A question, or a draft that there is by its id, or all there are. Returns 4 where nobody made a draft of use."""
    _refuse_out(arguments)
    if arguments.list:
        _drafts(arguments)
        return 0
    if _DRAFT.fullmatch(arguments.question):
        return _picked(arguments) if arguments.pick else _shown(arguments)
    return _drafted(arguments, asked(arguments))


def handover(arguments: argparse.Namespace) -> int:
    return _reported(arguments, "handover")


def incident(arguments: argparse.Namespace) -> int:
    return _reported(arguments, "incident")


def _drafts(arguments: argparse.Namespace) -> None:
    """List the kept drafts, newest first."""
    with closing(connect(arguments)) as client:
        runs = client.draft_runs()
        now_ms = client.health().now_ms
    if arguments.json:
        write_json(runs)
        return
    write_lines([list_line(run, now_ms, WIDTH) for run in runs] or ["no drafts yet: muster draft 'QUESTION'"])


def model(arguments: argparse.Namespace) -> None:
    """Print the configured model, its state, the data it receives, and its cost so far."""
    with closing(connect(arguments)) as client:
        standing = client.model()
    if arguments.json:
        write_json(standing)
        return
    write_lines(facts(standing_rows(standing)))
    if not standing.configured:
        print("configure one with MUSTER_MODEL_URL and MUSTER_MODEL, then restart the engine", file=sys.stderr)


# --- what is asked


def asked(arguments: argparse.Namespace) -> DraftAsk:
    """Raises SpecError for a text that cannot be read. What else is of no use the engine names in its answer, and
    drafts from the rest."""
    task: Task = "explain" if arguments.explain else "runbook" if arguments.runbook is not None else "act"
    if len(arguments.excerpt) > MAX_EXCERPTS:
        raise SpecError("--excerpt", f"is given {len(arguments.excerpt)} times; the limit is {MAX_EXCERPTS}")
    question, book = _typed(arguments.question), _typed(arguments.runbook or "")
    if book and not question and not _RUNBOOK.fullmatch(book):
        question, book = book, ""  # it stood behind --runbook, where an id may stand
    excerpts = tuple(map(excerpt_of, arguments.excerpt))
    if (excerpts or arguments.texts_of) and not arguments.llm:
        print("the rules do not read texts: --excerpt and --texts-of need --llm", file=sys.stderr)
    return DraftAsk(
        task=task, question=question, finding=_typed(arguments.source), pick=_typed(arguments.pick),
        model=arguments.llm, excerpts=excerpts, texts_of=tuple(map(_typed, arguments.texts_of)), runbook=book,
    )  # fmt: skip


def _typed(text: str) -> str:
    """The typed text, with a question mark for each byte that is not UTF-8."""
    return text.strip().encode("utf-8", "replace").decode()


def excerpt_of(name: str) -> Excerpt:
    """A text file, or standard input for `-`, as something to be looked at. Raises SpecError."""
    where = f"--excerpt {printable(name)[:80]}"
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_EXCERPT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_EXCERPT_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a name of a file"
        raise SpecError(where, f"cannot be read: {why}", "Check the path and its permissions") from None
    if len(data) > MAX_EXCERPT_BYTES:
        most = MAX_EXCERPT_BYTES >> 20
        raise SpecError(where, f"has more than {most} MiB", "Keep the part that matters, for example with tail -n 2000")
    if b"\0" in data:
        raise SpecError(where, "is not text", "Give a log or another text file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(
            where, f"is not UTF-8 text (byte {error.start:,})", "Convert it, for example with iconv"
        ) from None
    return Excerpt(field="standard input" if name == "-" else f"file {_typed(Path(name).name)}", text=text)


def _reported(arguments: argparse.Namespace, task: Task) -> int:
    """From so far back until now."""
    back_ms = SINCE_MS[task]
    if arguments.since:
        try:
            back_ms = duration_ms(arguments.since)
        except ValueError as error:
            raise SpecError("--since", str(error), "Write it like --since 4h") from None
    arguments.propose = ""
    question, about = _typed(arguments.question), _typed(arguments.source)
    ask = DraftAsk(task=task, question=question, finding=about, model=arguments.llm)
    return _drafted(arguments, ask, back_ms)


# --- how it goes


def _drafted(arguments: argparse.Namespace, ask: DraftAsk, back_ms: int = 0) -> int:
    with closing(connect(arguments)) as client:
        if back_ms:
            ask = msgspec.structs.replace(ask, since_ms=max(1, client.health().now_ms - back_ms))
        return _followed(arguments, client, client.draft(ask))


def _shown(arguments: argparse.Namespace) -> int:
    """A draft that was asked for before. Raises SpecError for what would be another question."""
    _refuse_more(arguments)
    with closing(connect(arguments)) as client:
        return _followed(arguments, client, client.draft_run(arguments.question))


def _picked(arguments: argparse.Namespace) -> int:
    """The question of a draft once more, for one of its choices. Raises SpecError, RefusedError."""
    _refuse_more(arguments)
    with closing(connect(arguments)) as client:
        ask = picked(client.draft_run(arguments.question), _typed(arguments.pick))
        return _followed(arguments, client, client.draft(ask))


def _refuse_more(arguments: argparse.Namespace) -> None:
    more = ("source", "llm", "explain", "runbook", "excerpt", "texts_of")
    if any(getattr(arguments, name) for name in more):
        raise SpecError("draft", f"{arguments.question} is a draft already", "Ask the question again with these flags")


def _followed(arguments: argparse.Namespace, client: Client, run: DraftRun) -> int:
    """Wait for what is being drafted and write each draft as it comes. Gives the exit code."""
    quiet = arguments.json
    try:
        run = _until(client, run, lambda run: run.rule_state != "drafting", quiet=quiet)
    except KeyboardInterrupt:
        client.cancel_draft(run.id)
        raise
    if not quiet:
        write_lines(rule_lines(run, None if run.ask.model else client.model(), client.health().now_ms))
        sys.stdout.flush()
    try:
        run = _until(client, run, lambda run: run.over, quiet=quiet)
    except KeyboardInterrupt:
        run = _until(client, client.cancel_draft(run.id), lambda run: run.over, quiet=True)
    if not quiet:
        write_lines(model_lines(run))
    if getattr(arguments, "out", ""):
        _write(arguments.out, run)
    if arguments.propose:
        _propose(arguments, client, run.id)
    elif quiet:
        write_json(run)
    else:
        print(f"{printable(run.id)}: nothing was proposed, nothing was done", file=sys.stderr)
    return 0 if run.rule is not None or run.model is not None else STOPPED_SHORT


def _until(client: Client, run: DraftRun, done: Callable[[DraftRun], bool], *, quiet: bool) -> DraftRun:
    """The draft once that holds; meanwhile, where a person watches, how far it is."""
    watched = not quiet and sys.stderr.isatty()
    try:
        while not done(run):
            if watched:
                write_over(progress(run))
            run = client.draft_run(run.id, after=run.serial, wait_s=TOLD_EVERY_S if watched else WAIT_S)
    finally:
        if watched:
            write_over("")
    return run


def progress(run: DraftRun) -> str:
    """Write progress over the last such line."""
    if run.rule_state == "drafting":
        return "reading the cell and trying options on forks …"
    return "".join(text for text, _ in thinking_spans(run, WIDTH, commands(run.id).stop))


def rule_lines(run: DraftRun, standing: ModelStanding | None, now_ms: int) -> list[str]:
    """The question, and the draft of the rules. `standing`: of the model that was not asked."""
    alone = msgspec.structs.replace(run, model_state="off", model=None, agreement="")
    asked_of = standing if standing is not None and standing.configured else None
    left, right = draft_columns(alone, asked_of, now_ms, WIDTH, two=False, ways=commands(run.id))
    return section_lines([*left, *right])


def model_lines(run: DraftRun) -> list[str]:
    """The model's draft, or why there is none; of the facts it cites those that were not written yet."""
    if run.model_state == "off":
        return []
    sections = model_sections(run, WIDTH, commands(run.id))
    if run.model is not None:
        known = {fact.id for fact in run.rule.facts} if run.rule is not None else set()
        more = tuple(fact for fact in run.model.facts if fact.id not in known)
        sections += fact_section((msgspec.structs.replace(run.model, facts=more),), WIDTH)
    compared = ["", f"compared: {printable(run.agreement)}"] if run.agreement else []
    return ["", *section_lines(sections), *compared]


def _refuse_out(arguments: argparse.Namespace) -> None:
    """Check --out before anything is drafted. Raises SpecError, RefusedError."""
    if not arguments.out:
        return
    if not _DRAFT.fullmatch(arguments.question) and arguments.runbook is None:
        raise SpecError("--out", "needs a runbook draft", "Add --runbook")
    if Path(arguments.out).exists():
        raise RefusedError(f"{printable(arguments.out)[:80]} already exists", "Give --out a new file name")


def _write(name: str, run: DraftRun) -> None:
    """The drafted runbook as a file: the model's where it made one, else the rules'. Raises RefusedError, SpecError."""
    made = next((one for one in (run.model, run.rule) if one is not None and one.runbook is not None), None)
    shown = printable(name)[:80]
    if made is None or made.runbook is None:
        raise RefusedError(f"no runbook was drafted, so {shown} is not written", "See what the draft says instead")
    try:
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(made.runbook.text)
    except FileExistsError:
        raise RefusedError(f"{shown} already exists", "Give --out a new file name") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a name of a file"
        raise SpecError(f"--out {shown}", f"cannot be written: {why}", "Check the path and its permissions") from None
    whose = "the rules'" if made.drafter == "rule" else "the model's, unverified"
    tell_lines([f"wrote {shown}: {whose}; check it with muster runbook lint {shown}"])


def _propose(arguments: argparse.Namespace, client: Client, draft_id: str) -> None:
    """Its proposal's id to standard output; what was put to the vote, and whose votes it needs, beside it."""
    made = client.propose_draft(draft_id, arguments.propose, arguments.reason)
    if arguments.json:
        write_json(made)
        return
    tell_lines(proposal_lines(made))
    write_lines([printable(made.id)])
    needs = f"needs {votes(made.needs)}: {printable(made.need)}" if made.needs else "needs no more votes"
    tell_lines([f"{printable(made.id)} {needs}; nothing is done yet: muster proposal approve {printable(made.id)}"])
