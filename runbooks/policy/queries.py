"""What is shown of policies, people and freezes. Loads neither cryptography nor a database."""

from __future__ import annotations

import msgspec

from runbooks.people.identity import Kind, Role, Signed
from runbooks.policy.approval_policy import Verdict
from runbooks.policy.freezes import Freeze


class PolicyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what a new policy changes."""

    text: str
    loosens: bool
    """More may be done, or by more, or with fewer votes."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A new policy and how its vote stands."""

    id: str
    """"policy-3"."""
    revision: int = 0
    """Its version: what a signature over a vote names as the revision."""
    digest: str
    state: str
    """awaiting, in_force, rejected, expired, superseded (another one came into force first)."""
    author: str
    at_ms: int
    expires_ms: int
    changes: tuple[PolicyDifference, ...]
    needs: int
    """Votes that are missing."""
    need: str
    """Of whom, in words."""
    signed: bool
    """The votes must be signed."""
    alone: bool
    """Its author may put it in force alone: there is nobody else."""
    votes: tuple[str, ...]
    """One line each."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """As whom an engine knows whoever asks, and what their signatures need."""

    subject: str
    kind: Kind
    account: str
    roles: tuple[Role, ...]
    """In all of the cell."""
    scoped: tuple[str, ...] = ()
    """Roles in parts of it, in words: "approver of pools h100"."""
    token: str = ""
    """Id of the token that was shown."""
    deeds: tuple[str, ...] | None = None
    """What that token is for; None: all that its holder may do."""
    within: str = ""
    """The part of the cell that it is for, in words."""
    shared_with: tuple[str, ...] = ()
    """People who have the same account, where it is not one person's alone: each must say who they are."""
    cell_id: str
    """Identity of the cell, which signatures name."""
    now_ms: int
    """The engine's wall clock, Unix ms, by which signatures are dated."""
    keys: dict[str, tuple[str, ...]]
    """Subject -> fingerprints of the keys that are enrolled."""
    asked_ns: int = 0
    """Monotonic clock of the asker when this was answered."""
    acts_as: str = ""
    """In whose name the asker acts, by their own word; empty: as `subject`."""

    @property
    def me(self) -> str:
        """Whose view to show: what is theirs to do. Decides nothing."""
        return self.acts_as or self.subject

    @property
    def proved_by_key(self) -> bool:
        """Whether nothing but a signature shows that what is said in that name is said by them."""
        return self.me != self.subject


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another policy, as it is handed in: exactly one of the two."""

    text: str = ""
    """The file."""
    built_in: str = ""
    """"team" or "solo": its rules and limits, for the people, services, freezes and channels that are there."""
    signed: Signed | None = None
    """Over kind "policy", the new version as revision, the new digest, and "propose" as verdict."""


class PolicyVote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    candidate: str
    """"policy-3"."""
    digest: str
    verdict: Verdict = "approve"
    signed: Signed | None = None
    """Over kind "policy", the candidate as proposal, its revision and digest, and the verdict."""


class PolicyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that may be put to the vote."""

    version: int
    digest: str
    mode: str
    changes: tuple[PolicyDifference, ...]
    notes: tuple[str, ...]
    two_people: str
    roles: tuple[Role, ...]
    """Of whoever asks, under it."""
    need: str
    """What putting it in force needs."""


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force, and those that wait for votes."""

    name: str
    version: int
    mode: str
    digest: str
    since_ms: int
    """When it came into force, Unix ms; 0: it always was."""
    by: str
    two_people: str
    """What its two-person rule is worth on this machine."""
    people: tuple[tuple[str, ...], ...]
    """(id, roles, accounts, fingerprints, remarks), in words."""
    rules: tuple[tuple[str, str], ...]
    """(tier, and part of the cell; what plans of it need)."""
    limits: tuple[tuple[str, str], ...]
    services: tuple[str, ...]
    channels: tuple[tuple[str, str], ...]
    freezes: tuple[Freeze, ...]
    """Its own, and those set by hand that are not over."""
    notes: tuple[str, ...]
    change_need: str
    """What putting another policy in force needs."""
    candidates: tuple[Candidate, ...]
    text: str
    """The file it came from; of one that is built in, a file that says the same."""
