"""One story told three times: what the gate keeps, what the audit says, and what the engine did, must agree one to one.

For the tests that end processes, race, and fail to write: afterwards there is no effect without its record and no
record without its effect, nothing was done that was not approved, and nothing is half done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from records import where
from sqlalchemy import Connection, select

from engine.control import Engine
from runbooks.actions import catalogue
from runbooks.audit.log import record_table
from runbooks.audit.verify import Trust, verify
from runbooks.gate import store
from runbooks.gate.store import EFFECT, PROPOSAL, REVISION, STEP, VOTE
from runbooks.plans import typed_plan
from runbooks.plans.typed_plan import Plan

MAKES = {
    "cordon": "cordoned", "uncordon": "ready", "hold": "held", "release": "queued", "suspend": "suspended",
    "hold_queue": "held", "open_queue": "open",
}  # fmt: skip
"""State in which an action leaves its targets, as long as nobody else touches them."""


def check_agreement(
    engine: Engine, untouched: Mapping[str, str] | None = None, done: Sequence[str] | None = None
) -> Counter[str]:
    """Fails unless all of it agrees. `untouched`: target -> the state it had before any plan; each of them must be as
    the last effect on it left it. `done`: keys of the steps that reached the engine, where no journal tells them.
    Returns how many effects of which action there are."""
    tables = engine.recorded(_read)
    check_effects(engine, tables, done)
    for row in tables["proposals"]:
        check_life(row, tables)
    check_votes(tables)
    if engine.place is not None:
        check_chain(where(engine))
    if untouched is not None:
        check_state(engine, tables["effects"], untouched)
    return Counter(effect["action"] for effect in tables["effects"])


def _read(connection: Connection) -> dict[str, list[Any]]:
    def rows(table: Any) -> list[Any]:
        return [dict(row) for row in connection.execute(select(table)).mappings()]

    bodies = connection.execute(select(record_table.c.body).order_by(record_table.c.seq)).scalars()
    return {
        "records": [msgspec.json.decode(body) for body in bodies],
        "effects": sorted(rows(EFFECT), key=lambda effect: (effect["version"], effect["at_ms"])),
        "proposals": [store.ProposalRow(**row) for row in rows(PROPOSAL)],
        "votes": rows(VOTE),
        "steps": rows(STEP),
        "revisions": rows(REVISION),
    }


def check_effects(engine: Engine, tables: dict[str, list[Any]], keys_done: Sequence[str] | None) -> None:
    """Rows, records and the engine's journal name the same effects, each once."""
    keys = [effect["key"] for effect in tables["effects"]]
    assert len(keys) == len(set(keys))
    of_type = {
        type_: [r for r in tables["records"] if r["type"] == type_] for type_ in ("exec.effect", "exec.needless")
    }
    told = [record["data"]["key"] for records in of_type.values() for record in records]
    assert sorted(told) == sorted(keys), "records of effects and effects differ"
    for record in of_type["exec.effect"]:
        effect = next(effect for effect in tables["effects"] if effect["key"] == record["data"]["key"])
        assert (record["data"]["action"], record["data"]["version"]) == (effect["action"], effect["version"])
    done = {
        record["data"]["key"] for record in of_type["exec.effect"] if catalogue.find(record["data"]["action"]).command
    }
    versions = {effect["key"]: effect["version"] for effect in tables["effects"]}
    assert max(versions.values(), default=0) <= engine.version
    if engine.path is not None:
        assert engine._journal is not None
        audited = [(version, entry) for version, entry in engine._journal.audit() if entry.key]
        assert all(version <= versions[entry.key] for version, entry in audited)
        keys_done = [entry.key for _, entry in audited]
    if keys_done is not None:
        assert Counter(keys_done) == Counter(done), "the engine did something else than is recorded"


def check_life(row: store.ProposalRow, tables: dict[str, list[Any]]) -> None:
    """The records of a proposal lead along edges of the table to the state it is in; what was done was claimed after it
    was approved, and is done as far as the cursor says."""
    state: str | None = None
    moves = approvals = yes = 0
    for record in (record for record in tables["records"] if record["proposal"] == row.id):
        kind, _, event = record["type"].partition(".")
        if record["type"] == "proposal.drafted":
            assert state is None
            state = "drafted"
        elif kind == "proposal":
            to = typed_plan.EDGES.get((state, event))  # type: ignore[arg-type]
            assert to is not None, f"{row.id}: {event} while {state}"
            assert (record["data"]["from"], record["data"]["to"]) == (state, to)
            state, moves = to, moves + 1
            if event in ("approved", "broke_glass"):
                assert yes, f"{row.id} was approved by nobody"
                approvals += 1
            elif event == "claimed":
                assert approvals, f"{row.id} was executed and never approved"
            elif event == "revised":
                approvals = yes = 0
        elif record["type"] in ("vote.approve", "breakglass.used"):
            yes += 1
        elif record["type"] in ("exec.effect", "exec.needless"):
            expected = "rolling_back" if ":back:" in record["data"]["key"] else "executing"
            assert state == expected, f"{row.id}: an effect while {state}"
    assert (state, moves) == (row.state, row.serial)
    plan = next(r["plan"] for r in tables["revisions"] if (r["number"], r["revision"]) == (row.number, row.revision))
    check_steps(row, msgspec.json.decode(plan, type=Plan), tables)


def check_steps(row: store.ProposalRow, plan: Plan, tables: dict[str, list[Any]]) -> None:
    mine = [e for e in tables["effects"] if (e["number"], e["revision"]) == (row.number, row.revision)]
    forward = sorted(effect["step"] for effect in mine if not effect["back"])
    back = {(effect["step"], int(effect["key"].rsplit(":", 1)[1])) for effect in mine if effect["back"]}
    assert forward == list(range(row.cursor)), f"{row.id}: done {forward}, next is {row.cursor}"
    ways = {(number, part) for number in forward for part in range(len(plan.steps[number].rollback))}
    assert back <= ways
    if row.state == "rolled_back":
        assert back == ways, f"{row.id} is only partly taken back"
    elif row.state not in ("rolling_back", "rollback_failed"):
        assert not back, f"{row.id} is {row.state} and partly taken back"
    if row.state == "verified":
        assert row.cursor == len(plan.steps)
    if row.cursor == 0 and row.state in (
        *typed_plan.OPEN,
        "rejected",
        "denied",
        "expired",
        "cancelled",
        "superseded",
    ):
        assert not mine
    standing = {
        step["step"]: msgspec.json.decode(step["standing"])["state"]
        for step in tables["steps"]
        if (step["number"], step["revision"]) == (row.number, row.revision)
    }
    assert all((state == "waiting") == (number >= row.cursor) for number, state in standing.items())


def check_votes(tables: dict[str, list[Any]]) -> None:
    """Every vote that is kept is the last that its person gave on that revision."""
    last: dict[tuple[str, int, str], str] = {}
    for record in tables["records"]:
        if record["type"] in ("vote.approve", "vote.reject", "vote.abstain"):
            last[record["proposal"], record["revision"], record["actor"]["subject"]] = record["type"]
    kept = {(f"P-{v['number']}", v["revision"], v["subject"]): f"vote.{v['verdict']}" for v in tables["votes"]}
    assert kept == last


def check_chain(path: Path | str) -> None:
    code, reports = verify([path], Trust())
    assert code == 0, [bad.what for report in reports for bad in report.problems]


def check_state(engine: Engine, effects: list[Any], untouched: Mapping[str, str]) -> None:
    """Each target is as the last effect on it left it, or as it was if there was none."""
    expected = dict(untouched)
    for effect in effects:
        for target in msgspec.json.decode(effect["changed"]):
            if target in expected and effect["action"] in MAKES:
                expected[target] = MAKES[effect["action"]]
    assert states(engine, expected) == expected


def states(engine: Engine, targets: Any) -> dict[str, str]:
    """Of workloads, nodes and queues, by name."""
    found = {}
    for target in targets:
        if target in engine.state.workloads.row_of:
            found[target] = engine.workload(target).state
        elif target in engine.state.queues.row_of:
            found[target] = engine.queue(target).mode
        else:
            found[target] = engine.node(target).state
    return found
