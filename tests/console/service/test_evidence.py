"""What Slurm shows of an intent is asked of it sparingly, however many look."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from made_up_slurm import outside_cell, put_in_doubt

from console.service import slurm_cell
from console.service.slurm_cell import SlurmAt, SlurmCell
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model.external_cells import FarLook
from engine.state.external_cell import Intent
from tests.support.patience import PATIENCE_S


def test_slurm_is_asked_for_one_intent_at_a_time_and_what_it_showed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look may have slurmctld tell all of its jobs, and whoever may look can ask for any intent."""
    engine = outside_cell()
    numbers = [put_in_doubt(engine, cmd.Cordon(ids=(node,))) for node in engine.state.capacity.node_ids[:2]]
    one, other = (engine.state.intents.known(number) for number in numbers)
    assert one is not None
    assert other is not None
    asked: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def look(far: Any, intent: Intent, job_of: Any, now_ms: int) -> FarLook:
        asked.append(intent.number)
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return FarLook(at_ms=now_ms, shows="done")

    monkeypatch.setattr("engine.external.slurm.submission_carrier.look", look)
    monkeypatch.setattr(slurm_cell, "EVIDENCE_WAIT_S", 0.01)
    monkeypatch.setattr(slurm_cell, "EVIDENCE_S", 600.0)
    loop = EngineLoop(engine)
    cell = SlurmCell(loop, SlurmAt("http://127.0.0.1:9"))
    first = threading.Thread(target=cell.evidence, args=(one,))
    first.start()
    assert begun.wait(PATIENCE_S)
    for intent in (one, other):
        found = cell.evidence(intent)
        assert found is not None
        assert "is being checked" in found.error
    go_on.set()
    first.join(PATIENCE_S)
    for intent in (one, other, one, other):
        found = cell.evidence(intent)
        assert found is not None
        assert found.shows == "done"
    assert asked == numbers
