"""What a workload runs where it runs for real: a command with its arguments, its environment and its folder.

No shell reads any of it, unless the command itself is one.
"""

from __future__ import annotations

import contextlib
import re
import signal

import msgspec

from engine.model.base import HOUR_MS, Spec, check_quantity
from engine.model.errors import SpecError

MAX_WORDS = 4096
MAX_BYTES = 128 * 1024
"""Of command and environment together: it is kept in the journal, once for all that say the same."""
OURS = "MUSTER_"
"""Names of variables that begin so are Muster's to set."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RunSpec(Spec, frozen=True, kw_only=True):
    """The same for every task; each is told by its environment which one it is."""

    argv: tuple[str, ...]
    """The program, as a path or as a name to be found in PATH, and its arguments."""
    env: dict[str, str] = {}
    """Variables besides those of whoever owns the engine. They are kept in the journal: no place for secrets."""
    cwd: str = ""
    """Absolute path of the folder it begins in; empty: the home of whoever owns the engine."""
    grace_ms: int = 10_000
    """Between being asked to stop (SIGTERM) and being killed."""

    def __hash__(self) -> int:
        return hash((self.argv, self.cwd, len(self.env)))


def check_run(run: RunSpec, where: str) -> None:
    """Raises SpecError for what the operating system would refuse, or nobody could mean."""
    if not run.argv or not run.argv[0]:
        raise SpecError(f"{where}.argv", "names no program", "Write for example: argv: [python3, train.py]")
    if len(run.argv) > MAX_WORDS:
        raise SpecError(f"{where}.argv", f"has {len(run.argv)} words", f"Give at most {MAX_WORDS}")
    for i, word in enumerate(run.argv):
        _check_text(word, f"{where}.argv[{i}]")
    for name, value in run.env.items():
        if not _NAME.fullmatch(name):
            raise SpecError(f"{where}.env", f"{name[:40]!a} is no name of a variable", "Use letters, digits and _")
        if name.startswith(OURS):
            raise SpecError(f"{where}.env.{name[:80]}", f"names that begin with {OURS} are Muster's", "Choose another")
        _check_text(value, f"{where}.env.{name[:80]}")
    size = sum(len(text.encode()) for text in (*run.argv, *run.env, *run.env.values()))
    if size > MAX_BYTES:
        raise SpecError(where, f"has {size} bytes", f"Give at most {MAX_BYTES}; put more into a file that it reads")
    _check_text(run.cwd, f"{where}.cwd")
    if run.cwd and not run.cwd.startswith("/"):
        raise SpecError(f"{where}.cwd", f"{run.cwd[:80]!a} is no absolute path", "Begin it with /")
    check_quantity(run.grace_ms, f"{where}.grace_ms", most=HOUR_MS)


def shown(run: RunSpec | None) -> RunSpec | None:
    """As others may see it: what somebody put into the environment may be a secret all the same."""
    return msgspec.structs.replace(run, env=dict.fromkeys(run.env, "")) if run is not None and run.env else run


EXIT_CAUSES = ("", "its memory limit", "its time limit", "it could not be started")
"""Why Muster itself ended a task, where it did."""
TIME_LIMIT = 2


def exit_words(task: int, status: int) -> str:
    """How a task ended, by its rank and the status of `engine.model.events.Exited`, for people."""
    cause, code = EXIT_CAUSES[status >> 8], status & 0xFF
    how = f"with code {code}"
    if code > 128:
        with contextlib.suppress(ValueError):
            how = f"by {signal.Signals(code - 128).name}"
    return f"task {task} {how}{f': {cause}' if cause else ''}"


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise SpecError(where, "holds a NUL character", "Take it out: no program can be given one")
    try:
        text.encode()
    except UnicodeEncodeError:
        remedy = "Give text, or the name of a file that holds the bytes"
        raise SpecError(where, "is not valid Unicode", remedy) from None
