"""Pages whose rows the console holds itself: their columns, and which rows satisfy the terms of a filter.

The same promises as `engine.model.queries.Term` makes for the lists of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache

from engine.model.queries import Column, Term

Value = str | int | None
ANYWHERE = "text"
"""Pseudo column of a word alone: any text of the row contains it."""

PAGE_COLUMNS: dict[str, tuple[Column, ...]] = {
    "events": (
        Column("at", "TIME", "time", "When it happened"),
        Column("what", "EVENT", "text", "What happened: submitted, placed, running, finished, down, …"),
        Column("subject", "SUBJECT", "text", "Id of the workload, node, queue or pool it happened to"),
        Column("detail", "DETAIL", "text", "What else is said of it"),
        Column("age", "AGE", "duration", "How long ago; since:10m is age<=10m"),
    ),
    "proposals": (
        Column("id", "ID", "text", "Id of the proposal"),
        Column("state", "STATE", "text", "awaiting, approved, executing, paused, verified, rejected, …"),
        Column("tier", "TIER", "text", "T0 to T3"),
        Column("title", "TITLE", "text", "What it does"),
        Column("author", "AUTHOR", "text", "Who asked for it"),
        Column("votes", "VOTES", "text", "Which it has and which it needs"),
        Column("note", "NOTE", "text", "What it waits for, or why it is in this state"),
    ),
    "runbooks": (
        Column("id", "RUNBOOK", "text", "Id of the runbook"),
        Column("version", "VERSION", "text", "Of its text"),
        Column("status", "STATUS", "text", "draft, approved, changed, retired, faulty"),
        Column("problems", "PROBLEMS", "text", "What is wrong with it"),
        Column("title", "TITLE", "text", "What it is for"),
        Column("note", "NOTE", "text", "Why it has that status"),
    ),
    "drafts": (
        Column("id", "DRAFT", "text", "Id of the draft"),
        Column("task", "TASK", "text", "act, explain, runbook, handover, incident"),
        Column("question", "QUESTION", "text", "What was asked"),
        Column("by", "BY", "text", "Who asked"),
        Column("age", "AGE", "duration", "How long ago it was asked"),
    ),
}


def matches(terms: Sequence[Term], values: Mapping[str, Value]) -> bool:
    """Whether a row satisfies them all. Positive terms on one column are alternatives."""
    either: dict[str, bool] = {}
    for term in terms:
        holds = _anywhere(term, values) if term.column == ANYWHERE else _holds(term, values.get(term.column))
        if term.op in ("=", "~"):
            either[term.column] = either.get(term.column, False) or holds
        elif not holds:
            return False
    return all(either.values())


def _anywhere(term: Term, values: Mapping[str, Value]) -> bool:
    found = any(_holds(Term("", "~", term.value), value) for value in values.values() if isinstance(value, str))
    return found if term.op == "~" else not found


def _holds(term: Term, value: Value) -> bool:
    if isinstance(term.value, int):
        return isinstance(value, int) and _ORDER[term.op](value, term.value)
    text = "" if value is None else str(value)
    if term.op in ("~", "!~"):
        return (term.value.casefold() in text.casefold()) is (term.op == "~")
    return (_pattern(term.value).match(text) is not None) is (term.op == "=")


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(translate(text.replace("[", "[[]")) if "*" in text else re.escape(text) + r"\Z", re.IGNORECASE)


_ORDER: dict[str, Callable[[int, int], bool]] = {
    "=": int.__eq__, "!=": int.__ne__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__,
}  # fmt: skip
