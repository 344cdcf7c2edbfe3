"""Records as they were written before they told what authorises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from runbooks.gate.authority import Authority, ProposalAuthority
from runbooks.gate.policy_versions import Policies


@contextlib.contextmanager
def before_authorisation() -> Iterator[None]:
    """Gates that are made and used meanwhile neither say from what policy they go on, nor look at what is on record.
    The next gate of the same engine takes over what they left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policies, "_start", lambda policies, connection: None)
        patch.setattr(Authority, "of", lambda authority, connection, row, plan: ProposalAuthority())
        yield
