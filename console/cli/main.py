"""The `muster` command: its parser, its exit codes, and its errors.

The parser is complete here and loads nothing heavy; the module of a command is loaded when it runs. Standard output
is data, standard error is narration, the exit code names the kind of failure. A person never sees a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NoReturn

from console import VERSION
from console.forms.command_arguments import SHOWS_PAST, positive, reach, scenario, speed
from console.forms.shell_parser import WIDTH, ShellParser, wrong_command

EXIT_CODES: dict[int, tuple[str, tuple[str, ...]]] = {
    0: ("done", ()),
    1: ("failed: anything not named below", ("error",)),
    2: ("usage: the command, a file or a filter is malformed", ("invalid",)),
    3: ("something named does not exist", ("not_found",)),
    4: ("refused: not possible now, votes are missing, begun and stopped short, or read-only", ("refused",)),
    5: ("no engine answers, or it has more to do than it can", ("unreachable", "busy")),
    6: ("the journal cannot be read or written", ("journal", "journal_corrupt", "journal_busy")),
    7: ("a trace file is not what its format says", ("trace",)),
    130: ("interrupted", ()),
}
"""Exit code -> what it means, and the error codes of `engine.model.errors` that lead to it."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    _flush_or_forget()
    raise SystemExit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors have been reported on standard error."""
    from console.text.guarded_streams import guarded

    with guarded():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--version"]:
        RootParser().parse_args(arguments[:1])
    parsed = parser().parse_args(arguments)
    # Read when numpy is loaded. Our matrices are small: threads would wait for each other, and the engine for them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported after parsing, so that help and version need nothing else.
    from engine.model.errors import MusterError

    try:
        _refuse_past(parsed)
        with _progress(parsed):
            return _load(parsed.run)(parsed) or 0
    except MusterError as error:
        _tell(error.code, error.problem, error.remedy, getattr(parsed, "json", False))
        return exit_code(error.code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_output()
        return 0
    except Exception as error:
        path = _crash_log(arguments)
        _tell("error", f"unexpected {type(error).__name__}, this is a bug in Muster", f"See {path}", False)
        return 1


def _refuse_past(parsed: argparse.Namespace) -> None:
    """Raises RefusedError for `--at` with a command that shows no earlier time."""
    if getattr(parsed, "at", None) is None:
        return
    if parsed.run not in SHOWS_PAST:
        from engine.model.errors import RefusedError

        remedy = "--at goes with commands that show the cell, such as overview, get, why and history show"
        raise RefusedError(f"this command acts, or tells what is not kept: not possible as of {parsed.at}", remedy)
    parsed.progress = "off" if parsed.json else "auto"


def _progress(parsed: argparse.Namespace) -> AbstractContextManager[None]:
    """Progress of a command that takes long; nothing for the others."""
    if not hasattr(parsed, "progress"):
        return nullcontext()
    from console.text.progress_line import told

    return told(parsed)


def exit_code(error_code: str) -> int:
    """The exit code of an error's code."""
    return next((code for code, (_, errors) in EXIT_CODES.items() if error_code in errors), 1)


# --- the parser ----------------------------------------------------------------------------------------------------


_WHAT = "The on-call console for batch and AI clusters. Without a command: open the console."


class RootParser(ShellParser):
    """Parser of a call without a command, and of what stands in front of one."""

    def __init__(self) -> None:
        super().__init__(prog="muster", description=_WHAT)
        self.add_argument("--version", action="version", version=f"muster {VERSION}")
        self.add_argument("--demo", action="store_true", help="open a generated AI cluster with live load")
        self.add_argument("--nodes", type=positive, metavar="N", help="with --demo: how many nodes")
        scenario(self)
        self.add_argument("--fresh", action="store_true", help="with --demo: forget the earlier demo and start anew")
        speed(self)
        _looks(self)
        reach(self)
        self.set_defaults(run="console.cli.start:open_console", json=False, here=False)

    def usage_line(self) -> str:
        return "muster [OPTIONS] [COMMAND]"

    def _ending(self) -> list[str]:
        options = [option for action in self._get_optional_actions() for option in action.option_strings[-1:]]
        return [
            *textwrap.wrap(" ".join(options), WIDTH, initial_indent="  options     ", subsequent_indent=" " * 14),
            "",
            "More: muster COMMAND --help, muster help options, muster help exit-codes",
        ]


@cache
def parser() -> RootParser:
    """The complete parser. Made once: parsing changes nothing in it."""
    from console.cli.daily_commands import add_daily  # `--version` does without them
    from console.cli.engine_commands import RUN, add_engine
    from console.cli.noun_commands import add_nouns

    root = RootParser()
    add_daily(root)
    add_nouns(root)
    add_engine(root)
    root.add("help", "help on a command, the options or the exit codes", "console.cli.main:show_help", _topic, RUN)
    return root


def _topic(target: ShellParser) -> None:
    target.add_argument("words", nargs="*", metavar="WORD", help="a command such as node drain; options; exit-codes")


def show_help(arguments: argparse.Namespace) -> None:
    """Print the help of the words that were given."""
    words = arguments.words if isinstance(arguments.words, list) else arguments.words.split()[1:]
    if words in (["options"], ["exit-codes"]):
        from console.text.terminal_text import printable

        for line in parser().option_lines()[1:] if words == ["options"] else _exit_table():
            print(printable(line))
        return
    of: ShellParser = parser()
    for word in words:
        if word not in of.below:
            of.exit(2, wrong_command(of, word))
        of = of.command(word)
    of.print_help()


def _looks(target: argparse.ArgumentParser) -> None:
    """Add options for the appearance of the console."""
    group = target.add_argument_group("how it looks")
    group.add_argument("--theme", metavar="NAME", help="dark, light, contrast, safe, sixteen or plain")
    group.add_argument(
        "--no-color", dest="theme", action="store_const", const="plain", help="no colours: --theme plain"
    )
    group.add_argument(
        "--linear", action="store_true", default=None, help="line by line, for screen readers, pipes and any terminal"
    )
    group.add_argument("--page", metavar="LINE", help="begin on the page of a : line, such as 'workload W-12'")


def _exit_table() -> list[str]:
    return ["exit codes:", *(f"  {code:<3}  {text}" for code, (text, _) in EXIT_CODES.items())]


# --- the way out ---------------------------------------------------------------------------------------------------


def _load(runs: str) -> Any:
    import importlib

    module, _, name = runs.partition(":")
    return getattr(importlib.import_module(module), name)


def _tell(code: str, problem: str, remedy: str, as_json: bool) -> None:
    """Report an error on standard error: for people in one or two lines, for programs as JSON."""
    from console.text.terminal_text import printable, remedy_text

    if as_json:
        import json

        print(json.dumps({"code": code, "problem": problem, "remedy": remedy}), file=sys.stderr)
        return
    print(f"muster: {printable(problem)}", file=sys.stderr)
    for line in remedy.splitlines():
        print(f"  {remedy_text(line)}", file=sys.stderr)


def _crash_log(arguments: Sequence[str]) -> str:
    """Write the traceback, without the values of variables, to a file that only this user can read. Returns its
    path."""
    import tempfile
    import traceback

    from console.text.guarded_streams import inert

    handle, path = tempfile.mkstemp(prefix="muster-crash-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as log:
        log.write(f"muster {VERSION}, Python {sys.version}, command {arguments[:1]}\n")
        log.write(inert(traceback.format_exc()))
    return path


def _flush_or_forget() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    """Discard output after the reader of a pipe has gone, including what Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
