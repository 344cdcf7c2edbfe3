"""Whatever has an id, of the cell and of what stands beside it: proposals, runbooks, drafts, advice, what-ifs, records.

Ids of things beside the cell say what they are by how they begin, so that nothing is asked that cannot have the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from engine.model.errors import MusterError
from engine.model.queries import Named

if TYPE_CHECKING:
    from console.service.local_client import LocalClient

MAX_PROPOSALS = 200
"""The newest, among which is looked for those whose id begins so."""


def beside(client: LocalClient, name: str, kinds: Sequence[str], limit: int) -> tuple[Named, ...]:
    """What is called `name`, then what begins so. What cannot be asked at present is left out: it is not found."""
    found: dict[Named, None] = {}
    for kind, begins, hits in _KINDS:
        if (not kinds or kind in kinds) and _may_begin(begins, name):
            with suppress(MusterError):
                found |= dict.fromkeys(islice(hits(client, name), limit))
    return tuple(sorted(found, key=lambda hit: hit.id != name))[:limit]


def _may_begin(pattern: str, name: str) -> bool:
    """Whether an id of that form may begin so; all that a form says is its first letters."""
    return name.upper().startswith(pattern) or pattern.startswith(name.upper())


def _proposals(client: LocalClient, name: str) -> Iterator[Named]:
    if re.fullmatch(r"P-[1-9][0-9]{0,10}", name):
        with suppress(MusterError):
            one = client.proposal(name)
            yield Named("proposal", one.id, f"{one.state}: {one.title}")
    for each in client.proposals((), MAX_PROPOSALS):
        if each.id.startswith(name):
            yield Named("proposal", each.id, f"{each.state}: {each.title}")


def _drafts(client: LocalClient, name: str) -> Iterator[Named]:
    return (Named("draft", each.id, each.rule_state) for each in client.draft_runs() if each.id.startswith(name))


def _runs(client: LocalClient, name: str) -> Iterator[Named]:
    return (Named("run", each.id, each.state) for each in client.runs() if each.id.startswith(name))


def _advice(client: LocalClient, name: str) -> Iterator[Named]:
    from recommender.findings.suggestions import same_id

    for each in client.recommendations().open:
        if each.suggestion.id.startswith(name) or each.suggestion.id == same_id(name):
            yield Named("recommendation", each.suggestion.id, each.suggestion.finding)


def _runbooks(client: LocalClient, name: str) -> Iterator[Named]:
    return (Named("runbook", each.id, each.status) for each in client.runbooks() if each.id.startswith(name))


def _records(client: LocalClient, name: str) -> Iterator[Named]:
    """Of the audit, by number."""
    if name.isascii() and name.isdigit() and len(name) < 16 and 0 < int(name) <= client.audit_state().last:
        yield Named("record", str(int(name)))


_KINDS: tuple[tuple[str, str, Callable[[LocalClient, str], Iterator[Named]]], ...] = (
    ("proposal", "P-", _proposals),
    ("draft", "D-", _drafts),
    ("run", "T-", _runs),
    ("recommendation", "R-", _advice),
    ("runbook", "", _runbooks),
    ("record", "", _records),
)
"""Kind, how its ids begin, and what finds them."""
