"""The parser of the shell: commands by noun and verb, help that fits one screen, errors that say what to type instead.

A parser below another is filled when its word is typed, or when all are asked for, so that one command does not pay for
the others. Loads nothing heavy.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

MAX_CHOICES = 12
"""Longest list of choices in an error: nobody reads a hundred commands to find the one they meant."""
MAX_MEANT = 3
"""Commands that an error offers instead."""
MIN_WORD = 4
"""Letters of a word that is looked up in what commands do."""
ALIKE, VERY_ALIKE = 0.7, 0.85
"""From 0 to 1: of one of a few words that may have been meant, of one of a hundred, and of one that surely was."""
WIDTH = 80
MAX_LEFT = 26
"""Cells of the left column of a help page."""
SHARED = "which engine"
"""Title of the options that nearly all commands have: `muster help options` says what they do."""


_SAID = (
    (r"-\w/(--)", r"\1"),
    (r"^(.*): expected at least one argument$", r"\1 needs a value, or several"),
    (r"^(.*): expected one argument$", r"\1 needs a value"),
    (r"^(.*): expected (\d+) arguments?$", r"\1 needs \2 values"),
    (r"^(.*): not allowed with argument (.*)$", r"\1 and \2 exclude each other; give one of them"),
    (r"^(.*): ignored explicit argument (.*)$", r"\1 takes no value; got \2"),
    (r"^one of the arguments (.*) is required$", lambda match: f"missing {' or '.join(match[1].split())}"),
    (r"invalid \w+ value: (.*)$", r"\1 is not a value for it"),
)
"""What argparse says of wrong usage, and how we say it."""


class HelpSection(NamedTuple):
    """Heading on a help page."""

    title: str = ""
    words_only: bool = False
    """Its commands stand in a line, without what they do."""


VERBS = HelpSection()

Fill = Callable[["ShellParser"], None]


class ShellParser(argparse.ArgumentParser):
    """Parser that reports what is wrong in one line and how to go on in another, and that has commands below it."""

    def __init__(self, *, fill: Fill | None = None, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)
        # What begins like a negative number is a value, also with a unit behind it: -20m.
        self._negative_number_matcher = re.compile(r"-\d")
        self.root = self
        self.below: dict[str, tuple[HelpSection, str]] = {}
        """Word of a command -> where it stands on the help page, and what it says there."""
        self._commands: LateCommands | None = None
        self._fill = fill

    # -- commands below -----------------------------------------------------------------------------------------------

    def add(self, word: str, text: str, runs: str = "", fill: Fill | None = None, section: HelpSection = VERBS) -> None:
        """Add a command. `runs` is `module:function`, loaded when the command runs; a noun runs nothing but its help.
        `fill` gives it its arguments, or the commands below it, once it is wanted."""
        if self._commands is None:
            metavar = "VERB" if self.root is not self else "COMMAND"
            self._commands = self.add_subparsers(action=LateCommands, metavar=metavar, prog=self.prog)
        self.below[word] = (section, text)
        self._commands.later(self.root, word, text, runs, fill)

    def noun(self, word: str, text: str) -> ShellParser:
        """The command below of that word, which has commands of its own; added where it is not there yet."""
        if word not in self.below:
            self.add(word, text)
        return self.command(word)

    def filled(self) -> ShellParser:
        """The parser with its arguments and commands."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return self

    def command(self, word: str) -> ShellParser:
        """The command below of that word. Raises KeyError."""
        self.filled()
        if self._commands is None:
            raise KeyError(word)
        return self._commands.made(word)

    def commands(self) -> Iterator[tuple[tuple[str, ...], ShellParser]]:
        """All commands below, each with the words behind `muster` that lead to it."""
        self.filled()
        for word in self.below:
            made = self.command(word)
            yield tuple(made.prog.split()[1:]), made
            yield from made.commands()

    # -- reading ------------------------------------------------------------------------------------------------------

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As of argparse, but an argument that nothing takes is an error of the command it was given to."""
        self.filled()
        found, rest = super().parse_known_args(args, namespace)
        if rest and not self._take_late(found, rest):
            self._refuse(rest[0])
        return found, []

    def _take_late(self, found: Any, words: Sequence[str]) -> bool:
        """Give words behind a flag to a list that may be empty. argparse closes such a list at the first flag."""
        empty = [action for action in self._actions if action.nargs == "*" and getattr(found, action.dest, None) == []]
        if not empty or any(word.startswith("-") for word in words):
            return False
        setattr(found, empty[0].dest, [self._get_value(empty[0], word) for word in words])
        return True

    def _refuse(self, typed: str) -> NoReturn:
        """Report an argument that nothing takes."""
        name = typed.split("=")[0]
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        if not name.startswith("-"):
            self.error(f"unexpected argument {_quoted(name)}")
        near = _nearest(name, known, ALIKE)
        self.error(f"there is no option {_quoted(name)}" + (f"; did you mean {near}?" if near else ""))

    def error(self, message: str) -> NoReturn:
        """Report wrong usage: one line of what was wrong, one of how to go on. Ends the program with code 2."""
        missing = "the following arguments are required: "
        if message.startswith(missing):
            names = message.removeprefix(missing).split(", ")
            message = f"missing {', '.join(name if name.startswith('-') else name.upper() for name in names)}"
            for action in self._get_positional_actions():
                if action.choices and action.dest in names and not isinstance(action, LateCommands):
                    message += f": one of {', '.join(str(choice) for choice in action.choices)}"
            self.exit(2, f"muster: {message}\n  Usage: {self.usage_line()}\n")
        message = message.removeprefix("argument ")
        for said, told in _SAID:
            message = re.sub(said, told, message)
        self.exit(2, f"muster: {message}\n  See: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises ArgumentError that names the nearest choice, where argparse would list them all."""
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, LateCommands):
            self.exit(2, wrong_command(self, str(value)))
        choices = [str(choice) for choice in action.choices]
        near = _nearest(str(value), choices)
        hint = f"; did you mean {near}?" if near else ""
        if not near and len(choices) <= MAX_CHOICES:
            hint = f"; choose from {', '.join(choices)}"
        of = action if action.option_strings else None
        raise argparse.ArgumentError(of, f"there is no {_quoted(str(value))}{hint}")

    # -- help ---------------------------------------------------------------------------------------------------------

    def usage_line(self) -> str:
        """Usage in one line: what must be given by name, the rest as OPTIONS."""
        self.filled()
        words = [self.prog]
        for action in self._get_positional_actions():
            if isinstance(action, LateCommands):
                words.append(str(action.metavar))
            elif action.nargs != argparse.REMAINDER:
                words.append(_FORMS.get(action.nargs, "{0}").format(_name_of(action)))
        for action in self._get_optional_actions():
            if action.required:
                words.append(f"{action.option_strings[-1]} {action.metavar or _name_of(action)}")
        return " ".join([*words, "[OPTIONS]"])

    def format_help(self) -> str:
        self.filled()
        return "\n".join([*(self.page() if self._commands is not None else self._leaf_page()), ""])

    def _leaf_page(self) -> list[str]:
        """Help of a command without commands below: its arguments, then its options, then which engine it asks."""
        lines = textwrap.wrap(f"Usage: {self.usage_line()}", WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)
        lines += textwrap.wrap(_sentence(self.description), WIDTH)
        return [*lines, *self.option_lines(), *(["", *self.epilog.splitlines()] if self.epilog else [])]

    def page(self) -> list[str]:
        """Help of a parser with commands below: a line or two for each."""
        wide = max(map(len, self.below))
        lines = [f"Usage: {self.usage_line()}", *textwrap.wrap(_sentence(self.description), WIDTH)]
        for section in dict.fromkeys(section for section, _ in self.below.values()):
            rows = {word: text for word, (of, text) in self.below.items() if of == section}
            if section.words_only:
                rows = {section.title: " ".join(rows)}
            else:
                lines += ["", section.title] if section.title else [""]
            for word, text in rows.items():
                lines += textwrap.wrap(
                    text, WIDTH, initial_indent=f"  {word:<{wide}}  ", subsequent_indent=" " * (wide + 4)
                )
        return [*lines, *self._ending()]

    def _ending(self) -> list[str]:
        """Last lines of a help page of commands."""
        options = self.option_lines() if len(self._get_optional_actions()) > 1 else []
        return [*options, "", f"More of one: {self.prog} VERB --help"]

    def option_lines(self) -> list[str]:
        """Each argument and option with what it does; those that all commands have in a line."""
        lines: list[str] = []
        for group in self._action_groups:
            shown = [each for each in group._group_actions if each.dest != "help" and each.help != argparse.SUPPRESS]
            rows = [(_usage(each), _meaning(each)) for each in shown]
            if not rows or any(isinstance(each, LateCommands) for each in group._group_actions):
                continue
            title = {"positional arguments": "", "options": "Options"}.get(str(group.title), _heading(group.title))
            if group.title == SHARED and self.root is not self:
                names = " ".join(each.option_strings[-1] for each in shown)
                lines += ["", title, f"  {names}", "  muster help options  says what each does"]
            else:
                lines += ["", *([title] if title else []), *_columns(rows)]
        return lines


class LateCommands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Commands below a parser, each made when it is wanted."""

    def later(self, root: ShellParser, word: str, text: str, runs: str, fill: Fill | None) -> None:
        made = ShellParser(prog=f"{self._prog_prefix} {word}", description=text, fill=fill)
        made.root = root
        made.set_defaults(**{"run": runs} if runs else {"run": "console.cli.main:show_help", "words": made.prog})
        self._name_parser_map[word] = made

    def made(self, word: str) -> ShellParser:
        found: ShellParser = self._name_parser_map[word]
        return found.filled()


_FORMS: dict[str | int | None, str] = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
"""How an argument by place stands in the usage line, by how many there may be."""


def _sentence(text: str | None) -> str:
    """A description with a capital and a full stop."""
    text = text or ""
    return f"{_heading(text)}." if text and text[-1] not in ".?:" else _heading(text)


def _heading(text: str | None) -> str:
    return f"{(text or '')[:1].upper()}{(text or '')[1:]}"


def _usage(action: argparse.Action) -> str:
    """An argument or option as it is typed."""
    value = "" if action.nargs == 0 else _words(action) if _is_short(action) else _name_of(action)
    value += " ..." if action.nargs in ("+", "*") else ""
    return " ".join(filter(None, [", ".join(_spellings(action)), value]))


def _spellings(action: argparse.Action) -> list[str]:
    """The ways to type an option; `--[no-]x` for one that may be turned off."""
    names = list(action.option_strings)
    return [f"--[no-]{names[0][2:]}"] if isinstance(action, argparse.BooleanOptionalAction) else names


def _meaning(action: argparse.Action) -> str:
    """What an argument or option does, and the words that it takes."""
    words = "" if _is_short(action) else _words(action).replace("|", ", ")
    return ": ".join(filter(None, [(action.help or "").replace("%%", "%"), words]))


def _words(action: argparse.Action) -> str:
    return "|".join(str(choice) for choice in action.choices or ())


def _is_short(action: argparse.Action) -> bool:
    """True if the words that an option takes fit into the left column."""
    return bool(action.choices) and bool(action.option_strings) and len(_words(action)) <= MAX_LEFT // 2


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    """What is typed on the left, what it does on the right; what is too long on the left has a line of its own."""
    wide = min(max(len(left) for left, _ in rows), MAX_LEFT)
    lines: list[str] = []
    for left, right in rows:
        if len(left) > wide:
            lines.append(f"  {left}")
            left = ""
        start = f"  {left:<{wide}}  "
        lines += textwrap.wrap(right, WIDTH, initial_indent=start, subsequent_indent=" " * len(start)) or [
            start.rstrip()
        ]
    return lines


def _name_of(action: argparse.Action) -> str:
    return str(action.metavar or action.dest).upper()


def _quoted(text: str) -> str:
    return f"{text[:40]!a}"


# -- what was meant ---------------------------------------------------------------------------------------------------


def _nearest(typed: str, known: Iterable[str], likeness: float = 0.6) -> str:
    from engine.model.errors import nearest  # a right command does without the engine

    return nearest(typed, known, likeness)


def wrong_command(parser: ShellParser, typed: str) -> str:
    """The error for a word that is no command below the parser: the nearest that is, or the commands it may stand
    for."""
    within = parser.prog.partition(" ")[2]
    wrong = f"muster: There is no command {_quoted(f'{within} {typed}'.strip())}."
    near = _nearest(typed, parser.below, ALIKE)
    elsewhere = [] if within and near else meant(parser.root, typed, loosely=not near)
    if elsewhere:
        alike = _nearest(typed, [word for word in parser.below if not parser.command(word).below], VERY_ALIKE)
        lines = [f"muster {' '.join(words)}" for words in ([(alike,)] if alike else []) + elsewhere]
        return "\n".join([wrong, *(f"  {'Or: ' if i else 'Use:'} {line}" for i, line in enumerate(lines)), ""])
    hint = f" Did you mean {_quoted(f'{within} {near}'.strip())}?" if near else ""
    return f"{wrong}{hint}\n  See: {parser.prog} --help\n"


def meant(root: ShellParser, typed: str, *, loosely: bool) -> list[tuple[str, ...]]:
    """Commands that go by the name that was typed: that one, or those below a noun. Loosely: by a name that is near, or
    by a word of what they do."""
    if typed in root.below:
        return [(typed,)]
    every = [(words, made) for words, made in root.commands() if len(words) > 1]
    found = [(words, made) for words, made in every if typed in _names(words, made)]
    if loosely and not found:
        near = _nearest(typed, {name for words, made in every for name in _names(words, made)}, ALIKE)
        found = [(words, made) for words, made in every if near in _names(words, made)]
    if loosely and not found:
        found = [(words, made) for words, made in root.commands() if _tells_of(made, typed)]
    found.sort(key=lambda each: (len(each[0]), each[1].get_default("action") != typed))
    return [words for words, _ in found if len(words) == len(found[0][0])][:MAX_MEANT]


def _names(words: tuple[str, ...], made: ShellParser) -> set[str]:
    """Names that people may look a command up by: its verb, verb and noun in one word, the plural of a noun that it
    lists, and what it runs."""
    noun, verb = words[-2:]
    does = str(made.get_default("run")).partition(":")[2].replace("_", "-")
    names = {verb, f"{verb}-{noun}", f"{noun}-{verb}", does, str(made.get_default("action"))}
    return names | {f"{noun}s"} if verb == "list" else names


def _tells_of(made: ShellParser, typed: str) -> bool:
    return len(typed) >= MIN_WORD and f" {typed.lower()}" in f" {made.description}".lower()
