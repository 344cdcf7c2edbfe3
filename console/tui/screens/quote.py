"""What work would cost, and when it would start, by option: `:cost nodes=4 gpus=8 hours=6`.

The first answer comes within a second; starts that it did not reach are looked for further, with progress, until Esc.
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from console.actions.request_builder import LineParser
from console.arguments.quotes import quote_arguments
from console.cli.planning.cost import ON_MS, request_of
from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.widgets.chart_pane import ChartPane
from console.tui.widgets.pane import AsOf, Connect
from console.views.advice.quote import asking, compared, pages, thin_starts
from console.views.sections import Section
from engine.model.errors import MusterError, SpecError
from engine.model.twin_queries import AskOptions
from recommender.quotes.queries import Quote, QuoteRequest

if TYPE_CHECKING:
    import argparse

    from textual.timer import Timer
    from textual.worker import Worker

    from console.client.protocol import Client

LOOK_S = 0.5
SWITCHES = ("spot", "arrivals", "no-arrivals")
"""Words that stand alone."""


class QuoteResult(NamedTuple):
    quote: Quote
    request: QuoteRequest


class QuotePane(ChartPane[QuoteResult]):
    NAME = "cost"

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._words = " ".join(argument.split())
        self._arguments = read(self._words)
        self._work: Worker[None] | None = None
        self._began = 0.0
        self._permille: int | None = None
        """How far the engine is, where it says so."""
        self._further = ""
        self._timer: Timer | None = None

    @property
    def crumb(self) -> str:
        return f"cost {printable(self._words)}"

    @property
    def note(self) -> str:
        return self._doing() or "nothing is submitted; r asks again"

    @property
    def line(self) -> str:
        return f"cost {self._words}"

    @property
    def copyable(self) -> str:
        """What asks the same from the shell."""
        return shlex.join(["muster", "cost", *flags(self._words)])

    @property
    def as_of(self) -> AsOf | None:
        return None if self.detail is None else AsOf(self.detail.quote.version, self.detail.quote.at_ms)

    @property
    def frozen(self) -> AsOf | None:
        """An answer is of its moment: only a person asks again."""
        return self.as_of

    def on_mount(self) -> None:
        self._timer = self.set_interval(LOOK_S, self._look, pause=True)
        self._chart.show(asking(self._words, "asking …", 60))
        self._chart.styles.height = 2
        self._start()

    def reload(self) -> None:
        """Only while nothing was asked, as before there was an engine."""
        if self.detail is None and self._work is None and not self._further:
            self._start()

    def look_again(self) -> None:
        if self._work is None:
            self._further = ""
            self._start()

    # --- asking

    def _start(self) -> None:
        self._began, self._permille = time.monotonic(), None
        self._work = self.run_worker(self._quote(), exclusive=True, group="quote")
        if self._timer is not None:
            self._timer.resume()

    async def _quote(self) -> None:
        try:
            request = await in_thread(lambda: self._request(self.connect()))
            quote = await in_thread(lambda: self.connect().quote(request))
            self._show(QuoteResult(quote, request))
            if thin_starts(quote) and self._arguments.seeds is None and self._arguments.within is None:
                self._began, self._permille = time.monotonic(), None
                self._further = "starts not reached yet, or in too few runs, are run further ahead"
                self._draw()
                longer = msgspec.structs.replace(request, within_ms=ON_MS)
                self._show(QuoteResult(await in_thread(lambda: self.connect().quote(longer)), longer))
            self._further = self._not_reached()
        except MusterError as error:
            self._further = str(error)
            if self.detail is None:
                self._chart.show(asking(self._words, self._further, max(20, self.size.width - 4)))
            self.post_message(self.Failed(error))
        self._stand_still()

    def _request(self, client: Client) -> QuoteRequest:
        return request_of(self._arguments, client)

    def _show(self, found: QuoteResult) -> None:
        self.detail = found
        self._draw()

    def _not_reached(self) -> str:
        if self.detail is None or not thin_starts(self.detail.quote):
            return ""
        return "not every start was reached in enough runs: within=60s runs further ahead, seeds=8 to the end"

    def _stand_still(self) -> None:
        self._work = None
        if self._timer is not None:
            self._timer.pause()
        self._draw()
        self.post_message(self.Changed())

    def clear_one(self) -> bool:
        """The first Back stops the engine looking; the answer that is there stays."""
        if self._work is None:
            return False
        self._work.cancel()
        self._further = "stopped: r asks again"
        self.run_worker(self._stop(), group="stop")
        self._stand_still()
        if self.detail is None:
            self._chart.show(asking(self._words, self._further, 60))
        return True

    async def _stop(self) -> None:
        """End what runs ahead for this in the engine."""
        with suppress(MusterError):
            await in_thread(lambda: self._end_runs(self.connect()))

    def _end_runs(self, client: Client) -> None:
        for run_id, _ in self._runs(client):
            client.cancel_run(run_id)

    def _runs(self, client: Client) -> list[tuple[str, int]]:
        """(id, progress) of what runs ahead for the same work."""
        nodes = self._arguments.nodes
        return [
            (run.id, run.progress_permille)
            for run in client.runs()
            if run.state == "running"
            and isinstance(run.ask, AskOptions)
            and any(spec.groups[0].count == nodes for spec in run.ask.workloads)
        ]

    async def _look(self) -> None:
        if not self.display:
            return
        with suppress(MusterError):
            runs = await in_thread(lambda: self._runs(self.connect()))
            self._permille = runs[0][1] if runs else self._permille
        self.post_message(self.Changed())

    def _doing(self) -> str:
        if self._work is None:
            return ""
        went_s = time.monotonic() - self._began
        if self._arguments.seeds and self._permille:
            left_s = went_s * (1000 - self._permille) / self._permille
            return f"running ahead: {self._permille // 10}%, about {left_s:.0f} s left, esc stops"
        most_s = ON_MS // 1000 if self._further else 1
        return f"running ahead: {went_s:.0f} s of about {most_s} s, esc stops"

    # --- what is shown

    def chart(self, detail: QuoteResult, width: int, rows: int) -> list[Section]:
        return compared(detail.quote, detail.request, width)

    def columns(self, detail: QuoteResult, width: int) -> tuple[list[Section], list[Section]]:
        return pages(detail.quote, self._further, width)


def flags(words: str) -> list[str]:
    """`nodes=4 hours=6 spot` as the shell takes it; flags may be typed as they are. Raises SpecError."""
    try:
        parts = shlex.split(words)
    except ValueError as error:
        raise SpecError("", str(error), "Write for example nodes=4 gpus=8 hours=6") from None
    found = []
    for part in parts:
        name, equals, value = part.partition("=")
        if part.startswith("-"):
            found.append(part)
        elif equals:
            found += [f"--{name.replace('_', '-')}", value]
        elif part in SWITCHES:
            found.append(f"--{part}")
        elif found and found[-1].startswith("--") and "=" not in found[-1]:
            found.append(part)
        else:
            raise SpecError("", f"'{printable(part)[:40]}' is not NAME=VALUE", "Write nodes=4 gpus=8 hours=6")
    return found


def read(words: str) -> argparse.Namespace:
    """Raises SpecError naming what is wrong."""
    parser = LineParser(prog=":cost", add_help=False, allow_abbrev=False)
    quote_arguments(parser)
    arguments = parser.parse_args(flags(words))
    if arguments.nodes is None:
        raise SpecError("nodes", "is not given", "Say how many, such as nodes=4 gpus=8 hours=6")
    return arguments
