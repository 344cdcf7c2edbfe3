"""The commands that change something: `define`, `submit`, and the actions that are shown before they are done."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from console.attach import connect
from console.show import write_json, write_lines
from console.text import printable
from engine.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from console.document import Document
    from engine.commands import Receipt
    from runbooks.plan import Outcome, Proposal

SHOWN_STEPS = 40
_FLAGS = (
    "id", "name", "queue", "priority", "tenant", "team", "tasks", "min_tasks", "elastic", "hot_swap", "estimate",
    "max_runtime",
    "array", "after", "not_before", "deadline", "retries", "reservation", "tags", "mig", "gpu_models", "gpu_memory",
    "pools", "capacity", "on_demand", "node_labels", "avoid_labels", "tolerations", "spread", "near", "apart", "data",
    "qos", "service",
)  # fmt: skip
_REQUEST_FLAGS = {"cpus": "cpu", "memory": "memory", "gpus_per_task": "gpu", "disk": "disk"}


def submit(arguments: argparse.Namespace) -> None:
    """All workloads of a file are accepted or none; a retry says "already there" instead of running them twice."""
    from console.files import placed, workloads_of
    from console.moments import clock_of
    from engine.commands import Submit

    document = _asked_for(arguments)
    with closing(connect(arguments)) as client, placed(document):
        workloads = workloads_of(document, clock_of(client))
        if arguments.dry_run:
            from console.whatif import dry_run

            dry_run(arguments, client, workloads)
            return
        receipt = client.command(Submit(workloads=workloads))
    _acknowledge(arguments, receipt, f"{len(receipt.changed):,} submitted")


def define(arguments: argparse.Namespace) -> None:
    """Give an empty cell its pools, nodes, queues and priority classes. Refused when it has some."""
    from console.document import read_document
    from console.files import cell_of, placed
    from engine.commands import Define

    document = read_document(arguments.file)
    cell = cell_of(document, arguments.prices)
    with closing(connect(arguments)) as client, placed(document):
        receipt = client.command(Define(cell=cell))
    _acknowledge(arguments, receipt, f"{len(cell.nodes):,} nodes defined")


def _acknowledge(arguments: argparse.Namespace, receipt: Receipt, what: str) -> None:
    """Ids to standard output, the rest beside it."""
    if arguments.json:
        write_json(receipt)
        return
    write_lines(printable(name) for name in receipt.changed)
    print(f"{what}, journalled as version {receipt.version:,}", file=sys.stderr)


def act(arguments: argparse.Namespace) -> None:
    """Propose, show the plan and its effect, ask, and do exactly what was shown."""
    from console.wishes import propose

    with closing(connect(arguments)) as client:
        proposal = propose(client, arguments.action, arguments, arguments.reason)
        if arguments.dry_run:
            write_json(proposal) if arguments.json else write_lines(proposal_lines(proposal))
            return
        _tell(proposal_lines(proposal))
        approved_or_refused(arguments)
        outcome = client.approve(proposal.id, proposal.digest)
    if arguments.json:
        write_json(outcome)
        return
    write_lines(printable(target) for target in outcome.changed)
    _tell(outcome_lines(outcome))


def proposal_lines(proposal: Proposal) -> list[str]:
    """What would be done, rendered from the typed plan and its simulated effect."""
    steps = [f"  {printable(step)}" for step in proposal.steps[:SHOWN_STEPS]]
    if len(proposal.steps) > SHOWN_STEPS:
        steps.append(f"  and {len(proposal.steps) - SHOWN_STEPS:,} more")
    width = max((len(effect.label) for effect in proposal.effects), default=0)
    effects = [
        f"  {printable(effect.label):<{width}}  {printable(effect.before)} -> {printable(effect.after)}"
        for effect in proposal.effects
    ]
    return [
        f"{printable(proposal.title)}  [{proposal.tier}, {proposal.id}, digest {proposal.digest[:12]}]",
        *steps,
        *([f"effect, simulated at version {proposal.version:,}:", *effects] if effects else []),
        f"undo: {printable(proposal.inverse)}",
    ]


def outcome_lines(outcome: Outcome) -> list[str]:
    return [f"done, version {outcome.version:,}", *(f"  {printable(line)}" for line in outcome.verified[:SHOWN_STEPS])]


def approved_or_refused(arguments: argparse.Namespace) -> None:
    """Returns when a person agreed. The default answer is no."""
    if arguments.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RefusedError("nobody can be asked here, so nothing was done", "Add --yes to approve the plan shown")
    print("Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("not approved, nothing was done")


def _tell(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _asked_for(arguments: argparse.Namespace) -> Document:
    """The workloads of a file, or the one that flags describe."""
    from console.document import Document, read_document

    values = _from_flags(arguments)
    if arguments.file:
        if values:
            raise SpecError("submit", "takes a file or flags, not both", "Put the values into the file")
        return read_document(arguments.file)
    if "queue" not in values or not ("request" in values or "mig" in values):
        raise SpecError(
            "submit",
            "needs a file, or --queue and at least one of --gpus-per-task, --mig, --cpus, --memory",
            "See `muster submit --help`",
        )
    values.setdefault("id", _made_up_id(values.get("name", "job")))
    return Document("flags", values, {})


def _from_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    values = {name: value for name in _FLAGS if (value := getattr(arguments, name)) is not None}
    request = {name: value for flag, name in _REQUEST_FLAGS.items() if (value := getattr(arguments, flag)) is not None}
    if request:
        values["request"] = request
    topology = {name: level for name in ("required", "preferred") if (level := getattr(arguments, f"{name}_level"))}
    if topology:
        values["topology"] = topology
    if arguments.held:
        values["held"] = True
    return values


def _made_up_id(name: str) -> str:
    """An id nobody used: from the name, with eight random letters."""
    import re
    import secrets

    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60] or "job"
    return f"{stem}-{secrets.token_hex(4)}"
