"""Words of the product for people: as an on-call engineer says them. Forms that read like a translation stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNREAD = "runbooks/models/prompt.py"
"""For models, not for people."""
PACKAGES = ("console", "engine", "recommender", "runbooks")
BANNED = {
    r"seen to work": "verified",
    r"\bthought out\b": "origin: operator",
    r"\bsaid of it\b": "log",
    r"\blikes'?(?! \w+ly\b) (use|take|p90)|\b(its|their|finished) likes\b": "similar jobs",
    r"\bleft alone\b": "not acted on",
    r"\bcame right\b": "resolved without action",
    r"\b(is|was|nothing|that) promised\b": "predicted",
    r"\babove what it may\b|\bmore than it may\b": "over limit",
    r"\b(none|it) has come due\b": "no track record yet",
    r"\bmarked no more\b": "unmarked",
    r"\bonly rises\b": "limits can only tighten",
    r"\bin pieces\b|\bin one piece\b": "fragmented",
    r"\bto look at$": "need attention",
    r"\bput(s)? .{0,20}to the vote\b": "open for votes",
    r"\bcarr(y|ies) it out\b|\bcarried out\b": "execute",
    r"\b(the )?glass (was|is) (broken|whole)\b|\bbroke the glass\b": "break-glass",
    r"\bway back\b": "rollback",
    r"\bwaits for (the|a|your) word\b|\byour word (is|does)\b": "needs confirmation; your vote",
    r"\bsay(s)? go\b": "confirm",
    r"\bbeing seen to\b": "verifying",
    r"\btaken back\b|\btakes? it back\b": "rolled back, removed, reclaimed",
    r"\bMend\b": "Fix",
    r"\bAsk (it )?again\b": "Try again",
    r"\bCome again\b": "Try again",
    r"\bWrite for example\b|\bGive for example\b": "Write it like",
    r"\bnobody can be asked here\b": "no terminal to ask on",
    r"\byou have not voted\b": "no vote cast",
    r"\bit is told\b|\bis told\b": "is shown, is notified",
    r"\bas (it was|things were) then\b|\bas it is now\b": "current state",
    r"\bis there (already|twice)\b": "already exists; given twice",
    r"\bdefect of Muster\b": "bug in Muster; internal error",
    r"\bNothing needs doing\b": "Nothing to do",
    r"\bhas exactly that\b": "already has that",
    r"\bDo nothing:": "No action:",
    r"\bNo suggestion (if|below|for)\b": "Not suggested if",
    r"\blooks on\b": "read-only",
    r"\bcannot tell\b": "not known",
    r"\bbrought in\b": "imported",
    r"Invalid enum value|is no (JSON|TOML|YAML)\b|unknown field `": "plain words of what is wrong",
    r"(?<!there )\bis no (path|pair|place|share|edit|resource|policy|table|regular|GRES|setting)\b": "is not a",
    r"\bhas forgotten it\b|\b(begun|started) anew\b": "has lost it; restarted",
    r"\bat hand\b": "installed, available",
    r"\bwaits for ever\b": "will never start",
    r"\bwas asked for already\b": "was already requested",
    r"\bnot seen to be\b|\bnot to be seen\b": "not confirmed; not visible",
    r"\b[Ww]rite for example\b|\bgive for example\b": "write it like",
    r"\bCheck the ids against\b|\bcorrect or leave out\b": "the nearest, and the command that lists them",
    r"\bno (id|type|name|number|time|token|URL|order|state) of a\b": "is not a",
}
"""Form -> the words that say it."""


def spoken(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Constants of the module and pieces of its f-strings, without docstrings and notes below a name."""
    silent: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            silent.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def found(source: str) -> list[tuple[int, str, str]]:
    return [
        (line, text, good)
        for line, text in spoken(ast.parse(source))
        for form, good in BANNED.items()
        if " " in text and re.search(form, text)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_people_read_has_no_banned_form(package: str) -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}: say {good!r}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != ROOT / UNREAD
        for line, text, good in found(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)


def test_the_look_finds_constants_and_pieces_of_f_strings_and_no_docstrings() -> None:
    source = 'def f(x):\n    """The way back."""\n    say(f"{x} is taken back")\n    say("a way back")\n'
    assert sorted(line for line, _, _ in found(source)) == [3, 4]
