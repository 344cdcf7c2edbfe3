"""View models of the audit: the filter, rows, one record, and the state of the log.

Records hold ids, reasons and comments of many authors. All of it is untrusted text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import msgspec

from console.forms.filters import ANYWHERE, FilterError, Token, terms_of, tokens
from console.text.terminal_text import printable, timestamp, wall_time
from console.views.lists import Heading, Row, Span
from console.views.proposal import framed, hanging, name_of
from console.views.sections import Line, Section, text_line
from runbooks.plans.queries import FOR_MACHINES, AuditQuery, AuditRow, AuditState

if TYPE_CHECKING:
    from runbooks.audit.verify import LogReport


HEADINGS = (
    Heading("seq", "RECORD", right=True, most=10),
    Heading("at", "UTC (WALL)", most=19),
    Heading("type", "TYPE", most=22),
    Heading("who", "WHO", most=16),
    Heading("proposal", "PROPOSAL", most=10),
    Heading("what", "WHAT", most=200),
)
_TYPE = re.compile(r"[a-z]{1,30}(\.[a-z_-]{1,60})?")
_PROPOSAL = re.compile(r"P-\d{1,11}")
_BAD = ("refused", "denied", "failed", "expired", "rejected", "stale", "breakglass")
"""Records that are worth a second look."""


def parse_words(text: str, now_ms: int = 0) -> AuditQuery:
    """`proposal:P-3 actor:alice type:exec since:2h`, or P-3 and exec alone. `now_ms`: wall clock. Raises FilterError at
    what cannot be read."""
    found: dict[str, str] = {}
    for token in tokens(text):
        name, value = _word(token)
        if name == "actor" and ":" not in value and value != "system":
            value = f"person:{value}"
        if name == "proposal" and _PROPOSAL.fullmatch(value) is None:
            raise FilterError(token.start, token.end, "is not a proposal id", "Write it like proposal:P-3")
        if name == "type" and _TYPE.fullmatch(value) is None:
            raise FilterError(token.start, token.end, "is not a record type", "Write it like type:exec")
        if name in found:
            raise FilterError(token.start, token.end, f"{name} is given twice", "Give it once")
        found[name] = value
    age = found.pop("age", "")
    return AuditQuery(**found, since_ms=max(1, now_ms - int(age)) if age else 0)


def _word(token: Token) -> tuple[str, str]:
    """Column and value of a word. The log is looked through for one value of a column, whole."""
    terms = terms_of("audit", token)
    column, op, value = terms[0].column, terms[0].op, str(terms[0].value)
    if column == ANYWHERE and op == "~":
        return _alone(token)
    if len(terms) > 1 or "*" in value or op not in (("<", "<=") if column == "age" else ("=",)):
        remedy = "Write type:vote, or since:2h"
        raise FilterError(token.start, token.end, "the audit takes one value of a column, whole", remedy)
    return column, value


def _alone(token: Token) -> tuple[str, str]:
    if _PROPOSAL.fullmatch(token.text):
        return "proposal", token.text
    if _TYPE.fullmatch(token.text):
        return "type", token.text
    remedy = "Filter by proposal:, actor:, type:, since:"
    raise FilterError(token.start, token.end, "is neither a proposal id nor a record type", remedy)


def row_of(record: AuditRow) -> Row:
    bad = any(word in record.type for word in _BAD)
    cells: tuple[Span, ...] = (
        (f"{record.seq:,}", "dim"),
        (timestamp(record.at_ms)[5:], "dim"),
        (printable(record.type), "warn" if bad else ""),
        (name_of(record.subject), ""),
        (printable(record.proposal), "dim"),
        (about(record), "dim"),
    )
    return Row(str(record.seq), cells)


def about(record: AuditRow) -> str:
    """Further facts of a record, in one line."""
    words = [f"step {record.step}"] if record.step else []
    told = [(name, _brief(value)) for name, value in record.data.items() if name not in FOR_MACHINES]
    words += [f"{name} {text}" for name, text in told if text]
    words += ["(text erased)" if one.text is None else f'"{one.text[:80]}"' for one in record.private]
    return printable(" · ".join(words))


def _brief(value: object) -> str:
    """Of several the first, and how many more."""
    if not isinstance(value, list):
        return _short(value)
    more = f" and {len(value) - 1:,} more" if value[1:] else ""
    return _short(value[0]) + more if value else ""


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def record_columns(record: AuditRow, width: int) -> tuple[list[Section], list[Section]]:
    """A record whole: what it is; and what it says, framed."""
    signed = f", signed with {printable(record.key)}" if record.signed else ""
    facts = [
        ("when", wall_time(record.at_ms)),
        ("type", printable(record.type)),
        ("who", f"{printable(record.subject)} ({printable(record.kind)}{signed})"),
        ("from", printable(record.account)),
        ("session", printable(record.session)),
        ("step", printable(record.step)),
        ("plan", printable(record.plan)),
        ("policy", printable(record.policy)),
        ("hash", printable(record.hash)),
    ]
    lines = [line for name, value in facts if value for line in hanging(f"{name:<9}", value, width)]
    if _PROPOSAL.fullmatch(record.proposal):
        spans = (("proposal ", "dim"), (printable(f"{record.proposal} revision {record.revision}"), "link"))
        lines.insert(3, Line(spans, f"proposal {printable(record.proposal)}"))
    said: list[Line] = []
    for name, value in record.data.items():
        said.append(text_line(f"{name}:", "dim"))
        said += framed(_short(value), width)
    texts: list[Line] = []
    for one in record.private:
        texts.append(text_line(f"text {one.ref}:", "dim"))
        texts += [text_line("erased", "warn")] if one.text is None else framed(one.text, width)
    right = [Section("Content", tuple(said or [text_line("no other fields", "dim")]))]
    if texts:
        right.append(Section("Text from people", tuple(texts), "stored separately, erasable"))
    return [Section(f"Record {record.seq:,}", tuple(lines))], right


def state_spans(state: AuditState) -> list[Span]:
    """The newest checkpoint, and where it is remembered."""
    after = state.last - state.covered
    if not state.checkpoint:
        head: list[Span] = [("  no checkpoint yet", "warn")]
    else:
        signed = "not signed" if state.key in ("", "none") else "signed"
        head = [(f"  checkpoint of {state.covered:,} records, {signed}", "warn" if signed != "signed" else "")]
        if after > 0:
            head.append((f", {after:,} after it", "dim"))
    where = ", ".join(map(printable, state.anchors)) or "none"
    head.append((f"  ·  anchors: {where}", "dim"))
    if state.error:
        head = [(f"  ✗ {printable(state.error)}", "bad")]
    return head


def told(reports: list[LogReport], code: int) -> list[Span]:
    """Result of a check of the log."""
    problems = [bad for report in reports for bad in report.problems]
    if code or problems:
        first = problems[0].what if problems else f"code {code}"
        more = f", and {len(problems) - 1:,} more" if problems[1:] else ""
        return [(f"  ✗ NOT valid: {printable(first)}{more}", "bad")]
    records = sum(report.records for report in reports)
    checkpoints = sum(report.checkpoints for report in reports)
    signed = sum(report.signed for report in reports)
    facts = f"{records:,} records, {checkpoints:,} checkpoints, {signed:,} signed"
    return [("  ✓ valid: ", "ok"), (facts, ""), ("; only against itself: compare a checkpoint you kept", "dim")]


def at(query: AuditQuery, before: int, limit: int) -> AuditQuery:
    """The part of the same question below a record."""
    return msgspec.structs.replace(query, before=before, limit=limit)
