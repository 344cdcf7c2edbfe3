"""What if: edits are put together, the twin runs ahead with and without them, and before and after are compared.

Runs are kept by the engine's process; the edits that are being put together are this page's own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import on
from textual.timer import Timer

from console.client.change_feed import in_thread
from console.text.progress_line import TimeLeft
from console.text.terminal_text import cut, duration, fit, printable, wrap
from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import AsOf, Connect
from console.tui.widgets.sections_view import SectionsView
from console.views.advice.what_if import outlook_sections, rests_on, run_line
from console.views.lists import meter
from console.views.sections import Line, Section, text_line
from engine.model.errors import MusterError, RefusedError
from engine.model.twin_queries import Outlook, RunStatus, WhatIf
from engine.model.what_if_edits import FORMS, AnyEdit, parse, written

if TYPE_CHECKING:
    from console.client.protocol import Client

LOOK_S = 0.5
"""How often a run that goes on is looked at."""


class WhatIfRuns(NamedTuple):
    """The what-ifs that the engine keeps, and the two that are shown."""

    runs: tuple[RunStatus, ...]
    shown: RunStatus | None
    beside: RunStatus | None


class WhatIfPane(DetailPane[WhatIfRuns]):
    NAME = "whatif"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.edits: list[AnyEdit] = []
        self._shown = ""
        """Id of the run on the right; empty: the newest."""
        self._beside = ""
        self._stopped = ""
        """Id of the run that was last stopped from here."""
        self._paced = ""
        self._pace = TimeLeft()
        """Of the run with the id before."""
        self._timer: Timer | None = None

    @property
    def note(self) -> str:
        shown = self.detail.shown if self.detail else None
        if shown is not None and shown.state == "running":
            return self._far(shown)
        if shown is None or not isinstance(shown.answer, Outlook):
            return "nothing here changes the cell"
        return rests_on(shown.answer)

    @property
    def as_of(self) -> AsOf | None:
        """Of when the cell was forked."""
        shown = self.detail.shown if self.detail else None
        return None if shown is None else AsOf(shown.version, shown.at_ms)

    @property
    def frozen(self) -> AsOf | None:
        """An answer stays that of its moment."""
        return self.as_of

    def place(self) -> dict[str, Any]:
        edits = [written(edit) for edit in self.edits]
        return {"shown": self._shown, "beside": self._beside, "edits": edits}

    def put_back(self, place: dict[str, Any]) -> None:
        self._shown, self._beside = str(place.get("shown", "")), str(place.get("beside", ""))
        for text in place.get("edits", ()):
            # What names a file may not be there any more.
            with suppress(MusterError):
                self.edits.append(parse(str(text)))
        self.reload()

    def clear_one(self) -> bool:
        """The first Back stops the run that is shown, else takes away the one beside it."""
        shown = self.detail.shown if self.detail else None
        if shown is not None and shown.state == "running" and self._stopped != shown.id:
            self._stopped = shown.id
            self.run_worker(self._stop_told(), group="stop")
            return True
        if self._beside:
            self._beside = ""
            self.reload()
            return True
        return False

    async def _stop_told(self) -> None:
        try:
            await self.stop()
        except MusterError as error:
            self.post_message(self.Failed(error))

    def _far(self, run: RunStatus) -> str:
        """How far a run is, for how long still, and how it is stopped."""
        if run.id != self._paced:
            self._paced, self._pace = run.id, TimeLeft()
        left_s = self._pace.step("run", run.progress_permille, 1000).left_s
        left = f" for {self._pace.went_s:.0f} s" if left_s is None else f", {duration(round(left_s * 1000))} left"
        return f"running ahead: {run.progress_permille / 10:.0f}%{left}, esc stops it"

    def on_mount(self) -> None:
        super().on_mount()
        self._timer = self.set_interval(LOOK_S, self._look, pause=True)

    # --- putting together

    def add(self, edit: AnyEdit) -> None:
        """One more edit."""
        self.edits.append(edit)
        self._draw()

    def take_out(self) -> None:
        """Take out the edit under the cursor."""
        what, _, name = self._link_under_cursor().partition(":")
        if what != "edit":
            raise RefusedError("no edit is under the cursor", "Go to one of the edits first")
        del self.edits[int(name)]
        self._draw()

    async def start(self) -> None:
        """Run ahead with what has been put together. Raises MusterError; the edits stay."""
        if not self.edits:
            raise RefusedError("there is no edit yet", "Choose one below, or type :whatif drain NODE")
        ask = WhatIf(edits=tuple(self.edits))
        status = await in_thread(lambda: self.connect().ask(ask))
        self._shown, self._beside = status.id, ""
        self.reload()

    async def stop(self) -> None:
        """Stop the run that is shown. Raises MusterError."""
        shown = self.detail.shown if self.detail else None
        if shown is None or shown.state != "running":
            raise RefusedError("no run goes on", "")
        await in_thread(lambda: self.connect().cancel_run(shown.id))
        self.reload()

    def point_at(self, run_id: str) -> None:
        """Show this run."""
        self._shown, self._beside = run_id, ""
        self.reload()

    def compare(self) -> None:
        """Set the run under the cursor beside the one that is shown; again takes it away."""
        what, _, name = self._link_under_cursor().partition(":")
        if what != "run":
            raise RefusedError("no run is under the cursor", "Go to one of the runs first")
        self._beside = "" if name == self._beside else name
        self.reload()

    def _link_under_cursor(self) -> str:
        return self._left.link

    # --- what is shown

    def ask(self, client: Client) -> WhatIfRuns:
        runs = tuple(run for run in client.runs() if isinstance(run.ask, WhatIf))
        ids = [run.id for run in runs]
        shown = self._shown if self._shown in ids else next(iter(ids), "")
        beside = self._beside if self._beside in ids and self._beside != shown else ""
        return WhatIfRuns(runs, client.run(shown) if shown else None, client.run(beside) if beside else None)

    def columns(self, detail: WhatIfRuns, width: int) -> tuple[list[Section], list[Section]]:
        left = [self._edits_section(width)]
        if detail.runs:
            left.append(self._runs_section(detail, width))
        result = self._result(detail, width)
        # In one column the answer comes before what is rarely wanted.
        return ([*left, _menu(width)], result) if self._right.display else (left, [*result, _menu(width)])

    def _draw(self) -> None:
        super()._draw()
        if self._timer is not None:
            goes_on = self.detail is not None and any(run.state == "running" for run in self.detail.runs)
            self._timer.resume() if goes_on else self._timer.pause()

    def _look(self) -> None:
        if self.display:
            self.reload()

    def _edits_section(self, width: int) -> Section:
        lines = [
            Line(((f"{number:>3}  ", "dim"), (cut(printable(written(edit)), width - 5), "")), f"edit:{number - 1}")
            for number, edit in enumerate(self.edits, 1)
        ]
        if not lines:
            lines = [text_line("none yet: choose one below, or type :whatif drain NODE", "dim")]
        return Section("Edits", tuple(lines), "w runs them, x takes one out")

    def _runs_section(self, detail: WhatIfRuns, width: int) -> Section:
        lines = []
        for run in detail.runs:
            mark = "▸" if detail.shown and run.id == detail.shown.id else " "
            mark = "|" if detail.beside and run.id == detail.beside.id else mark
            line = run_line(run, width - 2, f"run:{run.id}")
            lines.append(Line(((f"{mark} ", "accent"), *line.spans), line.link))
        return Section("Runs", tuple(lines), "enter shows, b beside")

    def _result(self, detail: WhatIfRuns, width: int) -> list[Section]:
        shown = detail.shown
        if shown is None:
            text = (
                "Edits are tried on a fork of the cell, which runs ahead beside it: the same engine, sampled run times."
            )
            return [Section("Before and after", tuple(text_line(line, "dim") for line in wrap(text, width)))]
        if shown.error is not None:
            problem = f"{shown.error.problem}. {shown.error.remedy}"
            return [
                Section("Before and after", tuple(text_line(part, "bad") for part in wrap(printable(problem), width)))
            ]
        if not isinstance(shown.answer, Outlook) and shown.state == "cancelled":
            return [Section("Stopped", (text_line("before there was an answer; w runs the edits again", "dim"),))]
        if not isinstance(shown.answer, Outlook):
            return [Section("Before and after", self._running_lines(shown, width), "esc stops it")]
        beside = detail.beside.answer if detail.beside and isinstance(detail.beside.answer, Outlook) else None
        sections = outlook_sections(shown.answer, width, beside)
        if shown.state == "running":
            first = text_line(f"first estimate: {rests_on(shown.answer)}", "warn")
            return [Section("Running ahead", (*self._running_lines(shown, width), first), "esc stops it"), *sections]
        if shown.state == "cancelled":
            return [Section("Stopped", (text_line("the figures are of the seeds up to then", "warn"),)), *sections]
        return sections

    def _running_lines(self, run: RunStatus, width: int) -> tuple[Line, ...]:
        bar = meter(run.progress_permille, max(4, width))
        return Line(((bar, "bar"),)), text_line(self._far(run), "dim")

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Lines of this page lead to a run, or into the `:` bar; the others where they say."""
        what, _, name = event.link.partition(":")
        if what not in ("run", "form", "edit"):
            return
        event.prevent_default()
        event.stop()
        if what == "run":
            self._shown = name
            self.reload()
        elif what == "form":
            self.post_message(self.Compose(f"whatif {name} "))
        else:
            self.post_message(self.Compose(f"whatif {written(self.edits[int(name)])}"))


def _menu(width: int) -> Section:
    """Every edit there is. Enter begins one in the `:` bar."""
    usage = max(16, width * 3 // 5)
    lines = tuple(
        Line(((fit(form.usage, usage), "link"), (" " + cut(form.help, width - usage - 1), "dim")), f"form:{form.word}")
        for form in FORMS
    )
    return Section("Add an edit", lines, "any may end in: at +2h")
