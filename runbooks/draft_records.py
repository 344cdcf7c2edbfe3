"""What is on record of objects that a draft had better leave alone: nodes of which a review is open, and those that a
runbook for faults took out of use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from engine.errors import JournalError
from runbooks.books import EFFECT, REVIEW, REVISION
from runbooks.plan import Plan

if TYPE_CHECKING:
    from engine.control import Engine

FOR_FAULTS = frozenset(("drain-failing-node", "gpu-ecc-rising", "node-flapping", "straggler"))
"""Runbooks that take nodes out of use because they fail: back they come by hand, once somebody has looked."""
MOST_EFFECTS = 300


def left_alone(engine: Engine) -> frozenset[str]:
    """Ids; none where nothing is on record, or the record cannot be read."""
    with contextlib.suppress(JournalError, SQLAlchemyError, msgspec.MsgspecError):
        return engine.recorded(_read)
    return frozenset()


def _read(connection: Connection) -> frozenset[str]:
    found = set(connection.execute(select(REVIEW.c.about).where(REVIEW.c.closed_ms == 0)).scalars())
    same = (REVISION.c.number == EFFECT.c.number) & (REVISION.c.revision == EFFECT.c.revision)
    query = (
        select(EFFECT.c.back, EFFECT.c.action, EFFECT.c.step, REVISION.c.plan)
        .join(REVISION, same)
        .where(EFFECT.c.action.in_(("cordon", "drain", "uncordon")))
        .order_by(EFFECT.c.version.desc())
        .limit(MOST_EFFECTS)
    )
    seen: set[str] = set()
    for back, action, step, text in connection.execute(query):
        plan = msgspec.json.decode(text, type=Plan)
        targets = set(plan.steps[step].act.targets) - seen
        seen |= targets
        faulty = plan.runbook is not None and plan.runbook.id in FOR_FAULTS
        if faulty and not back and action != "uncordon":
            found |= targets
    return frozenset(found)
