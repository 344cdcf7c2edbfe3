"""A process that asks a model and is killed in the midst of it: `python draft_crash_worker.py JOURNAL URL`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from console.forms.settings import ConsoleSettings
from console.service.model_setup import setup_of
from engine.control import Engine
from engine.loop import EngineLoop
from runbooks.drafts.typed_draft import Brief
from runbooks.models.drafter import ModelDrafter
from tests.support.cells import small_cell
from tests.support.gates import ME, gate_of


def main(journal: Path, url: str) -> None:
    loop = EngineLoop(Engine.open(journal, cell=small_cell()))
    gate = gate_of(loop.engine)
    loop.start()
    settings = ConsoleSettings(
        model_url=url, model="made-up", model_egress="local", model_deadline="60s", model_price_in="1",
        model_price_out="5",
    )  # fmt: skip
    model = ModelDrafter(setup_of(settings), lambda: "", call=loop.call, audit=gate.audit, wall_ms=gate.policies.clock)
    brief = Brief(question="what waits?", cell="test", version=1, now_ms=1)
    model.draft(
        "act", lambda: brief, ME, "D-7", preview=lambda _: gate.proposal("P-1"), cancelled=threading.Event(),
        tell=lambda phase, _: print(phase, flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
