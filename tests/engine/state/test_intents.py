"""What is remembered of intents does not grow without end, and a replay remembers the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cells import small_cell, workload

from engine.control import Engine
from engine.model.commands import IntentChange, Observe, SettleIntents, Submit
from engine.model.external_cells import WorkloadSeen
from engine.model.specs import ArraySpec, RunSpec
from engine.state import external_cell
from engine.state.external_cell import NAMED_KEPT_MS, Phase


def outside_cell(path: Path) -> Engine:
    cell = small_cell()
    settings = msgspec.structs.replace(cell.settings, decided_by="slurm")
    engine = Engine.open(path, cell=msgspec.structs.replace(cell, settings=settings))
    engine.acts = True
    return engine


def submit(engine: Engine, name: str, array: ArraySpec | None = None) -> None:
    spec = msgspec.structs.replace(workload(name), run=RunSpec(argv=("true",)), array=array)
    number = engine.state.intents.issued
    engine.command(Submit(workloads=(spec,)))
    engine.command(SettleIntents(changes=(IntentChange(number=number, phase=Phase.DONE),)))


def see(engine: Engine, name: str, phase: str, array: ArraySpec | None = None) -> None:
    spec = msgspec.structs.replace(workload(name), array=array)
    engine.command(Observe(seen=(WorkloadSeen(spec=spec, phase=phase),)))


def test_tokens_of_work_that_ended_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_cell, "SWEEP_EVERY", 1)
    engine = outside_cell(tmp_path / "cell.db")
    pair = ArraySpec(first=1, last=2)
    submit(engine, "over")
    submit(engine, "both-over", pair)
    submit(engine, "one-waits", pair)
    submit(engine, "waits")
    submit(engine, "never-seen")
    for array in ("both-over", "one-waits"):
        see(engine, array, "queued", pair)
    for name in ("over", "both-over/1", "both-over/2", "one-waits/1"):
        see(engine, name, "finished")
    for name in ("one-waits/2", "waits"):
        see(engine, name, "queued")
    engine.advance(NAMED_KEPT_MS)
    submit(engine, "just-in-time")
    assert {"over", "both-over"} <= set(engine.state.intents.named.values())
    engine.advance(NAMED_KEPT_MS + 1)
    submit(engine, "late")
    left = {"one-waits", "waits", "never-seen", "just-in-time", "late"}
    assert set(engine.state.intents.named.values()) == engine.state.intents.ids == left
    digest = engine.state.digest()
    engine.close()
    again = Engine.open(tmp_path / "cell.db", use_snapshot=False)
    assert again.state.digest() == digest
    again.close()
