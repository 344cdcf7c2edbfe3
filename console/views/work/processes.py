"""Processes of this machine in words. No Textual in here."""

from __future__ import annotations

from console.text.terminal_text import cut, duration, fit, mebibytes, printable, timestamp
from console.views.sections import Line, Section, plural, text_line
from engine.executors.process_queries import ProcessReport, TaskView
from engine.model.queries import WorkloadDetail

SHOWN = 16
"""Tasks that are told one by one."""
_TONES = {"running": "ok", "lost": "bad"}


def process_sections(view: WorkloadDetail, report: ProcessReport | None, width: int) -> list[Section]:
    """The tasks of the last attempt, each leading to what it writes; nothing of work that names no command, or of a
    cell that runs none."""
    if view.run is None or report is None or not report.attempts:
        return []
    last = report.attempts[0]
    lines = [_line(view.id, task, width) for task in last.tasks[:SHOWN]]
    more = last.tasks_total - len(lines)
    if more > 0:
        lines.append(text_line(f"… and {more:,} {plural('task', more)} more", "dim"))
    earlier = f", {len(report.attempts) - 1} before" if len(report.attempts) > 1 else ""
    return [Section("Processes", tuple(lines), f"attempt {last.attempt}{earlier}; l shows what it writes")]


def _line(workload: str, task: TaskView, width: int) -> Line:
    tone = "bad" if task.ended else _TONES.get(task.phase, "dim")
    told = cut(" · ".join(task_facts(task)), max(8, width - 22))
    spans = ((fit(printable(task.name), 12), "link"), (fit(task.phase, 9), tone), (told, "dim"))
    return Line(spans, f"output {printable(workload)} {printable(task.name)}")


def task_line(task: TaskView) -> str:
    """One task in a line."""
    return " · ".join([f"{printable(task.name):<10}", f"{task.phase:<8}", *task_facts(task)])


def task_facts(task: TaskView) -> list[str]:
    """What is known of it besides its name and phase."""
    ran = duration(task.ended_ms - task.started_ms) if task.ended_ms else ""
    words = (
        printable(task.ended),
        f"process {task.pid}" if task.pid else "",
        f"ran {ran}" if ran else f"since {timestamp(task.started_ms)} UTC" if task.started_ms else "",
        f"{duration(task.cpu_ms)} of CPU" if task.cpu_ms else "",
        f"{mebibytes(task.memory_mib)} now" if task.memory_mib else "",
        f"{mebibytes(task.peak_mib)} at most" if task.peak_mib else "",
        f"{task.output_bytes:,} bytes written",
    )
    return [word for word in words if word]
