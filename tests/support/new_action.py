"""A new action `lift`, gone through from what is typed to the way back. Run in a copy of the product that has it; says
what was found as JSON."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from console.actions.line_completion import complete_line
from console.actions.registry import ACTIONS
from console.actions.request_builder import parse, propose
from console.cli.main import parser, run
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.model.commands import Submit
from runbooks.actions.catalogue import find
from runbooks.drafts.model_answer import schema_of
from runbooks.plans.typed_plan import Request
from runbooks.procedures.compiler import Maker
from runbooks.procedures.linter import lint_file
from tests.support.gates import gate_of
from tests.support.served import gpu_job, running_loop

RUNBOOK = """---
schema: runbook/v1
id: lift-it
version: 1
title: Lift one workload
owner: muster
inputs:
  work: {type: workload_id, help: what waits}
when:
  - {check: workload_state, of: "${inputs.work}", op: "==", value: queued}
limits: {max_duration: 30m}
steps:
  - id: lift
    action: lift
    with: {workloads: "${inputs.work}", to: high}
    verify:
      - {check: workload_reason, of: "${inputs.work}", op: "==", value: none, within: 5m}
    rollback: inverse
---
## Why

x

## Evidence

x

## What can go wrong

x

## Aftercare

x
"""


def main() -> None:
    print(json.dumps({**typed(), **written(), **done()}))


def typed() -> dict[str, Any]:
    """What shell and console make of it."""
    row = next(action for action in ACTIONS if action.id == "lift")
    words = parser().parse_args(["proposal", "new", "workload", "lift", "w", "--to", "high"])
    _, wanted = complete_line("lift w", 6, ACTIONS)
    table = io.StringIO()
    with contextlib.redirect_stdout(table):
        run(["cell", "actions", "--markdown"])
    return {
        "help": "have waiting workloads go before others" in parser().command("workload").format_help(),
        "shell": [words.action, words.ids, words.to],
        "console": [row.title, row.tier, row.commands, row.shell],
        "completes": getattr(wanted, "kinds", None),
        "table": [line for line in table.getvalue().splitlines() if "muster workload lift" in line],
    }


def written() -> dict[str, Any]:
    """What runbooks and models may say."""
    branches = schema_of("act", ids={"workload_id": ["w"]})["properties"]["steps"]["items"]["anyOf"]
    [lift] = [one for one in branches if one["properties"]["action"]["enum"] == ["lift"]]
    return {
        "model": sorted(lift["properties"]["with"]["properties"]),
        "lint": [problem.problem for problem in lint_file(RUNBOOK.encode(), "lift-it.md")],
        "lint of a slip": [
            problem.rule for problem in lint_file(RUNBOOK.replace(", to: high", "").encode(), "lift-it.md")
        ],
    }


def done() -> dict[str, Any]:
    """What the twin, the gate and the engine do with it."""
    with running_loop() as loop:
        loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("big", tasks=4), gpu_job("w", tasks=4)))))
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        made = loop.call(lambda engine: Maker(engine).act("lift", {"workloads": ("w",), "to": "high"}))  # type: ignore[arg-type]
        proposal = propose(client, "lift", parse("lift", "w --to high"), "a reason")
        outcome = client.approve(proposal.id, proposal.digest, "seen and wanted")
        lifted = client.workload("w").priority_class
        back = client.propose(Request(rolls_back=proposal.id, reason="it was too much"))
        client.approve(back.id, back.digest, "seen and wanted")
        return {
            "same act": made == proposal.plan.steps[0].act,
            "proposal": [proposal.title, proposal.tier, proposal.steps, proposal.inverse],
            "outcome": [outcome.state, outcome.verified],
            "classes": [lifted, client.workload("w").priority_class],
            "tier": find("lift").tier,
        }


if __name__ == "__main__":
    main()
