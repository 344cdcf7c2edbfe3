"""What stands behind `muster intents`."""

from __future__ import annotations

import argparse

from console.arguments.parsing import command, reach


def intent_commands(intents: argparse.ArgumentParser) -> None:
    kinds = intents.add_subparsers(title="commands", metavar="COMMAND")
    show = command(
        kinds, "show", "console.cli.approvals.intents:show", "all that is known of one, and what Slurm shows now"
    )
    retry = command(
        kinds, "retry", "console.cli.approvals.intents:retry", "have one in doubt done again: an act is proposed anew"
    )
    settle = command(kinds, "settle", "console.cli.approvals.intents:settle", "say what came of one in doubt")
    for each in (show, retry, settle):
        each.add_argument("number", type=intent_number, metavar="N", help="its number, such as i17")
    settle.add_argument("outcome", choices=("done", "undone"), help="what was found in Slurm")
    for each in (retry, settle):
        each.add_argument("--reason", required=True, metavar="TEXT", help="what was found, in 10 characters or more")
        each.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    retry.add_argument("--dry-run", action="store_true", help="of an act: show the plan and its effect, do nothing")
    for each in (show, retry, settle):
        reach(each, sub=True)


def intent_number(text: str) -> int:
    """As people type it: i17 or 17."""
    digits = text.removeprefix("i")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 16):
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is no number of an intent, such as i17")
    return int(digits)
