"""Commands that run the engine, its faces and work on this machine; and those that measure on traces and benchmarks.

Loads nothing heavy.
"""

from __future__ import annotations

import argparse

from console.cli.noun_commands import FORMATS
from console.forms.command_arguments import RERUN, count, long_running, positive, reach, reached, scenario, speed
from console.forms.settings import APPROVALS
from console.forms.shell_parser import HelpSection, ShellParser

PACKING = ("random", "dotprod", "bestfit", "fgd", "muster")
BENCHMARKS = ("kueue-baseline", "kueue-large-scale", "clemson", "predictive-day", "spot-week", "gke-65k", "gke-130k")
RUN = HelpSection("to run", words_only=True)
MEASURE = HelpSection("to measure", words_only=True)


def add_engine(root: ShellParser) -> None:
    start, evals = "console.cli.start", "console.evals"
    for word, text, runs, fill, section in (
        ("serve", "run an engine in the foreground", f"{start}:serve_engine", _serve, RUN),
        ("stop", "stop the cell's engine; its state is kept", f"{start}:stop_engine", reached, RUN),
        ("web", "the console in a browser of this machine", "console.cli.web:serve", _web, RUN),
        ("here", "run work on this machine: open its console", f"{start}:open_here", reached, RUN),
        ("tour", "walk an incident of the demo in five minutes", f"{start}:open_tour", reached, RUN),
        ("run", "run a command as a workload, such as: run -- ./train.sh", "console.commands.processes:run", _run, RUN),
        ("logs", "what a workload has written on this machine", "console.commands.processes:logs", _logs, RUN),
        ("mcp", "let an agent read the cell and propose, by MCP over stdio", "console.commands.mcp:serve", _mcp, RUN),
        ("doctor", "check this machine and the cell", "console.cli.doctor:doctor", reached, RUN),
        ("completion", "print a completion script", "console.cli.reference:completion", _completion, RUN),
        ("bench", "run a published benchmark's load and measure it", f"{evals}.bench:run", _bench, MEASURE),
        ("drill", "lose nodes of a large cell in virtual time", f"{evals}.engine_runs:run_drill", _drill, MEASURE),
        ("replay", "replay a trace and measure what its jobs met", f"{evals}.engine_runs:replay", _replay, MEASURE),
        (
            "pack",
            "place a trace's GPU pods on its nodes, to compare policies",
            f"{evals}.engine_runs:run",
            _pack,
            MEASURE,
        ),
        (
            "backtest",
            "estimates against what happened, on a file of yours, beside simple rules",
            "",
            _backtest,
            MEASURE,
        ),
        ("eval", "score a drafter on scripted incidents; no running cell is touched", "", _eval, MEASURE),
    ):
        root.add(word, text, runs, fill, section)


def _serve(serve: argparse.ArgumentParser) -> None:
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
    _kubernetes(serve)
    told = "follow this server for GPU use; 'none' ends that. See docs/gpu-use.md"
    serve.add_argument("--prometheus", metavar="URL", help=told)
    told = "bearer token for it; read again when it changes"
    serve.add_argument("--prometheus-token-file", metavar="FILE", help=told)
    serve.add_argument("--approval", choices=APPROVALS, help="who approves in a cell that was given no policy")
    serve.add_argument("--here", action="store_true", help="run work for real, on this machine; it is the only node")
    serve.add_argument("--for-others", action="store_true", help="with --here: also what other accounts submit")
    serve.add_argument("--output-limit", metavar="SIZE", help="with --here: of all output that is kept (4GiB)")
    serve.add_argument("--demo", action="store_true", help="a generated AI cluster with live load")
    serve.add_argument("--nodes", type=positive, metavar="N", help="with --demo: how many nodes")
    scenario(serve)
    serve.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulated executor and the demo")
    serve.add_argument("--catch-up", action="store_true", help="let a cell that is behind jump to this host's time")
    serve.add_argument("--ignore-snapshot", action="store_true", help="read the whole journal instead of its snapshot")
    silent = argparse.SUPPRESS  # both may stand before the command too, and count there
    serve.add_argument("--readonly", action="store_true", default=silent, help="refuse every change")
    serve.add_argument("--cell", metavar="NAME", default=silent, help="name of the cell and of its state folder")
    speed(serve)


def _kubernetes(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--kubernetes", nargs="?", const="", metavar="CONTEXT", help="mirror the cluster of this context (the current)"
    )
    serve.add_argument("--kubeconfig", metavar="FILE", help="instead of those of KUBECONFIG, or ~/.kube/config")
    serve.add_argument("--in-cluster", action="store_true", help="with --kubernetes: the cluster that this is a pod of")
    told = "what is approved is done there; else it only observes"
    serve.add_argument("--kubernetes-act", action="store_true", help=told)
    told = "with --kubernetes-act: by requests, or as patch files that somebody applies (api)"
    serve.add_argument("--act-by", choices=("api", "patch"), help=told)
    told = "let a kubeconfig leave the server's certificate unchecked"
    serve.add_argument("--insecure-skip-tls-verify", dest="insecure", action="store_true", help=told)
    told = "whether Kueue's queues are mirrored (where it is there)"
    serve.add_argument("--kueue", action=argparse.BooleanOptionalAction, default=None, help=told)


def _web(browser: argparse.ArgumentParser) -> None:
    browser.add_argument("--port", type=count, default=8000, metavar="N", help="listen there (8000); 0: where is room")
    browser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="a loopback address (127.0.0.1)")
    browser.add_argument("--open", action="store_true", help="open it in the browser")
    browser.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help="of the demo cluster")
    reach(browser, sub=True)


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="program and arguments")
    run.add_argument("-f", "--follow", action="store_true", help="show its output and end as it ends")
    run.add_argument("--id", help="unique id; made up when not given")
    run.add_argument("--queue", default="main", help="queue to submit to (main)")
    run.add_argument("--cpus", metavar="CORES", default="1", help="of one task, such as 4 or 500m (1)")
    run.add_argument("--memory", metavar="SIZE", default="1GiB", help="of one task (1GiB); more ends it")
    run.add_argument("--gpus", metavar="GPUS", default="0", help="of one task, such as 1 or 0.5 (0)")
    run.add_argument("--tasks", type=positive, default=1, metavar="N", help="so many at once, as a gang (1)")
    run.add_argument("--array", metavar="RANGE", help="many of a kind, such as 0-99 or 0-99%%10 at once")
    run.add_argument("--after", nargs="+", metavar="ID", help="wait for these, as in prep or prep:failed")
    run.add_argument("--estimate", metavar="TIME", help="how long it may run, such as 6h")
    run.add_argument("--max-runtime", metavar="TIME", help="stop it as failed when it runs longer")
    run.add_argument("--retries", type=int, default=0, metavar="N", help="how often it starts again after failing (0)")
    run.add_argument("--rerun", choices=RERUN, help="on Slurm: when it is lost there and may have run")
    run.add_argument("--grace", metavar="TIME", default="10s", help="between SIGTERM and SIGKILL (10s)")
    run.add_argument("--cwd", metavar="DIR", help="folder it begins in (this one)")
    run.add_argument("--env", metavar="NAME[=VALUE]", action="append", default=[], help="a variable; may be repeated")
    run.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    reach(run, sub=True)


def _logs(logs: argparse.ArgumentParser) -> None:
    logs.add_argument("id")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it writes from now on, until it ends")
    logs.add_argument("--task", default="", metavar="TASK", help="name or number of a task of a gang (the first)")
    logs.add_argument("--attempt", type=positive, default=0, metavar="N", help="an earlier attempt (the last)")
    logs.add_argument("--tail", metavar="SIZE", default="64KiB", help="begin so far from the end (64KiB)")
    logs.add_argument("--all", action="store_true", help="all that is kept")
    reach(logs, sub=True)


def _mcp(door: argparse.ArgumentParser) -> None:
    door.add_argument("--name", default="mcp", metavar="NAME", help="the agent's, on what it proposes (mcp)")
    reach(door, sub=True)


def _completion(completion: argparse.ArgumentParser) -> None:
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _bench(bench: argparse.ArgumentParser) -> None:
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
    long_running(bench)


def _drill(drill: argparse.ArgumentParser) -> None:
    drill.add_argument("--nodes", type=positive, metavar="N", help="so many, a multiple of 650 (default 65,000)")
    drill.add_argument("--seed", type=int, default=1, metavar="N", help="of which spot nodes are lost, and run times")
    long_running(drill)


def _replay(replay: argparse.ArgumentParser) -> None:
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
    speed(replay)
    long_running(replay)


def _pack(pack: argparse.ArgumentParser) -> None:
    pack.add_argument("--format", required=True, choices=("openb",))
    pack.add_argument("--nodes", required=True, metavar="FILE", help="node list, plain or gzip")
    pack.add_argument("--pods", required=True, metavar="FILE", help="pod list, plain or gzip")
    pack.add_argument("--policy", choices=PACKING, default="muster")
    pack.add_argument("--seed", type=count, default=42, metavar="N", help="of the order of arrivals")
    pack.add_argument("--seeds", type=positive, default=1, metavar="N", help="so many, from --seed on, and their mean")
    pack.add_argument("--inflate", type=float, default=1.3, metavar="X", help="GPU asked for in all, in capacities")
    long_running(pack)


def _backtest(backtest: ShellParser) -> None:
    of = "console.evals.backtest"
    backtest.add("runtime", "how long jobs of a trace run", f"{of}:runtime", _runtime)
    backtest.add("demand", "demand hour by hour, up to a day ahead", f"{of}:demand", _demand)
    backtest.add("scaling", "capacity ordered ahead of demand", f"{of}:scaling", _scaling)
    backtest.add("spot", "spot prices of the next day", f"{of}:spot", _spot)
    backtest.add("queueing", "waits when estimates order backfill", "console.evals.engine_runs:queueing", _queueing)
    backtest.add("anomaly", "what is out of the ordinary in a series", f"{of}:anomaly", _anomaly)


def _runtime(runtime: argparse.ArgumentParser) -> None:
    runtime.add_argument("files", nargs="+", metavar="FILE", help="a trace, plain or gzip; several are one trace")
    runtime.add_argument("--format", required=True, choices=(*FORMATS, "genai", "dlrm"))
    runtime.add_argument("--strict", action="store_true", help="stop at the first bad line")
    long_running(runtime)


def _demand(demand: argparse.ArgumentParser) -> None:
    demand.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns time and value, plain or gzip")
    long_running(demand)


def _scaling(scaling: argparse.ArgumentParser) -> None:
    scaling.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns time and value, plain or gzip")
    scaling.add_argument("--lead", type=positive, required=True, metavar="HOURS", help="how long nodes take, as 1 or 6")
    long_running(scaling)


def _spot(spot: argparse.ArgumentParser) -> None:
    spot.add_argument("files", nargs="+", metavar="FILE", help="changes of one price: CSV, plain or gzip")
    long_running(spot)


def _queueing(queueing: argparse.ArgumentParser) -> None:
    queueing.add_argument("file", metavar="FILE", help="a trace, plain or gzip")
    queueing.add_argument("--format", required=True, choices=("swf", "itp"))
    queueing.add_argument("--nodes", type=positive, required=True, metavar="N", help="processors (or GPUs)")
    queueing.add_argument("--arrivals", type=float, default=1.0, metavar="X", help="stretch (>1) or compress arrivals")
    queueing.add_argument("--every", action="store_true", help="with rows that take as long again")
    long_running(queueing)


def _anomaly(anomaly: argparse.ArgumentParser) -> None:
    anomaly.add_argument("files", nargs="+", metavar="FILE", help="CSV with columns timestamp and value")
    anomaly.add_argument("--labels", metavar="FILE", help="JSON: file name -> windows that are anomalous, as in NAB")
    long_running(anomaly)


def _eval(evaluated: ShellParser) -> None:
    evaluated.add("drafts", "what to do about an incident, drafted by rule", "console.evals.eval_drafts:run", _drafts)
    evaluated.add(
        "findings",
        "what is found in generated cell days, and what is not",
        "console.evals.eval_findings:run",
        _findings,
    )


def _findings(findings: argparse.ArgumentParser) -> None:
    findings.add_argument("--part", choices=("development", "held", "all"), default="all", help="held: not tuned on")
    findings.add_argument("--faults", type=positive, default=60, metavar="N", help="stretches with a fault in a part")
    findings.add_argument("--quiet", type=positive, default=60, metavar="N", help="stretches without one in a part")
    findings.add_argument("--only", metavar="KIND", action="append", default=[], help="this kind; may be given again")
    findings.add_argument("--jobs", type=positive, default=1, metavar="N", help="processes that play them")
    findings.add_argument("--all", action="store_true", help="every false finding too")
    long_running(findings)


def _drafts(drafts: argparse.ArgumentParser) -> None:
    whose = drafts.add_mutually_exclusive_group()
    whose.add_argument("--llm", action="store_true", help="score the configured model instead of the rules")
    whose.add_argument("--scripted", choices=("perfect", "hostile"), help="a model that plays a part, over real HTTP")
    drafts.add_argument("--only", metavar="ID", action="append", default=[], help="this incident; may be given again")
    drafts.add_argument("--part", choices=("open", "held", "all"), default="all", help="held: kept back from tuning")
    drafts.add_argument("--folder", metavar="FOLDER", help="incidents of your own: *.yaml, as docs/incidents.md tells")
    drafts.add_argument("--list", action="store_true", help="the incidents, without playing them")
    long_running(drafts)
