"""Pages of incidents: the list, and one with the curve of its waits, and what people on call do there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from textual import on

from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, printable
from console.tui.widgets.list_pane import WordsPane
from console.tui.widgets.pane import AsOf, ChartPane, Connect
from console.tui.widgets.window_table import WindowTable
from console.views.incidents import HEADINGS, IncidentPage, chart, incident_columns, incident_page, parse_words, row_of
from console.views.lists import Window, none_found, rows_that_match
from console.views.proposal import hanging, name_of
from console.views.sections import Section
from engine.model.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.tui.app import MusterApp
    from engine.model.list_queries import Term
    from runbooks.plans.incidents import Incident

ASK_S = 5.0
"""Interval of questions: alerts and people change no state of the cell."""
MIN_FOUND = 10
"""Letters of what was found: `runbooks.gate.incidents.MIN_FOUND`."""
MAX_ROWS = 1_000


class IncidentsPane(WordsPane):
    """Those that are not closed; `:incidents all` has the others too."""

    NAME = "incidents"
    TARGETS = "incident"
    EVERY_S = ASK_S

    def __init__(self, connect: Connect, words: str = "") -> None:
        """Raises FilterError."""
        super().__init__(connect, words)
        parse_words(words)

    def on_mount(self) -> None:
        self.filter(self._filter)
        self.set_interval(ASK_S, self.reload_if_seen)

    def filter(self, text: str) -> None:
        """Show others. Raises FilterError and stays as it is when the filter cannot be read."""
        terms, states = parse_words(text)
        self._filter = " ".join(text.split())
        self.table.empty = none_found("incidents", self._filter)
        self.table.show(HEADINGS, partial(self._rows, terms, states))

    @property
    def as_of(self) -> AsOf | None:
        """Incidents are of no moment of the cell."""
        return None

    @property
    def note(self) -> str:
        return "  ·  ".join(self.counts)

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        row = self.table.cursor_row
        return (ActionTarget(row.id, row.state),) if row is not None else ()

    def _rows(self, terms: tuple[Term, ...], states: tuple[str, ...], offset: int, limit: int) -> Window:
        """Called on a thread."""
        client = self.connect()
        found = client.incidents(states, MAX_ROWS)
        now_ms = client.health().now_ms
        rows = [row_of(each, now_ms) for each in found]
        kept = rows_that_match(rows, HEADINGS, terms)
        return Window(offset, kept[offset : offset + limit], len(kept), len(rows), 0, 0)

    @on(WindowTable.RowChosen)
    def _chosen(self, event: WindowTable.RowChosen) -> None:
        self.post_message(self.Follow(f"incident {event.row.id}"))


class IncidentPane(ChartPane[IncidentPage]):
    NAME = "incident"
    TARGETS = "incident"
    EVERY_S = ASK_S
    CHART_SHARE = 4

    def __init__(self, connect: Connect, incident_id: str) -> None:
        super().__init__(connect)
        self._incident_id = incident_id

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(ASK_S, self.reload_if_seen)

    @property
    def crumb(self) -> str:
        return cut(printable(self._incident_id), 20)

    @property
    def line(self) -> str:
        return f"incident {self._incident_id}"

    @property
    def note(self) -> str:
        if self.detail is None:
            return ""
        owner = self.detail.incident.owner
        return f"{self.detail.incident.state}  ·  {name_of(owner) if owner else 'nobody has it'}"

    @property
    def copyable(self) -> str:
        return self._incident_id

    @property
    def measured(self) -> str:
        """The wait of its first queue."""
        curves = self.detail.curves if self.detail is not None else ()
        return f"{curves[0].subject} {curves[0].name}" if curves else ""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """The incident in its state; once more where a draft of it can be proposed. Until the page is there it counts
        as open: a claim does not wait for curves and drafts, and every deed asks the engine anew."""
        if self.detail is None:
            return (ActionTarget(self._incident_id, "open"),)
        here = ActionTarget(self._incident_id, self.detail.incident.state)
        return (here, ActionTarget(self._incident_id, "drafted")) if self.detail.proposable is not None else (here,)

    def ask(self, client: Client) -> IncidentPage:
        return incident_page(client, self._incident_id)

    def chart(self, detail: IncidentPage, width: int, rows: int) -> list[Section]:
        return chart(detail, width, rows)

    def columns(self, detail: IncidentPage, width: int) -> tuple[list[Section], list[Section]]:
        return incident_columns(detail, width)

    async def propose(self) -> str:
        """Put the newest draft to the vote. Gives the proposal's id. Raises MusterError."""
        run = self.detail.proposable if self.detail is not None else None
        if run is None:
            raise RefusedError("no draft of this incident proposes anything", "Make one with d")
        made = await in_thread(lambda: self.connect().propose_draft(run.id, "rule"))
        return made.id


# --- what a person does there


def claim(app: MusterApp, argument: str) -> None:
    """Make it one's own. From somebody else only after a yes to that."""
    incident_id = _named(app, argument)

    async def do() -> str:
        shown = await in_thread(lambda: app.client().incident(incident_id))
        over = bool(shown.owner)
        if over and not await _said_yes(app, shown, "take it over", f"{name_of(shown.owner)} has it."):
            return f"{incident_id} stays {name_of(shown.owner)}'s"
        await in_thread(lambda: app.client().claim_incident(incident_id, over))
        return f"{incident_id} is yours"

    app.steering.tell(do)


def hand_over(app: MusterApp, argument: str) -> None:
    """`I-12 bob [note]`; by key, begin that line. Raises SpecError."""
    words = argument.split(None, 2)
    if len(words) < 2:
        app.bars.open_command(f"hand-over {_named(app, argument)} ")
        return
    incident_id, to, note = _id(words[0]), words[1], " ".join(words[2:])

    async def do() -> str:
        done = await in_thread(lambda: app.client().hand_over_incident(incident_id, to, note))
        return f"{incident_id} is {name_of(done.owner)}'s"

    app.steering.tell(do)


def note(app: MusterApp, argument: str) -> None:
    """`I-12 what you saw`; by key, begin that line. Raises SpecError."""
    name, _, text = argument.partition(" ")
    if not text.strip():
        app.bars.open_command(f"note {_named(app, name)} ")
        return
    incident_id = _id(name)

    async def do() -> str:
        await in_thread(lambda: app.client().note_incident(incident_id, text.strip()))
        return f"{incident_id} has your note"

    app.steering.tell(do)


def close(app: MusterApp, argument: str) -> None:
    """End it, with what was found."""
    name, _, found = argument.partition(" ")
    incident_id = _named(app, name)

    async def do() -> str:
        said = found.strip()
        if not said:
            shown = await in_thread(lambda: app.client().incident(incident_id))
            asked = await _found(app, shown)
            if asked is None:
                return f"{incident_id} stays {shown.state}"
            said = asked
        await in_thread(lambda: app.client().close_incident(incident_id, said))
        return f"{incident_id} is closed"

    app.steering.tell(do)


def propose(app: MusterApp, argument: str) -> None:
    """Put the draft that the page shows to the vote, and go to where it is read and voted on."""
    pane = cast("IncidentPane", app.navigator.current)

    async def do() -> str:
        proposal = await pane.propose()
        if app.navigator.current is pane:
            app.navigator.drill("proposal", proposal)
        return f"{proposal} waits for votes; nothing is done yet"

    app.steering.tell(do)


def _named(app: MusterApp, argument: str) -> str:
    """The incident that was typed, or the one of the page. Raises SpecError, RefusedError."""
    if argument.strip():
        return _id(argument.strip())
    chosen = next((target.id for target in app.context().targets), "") if app.context().kind == "incident" else ""
    if not chosen:
        raise RefusedError("no incident is chosen", "See :incidents")
    return chosen


def _id(text: str) -> str:
    """Raises SpecError."""
    from console.forms.gate_arguments import incident_id

    found = incident_id(text)
    if not found.startswith("I-"):
        raise SpecError("", f"'{printable(text)[:20]}' is not an incident", "Write its id, as in I-12")
    return found


async def _said_yes(app: MusterApp, incident: Incident, deed: str, why: str) -> bool:
    from console.tui.decision_dialogs import DecideDialog

    def shown(width: int) -> list[Section]:
        lines = [*hanging("", printable(why), width), *hanging("", printable(incident.title), width)]
        return [Section(f"{incident.id}: {deed}", tuple(lines))]

    return bool(await app.push_screen_wait(DecideDialog(shown, deed, "key", clock=app.clock)))


async def _found(app: MusterApp, incident: Incident) -> str | None:
    """What was found, as it was written; None for no."""
    from console.tui.decision_dialogs import DecideDialog

    def shown(width: int) -> list[Section]:
        fires = f"{incident.firing:,} of its alerts still fire: the next report opens another incident."
        told = fires if incident.firing else "Its alerts are over."
        lines = [*hanging("", printable(incident.title), width), *hanging("", told, width)]
        return [Section(f"Close {incident.id}: say what was found", tuple(lines))]

    dialog = DecideDialog(shown, "close it", "reason", least_reason=MIN_FOUND, clock=app.clock)
    return dialog.reason if await app.push_screen_wait(dialog) else None
