"""What is on record of objects that a draft had better leave alone: nodes of which a review is open, and those that a
runbook for faults took out of use; and who took out of use what is out of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from engine.model.errors import JournalError
from runbooks.gate.store import EFFECT, REVIEW, REVISION
from runbooks.plans.typed_plan import Plan

if TYPE_CHECKING:
    from engine.control import Engine

FOR_FAULTS = frozenset(("drain-failing-node", "gpu-ecc-rising", "node-flapping", "straggler"))
"""Runbooks that take nodes out of use because they fail: back they come by hand, once somebody has looked."""
MAX_EFFECTS = 300
CLOSES = {"cordon": "node", "drain": "node", "hold_queue": "queue", "drain_queue": "queue"}
"""Acts that take something out of use, and what."""
OPENS = {"uncordon": "node", "open_queue": "queue"}


class Closed(NamedTuple):
    """Who took something out of use, as the last that was done about it."""

    proposal: str
    """Such as P-4; there the reason is, which is not kept here."""
    who: str


class RecordedObjects(NamedTuple):
    left_alone: frozenset[str] = frozenset()
    """Ids of nodes, and of what else reviews are about."""
    closed: Mapping[tuple[str, str], Closed] = {}
    """By (kind, id)."""


def on_record(engine: Engine) -> RecordedObjects:
    """Nothing where nothing is on record, or the record cannot be read."""
    with contextlib.suppress(JournalError, SQLAlchemyError, msgspec.MsgspecError):
        return engine.recorded(_read)
    return RecordedObjects()


def _read(connection: Connection) -> RecordedObjects:
    found = set(connection.execute(select(REVIEW.c.about).where(REVIEW.c.closed_ms == 0)).scalars())
    same = (REVISION.c.number == EFFECT.c.number) & (REVISION.c.revision == EFFECT.c.revision)
    query = (
        select(EFFECT.c.back, EFFECT.c.action, EFFECT.c.step, REVISION.c.plan)
        .join(REVISION, same)
        .where(EFFECT.c.action.in_((*CLOSES, *OPENS)))
        .order_by(EFFECT.c.version.desc())
        .limit(MAX_EFFECTS)
    )
    seen: set[tuple[str, str]] = set()
    closed: dict[tuple[str, str], Closed] = {}
    for back, action, step, text in connection.execute(query):
        plan = msgspec.json.decode(text, type=Plan)
        kind = CLOSES.get(action) or OPENS[action]
        targets = {(kind, id_) for id_ in plan.steps[step].act.targets} - seen
        seen |= targets
        if back == (action in CLOSES):
            continue
        closed |= dict.fromkeys(targets, Closed(plan.proposal, plan.requester or plan.author.subject))
        if action in CLOSES and plan.runbook is not None and plan.runbook.id in FOR_FAULTS:
            found |= {id_ for _, id_ in targets}
    return RecordedObjects(frozenset(found), closed)
