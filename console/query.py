"""The filter language of console and shell: `state:queued queue:research/* gpu>=8 age>1h !tenant:acme word`.

A term is `column` operator `value`, `!` in front to negate. `:` and `=` mean "is" (`*` stands for any characters,
`a,b` for either), `~` means "contains". A word alone looks into id and name. Terms on one column are alternatives,
different columns must all hold: that is what `engine.query.Term` promises, nothing is added here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from console.text import printable, read_value
from engine.errors import SpecError
from engine.model import NodeState, QueueMode, WorkloadState
from engine.query import COLUMNS, Column, Kind, Op, Term

ANYWHERE = "text"
"""Pseudo column of a word alone: id or name contains it."""

VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("workloads", "state"): tuple(state.label for state in WorkloadState),
    ("nodes", "state"): tuple(state.label for state in NodeState),
    ("queues", "state"): tuple(mode.label for mode in QueueMode),
    ("queues", "burst"): ("idle", "burst", "cooldown"),
    ("reservations", "state"): ("ahead", "active"),
    ("pools", "spot"): ("spot", "on-demand"),
    ("orders", "state"): ("open", "filled", "cancelled", "refused"),
    ("workloads", "reason"): (
        "OnHold", "Suspended", "WaitingForDependency", "DependencyNeverSatisfied", "WaitingForStartTime", "Backoff",
        "WaitingForPreempted", "QueueHeld", "BehindInQueue", "ArrayLimit", "BudgetHold", "WaitingForReservation",
        "NoMatchingNodes", "WaitingForQuota", "InsufficientCapacity", "Fragmented", "NoDomainFits",
        "AwaitingEvaluation", "TurnedOnDemand",
    ),
}  # fmt: skip
"""Closed sets: a value outside them is a slip of the fingers, and completion offers them."""

_TERM = re.compile(r"(!?)([A-Za-z][A-Za-z_]*)(!=|!~|>=|<=|[:=~<>])(.*)", re.DOTALL)
_OPS: dict[str, Op] = {":": "=", "=": "=", "~": "~", "!=": "!=", "!~": "!~", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_NEGATED: dict[Op, Op] = {
    "=": "!=", "!=": "=", "~": "!~", "!~": "~", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
}  # fmt: skip
_SHORT = {"gpus": "gpu", "cpus": "cpu", "mem": "memory", "prio": "priority", "est": "estimate", "model": "gpu_model"}


class FilterError(SpecError):
    """A filter that cannot be read. `start` and `end` bound the offending characters of the text."""

    def __init__(self, start: int, end: int, problem: str, remedy: str = "") -> None:
        super().__init__(f"filter, character {start + 1}", problem, remedy)
        self.start = start
        self.end = end
        self.short = problem

    def caret(self) -> str:
        """A line of carets to put below the text."""
        return " " * self.start + "^" * max(1, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Token:
    """A run of characters without an unquoted space."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def parse_filter(kind: Kind, text: str) -> tuple[Term, ...]:
    """The terms of a filter. Raises FilterError pointing at what cannot be read."""
    return tuple(term for token in tokens(text) for term in _terms(kind, token))


def tokens(text: str) -> list[Token]:
    """The filter's terms as written. A quote that is not closed runs to the end (`parse_filter` refuses it)."""
    return [Token(match[0], match.start()) for match in re.finditer(r'(?:"[^"]*(?:"|$)|[^\s"])+', text)]


def complete(kind: Kind, text: str, cursor: int, values: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    """What the term under the cursor could become, best first. `values` adds known values by column name."""
    token = token_at(text, cursor)
    typed = token.text[: cursor - token.start]
    match = _TERM.fullmatch(typed)
    if match is None:
        bang, stem = ("!", typed[1:]) if typed.startswith("!") else ("", typed)
        stem = stem.lower()
        return [bang + name + _first_op(column) for name, column in _named(kind).items() if name.startswith(stem)]
    bang, name, op, value = match.groups()
    column = _column(kind, name)
    if column is None:
        return [bang + near + op + value for near in _nearest(kind, name)]
    known = (*VALUES.get((kind, column.name), ()), *(values or {}).get(column.name, ()))
    head, comma, stem = value.rpartition(",")
    offers = [known_value for known_value in known if known_value.lower().startswith(stem.lower())]
    return [f"{bang}{name}{op}{head}{comma}{quoted(offer)}" for offer in offers]


def token_at(text: str, cursor: int) -> Token:
    """The term the cursor is in or right behind; an empty one between terms."""
    for token in tokens(text):
        if token.start <= cursor <= token.end:
            return token
    return Token("", cursor)


def quoted(value: str) -> str:
    """A value as it must be written in a filter."""
    return f'"{value}"' if re.search(r"\s", value) else value


def _terms(kind: Kind, token: Token) -> list[Term]:
    if token.text.count('"') % 2:
        raise FilterError(token.start + token.text.rindex('"'), token.end, "this quote is not closed", 'Add a "')
    match = _TERM.fullmatch(token.text)
    if match is None:
        return [_word(token)]
    bang, name, sign, raw = match.groups()
    column = _column(kind, name)
    if column is None:
        raise _unknown_column(kind, name, token)
    op = _NEGATED[_OPS[sign]] if bang else _OPS[sign]
    at = token.start + match.start(4)
    if not raw:
        raise FilterError(at, at + 1, f"{name}{sign} needs a value", f"For example {_example(kind, column)}")
    if column.unit == "text":
        return [Term(column.name, op, _text_value(kind, column, op, part, at, token)) for part in _parts(raw)]
    return [Term(column.name, _number_op(op, sign, at), _number(column, part, at, token)) for part in _parts(raw)]


def _word(token: Token) -> Term:
    bang = token.text.startswith("!")
    word = token.text[bang:].replace('"', "")
    if not word:
        raise FilterError(token.start, token.end, "there is nothing to look for", "Write a word or column:value")
    return Term(ANYWHERE, "!~" if bang else "~", word)


def _parts(raw: str) -> list[str]:
    """`a,b` gives two values; a comma inside quotes belongs to the value."""
    return [part.replace('"', "") for part in re.findall(r'(?:"[^"]*"|[^,"])+', raw)]


def _text_value(kind: Kind, column: Column, op: Op, value: str, at: int, token: Token) -> str:
    if op not in ("=", "!=", "~", "!~"):
        raise FilterError(token.start, token.end, f"{column.name} is text and has no order", "Use : or ~ with it")
    known = VALUES.get((kind, column.name), ())
    if op in ("~", "!~") or "*" in value or not known:
        return value
    for name in known:
        if name.lower() == value.lower():
            return name
    near = get_close_matches(value, known, 1)
    hint = f"Did you mean {near[0]}?" if near else f"It can be {', '.join(known)}"
    raise FilterError(at, token.end, f"no {column.name} is called '{printable(value)}'", hint)


def _number_op(op: Op, sign: str, at: int) -> Op:
    if op in ("~", "!~"):
        raise FilterError(at - len(sign), at, "a number cannot contain something", "Use = < <= > or >= with it")
    return op


def _number(column: Column, value: str, at: int, token: Token) -> int:
    try:
        return read_value(column.unit, value)
    except (ValueError, OverflowError) as error:
        problem, _, remedy = str(error).partition("; ")
        raise FilterError(at, token.end, problem, remedy[:1].upper() + remedy[1:]) from None


def _unknown_column(kind: Kind, name: str, token: Token) -> FilterError:
    near = _nearest(kind, name)
    hint = f"Did you mean {near[0]}?" if near else f"Columns are {', '.join(column.name for column in COLUMNS[kind])}"
    start = token.start + token.text.startswith("!")
    return FilterError(start, start + len(name), f"{kind} have no column '{printable(name)}'", hint)


@cache
def _named(kind: Kind) -> dict[str, Column]:
    return {column.name: column for column in COLUMNS[kind]}


def _column(kind: Kind, name: str) -> Column | None:
    name = name.lower()
    return _named(kind).get(name) or _named(kind).get(_SHORT.get(name, ""))


def _nearest(kind: Kind, name: str) -> list[str]:
    return get_close_matches(name.lower(), list(_named(kind)), 3, 0.5)


def _first_op(column: Column) -> str:
    return ":" if column.unit == "text" else ">="


_EXAMPLES = {"text": "acme", "memory": "64g", "disk": "64g", "duration": "2h", "time": "2026-03-01", "permille": "80%"}


def _example(kind: Kind, column: Column) -> str:
    known = VALUES.get((kind, column.name))
    return column.name + _first_op(column) + (known[0] if known else _EXAMPLES.get(column.unit, "8"))
