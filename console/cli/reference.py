"""The commands `muster completion` and `muster actions`: a completion script, and the table of all actions.

The script is made from the parser and the table from the declarations, so neither falls behind.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable

from console.commands.show import write_json, write_lines
from console.forms.action_arguments import metavar_of
from runbooks.actions import wording
from runbooks.actions.catalogue import find
from runbooks.actions.wording import ActionLine
from runbooks.plans.amounts import span


def completion(arguments: argparse.Namespace) -> None:
    from console.cli.main import parser

    write_lines(SCRIPTS[arguments.shell](words_of(parser())))


def words_of(root: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Command ("" for none) -> words that may follow: options, commands, fixed choices."""
    words = {"": _words(root)}
    for action in root._actions:
        if isinstance(action, argparse._SubParsersAction):
            words[""] += list(action.choices)
            words.update({name: _words(command) for name, command in action.choices.items()})
    return words


def _words(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for action in parser._actions:
        found += [option for option in action.option_strings if option.startswith("--")]
        if not isinstance(action, argparse._SubParsersAction) and action.choices and not action.option_strings:
            found += [str(choice) for choice in action.choices]
    return found


def _bash(words: dict[str, list[str]]) -> list[str]:
    cases = [f'    {name}) words="{" ".join(found)}" ;;' for name, found in words.items() if name]
    return [
        "# muster completion for bash: source <(muster completion bash)",
        "_muster() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" command="" words="" i',
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        f'    case " {" ".join(name for name in words if name)} " in *" ${{COMP_WORDS[i]}} "*) '
        'command="${COMP_WORDS[i]}"; break ;; esac',
        "  done",
        '  case "$command" in',
        *cases,
        f'    *) words="{" ".join(words[""])}" ;;',
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
    lines = ["# muster completion for fish: muster completion fish | source"]
    for name, found in words.items():
        when = f"__fish_seen_subcommand_from {name}" if name else "__fish_use_subcommand"
        lines += [
            f"complete -c muster -n '{when}' -l {word[2:]}"
            if word.startswith("--")
            else f"complete -c muster -n '{when}' -a {word}"
            for word in found
        ]
    return lines


SCRIPTS: dict[str, Callable[[dict[str, list[str]]], list[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


WIDTH = 80


def run(arguments: argparse.Namespace) -> None:
    if arguments.json:
        write_json(wording.lines())
    elif arguments.markdown:
        write_lines(wording.markdown({line.name: shell(line) for line in wording.lines()}))
    else:
        write_lines(told for line in wording.lines() for told in described(line))


def shell(line: ActionLine) -> str:
    """Usage such as `muster drain NODE...`."""
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
