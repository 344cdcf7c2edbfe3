"""Pages, lists and news as spoken lines: one fact a line, in words.

Sections and rows are those of the screen. Bars, rules and glyphs beside their words are left out. Columns become
"name: value, value".
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from console.text.plain_tables import overview_lines
from console.text.terminal_text import NONE, printable, timestamp
from console.tui.navigator import new_page
from console.tui.screens.workload import findings_about, proposals_about
from console.tui.widgets.list_pane import ListPane, fetch_rows
from console.tui.widgets.pane import DetailPane
from console.views.lists import EVENT_TONES, EventLog, Heading, Row
from console.views.proposal import GUTTER, HANG
from console.views.sections import Line, Section
from console.views.welcome import welcome
from console.views.workload import WorkloadContext, workload_columns
from engine.model.errors import NotFoundError, SpecError

if TYPE_CHECKING:
    from console.actions.registry import ScreenName
    from console.client.protocol import Client
    from console.views.curves import Curve
    from console.views.lists import ListView
    from engine.model.overviews import Change


QUOTED = "quoted: "
"""Prefix of untrusted text, in place of the gutter."""
FACTS = 7
"""Columns of a row that are read out; its page has the rest."""

_SHAPES = re.compile("[\u2500-\u259f\u2800-\u28ff≡]+")
"""Rules, bars, charts."""
_GLYPHS = re.compile("[○◇◔●✓✗⊘‖◌◑◂↵▸▾☐☑■□▲▼◆★☆]")
"""Glyphs that always stand beside their word."""
_WORDS = {
    "·": ", ",
    "›": ", ",
    "…": " and more",
    "⇧": "",
    "↑": " rising",
    "↓": " falling",
    "≤": " at most ",
}
_GAP = re.compile(r"\s{2,}")


class SpokenLine(NamedTuple):
    """A line, and the command that leads to more of it."""

    text: str
    link: str = ""


def spoken_sections(sections: Sequence[Section]) -> list[SpokenLine]:
    """Each section by its title, then its facts; one without facts is left out."""
    said: list[SpokenLine] = []
    for section in sections:
        facts = _facts(section.lines)
        if facts:
            title = spoken(f"{section.title}  {section.note}" if section.note else section.title)
            said += [SpokenLine(f"{title}." if said or section.title else title), *facts]
    return said


def _facts(lines: Sequence[Line]) -> list[SpokenLine]:
    """Spoken lines of a section; a continuation joins its line."""
    facts: list[SpokenLine] = []
    for line in lines:
        text = "".join(part for part, _ in line.spans)
        bare = text.lstrip()
        if bare.startswith(HANG) and facts:
            facts[-1] = facts[-1]._replace(text=f"{facts[-1].text} {spoken(bare[len(HANG) :])}")
        elif bare.startswith(GUTTER.rstrip()):
            facts.append(SpokenLine(QUOTED + printable(bare[len(GUTTER) :]), line.link))
        elif told := spoken(text):
            facts.append(SpokenLine(told, line.link))
    return facts


def spoken(text: str) -> str:
    """A line of the screen in words."""
    text = _GLYPHS.sub(" ", _SHAPES.sub("   ", text))
    if text.lstrip().startswith("→"):
        text = "so " + text.replace("→", "", 1).lstrip()
    text = re.sub(r"\s*→\s*", " to ", text)
    for sign, word in _WORDS.items():
        text = text.replace(sign, word)
    parts = [part for part in (_tidy(part) for part in _GAP.split(text)) if part]
    if len(parts) < 2:
        return parts[0] if parts else ""
    first = parts[0] if parts[0].endswith((":", ",", ".")) else f"{parts[0]}:"
    return f"{first} {', '.join('none' if part == NONE else part for part in parts[1:])}"


def _tidy(part: str) -> str:
    return re.sub(r"\s+,", ",", " ".join(part.split())).strip(", ")


def spoken_row(row: Row, headings: Sequence[Heading], link: str = "") -> SpokenLine:
    """A row of a table: what it is, then its most important columns by name. What is nothing is left out."""
    texts = [spoken(text) if index else printable(text) for index, (text, _) in enumerate(row.cells)]
    named = [
        f"{heading.title.lower()} {text}"
        for heading, text in zip(headings[1:], texts[1:], strict=False)
        if text not in ("", "0", NONE)
    ]
    return SpokenLine(f"{texts[0]}: {', '.join(named[:FACTS])}", link)


def changes(before: Sequence[SpokenLine], now: Sequence[SpokenLine]) -> list[SpokenLine]:
    """Lines a page has now and did not have before, and lines that are gone."""
    was, is_now = {line.text for line in before}, {line.text for line in now}
    new = [line for line in now if line.text not in was]
    gone = [SpokenLine(f"gone: {line.text}") for line in before if line.text not in is_now]
    return [*new, *gone] if new or gone else [SpokenLine("nothing has changed")]


WIDTH = 160
"""For which pages are laid out, in cells: wide enough that little of a line is cut."""
LAST_BYTES, LAST_LINES = 64 << 10, 40
"""Size of the end of a task's output that is read out."""
NAMED = 3
"""Things that are named of each kind of news."""
WORST = tuple(what for what, tone in EVENT_TONES.items() if tone in ("bad", "warn"))
"""News that come first."""
PAGES: tuple[ScreenName, ...] = (
    "overview", "workload", "node", "queue", "recommendations", "forecast", "cost", "runbook", "record", "draft",
    "drafts", "policy", "reviews", "mirror", "intents", "intent", "fleet", "output", "incident",
    "curve",
)  # fmt: skip
LISTS: tuple[ScreenName, ...] = (
    "queues",
    "workloads",
    "nodes",
    "pools",
    "orders",
    "proposals",
    "runbooks",
    "incidents",
)
_ONE = {
    "workloads": "workload",
    "nodes": "node",
    "queues": "queue",
    "proposals": "proposal",
    "runbooks": "runbook",
    "incidents": "incident",
}
"""The page of one of them."""

PageReader = Callable[[int, int], tuple[list[SpokenLine], int]]
"""Offset and limit -> lines, and how many there are in all."""


def page_reader(line: str, client: Callable[[], Client]) -> PageReader:
    """The spoken page that a `:` line leads to. Raises MusterError, FilterError."""
    name, _, argument = line.partition(" ")
    if name == "overview":
        return partial(sliced, overview(client))
    if name == "welcome":
        return partial(sliced, spoken_sections(welcome(client().health(), client().overview(), spoken=True)))
    if name in ("proposals", "runbooks", "incidents"):
        return lambda start, limit: sliced(_table(client(), name, argument), start, limit)
    if name == "output":
        return partial(sliced, _output(client(), argument))
    pane = new_page(cast("ScreenName", name), argument, client, EventLog())
    if isinstance(pane, ListPane):
        return partial(_rows, client, pane.view, _ONE.get(name, ""))
    if name == "workload":
        # Its page gathers more beside what the engine says of it at once.
        columns = _workload_columns(client, argument)
        return partial(sliced, spoken_sections([section for column in columns for section in column]))
    assert isinstance(pane, DetailPane), f"{name} is one of PAGES"
    detail = pane.ask(client())
    said = spoken_sections([section for column in pane.columns(detail, WIDTH) for section in column])
    if name == "curve":
        from console.views.curves import curve_words

        said.insert(0, SpokenLine(curve_words(cast("Curve", detail))))
    return partial(sliced, said)


def _workload_columns(connect: Callable[[], Client], workload_id: str) -> Sequence[Sequence[Section]]:
    """The page of a workload with what it looks up beside it, all of it at once."""
    client = connect()
    view = client.workload(workload_id)
    context = WorkloadContext(
        proposals=proposals_about(connect, workload_id),
        findings=findings_about(connect, workload_id),
        processes=client.processes(workload_id) if view.run is not None else None,
    )
    unblocking = client.unblocking(workload_id) if view.reasons else None
    starts = client.start_forecast(workload_id) if view.reasons else None
    return workload_columns(view, WIDTH, unblocking, client.estimate(workload_id), context, starts)


def findings(client: Callable[[], Client]) -> list[SpokenLine]:
    """Findings that need somebody: the first section of the overview."""
    pane = cast("DetailPane[object]", new_page("overview", "", client, EventLog()))
    left, right = pane.columns(pane.ask(client()), WIDTH)
    return spoken_sections([*left, *right][:1])


def overview(client: Callable[[], Client]) -> list[SpokenLine]:
    """Findings, and the cell in a few lines. The tables of the page are lists of their own."""
    told = [SpokenLine(spoken(printable(line))) for line in overview_lines(client().overview())]
    return [*findings(client), SpokenLine("The cell."), *told]


def _output(client: Client, words: str) -> list[SpokenLine]:
    """The end of what a task has written, and how the task does. Raises MusterError."""
    from console.views.workload import LogLines, as_left, task_facts
    from engine.executors.task_files import OutputRequest

    name, _, task = words.partition(" ")
    part = client.output(OutputRequest(id=name, task=task.strip(), attempt=0, offset=-LAST_BYTES, most=LAST_BYTES))
    taken = LogLines()
    lines = taken.take(part.data)
    lines += [as_left(taken.rest)] if taken.rest else []
    shown = next(
        (each for attempt in client.processes(name).attempts if attempt.attempt == part.attempt
         for each in attempt.tasks if each.name == part.task), None,
    )  # fmt: skip
    facts = [shown.phase, *task_facts(shown)] if shown is not None else []
    head = SpokenLine(", ".join([f"{printable(part.task)} of attempt {part.attempt}", *facts]))
    whole = part.offset == 0 and len(lines) <= LAST_LINES
    of = "the whole output" if whole else f"the last {min(len(lines), LAST_LINES)} lines"
    return [
        head,
        SpokenLine(f"{of}."),
        *(SpokenLine(f"quoted: {printable(line)}") for line in lines[-LAST_LINES:] if line.strip()),
    ]


def sliced(said: Sequence[SpokenLine], start: int, limit: int) -> tuple[list[SpokenLine], int]:
    return list(said[start : start + limit]), len(said)


def _rows(
    client: Callable[[], Client], view: ListView, page: str, start: int, limit: int
) -> tuple[list[SpokenLine], int]:  # fmt: skip
    window = fetch_rows(client, view, start, limit)
    said = [spoken_row(row, view.headings, f"{page} {row.id}" if page else "") for row in window.rows]
    return said, window.matched


def _table(client: Client, name: str, words: str) -> list[SpokenLine]:
    """Proposals, incidents or runbooks in whose line every word occurs; what is over when `all` are asked for."""
    rows: Sequence[Row]
    headings: Sequence[Heading]
    if name == "proposals":
        from console.views.proposal import LIST_HEADINGS, SHOWN_STATES, list_rows

        every, caller = words == "all", client.whoami()
        rows = list_rows(client.proposals(() if every else SHOWN_STATES), caller.now_ms, caller.me)
        headings, words = LIST_HEADINGS, "" if every else words
    elif name == "incidents":
        from console.views import incidents
        from runbooks.plans.incidents import UNCLOSED

        every, now_ms = words == "all", client.health().now_ms
        rows = [incidents.row_of(each, now_ms) for each in client.incidents(() if every else UNCLOSED)]
        headings, words = incidents.HEADINGS, "" if every else words
    else:
        from console.views.policy import HEADINGS, row_of

        rows, headings = [row_of(line) for line in client.runbooks()], HEADINGS
    said = [spoken_row(row, headings, f"{_ONE[name]} {row.id}") for row in rows]
    return [line for line in said if all(word in line.text.lower() for word in words.lower().split())]


def page_of(client: Client, wanted: str) -> str:
    """The `:` line that leads to whatever has that id. Raises SpecError."""
    if wanted.startswith("P-"):
        return f"proposal {wanted}"
    for kind, ask in (("workload", client.workload), ("node", client.node), ("queue", client.queue)):
        with contextlib.suppress(NotFoundError):
            ask(wanted)
            return f"{kind} {wanted}"
    raise SpecError("", f"nothing with the id '{wanted[:60]}'", "Say workloads, nodes or queues to find it")


def news(items: Sequence[Change]) -> str:
    """As in "1 down: node-4; 12 started, 3 finished"."""
    counts = Counter(item.what for item in items)
    worst = []
    for what in WORST:
        if what in counts:
            names = list(dict.fromkeys(item.subject for item in items if item.what == what))
            more = " and more" if len(names) > NAMED else ""
            worst.append(f"{counts.pop(what):,} {what}: {', '.join(names[:NAMED])}{more}")
    rest = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    return "; ".join([*worst, *([rest] if rest else [])])


def spoken_event(change: Change) -> str:
    detail = f", {change.detail}" if change.detail else ""
    return f"{timestamp(change.at_ms, date=False)} {change.what}: {change.subject}{detail}"
