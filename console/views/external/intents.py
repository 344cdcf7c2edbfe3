"""What is wanted of an outside scheduler in words: what is under way, what came of it. No Textual in here. Texts of the
other scheduler's are untrusted, and pass `printable`."""

from __future__ import annotations

from console.text.terminal_text import cut, duration, printable, wrap
from console.views.sections import Line, Section, text_line
from engine.model.intent_reports import IntentsReport, IntentView

TONES = {
    "in doubt": "bad", "refused": "bad", "expired": "bad", "done": "ok", "needless": "dim", "undone": "warn",
    "retried": "dim",
}  # fmt: skip
NOTHING = "nothing is wanted of another scheduler"
IN_DOUBT = (
    "Nobody can tell whether these happened: muster intents show N tells what is known; retry N has it done again, "
    "settle N done|undone says what came of it"
)
IN_DOUBT_KEYS = "Nobody can tell whether these happened: ↵ what is known, R do it again, K it is done, N it is not"
MAX_SUBJECTS = 3


def standing(report: IntentsReport) -> str:
    """As in "3 wait, 5 on their way, 40 accepted, 1 in doubt"."""
    told = [
        f"{count:,} {what}"
        for count, what in (
            (report.open, "to be carried"),
            (report.sent, "on their way"),
            (report.accepted, "accepted, not yet safe"),
            (report.in_doubt, "in doubt"),
        )
        if count
    ]
    return ", ".join(told) or "all that was wanted is settled"


def subjects(intent: IntentView) -> str:
    more = f" and {intent.count - MAX_SUBJECTS:,} more" if intent.count > MAX_SUBJECTS else ""
    return ", ".join(map(printable, intent.subjects[:MAX_SUBJECTS])) + more


def said(intent: IntentView) -> str:
    """What came of it, as far as that is known."""
    parts = [f"job {intent.job}"] if intent.job else []
    parts += [f"carried {intent.tries + 1} times"] if intent.tries else []
    parts += [printable(intent.text)] if intent.text else []
    return "; ".join(parts)


def intent_lines(report: IntentsReport) -> list[str]:
    """For the shell: a line each, the newest of each kind first."""
    if not report.items:
        return [NOTHING]
    rows = [("ID", "STATE", "AGE", "WHAT", "OF", "SAID")]
    rows += [
        (
            printable(intent.id), printable(intent.phase), duration(report.at_ms - intent.at_ms),
            printable(intent.what.replace("_", "-")), subjects(intent), said(intent),
        )
        for intent in report.items
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join([*map(str.ljust, row[:5], widths), row[5]]).rstrip() for row in rows]
    return [standing(report), *lines, *([IN_DOUBT] if report.in_doubt else [])]


def intent_columns(report: IntentsReport, width: int) -> tuple[list[Section], list[Section]]:
    """Left: what is not settled or needs a person. Right: what came of the others."""
    if not report.items:
        return [Section("Intents", (text_line(NOTHING, "dim"),))], []
    urgent = [intent for intent in report.items if intent.phase in ("open", "sent", "accepted", "in doubt")]
    others = [intent for intent in report.items if intent not in urgent]
    left = Section("Under way", tuple(_lines(urgent, report.at_ms, width)) or (text_line("nothing", "dim"),))
    warning = (
        [Section("In doubt", tuple(text_line(part, "warn") for part in wrap(IN_DOUBT_KEYS, width)))]
        if report.in_doubt
        else []
    )
    right = [Section("Settled", tuple(_lines(others, report.at_ms, width)))] if others else []
    return [left._replace(note=standing(report)), *warning], right


def _lines(intents: list[IntentView], now_ms: int, width: int) -> list[Line]:
    lines = []
    for intent in intents:
        head = printable(f"{intent.id}  {intent.what.replace('_', '-')} ") + subjects(intent)
        tone = TONES.get(intent.phase, "")
        spans = ((cut(head, max(10, width - 22)), ""), (f"  {printable(intent.phase)}", tone))
        lines.append(Line(spans, f"intent {printable(intent.id)}"))
        told = f"{duration(now_ms - intent.at_ms)} ago  {said(intent)}"
        lines += [text_line("   " + part, "dim") for part in wrap(told, width - 3)]
    return lines
