"""Random lives in cells with racks, labels and taints, whose work asks for places, company and closeness.

What must hold of every placement is checked from the specs alone, in `invariants.Places`.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_cells import SOME, Fork, Life, Submit, live, lives

from engine.model.specs import (
    PROFILES,
    Affinity,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Spread,
    Taint,
    TaskGroup,
    Toleration,
    TopologyRequest,
    WorkloadSpec,
)

TAGS = ({"app": "web"}, {"app": "db"}, {"app": "web", "tier": "front"})
LEVELS_ASKED = ("zone", "block", "rack", "nvlink", "node")


@st.composite
def constrained(draw: st.DrawFn, durable: bool = False) -> Life:
    """A life as any other, with constraints on about half of its work."""
    return with_constraints(draw(lives(durable=durable)), Random(draw(st.integers(0, 1 << 16))))


def with_constraints(life: Life, random: Random) -> Life:
    cell = life.cell
    nodes = tuple(_node(spec, i, random) for i, spec in enumerate(cell.nodes))
    profiles = random.random() < 0.3
    pools = tuple(_pool(spec, random, profiles) for spec in cell.pools)
    queues = tuple(_queue(spec, random, profiles) for spec in cell.queues)

    def changed(operation: Any) -> Any:
        if isinstance(operation, Fork):
            return dataclasses.replace(operation, operations=tuple(map(changed, operation.operations)))
        if not isinstance(operation, Submit):
            return operation
        drafts = (dataclasses.replace(draft, spec=_workload(draft.spec, random)) for draft in operation.drafts)
        return Submit(tuple(drafts))

    return dataclasses.replace(
        life,
        cell=replace(cell, nodes=nodes, pools=pools, queues=queues),
        operations=tuple(map(changed, life.operations)),
    )


def _node(spec: NodeSpec, at: int, random: Random) -> NodeSpec:
    """Two nodes share an NVLink domain, four a rack; here and there a name is not known."""
    rack = at // 4
    places = {"zone": f"z{rack // 2}", "block": f"b{rack // 2}", "rack": f"r{rack}", "nvlink": f"v{at // 2}"}
    known = {level: name for level, name in places.items() if random.random() > 0.05}
    labels = {"disk": random.choice(("ssd", "hdd"))} if random.random() < 0.5 else {}
    taints = (Taint(key="only", value=random.choice(("", "a"))),) if random.random() < 0.15 else ()
    wary = (Taint(key="old", effect="PreferNoSchedule"),) if random.random() < 0.15 else ()
    return replace(spec, **known, labels=labels, taints=taints + wary)


def _pool(spec: PoolSpec, random: Random, profiles: bool) -> PoolSpec:
    taints = (Taint(key="pool"),) if random.random() < 0.1 else ()
    weights = random.choice(list(PROFILES.values())) if profiles and random.random() < 0.5 else {}
    return replace(spec, labels={"disk": "ssd"} if random.random() < 0.2 else {}, taints=taints, placement=weights)


def _queue(spec: QueueSpec, random: Random, profiles: bool) -> QueueSpec:
    return (
        replace(spec, placement=random.choice(list(PROFILES.values()))) if profiles and random.random() < 0.3 else spec
    )


def _workload(spec: WorkloadSpec, random: Random) -> WorkloadSpec:
    spec = replace(spec, tags=random.choice(({}, *TAGS)))
    kind = random.randrange(8)
    if kind == 0:
        required, preferred = (random.choice((None, *LEVELS_ASKED)) for _ in range(2))
        if required and preferred and LEVELS_ASKED.index(preferred) < LEVELS_ASKED.index(required):
            required, preferred = preferred, required
        return replace(spec, topology=TopologyRequest(required=required, preferred=preferred))
    if kind in (1, 2):
        bond = Affinity(tags=random.choice(TAGS), level=random.choice(LEVELS_ASKED))
        return replace(spec, near=(bond,)) if kind == 1 else replace(spec, apart=(bond,))
    if kind > 4:
        return spec
    return replace(spec, groups=tuple(_group(group, kind, random) for group in spec.groups))


def _group(group: TaskGroup, kind: int, random: Random) -> TaskGroup:
    if kind == 3:
        level = random.choice(LEVELS_ASKED)
        return replace(group, spread=Spread(level=level, max_skew=random.choice((1, 1, 2))))
    tolerations = random.choice(((), (Toleration(key="only"),), (Toleration(key="only", value="a"),)))
    wanted = random.choice(({}, {"disk": ("ssd",)}, {"disk": ("*",)}, {"disk": ("ssd", "hdd")}))
    avoided = {} if wanted else random.choice(({}, {"disk": ("hdd",)}))
    return replace(
        group,
        tolerations=(*tolerations, *((Toleration(key="pool"),) if random.random() < 0.5 else ())),
        node_labels=wanted,
        avoid_labels=avoided,
    )


@settings(SOME, max_examples=examples(25))
@given(constrained())
def test_whatever_happens_work_is_where_it_asked_to_be(life: Life) -> None:
    live(life)


@settings(SOME, max_examples=examples(6))
@given(constrained(durable=True))
def test_the_journal_brings_constraints_back(life: Life) -> None:
    live(life)


@pytest.mark.slow
@settings(SOME, max_examples=examples(3000))
@given(constrained())
def test_three_thousand_lives_with_constraints(life: Life) -> None:
    live(life)
