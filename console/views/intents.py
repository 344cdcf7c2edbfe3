"""Intents to an external scheduler as sections: the list, and one of them with its history and the possible answers.

Names and texts of the other scheduler are untrusted and pass `printable`.
"""

from __future__ import annotations

from console.text.terminal_text import cut, duration, printable, timestamp, wrap
from console.views.proposal import hanging, name_of
from console.views.sections import Line, Section, text_line
from engine.model.external_cells import FarLook, IntentsReport, IntentView
from runbooks.plans.queries import IntentDetail

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
    """Known result of an intent."""
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


WIDTH = 100
"""For which it is laid out in the shell, in cells."""
DOUBT = "in doubt"
SHOWS = {
    "done": ("so it is done, as Slurm shows it", "ok"),
    "undone": ("so it is not done, as Slurm shows it", "warn"),
    "": ("that does not show whether it happened", "warn"),
}


def detail_columns(detail: IntentDetail, width: int) -> tuple[list[Section], list[Section]]:
    """Left: what was wanted, and what is shown of it now. Right: what was said of it, and what can be done."""
    return [_wanted(detail, width), _now(detail, width)], [_said(detail, width), *_ways(detail, width)]


def detail_lines(detail: IntentDetail) -> list[str]:
    """For the shell."""
    left, right = detail_columns(detail, WIDTH)
    lines: list[str] = []
    for section in (*left, *right):
        lines += [section.title, *("  " + "".join(text for text, _ in line.spans).rstrip() for line in section.lines)]
    return lines


def title_of(view: IntentView) -> str:
    return printable(f"{view.id}  {view.what.replace('_', '-')} ") + subjects(view)


def _wanted(detail: IntentDetail, width: int) -> Section:
    view = detail.view
    lines = [text_line(printable(view.phase), TONES.get(view.phase, ""))]
    lines += hanging("asked     ", f"{timestamp(view.at_ms)} UTC{_asker(detail)}", width)
    if detail.proposal:
        name = printable(detail.proposal)
        told = f"{name}, agreed to by {', '.join(map(name_of, detail.agreed)) or 'nobody'}"
        first, *rest = hanging("proposal  ", told, width)
        lines += [Line(first.spans, f"proposal {name}"), *rest]
    lines += [line for told in detail.wants for line in hanging("          ", printable(told), width)]
    if view.job:
        lines += hanging("job       ", f"{view.job}, as Slurm answered", width)
    if view.tries:
        lines += hanging("carried   ", f"{view.tries + 1} times", width)
    lines += hanging("token     ", printable(view.token), width)
    return Section(title_of(view), tuple(lines))


def _asker(detail: IntentDetail) -> str:
    if detail.by:
        return f" by {name_of(detail.by)}"
    return "" if detail.act is not None else "; who submits is on no record"


def _said(detail: IntentDetail, width: int) -> Section:
    lines = [
        line
        for word in detail.words
        for line in hanging(f"{timestamp(word.at_ms, date=False)}  ", _word(word.phase, word.text), width)
    ]
    return Section("What was said of it (UTC)", tuple(lines) or (text_line("nothing yet", "dim"),))


def _word(phase: str, text: str) -> str:
    return printable(f"{phase}: {text}" if text else phase)


def _now(detail: IntentDetail, width: int) -> Section:
    far = detail.far
    if far is None:
        return Section("In Slurm now", (text_line("this engine was not told where the cluster is", "warn"),))
    if far.error:
        return Section("In Slurm now", tuple(_toned(f"cannot be asked: {printable(far.error)}", width, "bad")))
    lines = [line for told in far.lines for line in _toned(printable(told), width, "")]
    told, tone = SHOWS.get(far.shows, SHOWS[""])
    lines += _toned(told, width, tone)
    return Section(f"In Slurm now ({timestamp(far.at_ms)} UTC)", (*lines, *_restarts(detail, far, width)))


def _restarts(detail: IntentDetail, far: FarLook, width: int) -> list[Line]:
    """A slurmctld that was started since may have forgotten what it had taken."""
    if not far.since_ms:
        return []
    told = f"slurmctld runs since {timestamp(far.since_ms)} UTC ({printable(far.since_by)})"
    if far.since_ms <= detail.view.at_ms:
        return _toned(f"{told}: it was not restarted since this was asked", width, "dim")
    return _toned(f"{told}: after this was asked, so it may have forgotten it", width, "warn")


def _ways(detail: IntentDetail, width: int) -> list[Section]:
    if detail.view.phase != DOUBT:
        return []
    name = printable(detail.view.id)
    again = (
        "proposes the same act anew: it was approved for the cell as it was then, and each step of a plan is done once"
        if detail.act is not None
        else "carries it again under the same token: if the first copy is there after all, one of the two is cancelled"
    )
    ways = (
        (f"muster intents retry {name} --reason WHY", again),
        (f"muster intents settle {name} done --reason WHY", "it is in Slurm as it was wanted"),
        (f"muster intents settle {name} undone --reason WHY", _undone(detail)),
    )
    lines = [
        line for way, told in ways for line in (*hanging("", way, width), *hanging("    ", told, width, tone="dim"))
    ]
    return [Section("It waits for a person", tuple(lines))]


def _undone(detail: IntentDetail) -> str:
    if detail.act is None:
        return "it came to nothing, and the name of the workload is free again"
    return "it did not happen, and is not wanted any more"


def answer_text(detail: IntentDetail, outcome: str) -> str:
    """Meaning of a yes."""
    name = printable(detail.view.id)
    if outcome == "retry":
        return f"{name} is given to Slurm once more. If it ran unseen, it runs twice."
    told = "is done" if outcome == "done" else "is not done, and will not be"
    return f"You say that {name} {told}; it is on record under your name."


def _toned(text: str, width: int, tone: str) -> list[Line]:
    return hanging("", text, width, tone=tone)
