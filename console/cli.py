"""The `muster` command: what can be typed, and what a shell gets back.

The parser is complete here and loads nothing heavy; each command's module is loaded when it runs. Standard output is
data, standard error is narration, the exit code says what kind of failure it was. A person never sees a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from console.version import VERSION

EXIT_CODES: dict[int, tuple[str, tuple[str, ...]]] = {
    0: ("done", ()),
    1: ("failed: anything not named below", ("error",)),
    2: ("usage: the command, a file or a filter is malformed", ("invalid",)),
    3: ("something named does not exist", ("not_found",)),
    4: ("refused: not possible now, votes are missing, begun and stopped short, or read-only", ("refused",)),
    5: ("no engine answers", ("unreachable",)),
    6: ("the journal cannot be read or written", ("journal", "journal_corrupt", "journal_busy")),
    7: ("a trace file is not what its format says", ("trace",)),
    130: ("interrupted", ()),
}
"""Exit code -> what it means, and the error codes of `engine.errors` that lead to it."""

_AUDIT_CODES = """\
exit codes of this command:
  0    all is well
  1    failed: no export could be had of the cell
  2    usage, or no such log
  3    the chain is broken, or the journal does not agree
  4    a checkpoint does not fit
  5    something is cut off
  6    a signature is bad
"""

ACTIONS = {
    "cancel": ("WORKLOAD", "end workloads for good"),
    "hold": ("WORKLOAD", "keep queued workloads from starting"),
    "release": ("WORKLOAD", "let held workloads start"),
    "requeue": ("WORKLOAD", "stop running workloads and queue them again"),
    "preempt": ("WORKLOAD", "have running workloads give way to others, where the scheduler might do so too"),
    "move": ("WORKLOAD", "waiting workloads wait in another queue, at their age"),
    "set-priority": ("WORKLOAD", "give workloads another priority class"),
    "suspend": ("WORKLOAD", "take workloads off their nodes until they are resumed"),
    "resume": ("WORKLOAD", "let suspended workloads wait again"),
    "cordon": ("NODE", "nodes take no new work"),
    "uncordon": ("NODE", "nodes take work again"),
    "drain": ("NODE", "cordon nodes and move their work away"),
    "interrupt": ("NODE", "nodes get their notice as if the provider took them back"),
    "hold-queue": ("QUEUE", "start nothing more from queues; what runs goes on"),
    "drain-queue": ("QUEUE", "start and take nothing more, and requeue what runs"),
    "open-queue": ("QUEUE", "held or draining queues take and start work again"),
    "set-quota": ("QUEUE", "give a queue another quota, weight, order or burst"),
    "reserve": ("NAME", "keep nodes for named queues or workloads during a window"),
    "unreserve": ("NAME", "take reservations back"),
    "set-policy": ("POLICY", "change how the cell orders and backfills"),
    "canary": ("QUEUE", "try another order of queues, or policy of the cell; keep it only if waits stay as they were"),
    "resize": ("WORKLOAD", "give the tasks of workloads another request"),
    "scale-pool": ("POOL", "nodes that a pool has from now on: the rest is ordered, or given back where it is empty"),
    "set-scaling": ("POOL", "how far a pool grows and shrinks by itself"),
    "set-targets": ("POOL", "nodes that a pool has from some time on, whatever waits"),
    "set-autoscaling": ("", "when the cell orders nodes and gives them back"),
    "set-price": ("POOL", "what a node of a pool costs from now on"),
    "set-budget": ("NAME", "what a tenant, a team or a queue may spend in each window"),
    "remove-budget": ("NAME", "take budgets back"),
    "approve-spending": ("WORKLOAD", "let workloads start whatever is left of budgets that ask for approval"),
    "consolidate": ("", "move running workloads so that others start or nodes come free"),
    "notify": ("CHANNEL", "tell channels of the policy something"),
    "open-review": ("ABOUT", "have a proposal, or anything else with an id, looked at by others"),
}
KINDS = ("workloads", "nodes", "queues", "reservations", "pools", "orders")
POLICIES = ("fcfs", "easy", "easy-sjbf", "conservative")
ORDERS = ("best_effort", "strict_fifo", "fair")
QOS = ("guaranteed", "burstable", "best_effort")
PACKING = ("random", "dotprod", "bestfit", "fgd", "muster")
FORMATS = ("swf", "openb", "itp", "philly")
SCENARIOS = ("gke-65k", "gke-130k", "clemson", "spot-week", "predictive-day")
BENCHMARKS = ("kueue-baseline", "kueue-large-scale", "clemson", "predictive-day", "spot-week", "gke-65k", "gke-130k")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    _flush_or_forget()
    raise SystemExit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code. Errors have been told on standard error."""
    parsed = parser().parse_args(arguments)
    # Read when numpy is loaded. Our matrices are small: threads would wait for each other, and the engine for them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported after parsing, so that help and version need nothing else.
    from engine.errors import MusterError

    try:
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
        _tell("error", f"unexpected {type(error).__name__}, this is a defect of Muster", f"See {path}", False)
        return 1


def exit_code(error_code: str) -> int:
    """The exit code of an error's code."""
    return next((code for code, (_, errors) in EXIT_CODES.items() if error_code in errors), 1)


# --- the parser ----------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Everything that can be typed."""
    root = argparse.ArgumentParser(
        prog="muster",
        description="The on-call console for batch and AI clusters. Without a command: open the console.",
        epilog=_exit_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"muster {VERSION}")
    root.add_argument("--demo", action="store_true", help="open a generated AI cluster with live load")
    root.add_argument("--nodes", type=_positive, metavar="N", help="with --demo: how many nodes")
    _scenario(root)
    root.add_argument("--fresh", action="store_true", help="with --demo: forget the earlier demo and start anew")
    _speed(root)
    _reach(root)
    root.set_defaults(run="console.start:open_console", json=False)
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    _show_commands(commands)
    _proposal_commands(commands)
    _runbook_commands(commands)
    _audit_commands(commands)
    _advice_commands(commands)
    _change_commands(commands)
    _policy_commands(commands)
    _engine_commands(commands)
    return root


def _show_commands(commands: Any) -> None:
    overview = _command(commands, "overview", "console.show:overview", "the state of the cell in 15 lines of text")
    _reach(overview, sub=True)
    get = _command(commands, "get", "console.show:get", "list workloads, nodes or queues, or show one")
    get.add_argument("kind", choices=KINDS)
    _list_arguments(get)
    for kind, text in (
        ("pools", "pools of nodes: how large, what boots, what they cost, which are left alone"),
        ("orders", "orders of nodes: what was asked for, and what has come of it"),
    ):
        short = _command(commands, kind, "console.show:get", text)
        short.set_defaults(kind=kind)
        _list_arguments(short)
    why = _command(commands, "why", "console.show:why", "why a workload waits, and what would let it start")
    why.add_argument("id")
    _reach(why, sub=True)
    fairness = _command(
        commands, "fairness", "console.fairness:fairness", "shares of the queues, and who went first why"
    )
    fairness.add_argument("queue", nargs="?", help="only this queue and its starts")
    _reach(fairness, sub=True)
    told = "what finished work has cost, how much of that was of use, and what providers took back"
    _reach(_command(commands, "spot", "console.spot:spot", told), sub=True)
    showback = _command(commands, "showback", "console.spending:showback", "who was charged what, and what was idle")
    showback.add_argument("--by", default="tenant", metavar="GROUP", help="tenant, team, queue, pool or tag:KEY")
    showback.add_argument("--days", type=_positive, default=30, metavar="N", help="the last so many days (30)")
    showback.add_argument("--since", metavar="DAY", help="instead: from this day (UTC) on, such as 2026-03-01")
    showback.add_argument("--until", metavar="DAY", help="with --since: up to the end of this day")
    _reach(showback, sub=True)
    scaling = _command(commands, "scaling", "console.scaling:scaling", "how large pools are and should be")
    _reach(scaling, sub=True)
    budgets = _command(
        commands, "budgets", "console.spending:budgets", "what budgets have left, and when they are spent"
    )
    _reach(budgets, sub=True)
    whatif = _command(commands, "whatif", "console.whatif:whatif", "what would change, tried on a fork of the cell")
    whatif.add_argument(
        "--edit",
        action="append",
        required=True,
        metavar="EDIT",
        help="such as 'drain h100-0001' or 'quota research gpu=64'",
    )
    whatif.add_argument("--watch", nargs="+", default=(), metavar="ID", help="workloads whose starts are told")
    _ahead(whatif)
    _reach(whatif, sub=True)
    eta = _command(commands, "eta", "console.whatif:eta", "when a workload starts, and how good such estimates were")
    eta.add_argument("id", nargs="?")
    eta.add_argument("--score", action="store_true", help="estimates that were shown against what happened")
    _ahead(eta, arrivals=True)
    _reach(eta, sub=True)
    told = "how much of the free GPU is of no use, and to whom"
    fragmented = _command(commands, "fragmentation", "console.fragmentation:fragmentation", told)
    _reach(fragmented, sub=True)


def _list_arguments(get: argparse.ArgumentParser) -> None:
    get.add_argument("id", nargs="?", help="show this one only")
    get.add_argument("-f", "--filter", default="", metavar="FILTER", help="such as 'state:queued gpu>=8 !tenant:acme'")
    get.add_argument("--sort", default="", metavar="COLUMNS", help="such as gpu:desc,id")
    get.add_argument("--columns", default="", metavar="COLUMNS", help="comma-separated; see --columns help")
    get.add_argument("--limit", type=_count, default=100, metavar="N", help="rows at most, 0 for all (default 100)")
    _reach(get, sub=True)


def _change_commands(commands: Any) -> None:
    define = _command(commands, "define", "console.act:define", "give an empty cell its pools, nodes and queues")
    define.add_argument("file", help="YAML or JSON that defines the cell")
    define.add_argument("--prices", metavar="FILE", help="CSV that prices its pools by machine type")
    _reach(define, sub=True)
    submit = _command(commands, "submit", "console.act:submit", "submit workloads of a file, or one from flags")
    submit.add_argument("file", nargs="?", help="YAML or JSON with one or many workloads; - for standard input")
    submit.add_argument("--id", help="unique id; made up when not given")
    submit.add_argument("--name", help="what its owner calls it")
    submit.add_argument("--queue", help="queue to submit to")
    submit.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    submit.add_argument("--tenant", help="who pays")
    submit.add_argument("--team")
    submit.add_argument("--tasks", type=_positive, metavar="N", help="members of the gang (default 1)")
    submit.add_argument("--cpus", metavar="CORES", help="of one task, such as 4 or 500m")
    submit.add_argument("--memory", metavar="SIZE", help="of one task, such as 64GiB")
    submit.add_argument("--gpus-per-task", metavar="GPUS", help="of one task, such as 8 or 0.5")
    submit.add_argument("--disk", metavar="SIZE", help="of one task, such as 100GiB")
    submit.add_argument("--estimate", metavar="TIME", help="run time, such as 6h or 1h30m")
    submit.add_argument("--max-runtime", metavar="TIME", help="stop it as failed when it runs longer")
    submit.add_argument("--array", metavar="RANGE", help="many of a kind, such as 0-99, 0-99:2 or 0-99%%10 at once")
    submit.add_argument("--after", nargs="+", metavar="ID", help="wait for these, as in prep or prep:failed")
    submit.add_argument("--not-before", metavar="WHEN", help="such as +6h or 2026-03-01T14:30 (UTC)")
    submit.add_argument("--deadline", metavar="WHEN", help="fail it when it waits until it cannot end by then")
    submit.add_argument("--retries", type=_count, metavar="N", help="how often it starts again after failing")
    submit.add_argument("--min-tasks", type=_positive, metavar="N", help="fewest members it may start with")
    submit.add_argument("--elastic", action="store_true", default=None, help="may grow and shrink while it runs")
    submit.add_argument(
        "--hot-swap", action="store_true", default=None, help="members on lost nodes are replaced, the others stay"
    )
    submit.add_argument("--qos", choices=QOS, help="how sure it may be of what it asks for")
    submit.add_argument("--service", metavar="LEAST-MOST", help="no end, and as many tasks as its load takes")
    submit.add_argument("--reservation", metavar="NAME", help="use the nodes of this reservation, and only those")
    _where_arguments(submit)
    submit.add_argument("--held", action="store_true", help="submit on hold")
    submit.add_argument(
        "--dry-run", action="store_true", help="say when it would start and what it costs; submit nothing"
    )
    _reach(submit, sub=True)
    table = _command(commands, "actions", "console.action_table:run", "what can be done to a cell, how risky it is")
    table.add_argument("--markdown", action="store_true", help="as a table for documents")
    _json(table)
    for name, (_, text) in ACTIONS.items():
        runs = "console.fragmentation:consolidate" if name == "consolidate" else "console.act:act"
        runs = "console.proposals:resume" if name == "resume" else runs
        action = _command(commands, name, runs, text if name != "resume" else f"{text}; or a proposal such as P-3")
        action_arguments(action, name)
        if name == "resume":
            action.add_argument("--accept", action="store_true", help="of a proposal: although a step is not verified")
        action.add_argument("--reason", default="", help="kept with the action")
        action.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
        action.add_argument("--dry-run", action="store_true", help="show the plan and its effect, do nothing")
        action.set_defaults(action=name)
        _reach(action, sub=True)


def _proposal_commands(commands: Any) -> None:
    """What becomes of a wish on its way to an act: put to the vote, voted on, carried out, taken back."""
    told = "put an action, or a plan of several, to the vote; nothing is done"
    propose = _command(commands, "propose", "console.proposals:propose", told)
    propose.add_argument("-f", "--file", metavar="PLAN", help="YAML with several steps instead; - for standard input")
    propose.add_argument(
        "--again", metavar="PROPOSAL", type=proposal_id, help="what that one was, for the cell as it is now"
    )
    _asking(propose)
    kinds = propose.add_subparsers(title="actions", metavar="ACTION", dest="action")
    for name, (_, text) in ACTIONS.items():
        kind = _command(kinds, name, "console.proposals:propose", text)
        action_arguments(kind, name)
        _asking(kind, sub=True)
    listed = _command(commands, "proposals", "console.proposals:proposals", "what is proposed, what needs you first")
    listed.add_argument("--state", action="append", metavar="STATE", help="those in this state, such as paused")
    listed.add_argument("--mine", action="store_true", help="those that you wrote")
    listed.add_argument("--all", action="store_true", help="those that are over too")
    _reach(listed, sub=True)
    deeds: dict[str, tuple[str, tuple[str, ...]]] = {
        "show": ("all of a proposal that a voter must see", ()),
        "approve": ("vote yes to exactly the plan shown; the last yes needed carries it out", ("digest", "comment")),
        "reject": ("vote no: that ends it", ("reason!",)),
        "abstain": ("say that you looked and do not vote", ("comment",)),
        "execute": ("carry out what is approved, or go on with what was interrupted", ()),
        "pause": ("have no further step done", ("reason",)),
        "confirm": ("say go to a step that waits for it", ("step",)),
        "rollback": ("take back what was done, by the way back that was approved with it", ("reason",)),
        "withdraw": ("take a proposal back before anything of it is done", ("reason",)),
        "revise": ("put another plan, or the same for the cell as it is now, under the same id", ("file",)),
        "break-glass": ("carry it out without the votes of others; somebody must review that", ("reason!", "digest")),
    }  # fmt: skip
    for name, (text, wants) in deeds.items():
        deed = _command(commands, name, f"console.proposals:{name.replace('-', '_')}", text)
        deed.add_argument("id", metavar="PROPOSAL", type=proposal_id, help="such as P-3; 3 will do")
        if "step" in wants:
            deed.add_argument("step", metavar="STEP", help="its id, as `muster show` has it")
        if "digest" in wants:
            deed.add_argument("--digest", metavar="PREFIX", help="of the plan you looked at: 6 characters or more")
        if "comment" in wants:
            deed.add_argument("--comment", default="", metavar="TEXT", help="kept with the vote")
        if "reason" in wants or "reason!" in wants:
            deed.add_argument("--reason", required="reason!" in wants, default="", metavar="WHY", help="kept with it")
        if "file" in wants:
            deed.add_argument("-f", "--file", metavar="PLAN", help="YAML as for `muster propose -f`")
        _reach(deed, sub=True)
    _reach(
        _command(commands, "reviews", "console.proposals:reviews", "what waits for a person to look at it"), sub=True
    )
    review = commands.add_parser("review", help="what a review found", allow_abbrev=False)
    kinds = review.add_subparsers(title="commands", metavar="COMMAND", required=True)
    close = _command(kinds, "close", "console.proposals:close_review", "say that it was looked at, and what was found")
    close.add_argument("review", type=_positive, metavar="N")
    close.add_argument("--comment", required=True, metavar="TEXT", help="what was found, in 10 characters or more")
    _reach(close, sub=True)


def proposal_id(text: str) -> str:
    """As people type it: P-3, p-3 or 3."""
    digits = text[2:] if text[:2] in ("P-", "p-") else text
    return f"P-{digits}" if digits.isascii() and digits.isdigit() else text


def _asking(target: argparse.ArgumentParser, *, sub: bool = False) -> None:
    """May stand before or after the action; the one after it wins."""
    silent = argparse.SUPPRESS
    target.add_argument("--reason", metavar="WHY", default=silent if sub else "", help="kept with the proposal")
    for flag, told in (
        ("--when-asked", "the last vote does not begin it: somebody executes it"),
        ("--dry-run", "show what it would be, keep nothing"),
    ):
        target.add_argument(flag, action="store_true", default=silent if sub else False, help=told)
    _reach(target, sub=True, json=silent if sub else False)


def _policy_commands(commands: Any) -> None:
    """Who may do what, who they are, and when nothing runs."""
    kinds = _group(commands, "policy", "who may do what, and how many must agree")
    shown = _command(kinds, "show", "console.policy:show", "the policy in force, and those that wait for votes")
    shown.add_argument("--file", action="store_true", help="as a file, to write the next one from")
    _reach(shown, sub=True)
    for name, text in (
        ("check", "whether a file may be a policy, and what it would change"),
        ("propose", "put the policy of a file to the vote"),
    ):
        given = _command(kinds, name, f"console.policy:{name}", text)
        given.add_argument("file", metavar="FILE")
        _reach(given, sub=True)
    use = _command(kinds, "use", "console.policy:use", "put a built-in policy to the vote, for the people there are")
    use.add_argument("name", choices=("team", "solo"))
    yes = _command(kinds, "approve", "console.policy:approve", "vote for a new policy, after seeing what it changes")
    _reach(_command(kinds, "reject", "console.policy:reject", "vote against a new policy: one no ends it"), sub=True)
    kinds.choices["reject"].add_argument("id", metavar="ID", help="such as policy-3")
    yes.add_argument("id", metavar="ID", help="such as policy-3")
    for voting in (use, yes):
        voting.add_argument(
            "--digest", metavar="HEX", help="how its digest begins, where nobody can be asked to type it"
        )
        _reach(voting, sub=True)

    people = _group(commands, "operator", "the people that the policy names, and their keys")
    _reach(_command(people, "list", "console.policy:operators", "who they are and what they may do"), sub=True)
    added = _command(people, "add", "console.policy:add_operator", "put a policy to the vote that names one more")
    removed = _command(people, "remove", "console.policy:remove_operator", "put one to the vote without somebody")
    for person in (added, removed):
        person.add_argument("id", metavar="NAME", help="a short name that stays theirs, such as alice")
        person.add_argument("--print", action="store_true", help="write the file instead of putting it to the vote")
        person.set_defaults(digest="")
        _reach(person, sub=True)
    added.add_argument("--name", default="", help="as it is shown")
    added.add_argument("--account", action="append", default=[], metavar="unix:UID", help="OS account; may be repeated")
    added.add_argument("--role", action="append", default=[], choices=("operator", "approver", "admin", "auditor"))
    added.add_argument(
        "--key", dest="key_files", action="append", default=[], metavar="KEY|FILE", help="public key, or its file"
    )
    keys = _group(people, "key", "keys to sign with")
    made = _command(keys, "new", "console.policy:new_key", "make a key under a passphrase")
    made.add_argument("path", nargs="?", metavar="FILE", help="where to keep it (default key.pem beside the settings)")
    listed = _command(keys, "list", "console.policy:keys", "the keys that could sign here")
    for one in (made, listed):
        _reach(one, sub=True)
    _reach(_command(commands, "whoami", "console.policy:whoami", "as whom the engine knows you"), sub=True)
    _freeze_commands(commands)


def _freeze_commands(commands: Any) -> None:
    freeze = _command(commands, "freeze", "console.policy:freeze", "let no plans run during a window")
    freeze.add_argument("name", metavar="NAME", help="what to call it")
    freeze.add_argument("--for", dest="lasting", metavar="TIME", help="from now on for so long, such as 4h")
    freeze.add_argument("--from", dest="since", metavar="MOMENT", help="such as 2026-12-20T18:00+01:00")
    freeze.add_argument("--until", metavar="MOMENT", help="its end")
    freeze.add_argument(
        "--weekly", action="append", default=[], metavar="WINDOW",
        help="instead: such as 'fri 16:00 - mon 08:00' or 'daily 22:00 - 06:00'",
    )  # fmt: skip
    freeze.add_argument("--zone", default="UTC", help="time zone of --weekly, such as Europe/Berlin")
    freeze.add_argument("--tier", choices=("T0", "T1", "T2", "T3"), default="T1", help="the lowest it stops (T1)")
    for part in ("pool", "queue", "tenant"):
        freeze.add_argument(
            f"--{part}", action="append", default=[], metavar="NAME", help=f"only what touches this {part}"
        )
    freeze.add_argument("--reason", default="", help="shown with it")
    thaw = _command(commands, "thaw", "console.policy:thaw", "end a freeze that was set by hand")
    thaw.add_argument("name", metavar="NAME")
    listed = _command(commands, "freezes", "console.policy:freezes", "when plans do not run")
    for one in (freeze, thaw, listed):
        _reach(one, sub=True)


def _group(commands: Any, name: str, text: str) -> Any:
    """Commands of two words."""
    made = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    return made.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _where_arguments(submit: argparse.ArgumentParser) -> None:
    """Where the tasks may and should go. What a level or a profile may be is checked where files are."""
    many: dict[str, Any] = {"nargs": "+", "metavar": "KEY=VALUE"}
    where = submit.add_argument_group("where it may go")
    where.add_argument("--gpu-model", dest="gpu_models", nargs="+", metavar="MODEL", help="any of these device models")
    where.add_argument("--gpu-memory", metavar="SIZE", help="least memory of a device, such as 80GiB")
    where.add_argument("--mig", metavar="PROFILE", help="one MIG instance for each task, such as 1g.10gb")
    where.add_argument("--pool", dest="pools", nargs="+", metavar="POOL", help="any of these pools")
    kind = where.add_mutually_exclusive_group()
    kind.add_argument(
        "--spot", dest="capacity", action="store_const", const="spot", help="spot machines only, deadline or not"
    )
    kind.add_argument(
        "--spot-first", dest="capacity", action="store_const", const="spot-first",
        help="spot machines until the deadline's slack runs out",
    )  # fmt: skip
    kind.add_argument("--on-demand", dest="capacity", action="store_const", const="on-demand", help="no spot machines")
    where.add_argument(
        "--on-demand-share", dest="on_demand", metavar="TASKS|SHARE", help="on demand always, such as 2 or 30%%"
    )
    where.add_argument("--node-label", dest="node_labels", **many, help="zone=a,b for either, ssd for any value")
    where.add_argument("--avoid-label", dest="avoid_labels", **many, help="no node with such a label")
    where.add_argument("--tolerate", dest="tolerations", **many, help="such taints; KEY for all its values")
    where.add_argument("--required-level", metavar="LEVEL", help="all in one region, zone, block, rack, nvlink or node")
    where.add_argument("--preferred-level", metavar="LEVEL", help="in one if possible, else in the next wider")
    where.add_argument("--spread", metavar="LEVEL[:N]", help="evenly over domains of a level, at most N apart")
    where.add_argument("--tag", dest="tags", **many, help="of this work, for others that want it near or apart")
    where.add_argument("--near", nargs="+", metavar="KEY=VALUE[:LEVEL]", help="where work with such tags is")
    where.add_argument("--apart", nargs="+", metavar="KEY=VALUE[:LEVEL]", help="where no such work is")
    where.add_argument("--data", nargs="+", metavar="ZONE", help="zones that hold its data")


def action_arguments(target: argparse.ArgumentParser, name: str) -> None:
    """What stands behind an action's name, in the shell as in the `:` bar of the console."""
    metavar, _ = ACTIONS[name]
    if name == "set-quota":
        _quota_arguments(target)
    elif name == "reserve":
        target.add_argument("name", metavar=metavar)
        target.add_argument("--nodes", required=True, metavar="NODES", help="ids with commas between")
        target.add_argument("--start", default="now", metavar="WHEN", help="now, +2h or 2026-03-01T14:30 (UTC)")
        target.add_argument("--end", required=True, metavar="WHEN")
        target.add_argument("--queues", default="", metavar="QUEUES", help="whose work may use the nodes meanwhile")
    elif name == "resize":
        target.add_argument("ids", nargs="+", metavar=metavar)
        target.add_argument("--group", default="", metavar="NAME", help="which tasks, where there are several groups")
        target.add_argument(
            "--request", nargs="+", required=True, metavar="RESOURCE=QUANTITY", help="of one task, such as cpu=1"
        )
    elif name == "set-policy":
        target.add_argument("policy", choices=POLICIES)
    elif name in ("move", "set-priority"):
        target.add_argument("ids", nargs="+", metavar=metavar)
        target.add_argument("--to", required=True, metavar="QUEUE" if name == "move" else "CLASS")
    elif name == "scale-pool":
        target.add_argument("pool", metavar=metavar)
        target.add_argument("nodes", type=_count, metavar="NODES")
    elif name == "canary":
        target.add_argument("ids", nargs="*", metavar=metavar, help="none with --policy")
        tried = target.add_mutually_exclusive_group(required=True)
        tried.add_argument("--order", choices=ORDERS, help="of these queues")
        tried.add_argument("--policy", choices=POLICIES, help="of the whole cell")
        target.add_argument("--window", default="1h", metavar="TIME", help="of the cell, after which it is judged (1h)")
        target.add_argument("--worst-percent", type=_count, default=110, metavar="N", help="waits in percent (110)")
        target.add_argument("--least-starts", type=_count, default=20, metavar="N", help="that a verdict needs (20)")
    elif name in ("notify", "open-review"):
        target.add_argument("ids", nargs="+" if name == "notify" else 1, metavar=metavar)
        target.add_argument("--text", required=True, help="one line")
    elif name == "set-scaling":
        target.add_argument("pool", metavar=metavar)
        for field, told in (
            ("least", "nodes it never shrinks below"),
            ("most", "nodes it never grows above"),
            ("headroom", "whole nodes that are kept free"),
        ):
            target.add_argument(f"--{field}", type=_count, metavar="N", help=told)
        target.add_argument("--priority", type=_integer, metavar="N", help="pools of a higher one are tried first")
    elif name == "set-targets":
        target.add_argument("pool", metavar=metavar)
        target.add_argument("targets", nargs="+", metavar="TIME=NODES", help="as +2h=40; none: takes them all back")
    elif name == "set-autoscaling":
        target.add_argument("--preset", default="", metavar="NAME", help="seed or ca; what is given besides changes it")
        target.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="as scan_every=30s enabled=no")
    elif name == "set-price":
        target.add_argument("pool", metavar=metavar)
        target.add_argument("price", metavar="PRICE", help="in USD per hour, such as 12.5")
    elif name == "set-budget":
        _budget_arguments(target)
    elif name == "consolidate":
        target.add_argument("--unblock", default="", metavar="ID", help="so that this waiting workload starts")
        target.add_argument("--free-nodes", type=_count, default=0, metavar="N", help="so that N nodes are empty")
        target.add_argument("--pool", default="", metavar="POOL", help="with --free-nodes: of this pool")
        target.add_argument("--max-moves", type=_count, default=0, metavar="K", help="most workloads to move")
        target.add_argument(
            "--ratio", type=_ratio, default=0.5, metavar="X", help="least benefit for its cost (default 0.5; 0: any)"
        )
    else:
        target.add_argument("ids", nargs="+", metavar=metavar)


def _budget_arguments(target: argparse.ArgumentParser) -> None:
    """What is not given stays as it is."""
    target.add_argument("name", metavar="NAME")
    whose = target.add_mutually_exclusive_group()
    whose.add_argument("--tenant", default="")
    whose.add_argument("--team", default="")
    whose.add_argument("--queue", default="", help="with all queues below it")
    target.add_argument("--limit", metavar="USD", help="that may be spent in each window")
    target.add_argument("--window", metavar="TIME", help="such as 1d, 7d or 30d (default); windows follow each other")
    target.add_argument(
        "--then",
        choices=("warn", "hold", "approve"),
        help="when all is spent: show it (default), start nothing more of it, or only what somebody approves",
    )
    target.add_argument("--warn-percent", type=_count, metavar="N", help="of the limit, shown from then on (80)")


def _quota_arguments(target: argparse.ArgumentParser) -> None:
    """What is not given stays as it is."""
    amounts = {"nargs": "+", "metavar": "RESOURCE=QUANTITY"}
    target.add_argument("queue", metavar="QUEUE")
    target.add_argument("--nominal", **amounts, help="its own quota, such as gpu=24 memory=1TiB; none removes one")
    target.add_argument("--borrowing-limit", **amounts, help="most it may use above that")
    target.add_argument("--lending-limit", **amounts, help="most of its idle quota that others may use")
    target.add_argument("--weight", type=_positive, metavar="N", help="share it deserves beside its siblings")
    target.add_argument("--order", choices=ORDERS, help="within the queue")
    target.add_argument("--reclaim", choices=("never", "lower_priority", "any"), help="whose work it may preempt")
    target.add_argument("--burst", **amounts, help="most it may use in all for a while; none for no burst")
    target.add_argument("--burst-window", metavar="TIME", help="how long a burst lasts")
    target.add_argument("--burst-cooldown", metavar="TIME", help="pause before the next")
    target.add_argument("--min-runtime", metavar="TIME", help="its work is not preempted before")
    target.add_argument(
        "--disruptions", type=_integer, metavar="N", help="most preemptions in a window; -1 for no limit"
    )
    target.add_argument("--disruption-window", metavar="TIME")
    target.add_argument(
        "--placement", nargs="+", metavar="PROFILE|SCORE=WEIGHT", help="how its nodes are chosen; none: as pools say"
    )
    target.add_argument(
        "--over",
        choices=("refuse", "keep", "evict"),
        default="refuse",
        help="if more is in use: name what would have to go (default), let it run out, or requeue it",
    )


def _engine_commands(commands: Any) -> None:
    replay = _command(commands, "replay", "console.replay:replay", "replay a trace and measure what its jobs met")
    replay.add_argument("file")
    replay.add_argument("--format", required=True, choices=FORMATS)
    replay.add_argument("--nodes", type=_count, default=0, metavar="N", help="one-processor (or one-GPU) nodes")
    replay.add_argument("--node-file", metavar="FILE", help="the trace's own node list (openb)")
    replay.add_argument("--policy", choices=POLICIES, default="easy")
    replay.add_argument("--estimate", choices=("requested", "actual", "last-two"), default="requested")
    replay.add_argument("--arrivals", type=float, default=1.0, metavar="X", help="stretch (>1) or compress arrivals")
    replay.add_argument("--strict", action="store_true", help="stop at the first bad line")
    replay.add_argument(
        "--through",
        choices=("auto", "engine"),
        default="auto",
        help="auto counts free processors where that gives the engine's starts",
    )
    replay.add_argument("--live", action="store_true", help="show it on the console")
    _speed(replay)
    _json(replay)
    bench = _command(commands, "bench", "console.bench:run", "run a published benchmark's load and measure it")
    bench.add_argument("scenario", choices=(*BENCHMARKS, "list"))
    bench.add_argument("--estimates", choices=("none", "known"), default="none", help="run times told beforehand")
    bench.add_argument("--seed", type=int, default=1, metavar="N", help="of the order of arrivals at one instant")
    ahead = bench.add_argument_group("predictive-day")
    ahead.add_argument("--data", metavar="FOLDER", help="hourly series, *.csv.gz with a column value; else generated")
    ahead.add_argument("--series", metavar="NAME", default="", help="the one that is played through the engine")
    spot = bench.add_argument_group("spot-week")
    spot.add_argument(
        "--prices", nargs="+", metavar="FILE", help="spot prices by time of one machine type, a CSV file for each zone"
    )
    gke = bench.add_argument_group("gke-65k and gke-130k")
    gke.add_argument("--nodes", type=_positive, metavar="N", help="so many instead, all counts in proportion")
    gke.add_argument("--durable", action=argparse.BooleanOptionalAction, default=True, help="with a journal on disk")
    cuts = ("jobsets", "one", "singles")
    gke.add_argument("--training", choices=cuts, default="jobsets", help="of gke-130k: 8 gangs, one, or tasks alone")
    _json(bench)
    drill = _command(commands, "drill", "console.drill:run", "lose nodes of a large cell in virtual time")
    drill.add_argument("--nodes", type=_positive, metavar="N", help="so many, a multiple of 650 (default 65,000)")
    drill.add_argument("--seed", type=int, default=1, metavar="N", help="of which spot nodes are lost, and run times")
    _json(drill)
    pack = _command(commands, "pack", "console.pack:run", "place a trace's GPU pods on its nodes, to compare policies")
    pack.add_argument("--format", required=True, choices=("openb",))
    pack.add_argument("--nodes", required=True, metavar="FILE", help="node list, plain or gzip")
    pack.add_argument("--pods", required=True, metavar="FILE", help="pod list, plain or gzip")
    pack.add_argument("--policy", choices=PACKING, default="muster")
    pack.add_argument("--seed", type=_count, default=42, metavar="N", help="of the order of arrivals")
    pack.add_argument("--seeds", type=_positive, default=1, metavar="N", help="so many, from --seed on, and their mean")
    pack.add_argument("--inflate", type=float, default=1.3, metavar="X", help="GPU asked for in all, in capacities")
    _json(pack)
    _backtest_commands(commands)
    serve = _command(commands, "serve", "console.start:serve_engine", "run an engine in the foreground")
    serve.add_argument("--cell-file", metavar="FILE", help="YAML or JSON that defines a new cell")
    serve.add_argument("--data", metavar="DIR", help="folder of journal and socket (default: the cell's state folder)")
    serve.add_argument("--socket", metavar="PATH", help="Unix socket to serve on (default: in the data folder)")
    serve.add_argument("--listen", metavar="HOST:PORT", help="serve TCP too; this machine only")
    serve.add_argument("--approval", choices=("team", "solo"), help="who approves in a cell that was given no policy")
    serve.add_argument("--demo", action="store_true", help="a generated AI cluster with live load")
    serve.add_argument("--nodes", type=_positive, metavar="N", help="with --demo: how many nodes")
    _scenario(serve)
    serve.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulated executor and the demo")
    serve.add_argument("--ignore-snapshot", action="store_true", help="read the whole journal instead of its snapshot")
    serve.add_argument("--readonly", action="store_true", default=None, help="refuse every change")
    serve.add_argument("--cell", metavar="NAME", help="name of the cell and of its state folder")
    _speed(serve)
    agent = _command(commands, "agent", "console.agent:agent", "tell a cell that nodes are alive, until it is stopped")
    agent.add_argument("--node", metavar="ID", action="append", required=True, help="a node; may be given again")
    agent.add_argument("--leave", action="store_true", help="say that no agent will call for it any more, and end")
    _reach(agent, sub=True)

    stop = _command(commands, "stop", "console.start:stop_engine", "stop the cell's engine; its state is kept")
    _reach(stop, sub=True)
    doctor = _command(commands, "doctor", "console.doctor:doctor", "check this machine and the cell")
    _reach(doctor, sub=True)
    completion = _command(commands, "completion", "console.completion:completion", "print a completion script")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _backtest_commands(commands: Any) -> None:
    told = "estimates against what happened, on a file of yours, beside simple rules"
    kinds = commands.add_parser("backtest", help=told, description=told, allow_abbrev=False).add_subparsers(
        title="what is estimated", metavar="WHAT", required=True
    )
    runtime = _command(kinds, "runtime", "console.backtest:runtime", "how long jobs of a trace run")
    runtime.add_argument("files", nargs="+", metavar="FILE", help="a trace, plain or gzip; several are one trace")
    runtime.add_argument("--format", required=True, choices=(*FORMATS, "genai", "dlrm"))
    runtime.add_argument("--strict", action="store_true", help="stop at the first bad line")
    _json(runtime)
    demand = _command(kinds, "demand", "console.backtest_series:demand", "demand hour by hour, up to a day ahead")
    demand.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns time and value, plain or gzip")
    _json(demand)
    scaling = _command(kinds, "scaling", "console.backtest_scaling:scaling", "capacity ordered ahead of demand")
    scaling.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns time and value, plain or gzip")
    scaling.add_argument(
        "--lead", type=_positive, required=True, metavar="HOURS", help="how long nodes take, as 1 or 6"
    )
    _json(scaling)
    spot = _command(kinds, "spot", "console.backtest_scaling:spot", "spot prices of the next day")
    spot.add_argument("files", nargs="+", metavar="FILE", help="changes of one price: CSV, plain or gzip")
    _json(spot)
    queueing = _command(kinds, "queueing", "console.backtest_queueing:queueing", "waits when estimates order backfill")
    queueing.add_argument("file", metavar="FILE", help="a trace, plain or gzip")
    queueing.add_argument("--format", required=True, choices=("swf", "itp"))
    queueing.add_argument("--nodes", type=_positive, required=True, metavar="N", help="processors (or GPUs)")
    queueing.add_argument("--arrivals", type=float, default=1.0, metavar="X", help="stretch (>1) or compress arrivals")
    queueing.add_argument("--every", action="store_true", help="with rows that take as long again")
    _json(queueing)
    anomaly = _command(kinds, "anomaly", "console.backtest_anomaly:anomaly", "what is out of the ordinary in a series")
    anomaly.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns timestamp and value")
    anomaly.add_argument("--labels", metavar="FILE", help="JSON: file name -> windows that are anomalous, as in NAB")
    _json(anomaly)


def _audit_commands(commands: Any) -> None:
    audit = commands.add_parser("audit", help="who did what, and the proof of it", allow_abbrev=False)
    kinds = audit.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = _command(kinds, "show", "console.audit:show", "records, newest last")
    show.add_argument("proposal", nargs="?", metavar="PROPOSAL", help="of this one alone, as P-3")
    show.add_argument("--seq", type=_positive, metavar="N", help="one record, whole")
    show.add_argument("--actor", default="", metavar="SUBJECT", help="of whom, as person:alice")
    show.add_argument("--type", default="", metavar="TYPE", help="as vote.approve, or vote for all of that kind")
    show.add_argument("--since", default="", metavar="TIME", help="so long ago, as 24h, or since a time (UTC)")
    show.add_argument("--before", type=_positive, metavar="N", help="records before this one")
    show.add_argument("--limit", type=_positive, default=100, metavar="N", help="so many (100)")
    _reach(show, sub=True)
    verify = _command(kinds, "verify", "console.audit:verify", "check the log; needs no engine")
    verify.epilog = _AUDIT_CODES
    verify.formatter_class = argparse.RawDescriptionHelpFormatter
    verify.add_argument("files", nargs="*", metavar="FILE", help="journal, export, segment, proof (default the cell)")
    verify.add_argument("--against", type=_path, metavar="NOTEFILE", help="checkpoints that were remembered elsewhere")
    verify.add_argument(
        "--key", dest="keys", action="append", default=[], metavar="KEY", help="a public key that you know"
    )
    verify.add_argument("--words", default="", metavar="WORDS", help="the twelve words of a checkpoint, as remembered")
    verify.add_argument("--from", dest="since", type=_positive, default=1, metavar="N", help="from about record N on")
    verify.add_argument("--to", dest="until", type=_positive, default=0, metavar="N", help="up to about record N")
    verify.add_argument("--no-signatures", action="store_true", help="do not check signatures")
    _reach(verify, sub=True)
    export = _command(kinds, "export", "console.audit:export", "records with what it takes to check them elsewhere")
    export.add_argument("--format", choices=("jsonl", "csv"), default="jsonl")
    export.add_argument("--range", default="", metavar="A:B", help="from record A to B (default all that is signed)")
    export.add_argument("--redact", action="store_true", help="without the texts that are kept apart")
    prove = _command(kinds, "prove", "console.audit:prove", "a proof that runbooks/verify.py checks alone")
    prove.add_argument("--seq", type=_positive, metavar="N", help="that record N is in the log")
    prove.add_argument("--from", dest="since", type=_positive, metavar="N", help="that it only grew since checkpoint N")
    prove.add_argument(
        "--to", dest="until", type=_positive, metavar="N", help="by the checkpoint of N records (newest)"
    )
    for command in (export, prove):
        command.add_argument("--out", default="-", metavar="FILE", help="a new file (default standard output)")
        _reach(command, sub=True)
    redact = _command(kinds, "redact", "console.audit:redact", "erase a text that is kept apart; the chain stays valid")
    redact.add_argument("ref", metavar="REF", help="as `muster audit show` names it")
    redact.add_argument("--reason", required=True, help="kept in the log")
    seal = _command(kinds, "seal", "console.audit:seal", "move old records to a file beside the journal")
    seal.add_argument("--keep", metavar="TIME", help="what is older, as 400d")
    seal.add_argument("--before", dest="moment", metavar="DATE", help="what is of before, as 2026-03-01 (UTC)")
    anchor = _command(kinds, "anchor", "console.audit:anchor", "a checkpoint now, to all anchors; its twelve words")
    anchor.add_argument("--note", action="store_true", help="the signed checkpoint itself, for --against")
    _reach(anchor, sub=True)
    key = _command(kinds, "key", "console.audit:key", "the public key that signs the log")
    key.add_argument("--rotate", action="store_true", help="make another that signs from now on")
    for command in (redact, seal, key):
        command.add_argument("--yes", action="store_true", help="do not ask")
        _reach(command, sub=True)


def _runbook_commands(commands: Any) -> None:
    runbook = commands.add_parser(
        "runbook", help="written procedures: look, check, try, run, approve", allow_abbrev=False
    )
    kinds = runbook.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listed = _command(kinds, "list", "console.runbook:list_", "which there are, and which are approved")
    _reach(listed, sub=True)
    shown = _command(kinds, "show", "console.runbook:show", "one of them whole")
    linted = _command(kinds, "lint", "console.runbook:lint", "what is wrong with files; exit code 2 if anything is")
    linted.add_argument("files", nargs="+", metavar="FILE", help="Markdown with front matter; - reads standard input")
    _json(linted)
    ran = _command(kinds, "run", "console.runbook:run", "resolve its inputs, simulate it, and propose it")
    approved = _command(kinds, "approve", "console.runbook:approve", "let its exact bytes be used in this cell")
    retired = _command(kinds, "retire", "console.runbook:retire", "end the use of what it says now, for good")
    for command in (shown, ran, approved, retired):
        command.add_argument("id", metavar="RUNBOOK")
        _reach(command, sub=True)
    ran.add_argument(
        "--input", action="append", default=[], metavar="NAME=VALUE", help="several ids with commas between"
    )
    ran.add_argument("--dry-run", action="store_true", help="only show what it would do; no approval of it is needed")
    ran.add_argument("--reason", default="", help="kept with the proposal")
    approved.add_argument("--sha256", metavar="HEX", help="of the file that was looked at; at least 12 digits")
    approved.add_argument("--comment", default="", help="kept with the vote")
    retired.add_argument("--reason", required=True, help="why it must not be used any more")
    for command in (approved, retired):
        command.add_argument("--yes", action="store_true", help="do not ask")


def _advice_commands(commands: Any) -> None:
    recommend = _command(
        commands, "recommend", "console.recommend:recommend", "what stands out, and what might be done"
    )
    recommend.add_argument("--all", action="store_true", help="also what is worth little")
    recommend.add_argument("--reject", metavar="REC", help="do not show this one again until things change")
    recommend.add_argument("--reason", default="", help="with --reject: kept with it")
    _reach(recommend, sub=True)
    explain = _command(commands, "explain", "console.recommend:explain", "one recommendation with all it rests on")
    explain.add_argument("id", metavar="REC")
    explain.add_argument("--wait", action="store_true", help="until it has been tried on the twin")
    _reach(explain, sub=True)
    forecast = _command(commands, "forecast", "console.recommend:forecast", "demand of the next 48 hours")
    forecast.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="as queue:research, pool:h100")
    forecast.add_argument("--metric", default="", metavar="METRIC", help="demand_gpu (default) or another of `history`")
    forecast.add_argument("--hours", type=_positive, default=48, metavar="N", help="so many ahead (48)")
    _reach(forecast, sub=True)
    cost = _command(commands, "cost", "console.cost:cost", "when it would start and what it would cost, by option")
    cost.add_argument("--nodes", type=_positive, metavar="N", help="nodes, one task on each")
    cost.add_argument("--gpus", type=_count, metavar="N", help="GPUs of each node (default all it has)")
    cost.add_argument("--model", metavar="MODEL", help="of the GPUs, such as H100")
    cost.add_argument("--hours", metavar="X", help="how long it runs; else from what ran before")
    cost.add_argument("--start", default="now", metavar="WHEN", help='now, tonight, +6h or "2026-11-22 02:00" (UTC)')
    cost.add_argument("--spot", action="store_true", help="spot machines only")
    work = cost.add_argument_group("the work")
    work.add_argument("--cpus", metavar="CORES", help="of each node (default its part of them, as of the GPUs)")
    work.add_argument("--memory", metavar="SIZE", help="of each node, such as 64GiB (default as --cpus)")
    work.add_argument("--queue", metavar="NAME", help="queue it would go to (default the largest leaf)")
    work.add_argument("--tenant", metavar="NAME", help="who pays; without --hours, whose work it is like")
    work.add_argument("--name", metavar="NAME", help="without --hours, what it is like")
    work.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    work.add_argument("--checkpoint", metavar="TIME", help="what it keeps when it is stopped: work up to every so long")
    outside = cost.add_argument_group("outside the cell")
    outside.add_argument("--prices", metavar="FILE", help="price list, as of `define`")
    outside.add_argument("--machine-type", metavar="TYPE", action="append", help="of the list (default the pools' own)")
    outside.add_argument("--region", metavar="NAME", help="of the list (default all)")
    ahead = cost.add_argument_group("how it is found")
    ahead.add_argument("--seeds", type=_positive, metavar="N", help="so many rehearsals, to the end, however long")
    ahead.add_argument("--within", metavar="TIME", help="runs ahead for so long, such as 20s (default half a second)")
    ahead.add_argument("--seed", type=_count, default=0, metavar="N", help="of the first; the same gives the same")
    ahead.add_argument(
        "--arrivals", action=argparse.BooleanOptionalAction, default=True, help="more work arrives as of late (default)"
    )
    _reach(cost, sub=True)
    history = _command(commands, "history", "console.telemetry:history", "what was measured, by window")
    history.add_argument("metric", nargs="?", default="", help="such as demand_gpu; without: what there is")
    history.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="as queue:research")
    history.add_argument("--since", default="24h", metavar="TIME", help="so far back (24h)")
    history.add_argument("--step", default="", metavar="TIME", help="one line for each so long")
    _reach(history, sub=True)
    brought = _command(commands, "import", "console.telemetry:import_history", "bring history from elsewhere")
    brought.add_argument("source", choices=("prometheus", *FORMATS, "genai", "dlrm"))
    brought.add_argument("where", nargs="+", metavar="URL|FILE")
    brought.add_argument("--since", default="7d", metavar="TIME", help="prometheus: so far back (7d)")
    brought.add_argument(
        "--step", default="1m", metavar="TIME", help="prometheus: between samples, at least as long as it scrapes (1m)"
    )
    _reach(brought, sub=True)
    size = _command(commands, "size", "console.sizing:size", "what work asks for against what it uses")
    size.add_argument("id", nargs="?", help="only work like this workload")
    size.add_argument("--all", action="store_true", help="every kind of work, not only a screen of them")
    _reach(size, sub=True)
    advise = _command(commands, "advise", "console.sizing:advise", "where a workload would do best")
    advise.add_argument("id")
    _reach(advise, sub=True)


def _command(commands: Any, name: str, runs: str, text: str) -> argparse.ArgumentParser:
    """A command's parser. `runs` is `module:function`, loaded when the command runs."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    made.set_defaults(run=runs)
    return made


def _reach(target: argparse.ArgumentParser, *, sub: bool = False, json: Any = False) -> None:
    """How to reach an engine. May stand before or after the command; the one after it wins."""
    default = argparse.SUPPRESS if sub else None
    group = target.add_argument_group("which engine")
    group.add_argument("--cell", metavar="NAME", default=default, help="the cell, by the name of its state folder")
    group.add_argument("--connect", metavar="URL", default=default, help="URL or socket of a running engine")
    group.add_argument("--readonly", action="store_true", default=default, help="show, never act")
    group.add_argument(
        "--as", dest="operator", metavar="PERSON", default=default, help="in whose name; signed with their key"
    )
    if sub:
        _json(target, json)


def _ahead(target: argparse.ArgumentParser, *, arrivals: bool = False) -> None:
    """How far, how often and with what the twin runs ahead."""
    target.add_argument("--horizon", default="24h", metavar="TIME", help="how far to run ahead (default 24h)")
    target.add_argument("--seeds", type=_positive, metavar="N", help="how often, with other draws of run times")
    target.add_argument("--seed", type=_count, default=0, metavar="N", help="of the first; the same gives the same")
    more = "more work arrives as it did of late" if not arrivals else "leave out that more work arrives as of late"
    target.add_argument("--arrivals", action=argparse.BooleanOptionalAction, default=arrivals, help=more)


def _json(target: argparse.ArgumentParser, default: Any = False) -> None:
    target.add_argument("--json", action="store_true", default=default, help="JSON on standard output, in raw units")


def _scenario(target: argparse.ArgumentParser) -> None:
    target.add_argument("--scenario", choices=SCENARIOS, help="with --demo: watch this instead of days of AI work")


def _speed(target: argparse.ArgumentParser) -> None:
    target.add_argument("--speed", type=float, metavar="X", help="cell seconds per second (demo: 60)")


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def _positive(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a number from 0 on")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a whole number") from None


def _exit_table() -> str:
    return "exit codes:\n" + "\n".join(f"  {code:<3}  {text}" for code, (text, _) in EXIT_CODES.items())


# --- the way out ---------------------------------------------------------------------------------------------------


def _load(runs: str) -> Any:
    import importlib

    module, _, name = runs.partition(":")
    return getattr(importlib.import_module(module), name)


def _tell(code: str, problem: str, remedy: str, as_json: bool) -> None:
    """An error on standard error: for people in one or two lines, for programs as JSON."""
    from console.text import printable

    if as_json:
        import json

        print(json.dumps({"code": code, "problem": problem, "remedy": remedy}), file=sys.stderr)
        return
    print(f"muster: {printable(problem)}", file=sys.stderr)
    for line in remedy.splitlines():
        print(f"  {printable(line)}", file=sys.stderr)


def _crash_log(arguments: Sequence[str]) -> str:
    """Writes the traceback, without the values of variables, where only this user can read it. Returns the path."""
    import tempfile
    import traceback

    handle, path = tempfile.mkstemp(prefix="muster-crash-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as log:
        log.write(f"muster {VERSION}, Python {sys.version}, command {arguments[:1]}\n")
        log.write(traceback.format_exc())
    return path


def _flush_or_forget() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    """The reader of a pipe has gone: let the rest go nowhere, also what Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
