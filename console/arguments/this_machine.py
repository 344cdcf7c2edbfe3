"""The commands of a cell that runs work on this machine, as they are typed."""

from __future__ import annotations

import argparse
from typing import Any

from console.arguments.parsing import command, positive, reach


def here_commands(commands: Any) -> None:
    here = command(commands, "here", "console.cli.start:open_here", "run work on this machine: open its console")
    reach(here, sub=True)
    run = command(
        commands, "run", "console.cli.run_command:run", "run a command as a workload, such as: run -- ./train.sh"
    )
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
    run.add_argument("--grace", metavar="TIME", default="10s", help="between SIGTERM and SIGKILL (10s)")
    run.add_argument("--cwd", metavar="DIR", help="folder it begins in (this one)")
    run.add_argument("--env", metavar="NAME[=VALUE]", action="append", default=[], help="a variable; may be repeated")
    run.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    reach(run, sub=True)
    logs = command(commands, "logs", "console.cli.logs:logs", "what a workload has written on this machine")
    logs.add_argument("id")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it writes from now on, until it ends")
    logs.add_argument("--task", default="", metavar="TASK", help="name or number of a task of a gang (the first)")
    logs.add_argument("--attempt", type=positive, default=0, metavar="N", help="an earlier attempt (the last)")
    logs.add_argument("--tail", metavar="SIZE", default="64KiB", help="begin so far from the end (64KiB)")
    logs.add_argument("--all", action="store_true", help="all that is kept")
    reach(logs, sub=True)
    told = "the processes of a workload, by attempt; without an id of all that runs here"
    processes = command(commands, "processes", "console.cli.logs:processes", told)
    processes.add_argument("id", nargs="?")
    reach(processes, sub=True)
