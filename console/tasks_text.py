"""The page of long commands as sections: how far each is, what came of it, and what it printed. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence

from console.details import Line, Section, fact, text_line
from console.progress import step_words
from console.tasks import MOST_LINES, Task
from console.text import cut, duration, fit, printable, wrap
from console.views import meter

EXAMPLES = (
    "replay FILE --format swf --nodes 128",
    "backtest runtime FILE --format swf",
    "backtest demand FILE",
    "bench kueue-baseline",
    "pack --format openb --nodes FILE --pods FILE",
    "eval drafts",
)
_LOOKS = {"running": ("●", "info"), "done": ("✓", "ok"), "failed": ("✗", "bad"), "stopped": ("⊘", "dim")}


def pages(tasks: Sequence[Task], shown: Task | None, width: int, *, two: bool) -> tuple[list[Section], list[Section]]:
    """Left: all of them, and what can be started. Right, or between the two: the one that is shown."""
    one = [] if shown is None else [about(shown, width), output(shown)]
    if two:
        return [listed(tasks, shown, width), begin(width)], one
    return [listed(tasks, shown, width), *one, begin(width)], []


def listed(tasks: Sequence[Task], shown: Task | None, width: int) -> Section:
    lines = []
    for task in tasks:
        sign, tone = _LOOKS[task.state]
        mark = "▸ " if task is shown else "  "
        state = far(task) if task.state == "running" else task.state
        words = printable(" ".join(task.words))
        room = max(8, width - 6 - len(task.id) - 12)
        lines.append(
            Line(
                ((mark, "accent"), (f"{sign} ", tone), (f"{task.id} ", "dim"), (fit(words, room), "link"),
                 (f" {fit(state, 9, right=True)}", tone)),
                f"task:{task.id}",
            )
        )  # fmt: skip
    if not lines:
        lines = [text_line("none yet: begin one below", "dim")]
    return Section("Long work", tuple(lines), "ends with the console")


def far(task: Task) -> str:
    """How far a running one is, in a few cells."""
    if task.step is None or task.step.permille is None:
        return duration(round(task.seconds * 1000))
    return f"{task.step.permille / 10:.0f}%"


def begin(width: int) -> Section:
    lines = tuple(Line(((cut(f":{example}", width), "link"),), f"compose:{example}") for example in EXAMPLES)
    return Section("Begin", lines, "beside the console, at low priority")


def about(task: Task, width: int) -> Section:
    """What runs, how far it is and for how long still; or what came of it."""
    lines = [Line((("$ ", "dim"), (line, ""))) for line in wrap(printable(task.line), width - 2)]
    took = duration(round(task.seconds * 1000))
    if task.state == "running":
        step = task.step
        if step is not None and step.permille is not None:
            lines.append(Line(((meter(step.permille, max(4, width)), "bar"),)))
        lines.append(fact("now", "starting …" if step is None else step_words(step)))
        lines.append(fact("runs for", took))
        return Section(task.id, tuple(lines), "esc stops it, q leaves it running")
    tone = _LOOKS[task.state][1]
    code = "" if task.code in (0, None) or task.state == "stopped" else f", exit code {task.code}"
    lines.append(fact("outcome", f"{task.state}{code}, after {took}", tone))
    return Section(task.id, tuple(lines), "y copies the command")


def output(task: Task) -> Section:
    """What it printed, as it is; on a page too narrow for a line the rest of it is cut."""
    lines = [text_line(line) for line in list(task.output)]
    if task.dropped:
        lines.insert(0, text_line(f"{task.dropped:,} lines before these are not kept", "warn"))
    if not lines:
        lines = [text_line("nothing was printed yet" if task.state == "running" else "nothing was printed", "dim")]
    return Section("Output", tuple(lines), f"{len(task.output):,} lines, the last {MOST_LINES:,} are kept")
