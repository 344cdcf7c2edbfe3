"""What is shown of overcommitted nodes, of what work uses, and of services."""

from __future__ import annotations

import msgspec

from console.text.plain_tables import terms
from console.views.nodes import node_columns, physical_facts
from engine.control import Engine
from engine.model.list_queries import Query
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, ServiceSpec
from tests.support.cells import CLASSES, submit, workload


def engine() -> Engine:
    """A node of 68 GiB, of which 64 are for work and 80 may be asked for, and a service that uses some of it."""
    pool = PoolSpec(
        name="p",
        capacity=Resources(cpu_milli=16_000, memory_mib=64 * 1024),
        reserved=Resources(memory_mib=4 * 1024),
        overcommit={"memory_mib": 1250},
    )
    nodes = (NodeSpec(id="busy", pool="p"), NodeSpec(id="idle", pool="p"))
    found = Engine.open(
        None, cell=CellSpec(pools=(pool,), nodes=nodes, queues=(QueueSpec(name="a"),), priority_classes=CLASSES)
    )
    spec = workload("web", memory=10 * 1024, estimate=0, run=0)
    service = ServiceSpec(least=2, most=9, first=4, simulated_load=((0, 2600),))
    spec = msgspec.structs.replace(spec, qos="burstable", service=service, simulated_usage_permille=850)
    found.command(submit(spec))
    found.advance(60_000)
    return found


def test_a_node_shows_what_it_has_what_may_be_asked_for_and_what_is_used() -> None:
    cell = engine()
    assert physical_facts(cell.node("busy")) == [
        ("cpu", "16 CPU physical, 16 CPU for work"),
        ("memory", "68 GiB memory physical, 64 GiB memory for work, requests up to 125% of that"),
        ("cpu used", "3.4 CPU, 21%"),
        ("mem used", "34 GiB memory, 50%"),
    ]
    assert [title for title, _ in physical_facts(cell.node("idle"))] == ["cpu", "memory"]
    left, _ = node_columns(cell.node("busy"), 76)
    page = "\n".join("".join(text for text, _ in line.spans) for section in left for line in section.lines)
    assert "requests up to 125% of that" in page
    assert "34 GiB memory, 50%" in page


def test_nodes_can_be_listed_by_it() -> None:
    columns = ("id", "memory_physical", "memory_allocatable", "memory", "memory_free", "overcommit", "memory_used")
    page = engine().query(Query(kind="nodes", columns=columns, sort=("-memory_used",)))
    assert page.rows == [
        ["busy", 69_632, 65_536, 81_920, 40_960, 1250, 34_816],
        ["idle", 69_632, 65_536, 81_920, 81_920, 1250, 0],
    ]


def test_a_service_shows_its_replicas_and_how_busy_they_are() -> None:
    assert terms(engine().workload("web"))[:2] == [
        ("qos", "burstable"),
        ("service", "4 of 4 replicas wanted, 2 to 9; 65% in use, target 80%"),
    ]
