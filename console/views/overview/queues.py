"""Who waits, how fairly, why, and who starts too late: sections of the overview. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.forms.filters import quoted
from console.text.charts import length
from console.text.terminal_text import NONE, duration, fit, fit_name, permille, printable
from console.text.tones import state_look
from console.views.overview.findings import FULL_PERMILLE, times
from console.views.quota_bars import bar, quota_parts
from console.views.sections import Line, Section, plural, text_line
from engine.model.queries import Burn, Overview, Page, Query

if TYPE_CHECKING:
    from console.views.lists import Span

MAX_ASKED = 60
"""Queues asked for: those that wait longest, from which the worst are shown."""
_COLUMNS = (
    "name", "parent", "state", "queued", "running", "oldest_wait", "share", "burn", "burst", "gpu_used",
    "gpu_nominal", "gpu_borrowed", "gpu_lent", "cpu_used", "cpu_nominal", "cpu_borrowed", "cpu_lent",
)  # fmt: skip
LATE_MS = 30 * 60_000
ROOMY = 4
"""From so many lines on, one more tells how many there are besides."""
SHARES_FROM, BARS_FROM = 46, 66
"""Widths of a column from which on it has shares, and bars of the quotas."""


class QueueRow(NamedTuple):
    """A queue that takes work."""

    name: str
    state: str
    queued: int
    running: int
    oldest_ms: int
    share_permille: int
    """Of the cell above its quota, by its weight."""
    burn_permille: int | None
    burst: str
    used: int
    nominal: int | None
    borrowed: int
    lent: int


def question() -> Query:
    return Query(kind="queues", columns=_COLUMNS, sort=("-oldest_wait", "-queued"), limit=MAX_ASKED)


def worst_first(page: Page) -> tuple[QueueRow, ...]:
    """Queues without those below them. What misses its objective comes first, then what waits longest, then what has
    most above its share."""
    at = {name: index for index, name in enumerate(page.columns)}
    parents = {row[at["parent"]] for row in page.rows}
    found = []
    for row in page.rows:
        if row[at["name"]] in parents:
            continue
        kind = "gpu" if row[at["gpu_nominal"]] is not None or row[at["gpu_used"]] else "cpu"
        found.append(
            QueueRow(
                name=row[at["name"]],
                state=row[at["state"]] or "",
                queued=row[at["queued"]],
                running=row[at["running"]],
                oldest_ms=row[at["oldest_wait"]] or 0,
                share_permille=row[at["share"]],
                burn_permille=row[at["burn"]],
                burst=row[at["burst"]] or "",
                used=row[at[f"{kind}_used"]] or 0,
                nominal=row[at[f"{kind}_nominal"]],
                borrowed=row[at[f"{kind}_borrowed"]] or 0,
                lent=row[at[f"{kind}_lent"]] or 0,
            )
        )
    found.sort(
        key=lambda queue: (-max(0, (queue.burn_permille or 0) - FULL_PERMILLE), -queue.oldest_ms, -queue.share_permille)
    )
    return tuple(found)


def queues(rows: Sequence[QueueRow], width: int, most: int) -> Section:
    """The worst first: name, how many wait, the longest wait, burn; and share and quota where there is room."""
    if not rows:
        return Section("Queues", (text_line("no queues yet", "dim"),))
    shares, bars = width >= SHARES_FROM, width >= BARS_FROM
    heads = f"{'WAIT':>6}{'OLDEST':>8}{'SHARE' if shares else '':>{6 if shares else 0}}{'BURN':>6}"
    name = max(8, min(max(len(row.name) for row in rows), width - len(heads) - 1 - (16 if bars else 0)))
    size = min(40, width - name - 1 - len(heads) - 2) if bars else 0
    lines = [_queue(row, name if bars else width - len(heads) - 1, size, shares) for row in rows[:most]]
    if len(rows) > most >= ROOMY:
        lines.append(Line(((f"{len(rows) - most} more", "dim"),), "queues"))
    left = " " * (width - name - 1 - len(heads) - 2 - size) if bars else ""
    return Section("Queues", tuple(lines), heads + (f"  {'QUOTA':<{size}}{left}" if bars else ""))


def _queue(row: QueueRow, name_width: int, bar_width: int, shares: bool) -> Line:
    burn = NONE if row.burn_permille is None else f"×{times(row.burn_permille)}"
    shut = row.state not in ("open", "")
    glyph, tone = state_look(row.state) if shut else (" ", "")
    spans: list[Span] = [
        (fit_name(printable(row.name), name_width), "link"),
        (glyph, tone),
        (f"{row.queued:>6,}", "faint" if not row.queued else ""),
        (f"{duration(row.oldest_ms) if row.oldest_ms else NONE:>8}", "warn" if row.oldest_ms > LATE_MS else "dim"),
    ]
    if shares:
        spans.append((f"{permille(row.share_permille) if row.share_permille else NONE:>6}", "dim"))
    spans.append((f"{burn:>6}", burn_tone(row.burn_permille)))
    if bar_width:
        parts = quota_parts(row.used, row.nominal, row.borrowed, row.lent, row.borrowed if row.burst == "burst" else 0)
        spans += [("  ", ""), *bar(parts, bar_width)]
    return Line(tuple(spans), f"queue {printable(row.name)}")


def burn_tone(burn_permille: int | None) -> str:
    if burn_permille is None:
        return "faint"
    return "bad" if burn_permille > 2 * FULL_PERMILLE else "warn" if burn_permille > FULL_PERMILLE else "dim"


def objectives(burns: Sequence[Burn], width: int, most: int) -> Section:
    """Who starts too late, the worst first: over one hour and over six, at 1 just as much as is allowed."""
    ordered = sorted(burns, key=lambda burn: -(burn.hour.burn_permille or 0))
    lines = [_objective(burn, width) for burn in ordered[:most]]
    return Section("Objectives", tuple(lines), f"{'1 H':>6}{'6 H':>6}{'LATE':>9}")


def _objective(burn: Burn, width: int) -> Line:
    late, every = burn.hour.late + burn.hour.waiting, burn.hour.started + burn.hour.waiting
    wanted = f" {burn.objective_permille / 10:g}% in {duration(burn.within_ms)}" if width >= SHARES_FROM else ""
    both = [window.burn_permille for window in (burn.hour, burn.six_hours)]
    told = [NONE if value is None else f"×{times(value)}" for value in both]
    name = max(6, width - 2 - len(wanted) - 6 - 6 - 9)
    glyph = "▲" if (both[0] or 0) > FULL_PERMILLE else "●" if both[0] is not None else "·"
    spans = (
        (f"{glyph} ", "ok" if glyph == "●" else burn_tone(both[0])),
        (fit_name(printable(burn.queue), name), "link"),
        (wanted, "dim"),
        (f"{told[0]:>6}", burn_tone(both[0])),
        (f"{told[1]:>6}", burn_tone(both[1])),
        (fit(f"{late:,}/{every:,}", 9, right=True), ""),
    )
    return Line(spans, f"queue {printable(burn.queue)}")


def blocked(view: Overview, width: int, most: int) -> Section:
    """What keeps work from starting, the most frequent first."""
    if not view.blocked:
        return Section("Why work waits", (text_line("nothing waits", "dim"),))
    highest = view.blocked[0][1]
    name_width = min(22, max(12, width - 11))
    lines = []
    for token, count in view.blocked[:most]:
        token = printable(token)
        line = length(count, highest, width - name_width - 10)
        spans = ((fit(token, name_width), ""), (f"{count:>9,} ", ""), (line, "faint"))
        lines.append(Line(spans, f"workloads state:queued,held reason:{quoted(token)}"))
    rest = len(view.blocked) - most
    more = f" · {rest} more {plural('reason', rest)}" if rest > 0 else ""
    waiting, running = view.states.get("queued", 0), view.states.get("running", 0) + view.states.get("placed", 0)
    return Section("Why work waits", tuple(lines), f"{waiting:,} wait, {running:,} run{more}")
