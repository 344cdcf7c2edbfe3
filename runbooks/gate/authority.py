"""What the records authorise, for the gate itself: the policy in force, and whether a proposal may be carried out.

The tables beside the audit are what the gate works with; who can write the database can write them. So nothing is
carried out that `runbooks.audit.verify`, by the same replay as whoever checks the log later, does not find authorised.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from runbooks.audit.log import Audit
from runbooks.audit.tables import record_table
from runbooks.audit.verify import POLICY, START, AuthorisationReplay, PolicyInForce, content_of, row_name
from runbooks.gate.composition import scope_of
from runbooks.gate.store import CONFIRMATION, EFFECT, PROPOSAL, REVISION, STEP, VOTE, ProposalRow
from runbooks.people.identity import SYSTEM
from runbooks.plans.typed_plan import Plan
from runbooks.policy.tables import CANDIDATE, VERSION

_TABLES = (PROPOSAL, REVISION, STEP, VOTE, CONFIRMATION, EFFECT)
"""Whose rows decide what is done with a proposal."""
_NEWEST = (
    select(record_table.c.seq, record_table.c.hash)
    .where(record_table.c.proposal == POLICY)
    .order_by(record_table.c.seq.desc())
    .limit(1)
)
_LATER = 2**63 - 1
"""A record after all that there are."""


class ProposalAuthority(NamedTuple):
    """What the records say of a proposal."""

    changed: str = ""
    """What in the database is not as the records have it; empty: nothing."""
    lacks: str = ""
    """What it lacks to be carried out now; empty: nothing."""


class Authority:
    """Of one engine. Reads by the audit's index on `proposal`: never the whole log."""

    def __init__(self) -> None:
        self._chain = AuthorisationReplay()
        self._stamp: tuple[int, bytes] | None = None

    def chain(self, connection: Connection) -> AuthorisationReplay:
        """The policies that were in force, each by the votes that the one before asked for."""
        newest = connection.execute(_NEWEST).first()
        stamp = None if newest is None else (newest.seq, newest.hash)
        if stamp != self._stamp:
            self._chain = AuthorisationReplay(lambda digest: _body(connection, digest))
            self._chain.whole = True
            for seq, body in _records(connection, POLICY):
                self._chain.take(seq, content_of(body))
            self._stamp = stamp
        return self._chain

    def of(self, connection: Connection, row: ProposalRow, plan: Plan) -> ProposalAuthority:
        """What the records say of a proposal as it is now."""
        chain = self.chain(connection)
        if chain.problems:
            return ProposalAuthority(changed=f"the policy in force cannot be proved: {chain.problems[0][1]}")
        records = _records(connection, row.id)
        replay = chain.of_proposal()
        for seq, body in records:
            replay.take(seq, content_of(body))
        changed = _changed_row(connection, replay, row.number)
        begun_before = bool(records) and records[0][0] < chain.since
        if begun_before:
            return ProposalAuthority(changed=changed)
        if replay.problems:
            return ProposalAuthority(changed=replay.problems[0][1])
        one = replay.proposals.get(row.id)
        if one is None:
            return ProposalAuthority(changed=changed or f"the records of {row.id} are not in the audit any more")
        if one.facts != facts_of(plan) | {"policy": plan.policy_digest} or one.digest != row.digest:
            changed = changed or f"the plan of {row.id} is not what was put to the vote"
        return ProposalAuthority(
            changed=changed, lacks=replay.why_not_claim(_LATER, row.id) if row.state == "approved" else ""
        )


def start(connection: Connection, audit: Audit, cell: str, now: PolicyInForce) -> None:
    """Have on record from what the policies after it go on."""
    data = {"cell": cell, "owner": now.owner, "voted": now.voted, "body": now.body}
    audit.append(connection, START, SYSTEM, proposal=POLICY, policy_digest=now.digest, data=data)


def facts_of(plan: Plan) -> dict[str, Any]:
    """What of a plan decides whose votes it needs, as the record of its simulation has it."""
    facts = {
        "author": plan.author, "requester": plan.requester, "origin": plan.origin, "tier": plan.tier,
        "scope": scope_of(plan.steps),
    }  # fmt: skip
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(facts))
    return found


def _records(connection: Connection, proposal: str) -> list[tuple[int, bytes]]:
    query = select(record_table.c.seq, record_table.c.body).where(record_table.c.proposal == proposal)
    return [(row.seq, row.body) for row in connection.execute(query.order_by(record_table.c.seq))]


def _changed_row(connection: Connection, replay: AuthorisationReplay, number: int) -> str:
    """The first row of a proposal that is not as the records left it; empty: there is none."""
    replay.whole = True
    told = {name for name in replay.rows if name.partition(":")[0] in {table.name for table in _TABLES}}
    for table in _TABLES:
        # Written out: this is on the way from a vote to its effect, and has nothing to compile.
        for values in connection.exec_driver_sql(f"SELECT * FROM {table.name} WHERE number = {number:d}").mappings():
            row = dict(values)
            what = replay.differs(table.name, row)
            if what:
                return what
            told.discard(row_name(table.name, row))
    return f"the row {min(told)} is gone" if told else ""


def _body(connection: Connection, digest: str) -> bytes | None:
    """Of a policy that is too long for a record."""
    for table in (VERSION, CANDIDATE):
        found = connection.execute(select(table.c.body).where(table.c.digest == digest).limit(1)).scalar()
        if isinstance(found, bytes):
            return found
    return None
