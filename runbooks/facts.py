"""Facts: readings of the cell as it is now, typed by us, that a draft may rest on and a model may be told.

What bears on a question is read in short turns on the engine's thread: counts that are kept, windows of lists, the
fronts of the groups that wait, and single objects. Names of objects stand in the facts; texts of strangers do not, but
for a few metrics that `runbooks.vocabulary` marks so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import NotFoundError
from engine.query import Kind, Query, Term
from runbooks import vocabulary
from runbooks.draft import MOST_EXCERPT_BYTES, MOST_FACTS, Excerpt, Fact, Finding
from runbooks.vocabulary import METRICS, fact, snake

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.query import Overview
    from runbooks.shelf import Call

METRICS = METRICS
MOST_QUEUES = 8
MOST_POOLS = 8
MOST_NODES = 8
MOST_WORKLOADS = 6
MOST_NAMED = 12
"""Objects that a text names, of those that are read."""
MOST_LOOKED_AT = 4_000
"""Words of a text that are looked up as names."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, and of when."""

    facts: tuple[Fact, ...]
    cell: str
    version: int
    """State version of the first reading; the others are at most moments younger."""
    now_ms: int


Named = tuple[str, str]
"""(kind, id) of an object."""


def gather(
    call: Call,
    *,
    question: str = "",
    finding: Finding | None = None,
    findings: Iterable[Finding] = (),
    about: tuple[str, ...] = (),
    excerpts: tuple[Excerpt, ...] = (),
    more: Iterable[Fact] = (),
) -> Gathered:
    """What bears on a question: the cell as a whole, the objects that are named in the question, by the finding and in
    `about`, what waits longest, and what is not as it should be.

    `findings` are the others that are open, `more` facts that stand first, such as those of a shift. Objects that only
    an excerpt names are told apart, by the metric `named_in_excerpt`. At most MOST_FACTS, the general ones dropped first.
    """
    overview = call(lambda engine: engine.overview())
    named = dict.fromkeys(names_in(call, question))
    if finding is not None:
        ids = " ".join((finding.about, *finding.targets))
        named |= dict.fromkeys(names_in(call, ids))
    if about:
        named |= dict.fromkeys(names_in(call, " ".join(about)))
    pointed = tuple(named)[:MOST_NAMED]
    told = _Told()
    told.add(more)
    for one in pointed:
        told.add(call(lambda engine, one=one: _object(engine, *one)))
    told.add(_finding(finding) if finding is not None else ())
    told.add(_cell(overview))
    told.add(call(_queues))
    told.add(_pools(overview))
    told.add(call(_sizes))
    told.add(call(_odd_nodes))
    for workload in call(_longest_waiting):
        told.add(call(lambda engine, workload=workload: _object(engine, "workload", workload)))
    told.add(call(_budgets))
    told.add(call(_reservations))
    for other in findings:
        if finding is None or other.id != finding.id:
            told.add(_finding(other))
    for excerpt in excerpts:
        for kind, id_ in names_in(call, _ends_of(excerpt.text))[:MOST_NAMED]:
            told.add((_named(kind, id_),))
    return Gathered(facts=told.numbered(), cell=overview.cell, version=overview.version, now_ms=overview.now_ms)
