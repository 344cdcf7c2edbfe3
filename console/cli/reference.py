"""The commands `muster completion` and `muster cell actions`: a completion script, and the table of all actions.

The script is made from the parser and the table from the declarations, so neither falls behind.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable

from console.commands.show import write_json, write_lines
from console.forms.action_arguments import metavar_of
from console.forms.shell_parser import ShellParser
from runbooks.actions import wording
from runbooks.actions.catalogue import find
from runbooks.actions.wording import ActionLine
from runbooks.plans.amounts import span


def completion(arguments: argparse.Namespace) -> None:
    from console.cli.main import parser

    write_lines(SCRIPTS[arguments.shell](words_of(parser())))


def words_of(root: ShellParser) -> dict[str, list[str]]:
    """Command, such as "node drain" ("" for none) -> words that may follow: commands, fixed choices, options."""
    return {"": _words(root)} | {" ".join(words): _words(made) for words, made in root.commands()}


def _words(parser: ShellParser) -> list[str]:
    found = list(parser.below)
    for action in parser._actions:
        found += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices and action.dest != argparse.SUPPRESS:
            found += [str(choice) for choice in action.choices]
    return found


def _bash(words: dict[str, list[str]]) -> list[str]:
    known = "|".join(f'"{name}"' for name in words if name)
    return [
        "# muster completion for bash: source <(muster completion bash)",
        "_muster() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" command="" longer words="" i',
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        '    longer="${command:+$command }${COMP_WORDS[i]}"',
        f'    case "$longer" in {known}) command="$longer" ;; esac',
        "  done",
        '  case "$command" in',
        *(f'    "{name}") words="{" ".join(found)}" ;;' for name, found in words.items()),
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _muster muster",
    ]


def _zsh(words: dict[str, list[str]]) -> list[str]:
    return [
        "#compdef muster",
        "# muster completion for zsh: source <(muster completion zsh)",
        "autoload -U +X bashcompinit && bashcompinit",
        *_bash(words)[1:],
    ]


def _fish(words: dict[str, list[str]]) -> list[str]:
    known = " ".join(f'"{name}"' for name in words if name)
    lines = [
        "# muster completion for fish: muster completion fish | source",
        "function __muster_at",
        "    set -l command",
        "    for word in (commandline -opc)[2..-1]",
        '        set -l longer (string trim "$command $word")',
        f'        contains -- "$longer" {known}; and set command $longer',
        "    end",
        '    test "$command" = "$argv"',
        "end",
    ]
    for name, found in words.items():
        plain = " ".join(word for word in found if not word.startswith("--"))
        if plain:
            lines.append(f"complete -c muster -f -n '__muster_at {name}' -a '{plain}'")
        lines += [
            f"complete -c muster -n '__muster_at {name}' -l {word[2:]}" for word in found if word not in plain.split()
        ]
    return lines


SCRIPTS: dict[str, Callable[[dict[str, list[str]]], list[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


WIDTH = 80


def actions(arguments: argparse.Namespace) -> None:
    if arguments.json:
        write_json(wording.lines())
    elif arguments.markdown:
        write_lines(wording.markdown({line.name: shell(line) for line in wording.lines()}))
    else:
        write_lines(told for line in wording.lines() for told in described(line))


def shell(line: ActionLine) -> str:
    """Usage such as `muster node drain NODE...`."""
    action = find(line.name)
    metavar = metavar_of(action)
    many = "..." if metavar and action.most > 1 else ""
    return f"muster {action.shell} {metavar}{many}".rstrip()


def described(line: ActionLine) -> list[str]:
    """A heading, and the action's declaration."""
    facts = (
        ("on", f"{line.targets}; {line.when}" if line.when else line.targets),
        ("tier", f"{line.tier}, raised by: {line.raised}" if line.raised else line.tier),
        ("back", line.inverse),
        ("seen", f"{line.verified}; within {span(line.timeout_ms)}"),
    )
    told = [shell(line)]
    for label, text in facts:
        told += textwrap.wrap(text, WIDTH, initial_indent=f"  {label:<5} ", subsequent_indent=" " * 8)
    return told
