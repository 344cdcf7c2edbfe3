"""The filter language of console and shell: `state:queued queue:research/* gpu>=8 age>1h !tenant:acme word`.

A term is `column` operator `value`, with `!` in front to negate. `:` and `=` mean "is" (`*` stands for any characters,
`a,b` for either), `~` means "contains". A word alone looks into id and name. Terms on one column are alternatives, and
different columns must all hold, as `engine.model.list_queries.Term` promises. States of other tools are understood too:
`state:pending` is `state:queued,held,waiting`. A view is a filter with `sort:queue,-wait` and `columns:id,state,gpu` in
it.

Lists of the engine are filtered by the engine. For pages whose rows the console holds itself, their columns
(`PAGE_COLUMNS`) and the matching (`matches`) are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from functools import cache, lru_cache

from console.text.terminal_text import printable, read_value
from engine.model.errors import SpecError, did_you_mean
from engine.model.list_queries import COLUMNS, Column, Op, Term
from engine.model.specs import NodeState, QueueMode, WorkloadState

Value = str | int | None
ANYWHERE = "text"
"""Pseudo column of a word alone: any text of the row contains it."""

PAGE_COLUMNS: dict[str, tuple[Column, ...]] = {
    "events": (
        Column("at", "TIME", "time", "When it happened"),
        Column("what", "EVENT", "text", "What happened: submitted, placed, running, finished, down, …"),
        Column("subject", "SUBJECT", "text", "Id of the workload, node, queue or pool it happened to"),
        Column("detail", "DETAIL", "text", "Details"),
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
    "incidents": (
        Column("id", "INCIDENT", "text", "Id of the incident"),
        Column("severity", "SEVERITY", "text", "critical, warning, info"),
        Column("state", "STATE", "text", "open, claimed, resolved, closed"),
        Column("age", "AGE", "text", "Since it began"),
        Column("owner", "OWNER", "text", "Who has it"),
        Column("firing", "FIRING", "text", "How many of its alerts fire"),
        Column("objects", "ABOUT", "text", "Queues, nodes, pools and workloads that it names"),
        Column("title", "TITLE", "text", "What is wrong"),
    ),
    "audit": (
        Column("proposal", "PROPOSAL", "text", "Id of a proposal; P-3 alone means that too"),
        Column("actor", "WHO", "text", "Whose act: alice, or an account as unix:1000"),
        Column("type", "TYPE", "text", "vote.approve, or vote for all of that kind; the type alone means that too"),
        Column("age", "AGE", "duration", "How long ago; since:2h is age<=2h"),
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
    """True when a row satisfies every term. Positive terms on one column are alternatives."""
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


Listed = str
"""Name of a list with columns to filter by: a `Kind` of the engine, or a page of `PAGE_COLUMNS`."""
SORT, COLUMN_TERM = "sort:", "columns:"
SINCE = ("events", "audit", "drafts")
"""Pages on which `since:10m` means at most that old."""

VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("workloads", "state"): tuple(state.label for state in WorkloadState),
    ("nodes", "state"): tuple(state.label for state in NodeState),
    ("queues", "state"): tuple(mode.label for mode in QueueMode),
    ("queues", "burst"): ("idle", "burst", "cooldown"),
    ("reservations", "state"): ("ahead", "active"),
    ("pools", "spot"): ("spot", "on-demand"),
    ("orders", "state"): ("open", "filled", "cancelled", "refused"),
    ("proposals", "state"): (
        "awaiting", "approved", "executing", "verifying", "paused", "verified", "failed", "rolling back", "rolled back",
        "rollback failed", "rejected", "denied", "stale", "expired", "superseded", "withdrawn", "drafted", "simulated",
    ),
    ("proposals", "tier"): ("T0", "T1", "T2", "T3"),
    ("incidents", "state"): ("open", "claimed", "resolved", "closed"),
    ("incidents", "severity"): ("critical", "warning", "info"),
    ("runbooks", "status"): ("draft", "approved", "changed", "retired", "faulty"),
    ("workloads", "reason"): (
        "OnHold", "Suspended", "WaitingForDependency", "DependencyNeverSatisfied", "WaitingForStartTime", "Backoff",
        "WaitingForPreempted", "QueueHeld", "BehindInQueue", "ArrayLimit", "BudgetHold", "WaitingForReservation",
        "NoMatchingNodes", "WaitingForQuota", "InsufficientCapacity", "Fragmented", "NoDomainFits",
        "AwaitingEvaluation", "TurnedOnDemand", "OutsideLimit",
    ),
}  # fmt: skip
"""Closed sets: a value outside them is a slip of the fingers, and completion offers them."""
_PENDING = ("queued", "held", "waiting")
_OVER = ("finished", "failed", "cancelled")
ALIASES: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("workloads", "state"): {
        "pending": _PENDING, "pd": _PENDING, "r": ("running",), "s": ("suspended",), "active": ("placed", "running"),
        "completed": ("finished",), "succeeded": ("finished",), "cd": ("finished",), "f": ("failed",),
        "ca": ("cancelled",), "canceled": ("cancelled",), "ended": _OVER, "over": _OVER,
    },
    ("nodes", "state"): {
        "up": ("ready",), "drain": ("draining",), "drng": ("draining",), "notready": ("down", "suspect"),
    },
    ("proposals", "state"): {
        "cancelled": ("withdrawn",), "rolling_back": ("rolling back",), "rolled_back": ("rolled back",),
        "rollback_failed": ("rollback failed",),
    },
}  # fmt: skip
"""Words of Slurm, Kubernetes and the API for values, and words for several of them. What a person has suspended is not
pending: it waits for nothing but a person."""

_TERM = re.compile(r"(!?)([A-Za-z][A-Za-z_]*)(!=|!~|>=|<=|[:=~<>])(.*)", re.DOTALL)
_OPS: dict[str, Op] = {":": "=", "=": "=", "~": "~", "!=": "!=", "!~": "!~", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_NEGATED: dict[Op, Op] = {
    "=": "!=", "!=": "=", "~": "!~", "!~": "~", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
}  # fmt: skip
_SHORT = {
    "gpus": "gpu", "cpus": "cpu", "mem": "memory", "prio": "priority", "est": "estimate", "model": "gpu_model",
    "user": "team", "account": "tenant", "partition": "queue", "node": "id", "event": "what", "who": "actor",
}  # fmt: skip
"""What else people write for a column, where the kind has it."""


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


def parse_filter(kind: Listed, text: str) -> tuple[Term, ...]:
    """The terms of a filter. Raises FilterError pointing at what cannot be read."""
    return tuple(term for token in tokens(text) for term in terms_of(kind, token))


@dataclass(frozen=True, slots=True)
class ViewLine:
    """A line that sets filter, order and columns of a list. Parts that it leaves out are None."""

    terms: tuple[Term, ...]
    filter_text: str
    """Without order and columns."""
    sort: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None


def parse_view(kind: Listed, text: str, shown: Sequence[str] = ()) -> ViewLine:
    """Filter, order and columns of one line. `shown`: columns of the page that the engine does not know. Raises
    FilterError pointing at the part that cannot be read."""
    words = tokens(text)
    sort = columns = None
    for word in words:
        if word.text.startswith(SORT):
            sort = parse_sort(kind, word.text.removeprefix(SORT), word.start + len(SORT))
        elif word.text.startswith(COLUMN_TERM):
            columns = parse_columns(kind, word.text.removeprefix(COLUMN_TERM), word.start + len(COLUMN_TERM), shown)
    plain = [word for word in words if not word.text.startswith((SORT, COLUMN_TERM))]
    terms = tuple(term for word in plain for term in terms_of(kind, word))
    return ViewLine(terms, " ".join(word.text for word in plain), sort, columns)


def parse_sort(kind: Listed, text: str, at: int = 0) -> tuple[str, ...]:
    """`queue,-wait` or `queue:asc,wait:desc` as the engine's sort: later columns break ties of earlier ones. `at` is
    the position of the text in the typed line. Raises FilterError."""
    found: list[str] = []
    for part, start in _listed(text, at):
        name, colon, order = part.removeprefix("-").partition(":")
        if colon and order not in ("asc", "desc"):
            begins = start + len(part) - len(order)
            problem = f"'{printable(order)[:40]}' is not a sort order"
            raise FilterError(begins, start + len(part), problem, "Write asc or desc after the colon")
        column = _known_column(kind, name, start + part.startswith("-"), "to sort by")
        if column not in [each.removeprefix("-") for each in found]:
            found.append(("-" if part.startswith("-") or order == "desc" else "") + column)
    return tuple(found)


def parse_columns(kind: Listed, text: str, at: int = 0, shown: Sequence[str] = ()) -> tuple[str, ...]:
    """`id,state,gpu` as names of columns, each once. Raises FilterError."""
    return tuple(dict.fromkeys(_known_column(kind, part, start, "", shown) for part, start in _listed(text, at)))


def _listed(text: str, at: int) -> list[tuple[str, int]]:
    """Parts between commas, with the start of each. Raises FilterError when there is none."""
    found = [(match[0], at + match.start()) for match in re.finditer("[^,]+", text)]
    if not found:
        raise FilterError(at, at + 1, "column names are missing", "For example queue,-wait")
    return found


def _known_column(kind: Listed, name: str, start: int, what: str, shown: Sequence[str] = ()) -> str:
    column = _column(kind, name)
    if column is not None:
        return column.name
    if name.lower() in shown:
        return name.lower()
    near = _nearest(kind, name)
    hint = f"Did you mean {near[0]}?" if near else f"It can be {', '.join(c.name for c in columns_of(kind))}"
    problem = f"no column '{printable(name)}' {what}".rstrip()
    raise FilterError(start, start + max(1, len(name)), problem, hint)


def columns_of(kind: Listed) -> tuple[Column, ...]:
    """Every column that rows of the kind have."""
    return COLUMNS[kind] if kind in COLUMNS else PAGE_COLUMNS[kind]


def tokens(text: str) -> list[Token]:
    """Terms of the filter as written. An unclosed quote runs to the end (`parse_filter` refuses it)."""
    return [Token(match[0], match.start()) for match in re.finditer(r'(?:"[^"]*(?:"|$)|[^\s"])+', text)]


def complete(kind: Listed, text: str, cursor: int, values: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Completions of the term under the cursor, best first. `values` adds known values by column name."""
    token = token_at(text, cursor)
    typed = token.text[: cursor - token.start]
    for word in (SORT, COLUMN_TERM):
        if typed.startswith(word):
            return [word + offer for offer in complete_columns(kind, typed.removeprefix(word), signed=word == SORT)]
    match = _TERM.fullmatch(typed)
    if match is None:
        bang, stem = ("!", typed[1:]) if typed.startswith("!") else ("", typed)
        stem = stem.lower()
        names = [bang + name + _first_op(column) for name, column in _named(kind).items() if name.startswith(stem)]
        extra = ["since:"] if kind in SINCE and "since".startswith(stem) and not bang else []
        ordered = [word for word in (SORT, COLUMN_TERM) if kind in COLUMNS and word.startswith(stem) and not bang]
        ids = [quoted(known) for known in (values or {}).get(ANYWHERE, ()) if stem and known.lower().startswith(stem)]
        return [*names, *extra, *ordered, *ids]
    bang, name, op, value = match.groups()
    column = _column(kind, name)
    if column is None:
        return [bang + near + op + value for near in _nearest(kind, name)]
    fixed = VALUES.get((kind, column.name), ())
    spoken = [word for word, means in ALIASES.get((kind, column.name), {}).items() if len(means) > 1 and len(word) > 2]
    known = dict.fromkeys((*fixed, *spoken, *(values or {}).get(column.name, ())))
    head, comma, stem = value.rpartition(",")
    offers = [known_value for known_value in known if known_value.lower().startswith(stem.lower())]
    return [f"{bang}{name}{op}{head}{comma}{quoted(offer)}" for offer in offers]


def complete_columns(kind: Listed, typed: str, *, signed: bool) -> list[str]:
    """Completions of a list of columns, without those already there. `signed`: each may have a `-`."""
    head, comma, stem = typed.rpartition(",")
    minus, stem = ("-", stem[1:]) if stem.startswith("-") and signed else ("", stem)
    there = {part.removeprefix("-") for part in head.split(",")}
    names = [name for name in _named(kind) if name.startswith(stem.lower()) and name not in there]
    return [f"{head}{comma}{minus}{name}" for name in names]


def asked_value(kind: Listed, text: str, cursor: int) -> tuple[str, str] | None:
    """Text column and beginning of the value typed at the cursor; (ANYWHERE, beginning) for a word alone; None where no
    value is typed."""
    token = token_at(text, cursor)
    typed = token.text[: cursor - token.start].removeprefix("!")
    match = _TERM.fullmatch(typed)
    if match is None:
        return (ANYWHERE, typed) if typed and not typed.startswith((SORT, COLUMN_TERM)) else None
    column = _column(kind, match[2])
    if column is None or column.unit != "text" or (kind, column.name) in VALUES:
        return None
    return column.name, match[4].rpartition(",")[2].replace('"', "")


def token_at(text: str, cursor: int) -> Token:
    """The term at the cursor, or right before it; an empty one between terms."""
    for token in tokens(text):
        if token.start <= cursor <= token.end:
            return token
    return Token("", cursor)


def quoted(value: str) -> str:
    """Value as it is written in a filter."""
    return f'"{value}"' if re.search(r"\s", value) else value


def terms_of(kind: Listed, token: Token) -> list[Term]:
    """The terms of one word of a filter; several for `a,b`. Raises FilterError."""
    if token.text.count('"') % 2:
        raise FilterError(token.start + token.text.rindex('"'), token.end, "this quote is not closed", 'Add a "')
    match = _TERM.fullmatch(token.text)
    if match is None:
        return [_word(token)]
    bang, name, sign, raw = match.groups()
    if name.lower() == "since" and kind in SINCE and sign in (":", "=") and not bang:
        name, sign = "age", "<="
    column = _column(kind, name)
    if column is None:
        raise _unknown_column(kind, name, token)
    op = _NEGATED[_OPS[sign]] if bang else _OPS[sign]
    at = token.start + match.start(4)
    if not raw:
        raise FilterError(at, at + 1, f"{name}{sign} needs a value", f"For example {_example(kind, column)}")
    if column.unit == "text":
        values = [value for part in _parts(raw) for value in _text_values(kind, column, op, part, at, token)]
        return [Term(column.name, op, value) for value in dict.fromkeys(values)]
    return [Term(column.name, _number_op(op, sign, at), _number(column, part, at, token)) for part in _parts(raw)]


def _word(token: Token) -> Term:
    bang = token.text.startswith("!")
    word = token.text[bang:].replace('"', "")
    if not word:
        raise FilterError(token.start, token.end, "empty search", "Write a word or column:value")
    return Term(ANYWHERE, "!~" if bang else "~", word)


def _parts(raw: str) -> list[str]:
    """`a,b` gives two values; a comma inside quotes belongs to the value."""
    return [part.replace('"', "") for part in re.findall(r'(?:"[^"]*"|[^,"])+', raw)]


def _text_values(kind: Listed, column: Column, op: Op, value: str, at: int, token: Token) -> tuple[str, ...]:
    if op not in ("=", "!=", "~", "!~"):
        raise FilterError(token.start, token.end, f"{column.name} is text: < and > do not apply", "Use : or ~ with it")
    known = VALUES.get((kind, column.name), ())
    if op in ("~", "!~") or "*" in value or not known:
        return (value,)
    for name in known:
        if name.lower() == value.lower():
            return (name,)
    if (meant := ALIASES.get((kind, column.name), {}).get(value.lower())) is not None:
        return meant
    hint = did_you_mean(value, known, f"It can be {', '.join(known)}")
    raise FilterError(at, token.end, f"no {column.name} is called '{printable(value)}'", hint)


def _number_op(op: Op, sign: str, at: int) -> Op:
    if op in ("~", "!~"):
        raise FilterError(at - len(sign), at, "a number has no substrings", "Use = < <= > or >= with it")
    return op


def _number(column: Column, value: str, at: int, token: Token) -> int:
    try:
        return read_value(column.unit, value)
    except (ValueError, OverflowError) as error:
        problem, _, remedy = str(error).partition("; ")
        raise FilterError(at, token.end, problem, remedy[:1].upper() + remedy[1:]) from None


def _unknown_column(kind: Listed, name: str, token: Token) -> FilterError:
    near = _nearest(kind, name)
    names = ", ".join(column.name for column in columns_of(kind))
    hint = f"Did you mean {near[0]}?" if near else f"Columns are {names}"
    start = token.start + token.text.startswith("!")
    have = "has" if kind == "audit" else "have"
    return FilterError(start, start + len(name), f"{kind} {have} no column '{printable(name)}'", hint)


@cache
def _named(kind: Listed) -> dict[str, Column]:
    return {column.name: column for column in columns_of(kind)}


def _column(kind: Listed, name: str) -> Column | None:
    name = name.lower()
    return _named(kind).get(name) or _named(kind).get(_SHORT.get(name, ""))


def _nearest(kind: Listed, name: str) -> list[str]:
    return get_close_matches(name.lower(), list(_named(kind)), 3, 0.5)


def _first_op(column: Column) -> str:
    return ":" if column.unit == "text" else ">="


_EXAMPLES = {"text": "acme", "memory": "64g", "disk": "64g", "duration": "2h", "time": "2026-03-01", "permille": "80%"}


def _example(kind: Listed, column: Column) -> str:
    known = VALUES.get((kind, column.name))
    return column.name + _first_op(column) + (known[0] if known else _EXAMPLES.get(column.unit, "8"))
