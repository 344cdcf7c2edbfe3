"""A process under load that is going to be killed. Writes down what the engine has acknowledged, after it has."""

from __future__ import annotations

import json
import os
import random

from cells import workload

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import MusterError

NODES = ("g0", "g1", "g2", "g3", "c0", "c1")


def work(path: str, seed: int, acknowledged_path: str) -> None:
    """Open the journal and do random things to it until killed. One line of JSON for each receipt."""
    acknowledgements = os.open(acknowledged_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    engine = Engine.open(path, snapshot_every=150)
    rng = random.Random(seed)
    number = 0
    while True:
        command = _choose(engine, rng, f"r{seed}-{number}")
        number += 1
        try:
            receipt = engine.command(command)
        except MusterError:
            continue
        line = json.dumps([type(command).__name__, receipt.version, list(receipt.changed)])
        os.write(acknowledgements, line.encode() + b"\n")
        if rng.random() < 0.5:
            engine.advance(engine.now_ms + rng.choice([1, 100, 5000]))


def _choose(engine: Engine, rng: random.Random, name: str) -> cmd.AnyCommand:
    ids = engine.state.workloads.ids
    if not ids or rng.random() < 0.6:
        gang = [
            workload(
                f"{name}-{i}",
                queue=rng.choice("ab"),
                count=rng.choice([1, 1, 2, 4]),
                gpu=rng.choice([0, 250, 1000, 8000]),
                run=rng.choice([200, 4000, 30_000]),
                estimate=rng.choice([0, 30_000]),
                priority=rng.choice(["low", "normal", "high"]),
                checkpoint=rng.choice([0, 1000]),
            )
            for i in range(rng.choice([1, 1, 3, 20]))
        ]
        return cmd.Submit(workloads=tuple(gang))
    if rng.random() < 0.7:
        action = rng.choice([cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue])
        return action(ids=(rng.choice(ids[-50:]),))
    return rng.choice([cmd.Cordon, cmd.Uncordon, cmd.Uncordon, cmd.Drain])(ids=(rng.choice(NODES),))
