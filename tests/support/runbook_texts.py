"""Runbooks for tests: one that is sound, and ways to make it something else."""

from __future__ import annotations

SOUND = """\
---
schema: runbook/v1
id: drain-one
version: 1
title: Drain one node
owner: team-capacity
inputs:
  node:
    type: node_id
when:
  - {check: node_state, of: "${inputs.node}", op: "==", value: ready}
limits: {max_nodes: 1, max_gpus: 8, max_workloads: 8, max_duration: 30m}
steps:
  - id: drain
    action: drain
    with: {nodes: "${inputs.node}"}
    verify:
      - {check: node_workloads, of: "${inputs.node}", op: "==", value: 0, within: 10m}
    rollback: inverse
---
## Why
It fails.
## Evidence
The log.
## What can go wrong
Nothing else has room.
## Aftercare
Test it.
"""


def but(*changes: tuple[str, str]) -> bytes:
    """The sound one with these texts in place of those; each must be there once."""
    text = SOUND
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text.encode()


STEP = SOUND[SOUND.index("  - id: drain\n") : SOUND.index("---\n## Why")]
"""Its one step, as it stands in the file."""
