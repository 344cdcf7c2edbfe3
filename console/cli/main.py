"""The `muster` command: its parser, its exit codes, and its errors.

The parser is complete here and loads nothing heavy; the module of a command is loaded when it runs. Standard output
is data, standard error is narration, the exit code names the kind of failure. A person never sees a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NoReturn

from console import VERSION
from console.forms.command_arguments import (
    SHOWS_PAST,
    ShellParser,
    as_json,
    command,
    count,
    database_commands,
    fleet_commands,
    here_commands,
    positive,
    quote_arguments,
    reach,
    submit_arguments,
    token_commands,
)
from console.forms.gate_arguments import (
    audit_commands,
    incident_commands,
    intent_commands,
    policy_commands,
    proposal_commands,
    runbook_commands,
)

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

KINDS = ("workloads", "nodes", "queues", "reservations", "pools", "orders")
PACKING = ("random", "dotprod", "bestfit", "fgd", "muster")
FORMATS = ("swf", "openb", "itp", "philly")
SCENARIOS = ("gke-65k", "gke-130k", "clemson", "spot-week", "predictive-day")
BENCHMARKS = ("kueue-baseline", "kueue-large-scale", "clemson", "predictive-day", "spot-week", "gke-65k", "gke-130k")


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
        _root().parse_args(arguments[:1])
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
        _tell("error", f"unexpected {type(error).__name__}, this is a defect of Muster", f"See {path}", False)
        return 1


def _refuse_past(parsed: argparse.Namespace) -> None:
    """Raises RefusedError for `--at` with a command that shows no earlier time."""
    if getattr(parsed, "at", None) is None:
        return
    if parsed.run not in SHOWS_PAST:
        from engine.model.errors import RefusedError

        remedy = "--at goes with commands that show the cell, such as overview, get, why and history"
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


def _root() -> argparse.ArgumentParser:
    """Parser for a call without a command."""
    root = ShellParser(
        prog="muster",
        description="The on-call console for batch and AI clusters. Without a command: open the console.",
        epilog=_exit_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"muster {VERSION}")
    root.add_argument("--demo", action="store_true", help="open a generated AI cluster with live load")
    root.add_argument("--nodes", type=positive, metavar="N", help="with --demo: how many nodes")
    _scenario(root)
    root.add_argument("--fresh", action="store_true", help="with --demo: forget the earlier demo and start anew")
    _speed(root)
    _looks(root)
    reach(root)
    root.set_defaults(run="console.cli.start:open_console", json=False, here=False)
    return root


@cache
def parser() -> argparse.ArgumentParser:
    """The complete parser. Made once: parsing changes nothing in it."""
    root = _root()
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    _show_commands(commands)
    proposal_commands(commands)
    runbook_commands(commands)
    audit_commands(commands)
    _advice_commands(commands)
    _draft_commands(commands)
    _change_commands(commands)
    fleet_commands(commands)
    policy_commands(commands)
    token_commands(commands)
    _engine_commands(commands)
    here_commands(commands)
    database_commands(commands)
    return root


def _show_commands(commands: Any) -> None:
    overview = command(
        commands, "overview", "console.commands.show:overview", "the state of the cell in 15 lines of text"
    )
    reach(overview, sub=True)
    told = "what changed between two times: work, nodes, quota, prices, and by whom"
    diff = command(commands, "diff", "console.commands.past:diff", told)
    diff.add_argument("since", metavar="FROM", help="03:12, -20m or 2026-04-13T03:12 (cell time, UTC)")
    diff.add_argument("until", metavar="TO", nargs="?", default="now", help="the later time (now)")
    diff.add_argument("--queue", default="", metavar="NAME", help="only work of this queue and those below it")
    diff.add_argument("--node", default="", metavar="ID", help="only this node, and work that ran on it")
    diff.add_argument("--limit", type=positive, default=20, metavar="N", help="so many of each happening (20)")
    reach(diff, sub=True)
    get = command(commands, "get", "console.commands.show:get", "list workloads, nodes or queues, or show one")
    get.add_argument("kind", choices=KINDS)
    _list_arguments(get)
    for kind, text in (
        ("pools", "pools of nodes: how large, what boots, what they cost, which are left alone"),
        ("orders", "orders of nodes: what was asked for, and what has come of it"),
    ):
        short = command(commands, kind, "console.commands.show:get", text)
        short.set_defaults(kind=kind)
        _list_arguments(short)
    why = command(commands, "why", "console.commands.show:why", "why a workload waits, and what would let it start")
    why.add_argument("id")
    reach(why, sub=True)
    fairness = command(
        commands, "fairness", "console.commands.capacity:fairness", "shares of the queues, and who went first why"
    )
    fairness.add_argument("queue", nargs="?", help="only this queue and its starts")
    reach(fairness, sub=True)
    told = "what finished work has cost, how much of that was of use, and what providers took back"
    reach(command(commands, "spot", "console.commands.money:spot", told), sub=True)
    showback = command(
        commands, "showback", "console.commands.money:showback", "who was charged what, and what was idle"
    )
    showback.add_argument("--by", default="tenant", metavar="GROUP", help="tenant, team, queue, pool or tag:KEY")
    showback.add_argument("--days", type=positive, default=30, metavar="N", help="the last so many days (30)")
    showback.add_argument("--since", metavar="DAY", help="instead: from this day (UTC) on, such as 2026-03-01")
    showback.add_argument("--until", metavar="DAY", help="with --since: up to the end of this day")
    reach(showback, sub=True)
    mirror = command(commands, "mirror", "console.commands.slurm:mirror", "how the mirror of a Slurm cluster does")
    reach(mirror, sub=True)
    intents = command(
        commands, "intents", "console.commands.slurm:intents", "what is under way to Slurm, and what came of it"
    )
    intents.add_argument("--limit", type=positive, default=50, metavar="N", help="at most so many (50)")
    reach(intents, sub=True)
    intent_commands(intents)
    scaling = command(commands, "scaling", "console.commands.capacity:scaling", "how large pools are and should be")
    reach(scaling, sub=True)
    budgets = command(
        commands, "budgets", "console.commands.money:budgets", "what budgets have left, and when they are spent"
    )
    reach(budgets, sub=True)
    whatif = command(
        commands, "whatif", "console.commands.advice:whatif", "what would change, tried on a fork of the cell"
    )
    whatif.add_argument(
        "--edit",
        action="append",
        required=True,
        metavar="EDIT",
        help="such as 'drain h100-0001' or 'quota research gpu=64'",
    )
    whatif.add_argument("--watch", nargs="+", default=(), metavar="ID", help="workloads whose starts are told")
    _ahead(whatif)
    reach(whatif, sub=True)
    eta = command(
        commands, "eta", "console.commands.advice:eta", "when a workload starts, and how good such estimates were"
    )
    eta.add_argument("id", nargs="?")
    eta.add_argument("--score", action="store_true", help="estimates that were shown against what happened")
    _ahead(eta, arrivals=True)
    reach(eta, sub=True)
    told = "how much of the free GPU is of no use, and to whom"
    fragmented = command(commands, "fragmentation", "console.commands.capacity:fragmentation", told)
    reach(fragmented, sub=True)


def _list_arguments(get: argparse.ArgumentParser) -> None:
    get.add_argument("id", nargs="?", help="show this one only")
    get.add_argument("-f", "--filter", default="", metavar="FILTER", help="such as 'state:queued gpu>=8 sort:-wait'")
    get.add_argument("--sort", default="", metavar="COLUMNS", help="such as gpu:desc,id")
    get.add_argument("--columns", default="", metavar="COLUMNS", help="comma-separated; see --columns help")
    get.add_argument("-o", "--output", choices=("table", "csv", "json"), default="table", help="csv for spreadsheets")
    get.add_argument("--limit", type=count, default=100, metavar="N", help="rows at most, 0 for all (default 100)")
    reach(get, sub=True)


def _change_commands(commands: Any) -> None:
    define = command(
        commands, "define", "console.commands.acting:define", "give an empty cell its pools, nodes and queues"
    )
    define.add_argument("file", help="YAML or JSON that defines the cell")
    define.add_argument("--prices", metavar="FILE", help="CSV that prices its pools by machine type")
    reach(define, sub=True)
    submit = command(
        commands, "submit", "console.commands.acting:submit", "submit workloads of a file, or one from flags"
    )
    submit_arguments(submit)
    submit.add_argument(
        "--dry-run", action="store_true", help="say when it would start and what it costs; submit nothing"
    )
    reach(submit, sub=True)
    table = command(commands, "actions", "console.cli.reference:run", "what can be done to a cell, how risky it is")
    table.add_argument("--markdown", action="store_true", help="as a table for documents")
    as_json(table)
    _action_commands(commands)


def _action_commands(commands: Any) -> None:
    from console.forms.action_arguments import action_arguments  # `--version` does without the declarations
    from runbooks.actions.catalogue import CATALOG

    for declared in CATALOG.values():
        name, text = declared.shell, declared.summary
        runs = "console.commands.capacity:consolidate" if name == "consolidate" else "console.commands.acting:act"
        runs = "console.commands.proposals:resume" if name == "resume" else runs
        action = command(commands, name, runs, text if name != "resume" else f"{text}; or a proposal such as P-3")
        action_arguments(action, declared)
        if name == "resume":
            action.add_argument("--accept", action="store_true", help="of a proposal: although a step is not verified")
        action.add_argument("--reason", default="", help="kept with the action")
        action.add_argument("--suggestion", default="", metavar="ID", help="that this follows, such as R-k3vq7")
        action.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
        action.add_argument("--dry-run", action="store_true", help="show the plan and its effect, do nothing")
        action.set_defaults(action=name)
        reach(action, sub=True)


def _engine_commands(commands: Any) -> None:
    browser = command(commands, "web", "console.cli.web:serve", "the console in a browser of this machine")
    browser.add_argument("--port", type=count, default=8000, metavar="N", help="listen there (8000); 0: where is room")
    browser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address (127.0.0.1)")
    browser.add_argument("--open", action="store_true", help="open it in the browser")
    browser.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help="of the demo cluster")
    reach(browser, sub=True)
    replay = command(
        commands, "replay", "console.evals.engine_runs:replay", "replay a trace and measure what its jobs met"
    )
    replay.add_argument("file")
    replay.add_argument("--format", required=True, choices=FORMATS)
    replay.add_argument("--nodes", type=count, default=0, metavar="N", help="one-processor (or one-GPU) nodes")
    replay.add_argument("--node-file", metavar="FILE", help="the trace's own node list (openb)")
    replay.add_argument("--policy", choices=("fcfs", "easy", "easy-sjbf", "conservative"), default="easy")
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
    _long(replay)
    bench = command(commands, "bench", "console.evals.bench:run", "run a published benchmark's load and measure it")
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
    gke.add_argument("--nodes", type=positive, metavar="N", help="so many instead, all counts in proportion")
    gke.add_argument("--durable", action=argparse.BooleanOptionalAction, default=True, help="with a journal on disk")
    cuts = ("jobsets", "one", "singles")
    gke.add_argument("--training", choices=cuts, default="jobsets", help="of gke-130k: 8 gangs, one, or tasks alone")
    _long(bench)
    drill = command(
        commands, "drill", "console.evals.engine_runs:run_drill", "lose nodes of a large cell in virtual time"
    )
    drill.add_argument("--nodes", type=positive, metavar="N", help="so many, a multiple of 650 (default 65,000)")
    drill.add_argument("--seed", type=int, default=1, metavar="N", help="of which spot nodes are lost, and run times")
    _long(drill)
    pack = command(
        commands,
        "pack",
        "console.evals.engine_runs:run",
        "place a trace's GPU pods on its nodes, to compare policies",
    )
    pack.add_argument("--format", required=True, choices=("openb",))
    pack.add_argument("--nodes", required=True, metavar="FILE", help="node list, plain or gzip")
    pack.add_argument("--pods", required=True, metavar="FILE", help="pod list, plain or gzip")
    pack.add_argument("--policy", choices=PACKING, default="muster")
    pack.add_argument("--seed", type=count, default=42, metavar="N", help="of the order of arrivals")
    pack.add_argument("--seeds", type=positive, default=1, metavar="N", help="so many, from --seed on, and their mean")
    pack.add_argument("--inflate", type=float, default=1.3, metavar="X", help="GPU asked for in all, in capacities")
    _long(pack)
    _backtest_commands(commands)
    _eval_commands(commands)
    events = command(commands, "events", "console.commands.history:events", "what happens in the cell, line by line")
    events.add_argument("filter", nargs="*", metavar="TERM", help="filter: what:failed subject:train-* since:10m")
    events.add_argument("-f", "--follow", action="store_true", help="and what happens from now on, until interrupted")
    events.add_argument("--limit", type=count, default=50, metavar="N", help="so many of the newest (50)")
    reach(events, sub=True)
    serve = command(commands, "serve", "console.cli.start:serve_engine", "run an engine in the foreground")
    serve.add_argument("--by-console", action="store_true", help=argparse.SUPPRESS)
    serve.add_argument("--cell-file", metavar="FILE", help="YAML or JSON that defines a new cell")
    serve.add_argument("--data", metavar="DIR", help="folder of journal and socket (default: the cell's state folder)")
    serve.add_argument("--database", metavar="URL", help="PostgreSQL database to keep the cell in, instead of a file")
    serve.add_argument("--standby", action="store_true", help="with --database: wait, and take over from the other")
    serve.add_argument("--socket", metavar="PATH", help="Unix socket to serve on (default: in the data folder)")
    serve.add_argument("--listen", metavar="HOST:PORT", help="serve TCP too; beyond this machine only with TLS")
    serve.add_argument("--tls-cert", metavar="FILE", help="with --listen: PEM of the certificate, read again when new")
    serve.add_argument("--tls-key", metavar="FILE", help="with --tls-cert: PEM of its key, readable by you alone")
    serve.add_argument("--tls-client-ca", metavar="FILE", help="with --tls-cert: who vouches for callers' certificates")
    serve.add_argument("--slurm", metavar="WHERE", help="mirror the cluster of this slurmrestd: socket path or URL")
    serve.add_argument("--slurm-user", metavar="NAME", help="who asks it, where a token is needed")
    serve.add_argument("--slurm-act", action="store_true", help="what is approved is done there; else it only observes")
    serve.add_argument("--slurm-token-file", metavar="FILE", help="its JWT; read again when it changes")
    serve.add_argument("--approval", choices=("team", "solo"), help="who approves in a cell that was given no policy")
    serve.add_argument("--here", action="store_true", help="run work for real, on this machine; it is the only node")
    serve.add_argument("--for-others", action="store_true", help="with --here: also what other accounts submit")
    serve.add_argument("--output-limit", metavar="SIZE", help="with --here: of all output that is kept (4GiB)")
    serve.add_argument("--demo", action="store_true", help="a generated AI cluster with live load")
    serve.add_argument("--nodes", type=positive, metavar="N", help="with --demo: how many nodes")
    _scenario(serve)
    serve.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulated executor and the demo")
    serve.add_argument("--catch-up", action="store_true", help="let a cell that is behind jump to this host's time")
    serve.add_argument("--ignore-snapshot", action="store_true", help="read the whole journal instead of its snapshot")
    silent = argparse.SUPPRESS  # both may stand before the command too, and count there
    serve.add_argument("--readonly", action="store_true", default=silent, help="refuse every change")
    serve.add_argument("--cell", metavar="NAME", default=silent, help="name of the cell and of its state folder")
    _speed(serve)
    agent = command(
        commands, "agent", "console.commands.agent:agent", "tell a cell that nodes are alive, until it is stopped"
    )
    agent.add_argument("--node", metavar="ID", action="append", required=True, help="a node; may be given again")
    agent.add_argument("--leave", action="store_true", help="say that no agent will call for it any more, and end")
    reach(agent, sub=True)

    door = command(
        commands, "mcp", "console.commands.mcp:serve", "let an agent read the cell and propose, by MCP over stdio"
    )
    door.add_argument("--name", default="mcp", metavar="NAME", help="the agent's, on what it proposes (mcp)")
    reach(door, sub=True)
    stop = command(commands, "stop", "console.cli.start:stop_engine", "stop the cell's engine; its state is kept")
    reach(stop, sub=True)
    doctor = command(commands, "doctor", "console.cli.doctor:doctor", "check this machine and the cell")
    reach(doctor, sub=True)
    _config_commands(commands)
    completion = command(commands, "completion", "console.cli.reference:completion", "print a completion script")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _config_commands(commands: Any) -> None:
    told = "check the settings file; list the keys"
    kinds = commands.add_parser("config", help=told, description=told, allow_abbrev=False).add_subparsers(
        title="what to do", metavar="WHAT", required=True
    )
    as_json(command(kinds, "check", "console.cli.config:check", "what is wrong with it, by file and line"))
    as_json(command(kinds, "keys", "console.cli.config:keys", "every action with its keys, as [keys] has them"))


def _backtest_commands(commands: Any) -> None:
    told = "estimates against what happened, on a file of yours, beside simple rules"
    kinds = commands.add_parser("backtest", help=told, description=told, allow_abbrev=False).add_subparsers(
        title="what is estimated", metavar="WHAT", required=True
    )
    runtime = command(kinds, "runtime", "console.evals.backtest:runtime", "how long jobs of a trace run")
    runtime.add_argument("files", nargs="+", metavar="FILE", help="a trace, plain or gzip; several are one trace")
    runtime.add_argument("--format", required=True, choices=(*FORMATS, "genai", "dlrm"))
    runtime.add_argument("--strict", action="store_true", help="stop at the first bad line")
    _long(runtime)
    demand = command(kinds, "demand", "console.evals.backtest:demand", "demand hour by hour, up to a day ahead")
    demand.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns time and value, plain or gzip")
    _long(demand)
    scaling = command(kinds, "scaling", "console.evals.backtest:scaling", "capacity ordered ahead of demand")
    scaling.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns time and value, plain or gzip")
    scaling.add_argument("--lead", type=positive, required=True, metavar="HOURS", help="how long nodes take, as 1 or 6")
    _long(scaling)
    spot = command(kinds, "spot", "console.evals.backtest:spot", "spot prices of the next day")
    spot.add_argument("files", nargs="+", metavar="FILE", help="changes of one price: CSV, plain or gzip")
    _long(spot)
    queueing = command(kinds, "queueing", "console.evals.engine_runs:queueing", "waits when estimates order backfill")
    queueing.add_argument("file", metavar="FILE", help="a trace, plain or gzip")
    queueing.add_argument("--format", required=True, choices=("swf", "itp"))
    queueing.add_argument("--nodes", type=positive, required=True, metavar="N", help="processors (or GPUs)")
    queueing.add_argument("--arrivals", type=float, default=1.0, metavar="X", help="stretch (>1) or compress arrivals")
    queueing.add_argument("--every", action="store_true", help="with rows that take as long again")
    _long(queueing)
    anomaly = command(kinds, "anomaly", "console.evals.backtest:anomaly", "what is out of the ordinary in a series")
    anomaly.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns timestamp and value")
    anomaly.add_argument("--labels", metavar="FILE", help="JSON: file name -> windows that are anomalous, as in NAB")
    _long(anomaly)


def _eval_commands(commands: Any) -> None:
    told = "score a drafter on scripted incidents; no running cell is touched"
    kinds = commands.add_parser("eval", help=told, description=told, allow_abbrev=False).add_subparsers(
        title="what is scored", metavar="WHAT", required=True
    )
    drafts = command(kinds, "drafts", "console.evals.eval_drafts:run", "what to do about an incident, drafted by rule")
    whose = drafts.add_mutually_exclusive_group()
    whose.add_argument("--llm", action="store_true", help="score the configured model instead of the rules")
    whose.add_argument("--scripted", choices=("perfect", "hostile"), help="a model that plays a part, over real HTTP")
    drafts.add_argument("--only", metavar="ID", action="append", default=[], help="this incident; may be given again")
    drafts.add_argument("--part", choices=("open", "held", "all"), default="all", help="held: kept back from tuning")
    drafts.add_argument("--folder", metavar="FOLDER", help="incidents of your own: *.yaml, as docs/incidents.md tells")
    drafts.add_argument("--list", action="store_true", help="the incidents, without playing them")
    _long(drafts)


def _advice_commands(commands: Any) -> None:
    recommend = command(
        commands, "recommend", "console.commands.advice:recommend", "what stands out, and what might be done"
    )
    recommend.add_argument("--all", action="store_true", help="also what is worth little")
    recommend.add_argument("--reject", metavar="REC", help="do not show this one again until things change")
    recommend.add_argument("--reason", default="", help="with --reject: kept with it")
    reach(recommend, sub=True)
    explain = command(commands, "explain", "console.commands.advice:explain", "one recommendation with all it rests on")
    explain.add_argument("id", metavar="REC")
    explain.add_argument("--wait", action="store_true", help="until it has been tried on the twin")
    reach(explain, sub=True)
    forecast = command(commands, "forecast", "console.commands.advice:forecast", "demand of the next 48 hours")
    forecast.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="as queue:research, pool:h100")
    forecast.add_argument("--metric", default="", metavar="METRIC", help="demand_gpu (default) or another of `history`")
    forecast.add_argument("--hours", type=positive, default=48, metavar="N", help="so many ahead (48)")
    reach(forecast, sub=True)
    cost = command(
        commands, "cost", "console.commands.money:cost", "when it would start and what it would cost, by option"
    )
    quote_arguments(cost)
    reach(cost, sub=True)
    history = command(commands, "history", "console.commands.history:history", "what was measured, by window")
    history.add_argument("metric", nargs="?", default="", help="such as demand_gpu; without: what there is")
    history.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="as queue:research")
    history.add_argument("--since", default="24h", metavar="TIME", help="so far back (24h)")
    history.add_argument("--step", default="", metavar="TIME", help="one line for each so long")
    reach(history, sub=True)
    brought = command(commands, "import", "console.commands.history:import_history", "bring history from elsewhere")
    brought.add_argument("source", choices=("prometheus", *FORMATS, "genai", "dlrm"))
    brought.add_argument("where", nargs="+", metavar="URL|FILE")
    brought.add_argument("--since", default="7d", metavar="TIME", help="prometheus: so far back (7d)")
    brought.add_argument(
        "--step", default="1m", metavar="TIME", help="prometheus: between samples, at least as long as it scrapes (1m)"
    )
    reach(brought, sub=True)
    size = command(commands, "size", "console.commands.advice:size", "what work asks for against what it uses")
    size.add_argument("id", nargs="?", help="only work like this workload")
    size.add_argument("--all", action="store_true", help="every kind of work, not only a screen of them")
    reach(size, sub=True)
    advise = command(commands, "advise", "console.commands.advice:advise", "where a workload would do best")
    advise.add_argument("id")
    reach(advise, sub=True)


def _draft_commands(commands: Any) -> None:
    told = "what to do about a question or a finding, by rule and by a model; nothing is done"
    draft = command(commands, "draft", "console.commands.drafts:draft", told)
    draft.add_argument("question", nargs="?", default="", metavar="QUESTION", help="in your words; or a draft as D-3")
    _drafted_from(draft)
    draft.add_argument(
        "--pick", default="", metavar="CHOICE", help="of a draft as D-3, by number; of a question, by name or object"
    )
    kinds = draft.add_mutually_exclusive_group()
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
    draft.add_argument("--propose", choices=("rule", "model"), default="", help="put that draft to the vote")
    draft.add_argument("--reason", default="", help="with --propose: kept with it")
    draft.add_argument(
        "--out", default="", metavar="FILE", help="write the drafted runbook there; a file that is there already stays"
    )
    handover = command(commands, "handover", "console.commands.drafts:handover", "what the next shift must know")
    handover.add_argument("--since", default="", metavar="TIME", help="so far back (8h)")
    handover.set_defaults(question="")
    kinds = incident_commands(commands)
    incident = command(kinds, "summary", "console.commands.drafts:incident", "a summary of what happened lately")
    incident.add_argument("question", nargs="?", default="", metavar="TEXT", help="what it was, in your words")
    incident.add_argument("--since", default="", metavar="TIME", help="so far back (2h)")
    for report in (handover, incident):
        _drafted_from(report)
    for one in (draft, handover, incident):
        reach(one, sub=True)
    reach(
        command(commands, "drafts", "console.commands.drafts:drafts", "the drafts that are kept, newest first"),
        sub=True,
    )
    reach(
        command(commands, "model", "console.commands.drafts:model", "which model is asked, and what it has cost"),
        sub=True,
    )


def _drafted_from(target: argparse.ArgumentParser) -> None:
    target.add_argument(
        "--from", dest="source", default="", metavar="ID", help="a finding as R-k3vq7, or a workload, node, queue, pool"
    )
    target.add_argument("--llm", action="store_true", help="ask the configured model too")


def _long(target: argparse.ArgumentParser) -> None:
    """Add options of a command that computes for long and asks no engine."""
    as_json(target)
    target.add_argument(
        "--progress", choices=("auto", "json", "off"), default="auto",
        help="on standard error: auto, a line where that is a terminal; json, a line for programs; off",
    )  # fmt: skip


def _ahead(target: argparse.ArgumentParser, *, arrivals: bool = False) -> None:
    """Add options for the horizon, number and load of the twin's runs."""
    target.add_argument("--horizon", default="24h", metavar="TIME", help="how far to run ahead (default 24h)")
    target.add_argument("--seeds", type=positive, metavar="N", help="how often, with other draws of run times")
    target.add_argument("--seed", type=count, default=0, metavar="N", help="of the first; the same gives the same")
    more = "more work arrives as it did of late" if not arrivals else "leave out that more work arrives as of late"
    target.add_argument("--arrivals", action=argparse.BooleanOptionalAction, default=arrivals, help=more)


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


def _scenario(target: argparse.ArgumentParser) -> None:
    target.add_argument("--scenario", choices=SCENARIOS, help="with --demo: watch this instead of days of AI work")


def _speed(target: argparse.ArgumentParser) -> None:
    target.add_argument("--speed", type=float, metavar="X", help="cell seconds per second (demo: 60)")


def _exit_table() -> str:
    return "exit codes:\n" + "\n".join(f"  {code:<3}  {text}" for code, (text, _) in EXIT_CODES.items())


# --- the way out ---------------------------------------------------------------------------------------------------


def _load(runs: str) -> Any:
    import importlib

    module, _, name = runs.partition(":")
    return getattr(importlib.import_module(module), name)


def _tell(code: str, problem: str, remedy: str, as_json: bool) -> None:
    """Report an error on standard error: for people in one or two lines, for programs as JSON."""
    from console.text.terminal_text import printable

    if as_json:
        import json

        print(json.dumps({"code": code, "problem": problem, "remedy": remedy}), file=sys.stderr)
        return
    print(f"muster: {printable(problem)}", file=sys.stderr)
    for line in remedy.splitlines():
        print(f"  {printable(line)}", file=sys.stderr)


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
