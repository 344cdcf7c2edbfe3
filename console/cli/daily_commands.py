"""Commands of every day, which stand alone: look, ask why and when, submit, cancel, draft, hand over.

Loads nothing heavy.
"""

from __future__ import annotations

import argparse

from console.forms.command_arguments import ahead, count, list_arguments, positive, quote_arguments, reach, reached
from console.forms.command_arguments import submit_arguments as work_arguments
from console.forms.shell_parser import HelpSection, ShellParser

KINDS = ("workloads", "nodes", "queues", "reservations", "pools", "orders")
DAILY = HelpSection("Every day")


def add_daily(root: ShellParser) -> None:
    advice, drafts = "console.commands.advice", "console.commands.drafts"
    for word, text, runs, fill in (
        ("overview", "the state of the cell in 15 lines", "console.commands.show:overview", reached),
        ("get", "list workloads, nodes, queues, pools …, or show one", "console.commands.show:get", _get),
        ("why", "why a workload waits, and what would let it start", "console.commands.show:why", _why),
        ("eta", "when a workload starts, and how good such estimates were", f"{advice}:eta", _eta),
        ("whatif", "what would change, tried on a fork of the cell", f"{advice}:whatif", _whatif),
        ("cost", "when work would start and what it would cost, by option", "console.commands.money:cost", _cost),
        ("submit", "submit workloads of a file, or one from flags", "console.commands.acting:submit", _submit),
        ("cancel", "end workloads for good", "console.commands.acting:act", _cancel),
        ("recommend", "what stands out, and what to do about it; REC explains one", f"{advice}:recommend", _recommend),
        ("draft", "draft what to do about a question or a finding; do nothing", f"{drafts}:draft", _draft),
        ("handover", "what the next shift must know", f"{drafts}:handover", _handover),
        ("events", "what happens in the cell, line by line", "console.commands.history:events", _events),
        ("diff", "what changed between two times, and by whom", "console.commands.past:diff", _diff),
    ):
        root.add(word, text, runs, fill, DAILY)


def _get(get: argparse.ArgumentParser) -> None:
    get.add_argument("kind", choices=KINDS)
    list_arguments(get)


def _diff(diff: argparse.ArgumentParser) -> None:
    diff.add_argument("since", metavar="FROM", help="03:12, -20m or 2026-04-13T03:12 (cell time, UTC)")
    diff.add_argument("until", metavar="TO", nargs="?", default="now", help="the later time (now)")
    diff.add_argument("--queue", default="", metavar="NAME", help="only work of this queue and those below it")
    diff.add_argument("--node", default="", metavar="ID", help="only this node, and work that ran on it")
    diff.add_argument("--limit", type=positive, default=20, metavar="N", help="so many of each happening (20)")
    reach(diff, sub=True)


def _why(why: argparse.ArgumentParser) -> None:
    why.add_argument("id")
    reach(why, sub=True)


def _whatif(whatif: argparse.ArgumentParser) -> None:
    whatif.add_argument(
        "--edit", action="append", required=True, metavar="EDIT",
        help="such as 'drain h100-0001' or 'quota research gpu=64'",
    )  # fmt: skip
    whatif.add_argument("--watch", nargs="+", default=(), metavar="ID", help="workloads whose starts are told")
    ahead(whatif)
    reach(whatif, sub=True)


def _eta(eta: argparse.ArgumentParser) -> None:
    eta.add_argument("id", nargs="?")
    eta.add_argument("--score", action="store_true", help="estimates that were shown against what happened")
    ahead(eta, arrivals=True)
    reach(eta, sub=True)


def _cost(cost: argparse.ArgumentParser) -> None:
    quote_arguments(cost)
    reach(cost, sub=True)


def _submit(submit: argparse.ArgumentParser) -> None:
    work_arguments(submit)
    submit.add_argument(
        "--dry-run", action="store_true", help="say when it would start and what it costs; submit nothing"
    )
    reach(submit, sub=True)


def _cancel(cancel: argparse.ArgumentParser) -> None:
    from console.forms.action_arguments import action_command  # other commands do without the declarations

    action_command(cancel, "cancel")


def _recommend(recommend: argparse.ArgumentParser) -> None:
    recommend.add_argument("id", nargs="?", default="", metavar="REC", help="explain this one, such as R-k3vq7")
    recommend.add_argument("--wait", action="store_true", help="with REC: until it has been tried on the twin")
    recommend.add_argument("--all", action="store_true", help="also what is worth little")
    recommend.add_argument("--reject", metavar="REC", help="do not show this one again until things change")
    recommend.add_argument("--reason", default="", help="with --reject: kept with it")
    reach(recommend, sub=True)


def _draft(draft: argparse.ArgumentParser) -> None:
    draft.add_argument(
        "question", nargs="?", default="", metavar="QUESTION",
        help="in your words; or a draft as D-3",
    )  # fmt: skip
    drafted_from(draft)
    draft.add_argument(
        "--pick", default="", metavar="CHOICE", help="of a draft as D-3, by number; of a question, by name or object"
    )
    kinds = draft.add_mutually_exclusive_group()
    kinds.add_argument("--list", action="store_true", help="instead: the drafts that are kept, newest first")
    kinds.add_argument("--explain", action="store_true", help="instead: what it means")
    kinds.add_argument(
        "--runbook", nargs="?", const="", metavar="RUNBOOK", help="instead: a runbook for it, or a change of that one"
    )
    draft.add_argument(
        "--excerpt", action="append", default=[], metavar="FILE",
        help="a log or another text for the model to look at; - for standard input",
    )  # fmt: skip
    draft.add_argument(
        "--texts-of", action="append", default=[], metavar="ID", help="let it look at this workload's name and labels"
    )
    draft.add_argument("--propose", choices=("rule", "model"), default="", help="propose that draft")
    draft.add_argument("--reason", default="", help="with --propose: kept with it")
    draft.add_argument(
        "--out", default="", metavar="FILE", help="write the drafted runbook there; an existing file is kept"
    )
    reach(draft, sub=True)


def _handover(handover: argparse.ArgumentParser) -> None:
    handover.add_argument("--since", default="", metavar="TIME", help="so far back (8h)")
    handover.set_defaults(question="")
    drafted_from(handover)
    reach(handover, sub=True)


def drafted_from(target: argparse.ArgumentParser) -> None:
    target.add_argument(
        "--from", dest="source", default="", metavar="ID", help="a finding as R-k3vq7, or a workload, node, queue, pool"
    )
    target.add_argument("--llm", action="store_true", help="ask the configured model too")


def _events(events: argparse.ArgumentParser) -> None:
    events.add_argument("filter", nargs="*", metavar="TERM", help="filter: what:failed subject:train-* since:10m")
    events.add_argument("-f", "--follow", action="store_true", help="and what happens from now on, until interrupted")
    events.add_argument("--limit", type=count, default=50, metavar="N", help="so many of the newest (50)")
    reach(events, sub=True)
