"""The command `muster mirror`: how the mirror of a Slurm cluster does, and what it leaves out."""

from __future__ import annotations

import argparse
import time
from contextlib import closing

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.views.external.mirror import mirror_lines


def mirror(arguments: argparse.Namespace) -> int:
    """1 where it does not follow at present."""
    with closing(connect(arguments)) as client:
        report = client.mirror()
    if arguments.json:
        write_json(report)
    else:
        write_lines(mirror_lines(report, time.time()))
    return 0 if report.state in ("following", "none") else 1
