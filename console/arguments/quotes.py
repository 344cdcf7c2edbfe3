"""What is typed when somebody wants to know what work would cost: the same in the shell and in the `:` bar."""

from __future__ import annotations

import argparse

from console.arguments.parsing import count, positive


def quote_arguments(target: argparse.ArgumentParser) -> None:
    """The work, when it is to start, prices from outside the cell, and how long to look."""
    target.add_argument("--nodes", type=positive, metavar="N", help="nodes, one task on each")
    target.add_argument("--gpus", type=count, metavar="N", help="GPUs of each node (default all it has)")
    target.add_argument("--model", metavar="MODEL", help="of the GPUs, such as H100")
    target.add_argument("--hours", metavar="X", help="how long it runs; else from what ran before")
    target.add_argument("--start", default="now", metavar="WHEN", help='now, tonight, +6h or "2026-11-22 02:00" (UTC)')
    target.add_argument("--spot", action="store_true", help="spot machines only")
    work = target.add_argument_group("the work")
    work.add_argument("--cpus", metavar="CORES", help="of each node (default its part of them, as of the GPUs)")
    work.add_argument("--memory", metavar="SIZE", help="of each node, such as 64GiB (default as --cpus)")
    work.add_argument("--queue", metavar="NAME", help="queue it would go to (default the largest leaf)")
    work.add_argument("--tenant", metavar="NAME", help="who pays; without --hours, whose work it is like")
    work.add_argument("--name", metavar="NAME", help="without --hours, what it is like")
    work.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    work.add_argument("--checkpoint", metavar="TIME", help="what it keeps when it is stopped: work up to every so long")
    outside = target.add_argument_group("outside the cell")
    outside.add_argument("--prices", metavar="FILE", help="price list, as of `define`")
    outside.add_argument("--machine-type", metavar="TYPE", action="append", help="of the list (default the pools' own)")
    outside.add_argument("--region", metavar="NAME", help="of the list (default all)")
    ahead = target.add_argument_group("how it is found")
    ahead.add_argument("--seeds", type=positive, metavar="N", help="so many rehearsals, to the end, however long")
    ahead.add_argument("--within", metavar="TIME", help="runs ahead for so long, such as 20s (default half a second)")
    ahead.add_argument("--seed", type=count, default=0, metavar="N", help="of the first; the same gives the same")
    ahead.add_argument(
        "--arrivals", action=argparse.BooleanOptionalAction, default=True, help="more work arrives as of late (default)"
    )
