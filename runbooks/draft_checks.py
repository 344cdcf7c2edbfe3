"""From what a model answered to a draft: names read back, targets resolved, acts tried, prose held to the facts.

Nothing of an answer is believed. A step that names what the model was not told of, or what is not there now, or that
the cell or the policy refuses, ends the whole draft: half of a plan is another plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from runbooks.answer import Answered
from runbooks.draft import Brief, Draft
from runbooks.plan import Proposal, Request

if TYPE_CHECKING:
    from runbooks.pseudonyms import Names
    from runbooks.shelf import Call

Preview = Callable[[Request], Proposal]
"""What proposing it now would show, simulated on a fork; the rules of the policy that it would break in `note`."""


class Said(Protocol):
    """One message of a prompt."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


class Told(Protocol):
    """What a model was told, as far as its answer is held to it."""

    @property
    def messages(self) -> Sequence[Said]: ...
    @property
    def names(self) -> Names: ...
    @property
    def canary(self) -> str:
        """A word of this call alone, which no answer may hold."""

    @property
    def allowed(self) -> frozenset[tuple[str, str]]:
        """(kind, real id) of everything that may be named as a target; kinds as in `runbooks.pseudonyms`."""

    @property
    def facts(self) -> frozenset[str]:
        """Ids of the facts that it was told, which may be cited."""


def draft_of(answered: Answered, content: str, brief: Brief, told: Told, *, call: Call, preview: Preview) -> Draft:
    """The draft that an answer makes. `content`: the answer as it came, in which the canary is looked for. The
    requester and the record of the call are for the caller to set.

    Raises DraftRejected: `leak_detected`, `unknown_target`, `policy_denied` with the rule, `runbook_invalid`.
    """
    raise NotImplementedError
