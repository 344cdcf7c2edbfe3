"""The life of a proposal: every state with every event, in the table and against the real books."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from sqlalchemy import Connection

from engine.control import Engine
from engine.model.errors import NotFoundError, RefusedError
from runbooks.audit.log import Audit
from runbooks.gate import store
from runbooks.plans import typed_plan
from runbooks.plans.identity import SYSTEM
from tests.support.gate_cells import START, Clock
from tests.support.records import records

STATES: tuple[typed_plan.State, ...] = get_args(typed_plan.State)
EVENTS: tuple[typed_plan.Event, ...] = get_args(typed_plan.Event)
UNDER_VOTE = {"drafted", "simulated", "awaiting"}
DONE_WITH = {"rejected", "denied", "superseded", "cancelled", "rolled_back"}


def leads_to(state: typed_plan.State) -> set[typed_plan.State]:
    """Every state from which one event leads there."""
    return {at for (at, _), to in typed_plan.EDGES.items() if to == state}


def test_nothing_reaches_executing_but_from_what_was_approved() -> None:
    assert leads_to("executing") == {"approved", "verifying", "paused"}
    assert leads_to("approved") == {"awaiting"}
    assert leads_to("paused") == {"executing", "verifying"}
    assert leads_to("verifying") == {"executing"}
    assert leads_to("rolling_back") == {"paused", "failed", "verified", "rollback_failed"}


def test_without_a_vote_or_broken_glass_nothing_is_ever_executed() -> None:
    without = {edge: to for edge, to in typed_plan.EDGES.items() if edge[1] not in ("approved", "broke_glass")}
    reached: set[str] = {"drafted"}
    while more := {to for (at, _), to in without.items() if at in reached} - reached:
        reached |= more
    assert reached.isdisjoint(typed_plan.LIVE)
    assert "approved" not in reached


def test_a_new_revision_starts_over() -> None:
    revised = {at: to for (at, event), to in typed_plan.EDGES.items() if event == "revised"}
    assert set(revised.values()) == {"drafted"}
    assert set(revised) == {"awaiting", "approved", "stale", "expired"}, "what was begun is not rewritten"


def test_what_is_over_stays_over() -> None:
    for state in DONE_WITH:
        assert not [event for at, event in typed_plan.EDGES if at == state], state


def test_every_state_is_reached_and_every_event_is_used() -> None:
    assert set(typed_plan.EDGES.values()) | {"drafted"} == set(STATES)
    assert {event for _, event in typed_plan.EDGES} == set(EVENTS) == set(typed_plan.EVENT_REFUSALS)
    assert set(STATES) == UNDER_VOTE | typed_plan.OPEN | typed_plan.LIVE | typed_plan.ENDED


@pytest.fixture(scope="module")
def engine() -> Engine:
    made = Engine.open(None)
    made.record(store.create)
    return made


@pytest.fixture(scope="module")
def audit(engine: Engine) -> Audit:
    return Audit(engine, Clock(), log_id="life")


def made(connection: Connection, state: typed_plan.State) -> store.ProposalRow:
    values = {
        "revision": 1, "serial": 0, "state": state, "since_ms": START, "created_ms": START, "author": "person:ann",
        "origin": "person", "tier": "T1", "digest": "d", "policy": "p", "blast": b"{}", "expires_ms": START,
    }  # fmt: skip
    return store.add(connection, values)


@pytest.mark.parametrize("state", STATES)
def test_every_pair_either_moves_it_with_one_record_or_changes_nothing(
    engine: Engine, audit: Audit, state: typed_plan.State
) -> None:
    for event in EVENTS:
        row = engine.record(lambda connection: made(connection, state))
        before = len(records(engine))
        to = typed_plan.EDGES.get((state, event))
        if to is None:
            with pytest.raises(RefusedError, match=f"{row.id} is {state.replace('_', ' ')}"):
                engine.record(lambda c, row=row, event=event: store.move(c, audit, row, event, SYSTEM, START))
        else:
            engine.record(lambda c, row=row, event=event: store.move(c, audit, row, event, SYSTEM, START))
        found = engine.record(lambda connection, row=row: store.found(connection, row.id))
        new = records(engine, before)
        assert (found.state, found.serial) == ((to, 1) if to else (state, 0))
        assert [(one["type"], one["proposal"], one["data"]) for one in new] == (
            [(f"proposal.{event}", row.id, {"from": state, "to": to, "rows": store.on_record(found)})] if to else []
        )


def test_who_is_second_finds_it_moved(engine: Engine, audit: Audit) -> None:
    for first, second in product(("cancelled", "approved"), ("approved", "expired", "rejected")):
        row = engine.record(lambda connection: made(connection, "awaiting"))
        engine.record(lambda c, row=row, first=first: store.move(c, audit, row, first, SYSTEM, START))
        before = len(records(engine))
        with pytest.raises(RefusedError, match="changed by somebody else"):
            engine.record(lambda c, row=row, second=second: store.move(c, audit, row, second, SYSTEM, START))
        assert len(records(engine)) == before


@pytest.mark.parametrize(
    "text",
    ["", "1", "P-", "P--1", "P-1 ", " P-1", "p-1", "P-1.0", "P-١", "P-1e3", "P-999999999999", "P-01", "P-0", None, 1],
)
def test_only_the_id_of_a_proposal_finds_it(engine: Engine, text: object) -> None:
    engine.record(lambda connection: made(connection, "awaiting"))
    with pytest.raises(NotFoundError):
        engine.record(lambda connection: store.found(connection, text))  # type: ignore[arg-type]
