"""What `:replay`, `:backtest`, `:bench`, `:pack`, `:drill` and `:eval` do: the shell command of that name is started
beside the console, and its page shown."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from console.text import printable
from engine.errors import MusterError, SpecError

if TYPE_CHECKING:
    from console.app import MusterApp


def replay(app: MusterApp, argument: str) -> None:
    _start(app, "replay", argument)


def backtest(app: MusterApp, argument: str) -> None:
    _start(app, "backtest", argument)


def bench(app: MusterApp, argument: str) -> None:
    _start(app, "bench", argument)


def pack(app: MusterApp, argument: str) -> None:
    _start(app, "pack", argument)


def drill(app: MusterApp, argument: str) -> None:
    _start(app, "drill", argument)


def evaluate(app: MusterApp, argument: str) -> None:
    _start(app, "eval", argument)


def _start(app: MusterApp, name: str, argument: str) -> None:
    """Raises SpecError for what the command would not take."""
    if not argument and name != "drill":
        app.bars.open_command(f"{name} ")
        return
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise SpecError("", str(error), "Close the quotation") from None
    try:
        task = app.tasks.start([name, *words])
    except SpecError:
        raise
    except MusterError as error:
        app.report(error)
        return
    app.navigator.drill("tasks", task.id)
    app.say(f"{task.id} runs: {printable(task.line)[:80]}; esc stops it, q leaves it running")
