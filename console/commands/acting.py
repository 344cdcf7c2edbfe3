"""The commands that change something: `define`, `submit`, and the actions that are shown before they are done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from console.client.attach import connect, environment_at, settings_of
from console.commands.show import at_terminal, tell_lines, write_json, write_lines
from console.text.terminal_text import duration, printable
from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.plans.typed_plan import DIGEST_TYPED

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.forms.documents import LocatedDocument
    from engine.model.commands import Receipt
    from engine.model.specs import WorkloadSpec
    from runbooks.plans.identity import Signed
    from runbooks.plans.keys import DecisionKind
    from runbooks.plans.typed_plan import Outcome, Proposal, Request


SHOWN_STEPS = 40
WIDTH = 78
"""Cells of a plan that is shown before a vote."""
STOPPED_SHORT = 4
"""Exit code of what was begun and is not done."""
_FLAGS = (
    "id", "name", "queue", "priority", "tenant", "team", "tasks", "min_tasks", "elastic", "hot_swap", "estimate",
    "max_runtime",
    "array", "after", "not_before", "deadline", "retries", "reservation", "tags", "mig", "gpu_models", "gpu_memory",
    "pools", "capacity", "on_demand", "node_labels", "avoid_labels", "tolerations", "spread", "near", "apart", "data",
    "qos", "service", "rerun",
)  # fmt: skip
LEFT_TO_YOU = " (rerun never: if Slurm loses one that may have run, you are asked: muster intent list)"
_REQUEST_FLAGS = {"cpus": "cpu", "memory": "memory", "gpus_per_task": "gpu", "disk": "disk"}


def submit(arguments: argparse.Namespace) -> None:
    """All workloads of a file are accepted or none; a retry says "already there" instead of running them twice."""
    from console.forms.fields import clock_of
    from console.forms.work_files import placed, workloads_of
    from engine.model.commands import Submit

    document = asked_for(arguments)
    with closing(connect(arguments)) as client, placed(document):
        workloads = in_this_folder(client, workloads_of(document, clock_of(client)))
        if arguments.dry_run:
            from console.commands.advice import dry_run

            dry_run(arguments, client, workloads)
            return
        receipt = client.command(Submit(workloads=workloads))
    asks = any(spec.rerun == "never" for spec in workloads)
    _acknowledge(arguments, receipt, f"{len(receipt.changed):,} submitted{LEFT_TO_YOU if asks else ''}")


def in_this_folder(client: Client, workloads: tuple[WorkloadSpec, ...]) -> tuple[WorkloadSpec, ...]:
    """Give work without a folder the current one where Slurm runs it, as sbatch does."""
    import os

    import msgspec

    without = [spec for spec in workloads if spec.run is not None and not spec.run.cwd]
    if not without or client.mirror().state == "none":
        return workloads
    here = os.getcwd()
    return tuple(
        msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, cwd=here))
        if spec.run is not None and not spec.run.cwd
        else spec
        for spec in workloads
    )


def define(arguments: argparse.Namespace) -> None:
    """Give an empty cell its pools, nodes, queues and priority classes. Refused when it has some."""
    from console.forms.documents import read_document
    from console.forms.work_files import cell_of, placed
    from engine.model.commands import Define

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
    print(f"{printable(what)}, journalled as version {receipt.version:,}", file=sys.stderr)


def act(arguments: argparse.Namespace) -> int:
    """Propose, show the plan and its effect, ask, and do exactly what was shown. Where the policy wants the votes of
    others it stays proposed, and nothing is done."""
    from console.actions.request_builder import wanted

    with closing(connect(arguments)) as client:
        request = wanted(client, arguments.action, arguments, arguments.reason, arguments.suggestion)
        return propose_and_do(arguments, client, request)


def propose_and_do(arguments: argparse.Namespace, client: Client, request: Request) -> int:
    """Propose a request, confirm it, and carry it out; `--dry-run` only shows it."""
    if arguments.dry_run:
        shown = client.preview(request)
        write_json(shown) if arguments.json else write_lines(proposal_lines(shown))
        return 0
    from console.commands.policy import choose_first

    choose_first(arguments, client)
    proposal = client.propose(request)
    tell_lines(proposal_lines(proposal))
    outcome = carry_out(arguments, client, proposal)
    return print_outcome(arguments, outcome, go_on(client, outcome))


def carry_out(arguments: argparse.Namespace, client: Client, proposal: Proposal) -> Outcome:
    """Have it approved by whoever asks, and done. What they do not want after all is withdrawn. Raises RefusedError
    where the policy wants others: then it waits for their votes."""
    from console.views.decision_needs import by_author_alone

    if not by_author_alone(proposal):
        left_ms = proposal.expires_ms - client.whoami().now_ms
        raise RefusedError(
            f"{proposal.id} is {proposal.tier}, so nothing is done yet: it needs {votes(proposal.needs)} from others "
            f"({proposal.need})",
            f"They run: muster proposal approve {proposal.id}; it expires in {duration(max(0, left_ms))}"
            + ("; nobody has chosen a policy yet: see muster policy use" if client.policy().unchosen else ""),
        )
    try:
        if not arguments.yes:
            ask_for_yes(arguments, client, proposal, "Add --yes to approve the plan shown")
        reason = why_yes(proposal, arguments.reason)
        must_sign = proposal.signed or client.whoami().proved_by_key
        signed = signature(arguments, client, proposal, "vote", "approve") if must_sign else None
    except BaseException:
        with suppress(MusterError):
            client.cancel(proposal.id, "not confirmed")
        raise
    return client.approve(proposal.id, proposal.digest, reason, signed)


def votes(count: int) -> str:
    return "1 vote" if count == 1 else f"{count} votes"


def why_yes(proposal: Proposal, given: str) -> str:
    """The reason of a yes. Raises RefusedError where one is needed and nobody can be asked for it."""
    if given.strip() or not proposal.wants_reason:
        return given
    if not at_terminal():
        raise RefusedError(
            f"{proposal.id} is {proposal.tier}: an approval needs a reason", "Give --reason, or --comment with a vote"
        )
    print("Why? ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def ask_for_yes(arguments: argparse.Namespace, client: Client, proposal: Proposal, else_do: str) -> None:
    """Returns when a person at the terminal said yes: with `y`, or with the beginning of the digest where the tier, the
    policy or the environment wants that. The default answer is no. Raises RefusedError."""
    from console.views.decision_needs import one_key

    if not at_terminal():
        raise RefusedError("no terminal to ask on, so nothing was done", else_do)
    environment = environment_at(client, settings_of(arguments))
    where = "PRODUCTION: " if environment.production else ""
    if one_key(proposal, environment):
        print(printable(f"{where}Do it? [y/N] "), end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise RefusedError("not approved, nothing was done")
        return
    wanted = proposal.digest[:DIGEST_TYPED]
    question = f"{where}This is {proposal.tier}. Type {wanted} to execute: "
    print(printable(question), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != wanted:
        raise RefusedError("not approved, nothing was done")


def signature(
    arguments: argparse.Namespace, client: Client, proposal: Proposal, kind: DecisionKind, verdict: str
) -> Signed:
    """Over exactly the plan that was shown, with the key of whoever asks. Raises RefusedError when there is none."""
    from console.client.attach import identity_of
    from console.views.proposal import plan_sections, screen_digest

    return identity_of(arguments).sign(
        client.whoami(), kind=kind, proposal=proposal.id, revision=proposal.revision, digest=proposal.digest,
        verdict=verdict, screen=screen_digest(plan_sections(proposal, WIDTH)),
    )  # fmt: skip


def go_on(client: Client, outcome: Outcome) -> str:
    """The command that comes next; empty where none does, or where that cannot be told."""
    from console.views.proposal import what_next

    if outcome.state in ("awaiting", "rolled_back"):
        return ""
    try:
        return what_next(client.proposal(outcome.proposal))
    except MusterError:
        return ""


def print_outcome(arguments: argparse.Namespace, outcome: Outcome, then: str = "") -> int:
    """Print the outcome of an action and the next command: ids to standard output, the rest to standard error. Returns
    exit code 4 where it began and stopped short."""
    if arguments.json:
        write_json(outcome)
    else:
        write_lines(printable(target) for target in outcome.changed)
        tell_lines([*outcome_lines(outcome), *([then] if then else [])])
    return STOPPED_SHORT if outcome.state in ("failed", "paused", "rollback_failed") else 0


def proposal_lines(proposal: Proposal) -> list[str]:
    """The plan as on its page, which is what a vote and a signature are on."""
    from console.views.proposal import context_sections, plan_sections
    from console.views.sections import section_lines

    kept = f"{proposal.id}, digest {proposal.digest[:12]}" if proposal.revision else "not proposed"
    note = [printable(proposal.note)] if proposal.note and not proposal.revision else []
    sections = [*plan_sections(proposal, WIDTH), *context_sections(proposal, WIDTH)]
    return [f"{printable(proposal.title)}  [{proposal.tier}, {kept}]", *note, "", *section_lines(sections)]


def outcome_lines(outcome: Outcome) -> list[str]:
    """In words what became of it."""
    state = outcome.state.replace("_", " ")
    if outcome.state == "verified":
        first = f"done, version {outcome.version:,}"
    elif outcome.state in ("awaiting", "approved"):
        first = f"{outcome.proposal}: your vote is recorded; waiting for {printable(outcome.waits_for)}"
    else:
        waits = f": {printable(outcome.waits_for)}" if outcome.waits_for else ""
        first = f"{outcome.proposal} is {state}{waits}"
    found = () if outcome.state == "rolled_back" else outcome.verified[:SHOWN_STEPS]
    return [first, *(f"  {printable(line)}" for line in found)]


def approved_or_refused(arguments: argparse.Namespace) -> None:
    """Returns when a person agreed. The default answer is no."""
    if arguments.yes:
        return
    if not at_terminal():
        raise RefusedError("no terminal to ask on, so nothing was done", "Add --yes to approve the plan shown")
    print("Execute? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("not approved, nothing was done")


def asked_for(arguments: argparse.Namespace) -> LocatedDocument:
    """The workloads of a file, or the one that flags describe."""
    from console.forms.documents import read_document

    values = _from_flags(arguments)
    if arguments.file:
        if values:
            raise SpecError("", "takes a file or flags, not both", "Put the values into the file")
        return read_document(arguments.file)
    if "queue" not in values or not ("request" in values or "mig" in values):
        raise SpecError(
            "",
            "missing a file, or --queue with --cpus, --memory, --gpus-per-task or --mig",
            "Write it like: muster submit work.yaml, or: muster submit --queue research --cpus 4 --memory 16GiB",
        )
    values.setdefault("id", _made_up_id(values.get("name", "job")))
    return _typed_document(values)


def _typed_document(values: dict[str, Any]) -> LocatedDocument:
    """The values of flags as a document whose places are those flags."""
    from console.forms.command_arguments import submit_arguments
    from console.forms.documents import TypedDocument

    parser = argparse.ArgumentParser()
    submit_arguments(parser)
    flags = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    return TypedDocument(values, partial(_flag_of, flags=flags))


def _flag_of(path: str, flags: Mapping[str, str]) -> str:
    """The flag that gives the value at a path of a workload; the path where none does."""
    first, _, rest = path.partition(".")
    name = (
        next((flag for flag, resource in _REQUEST_FLAGS.items() if resource == rest), "") if first == "request" else ""
    )
    name = name or (f"{rest}_level" if first == "topology" else first.partition("[")[0])
    return flags.get(name, path)


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
