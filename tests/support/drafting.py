"""Drafts over the small cell, with a model server of the test's choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select

from console.forms.settings import ConsoleSettings
from console.service.advisor import Advisor
from console.service.drafting import Drafting
from console.service.model_setup import key_source, setup_of
from console.service.recommendations import Recommender
from engine.loop import EngineLoop
from runbooks.audit.log import record_table
from runbooks.drafts.typed_draft import DraftAsk, DraftRun
from runbooks.gate.approval_gate import Gate
from runbooks.models.calls import ModelWorker
from runbooks.models.drafter import ModelDrafter
from runbooks.plans.identity import Actor
from tests.support.gates import ME, gate_of

KEY = "sk-canary-4f0e"
QUESTION = "GPU queue wait is over SLO"


@contextmanager
def drafting(
    loop: EngineLoop,
    gate: Gate | None = None,
    *,
    clock: Callable[[], float] | None = None,
    key: str = KEY,
    worker: ModelWorker | None = None,
    **settings: Any,
) -> Iterator[Drafting]:
    """What an engine would serve with these settings. `clock`: monotonic, of what is not asked too often; `worker`: one
    that other tests use too, for the deadline of a test."""
    gate = gate or gate_of(loop.engine)
    chosen = ConsoleSettings(**{"model": "made-up", "model_egress": "local", "model_deadline": "5m"} | settings)
    setup = setup_of(chosen)
    clocks = {} if clock is None else {"clock": clock}
    model = ModelDrafter(
        setup, key_source(setup.endpoint, chosen.model_key_file, {"MUSTER_MODEL_KEY": key}), call=loop.call,
        audit=gate.audit, wall_ms=gate.policies.clock, worker=worker, **clocks,
    )  # fmt: skip
    made = Drafting(loop, gate, Recommender(loop, Advisor(loop)), model)
    made.open()
    try:
        yield made
    finally:
        made.close()


def drafted(
    service: Drafting, question: str = QUESTION, *, model: bool = True, actor: Actor = ME, **ask: Any
) -> DraftRun:
    """Asked, and waited for."""
    return ended(service, service.begin(actor, DraftAsk(question=question, model=model, **ask)).id)


def ended(service: Drafting, draft_id: str) -> DraftRun:
    run = service.run(draft_id)
    while not run.over:
        run = service.run(draft_id, run.serial, 10)
    return run


def records(loop: EngineLoop, *prefixes: str) -> list[tuple[str, dict[str, Any]]]:
    """(type, data) of what the audit has of these types, oldest first."""
    query = select(record_table.c.type, record_table.c.body).order_by(record_table.c.seq)
    rows = loop.call(lambda engine: engine.recorded(lambda connection: connection.execute(query).all()))
    return [(row.type, json.loads(row.body)["data"]) for row in rows if row.type.startswith(prefixes)]
