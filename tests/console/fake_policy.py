"""A made-up policy view, as strangers might have named what is in it: for `FakeClient` and for pages."""

from __future__ import annotations

from collections.abc import Callable

from runbooks.gate.approval_policy import Candidate, PolicyDifference, PolicyView
from runbooks.gate.run_limits import Freeze


def view(text: Callable[[int, str], str], freezes: tuple[Freeze, ...]) -> PolicyView:
    """A team of two, with a new policy that waits for a vote."""
    waiting = Candidate(
        id="policy-2", revision=2, digest="cd" * 32, state="awaiting", author="person:dave", at_ms=0,
        expires_ms=86_400_000, changes=(PolicyDifference(text=text(1, "T3: votes 2 -> 3"), loosens=False),), needs=1,
        need="admin", signed=True, alone=False, votes=(),
    )  # fmt: skip
    return PolicyView(
        name="team-a", version=1, mode="team", digest="ab" * 32, since_ms=1_772_366_400_000, by="unix:1000",
        two_people="Each person has an OS account of their own.",
        people=((text(2, "alice"), "operator, approver", "unix:1002", "SHA256:abc", "on call"),),
        rules=(("T0", "1 vote of operator"), ("T2", "1 vote of approver")), limits=(("plans run", "20 of T2"),),
        services=("recommender",), channels=((text(3, "ops"), "log:"),), freezes=freezes,
        notes=(text(4, "One admin."),),
        own_work="cancel, hold; 50 workloads at once, 200 an hour",
        alone=(("what disrupts (requeue, drain)", "1 other approver, signed"),), unchosen=True,
        change_need="1 vote of admin", candidates=(waiting,), text="schema: muster-policy/v1\n",
    )  # fmt: skip
