"""Who approved which bytes as a runbook, and whether that still counts: rows beside the gate's, by SHA-256.

Bytes are approved by as many people as the policy in force asks for a plan of tier T2, none of them their owner or of
the OS account that the file belongs to, and by the roles and keys that these people have now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, MetaData, String, Table, inspect, select

from runbooks.plans.typed_plan import Party, RunbookRef, Tier
from runbooks.policy import approval_policy
from runbooks.policy.approval_policy import ApprovalNeed, Policy, Vote

if TYPE_CHECKING:
    from runbooks.gate.policy_versions import Policies

APPROVAL_TIER: Tier = "T2"
"""A runbook may hold steps of any tier: each run is voted on besides. Its text is approved like a T2 plan."""
Deed = Literal["approve", "retire"]
METADATA = MetaData()
VOTE = Table(
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
    deed: Deed
    owner: str
    account: str


class Votes:
    """All that were given in this cell, oldest first."""

    def __init__(self, connection: Connection) -> None:
        """None before anybody has voted on anything."""
        self.all: list[RecordedRunbookVote] = []
        if inspect(connection).has_table(VOTE.name):
            self.all = [
                RecordedRunbookVote(
                    row["runbook"], row["version"], row["sha256"], msgspec.json.decode(row["vote"], type=Vote),
                    row["deed"], row["owner"], row["file_account"],
                )
                for row in connection.execute(select(VOTE).order_by(VOTE.c.id)).mappings()
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
    """Why a plan made from this version may not go on; empty when it may: it is approved and not retired. The file
    itself need not be there any more: the plan holds all that it said."""
    votes = Votes(connection).on(ref.sha256)
    if any(one.deed == "retire" for one in votes):
        return f"runbook {ref.id} version {ref.version} was retired"
    short, _ = missing(policies, policies.current(connection), votes, ())
    return f"runbook {ref.id} version {ref.version} is not approved any more" if short else ""
