"""A draft or a report as Markdown: into a file, or into the person's editor."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from console.text.terminal_text import printable, timestamp
from engine.model.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from console.tui.app import MusterApp
    from console.tui.screens.draft import DraftPane
    from runbooks.drafts.typed_draft import DraftRun, Sentence

TITLES = {"handover": "Hand-over of the shift", "incident": "Summary of an incident"}
_SIGNS = re.compile(r"([\\`*_\[\]<>#|~])")
"""What Markdown or HTML would take for something else than text."""


def markdown(run: DraftRun) -> str:
    """What the rules say, section by section; what a model says stands behind `>`, and is said to be unchecked."""
    asked = f"{printable(run.id)}, {timestamp(run.asked_ms)} UTC" + (f", for {printable(run.who)}" if run.who else "")
    lines = [f"# {TITLES.get(run.ask.task, 'Draft')}", "", asked, ""]
    if run.ask.question:
        lines += [f"> {plain(run.ask.question)}", ""]
    draft = run.rule
    if draft is None:
        return "\n".join([*lines, plain(run.rule_why) or "There is no draft by rule.", ""])
    lines += _listed("", (*draft.summary, *draft.rationale))
    for part in draft.parts:
        lines += _listed(part.heading, part.sentences, "Nothing.")
    lines += _listed("Mind", draft.risks) + _listed("Find out first", draft.questions)
    if run.model is not None:
        said = (*run.model.summary, *(each for part in run.model.parts for each in part.sentences))
        lines += ["## Words of the model, not checked", "", *(f"> {text_of(each)}" for each in said), ""]
    facts = {fact.id: fact for fact in draft.facts}
    if facts:
        lines += ["## Facts", "", *(f"- {plain(fact.id)}: {plain(fact.text)}" for fact in facts.values()), ""]
    return "\n".join(lines)


def _listed(heading: str, sentences: Sequence[Sentence], none: str = "") -> list[str]:
    if not sentences and not none:
        return []
    head = [f"## {plain(heading)}", ""] if heading else []
    return [*head, *([f"- {text_of(each)}" for each in sentences] or [none]), ""]


def text_of(sentence: Sentence) -> str:
    """With the reason where it is unsupported."""
    return plain(f"{sentence.text} (unsupported: {sentence.unsupported})" if sentence.unsupported else sentence.text)


def plain(text: str) -> str:
    """Foreign text as Markdown shows it letter by letter, on one line."""
    return _SIGNS.sub(r"\\\1", " ".join(printable(text).split()))


# --- into a file, or an editor


def save(app: MusterApp, argument: str) -> None:
    """`:save PATH`; by key, begin that line with a name to change. Raises SpecError."""
    run = _shown(app)
    if not argument:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        app.bars.open_command(f"save ~/muster-{run.ask.task}-{stamp}.md")
        return
    if "\0" in argument:
        raise SpecError("", "a name of a file has no such characters", "Give another name")
    path = Path(os.path.abspath(os.path.expanduser(argument.strip())))
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(markdown(run))
    except FileExistsError:
        raise SpecError("", f"{printable(str(path))} is there already", "Give another name") from None
    except OSError as error:
        raise SpecError(
            "", f"{printable(str(path))} cannot be written ({error.strerror})", "Give another name"
        ) from None
    app.say(f"{printable(run.id)} is in {printable(str(path))}")


def edit(app: MusterApp, argument: str) -> None:
    """In $VISUAL or $EDITOR, while the console stands aside. Raises SpecError."""
    from textual.app import SuspendNotSupported

    run = _shown(app)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    descriptor, name = tempfile.mkstemp(prefix=f"muster-{run.ask.task}-", suffix=".md")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(markdown(run))
    try:
        with app.suspend():
            ended = subprocess.run([*editor, name], check=False).returncode
    except SuspendNotSupported:
        Path(name).unlink(missing_ok=True)
        raise SpecError("", "no editor can be shown here", "Write it to a file with :save PATH") from None
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise SpecError("", f"{printable(editor[0])} cannot be started ({error.strerror})", "Set EDITOR") from None
    app.refresh(layout=True)
    app.say(f"{printable(run.id)} is in {name}" + (f"; the editor ended with {ended}" if ended else ""))


def _shown(app: MusterApp) -> DraftRun:
    """The draft on the page. Raises RefusedError while there is none."""
    detail = cast("DraftPane", app.navigator.current).detail if app.context().screen == "draft" else None
    if detail is None:
        raise RefusedError("no draft is shown here", "Go to one first, such as :handover")
    return detail.run
