"""Authority from the records: the policy in force, proposals, and approved bytes of runbooks.

The gate works with tables that anybody who can write the database can change. So it carries out nothing that a replay
of the audit does not authorise. The replay is that of `runbooks.audit.verify`, which also checks exported logs.

The bytes of a runbook are approved by as many people as the policy in force asks for a plan of tier T2, by the roles
and keys that these people have now. Neither the owner nor the OS account of the file counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, MetaData, String, Table, inspect, select

from runbooks.audit.log import Audit, record_table
from runbooks.audit.verify import POLICY, START, AuthorisationReplay, PolicyInForce, content_of, row_name
from runbooks.gate import approval_policy
from runbooks.gate.approval_policy import ApprovalNeed, Policy, Vote
from runbooks.gate.composition import scope_of
from runbooks.gate.policy_changes import CANDIDATE, VERSION
from runbooks.gate.store import CONFIRMATION, EFFECT, PROPOSAL, REVISION, STEP, VOTE, ProposalRow
from runbooks.plans.identity import SYSTEM
from runbooks.plans.typed_plan import Party, Plan, RunbookRef, Tier

if TYPE_CHECKING:
    from runbooks.gate.policy_versions import Policies


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
    """The verdict of the records on a proposal."""

    changed: str = ""
    """What in the database is not as the records have it; empty: nothing."""
    lacks: str = ""
    """What it lacks to be carried out now; empty: nothing."""


class Authority:
    """The replayed authority of one engine. It reads by the audit's index on `proposal`, never the whole log."""

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
        """The verdict of the records on a proposal as it is now."""
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
            return ProposalAuthority(changed=changed or f"the records of {row.id} are no longer in the audit")
        if one.facts != facts_of(plan) | {"policy": plan.policy_digest} or one.digest != row.digest:
            changed = changed or f"the plan of {row.id} is not the plan that was voted on"
        return ProposalAuthority(
            changed=changed, lacks=replay.why_not_claim(_LATER, row.id) if row.state == "approved" else ""
        )


def start(connection: Connection, audit: Audit, cell: str, now: PolicyInForce) -> None:
    """Records the policy from which later policies continue."""
    data = {"cell": cell, "owner": now.owner, "voted": now.voted, "body": now.body}
    audit.append(connection, START, SYSTEM, proposal=POLICY, policy_digest=now.digest, data=data)


def facts_of(plan: Plan) -> dict[str, Any]:
    """The fields of a plan that decide whose votes it needs, as the record of its simulation has them."""
    facts = {
        "author": plan.author, "requester": plan.requester, "origin": plan.origin, "tier": plan.tier,
        "scope": scope_of(plan.steps),
    }  # fmt: skip
    if plan.blast.own:
        facts["own"] = plan.blast.own
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
    """The body of a policy that is too long for a record."""
    for table in (VERSION, CANDIDATE):
        found = connection.execute(select(table.c.body).where(table.c.digest == digest).limit(1)).scalar()
        if isinstance(found, bytes):
            return found
    return None


APPROVAL_TIER: Tier = "T2"
"""A runbook may hold steps of any tier: each run is voted on besides. Its text is approved like a T2 plan."""
RunbookDecision = Literal["approve", "retire"]
METADATA = MetaData()
RUNBOOK_VOTE = Table(
    "runbook_vote", METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("runbook", String, nullable=False, index=True), Column("version", Integer, nullable=False),
    Column("sha256", String, nullable=False, index=True), Column("deed", String, nullable=False),
    Column("owner", String, nullable=False), Column("file_account", String, nullable=False),
    Column("vote", LargeBinary, nullable=False), Column("at_ms", BigInteger, nullable=False),
)  # fmt: skip
"""`deed`: approve, or retire, which ends what was approved for good. `owner` and `file_account` are those of the file
when the vote was given: a file that changes hands later has the authors of both moments."""
NOBODY = Party(subject="", kind="system", account="")


class RecordedRunbookVote(NamedTuple):
    """A vote on a runbook."""

    runbook: str
    version: int
    sha256: str
    vote: Vote
    deed: RunbookDecision
    owner: str
    account: str


class Votes:
    """All votes on runbooks in this cell, oldest first."""

    def __init__(self, connection: Connection) -> None:
        """Reads them; there are none before anybody has voted."""
        self.all: list[RecordedRunbookVote] = []
        if inspect(connection).has_table(RUNBOOK_VOTE.name):
            self.all = [
                RecordedRunbookVote(
                    row["runbook"], row["version"], row["sha256"], msgspec.json.decode(row["vote"], type=Vote),
                    row["deed"], row["owner"], row["file_account"],
                )
                for row in connection.execute(select(RUNBOOK_VOTE).order_by(RUNBOOK_VOTE.c.id)).mappings()
            ]  # fmt: skip

    def on(self, sha256: str) -> list[RecordedRunbookVote]:
        return [one for one in self.all if one.sha256 == sha256]

    def newest_version(self, runbook: str, sha256: str) -> int:
        """The highest version of this id that other bytes were approved as; 0 for none. That it was retired since, or
        that who approved it has left, does not make its number free."""
        others = (one for one in self.all if one.runbook == runbook and one.sha256 != sha256)
        return max((one.version for one in others if one.deed == "approve"), default=0)


def need(in_force: Policy) -> ApprovalNeed:
    return approval_policy.need(in_force, APPROVAL_TIER, "person")


def missing(
    policies: Policies, in_force: Policy, votes: list[RecordedRunbookVote], now: Iterable[tuple[str, str]]
) -> tuple[int, str]:
    """Votes that are still missing by the policy, the roles and the keys of now, and of whom. `now`: (owner, account)
    of the file as it is; those of when it was voted on count besides."""
    yes = [one.vote for one in votes if one.deed == "approve"]
    of = {*now, *((one.owner, one.account) for one in votes if one.deed == "approve")}
    short = (0, "")
    for owner, account in sorted(of) or [("", "")]:
        for author, requester in authors(in_force, owner, account):
            found = approval_policy.tally(in_force, yes, author, requester, need(in_force), owner=policies.owner)
            short = max(short, (found.missing, found.wanted))
    return short


def authors(in_force: Policy, owner: str, account: str) -> list[tuple[Party, str]]:
    """(author, requester) as whom a file's owner and the OS account it belongs to count: neither may approve it."""
    found = [(NOBODY, "")]
    subject = owner if owner.startswith("person:") else f"person:{owner}"
    if any(person.subject == subject for person in in_force.people):
        found.append((Party(subject=subject, kind="system", account=""), ""))
    elif owner.startswith("unix:"):
        found.append((Party(subject=owner, kind="human", account=owner), ""))
    if account:
        found.append((Party(subject=account, kind="human", account=account), ""))
    return found


def why_not_usable(connection: Connection, policies: Policies, ref: RunbookRef) -> str:
    """The reason that a plan made from this version may not go on; empty while it is approved and not retired. The file
    may be gone: the plan holds all that it said."""
    votes = Votes(connection).on(ref.sha256)
    if any(one.deed == "retire" for one in votes):
        return f"runbook {ref.id} version {ref.version} was retired"
    short, _ = missing(policies, policies.current(connection), votes, ())
    return f"runbook {ref.id} version {ref.version} is no longer approved" if short else ""
