"""Answers: every column by hand, filters, sorts, windows, details, and sums that agree with each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.details import TaskPlace
from engine.model.errors import NotFoundError, SpecError
from engine.model.list_queries import COLUMNS, DEFAULT_COLUMNS, Kind, Query, Term
from engine.model.specs import Resources, TaskGroup, WorkloadSpec

S = 1000
KINDS: tuple[Kind, ...] = ("workloads", "nodes", "queues")


def rows(engine: Engine, kind: Kind, *columns: str, where: tuple[Term, ...] = (), **more: Any) -> list[list[Any]]:
    return engine.query(Query(kind=kind, columns=columns, where=where, **more)).rows


def ids(engine: Engine, *where: Term, sort: tuple[str, ...] = ()) -> list[str]:
    return [row[0] for row in rows(engine, "workloads", "id", where=where, sort=sort, limit=10_000)]


@pytest.fixture(scope="module")
def engine() -> Engine:
    """At 30 s: `gang` and `share` run, `quota` and `big` wait, one is held, one finished, one was cancelled."""
    engine = Engine.open(None, cell=small_cell(2, 1, {"gpu_milli": 12_000}))
    gang = workload("gang", count=2, gpu=4000, cpu=2000, memory=1024, estimate=100 * S, run=100 * S, tenant="acme")
    gang = msgspec.structs.replace(gang, name="Train 7B", team="nlp", tags={"cost": "r&d", "a": "1"})
    engine.command(submit(gang))
    engine.advance(5 * S)
    engine.command(submit(workload("share", queue="b", gpu=500, disk=1000, estimate=0, run=3600 * S, priority="low")))
    engine.command(submit(workload("done", queue="b", cpu=4000, run=10 * S, tenant="acme")))
    engine.command(submit(workload("quota", gpu=8000, priority="high"), workload("on-hold", held=True)))
    engine.command(submit(workload("gone", queue="b", gpu=8000, tenant="umbrella")))
    engine.advance(20 * S)
    engine.command(cmd.Cancel(ids=("gone",)))
    engine.command(submit(workload("big", queue="b", count=2, gpu=8000, tenant="umbrella")))
    engine.command(cmd.Cordon(ids=("c0",)))
    engine.advance(30 * S)
    return engine


WORKLOADS: dict[str, list[Any]] = {
    "id": ["gang", "share", "done", "quota", "on-hold", "gone", "big"],
    "name": ["Train 7B", "share", "done", "quota", "on-hold", "gone", "big"],
    "state": ["running", "running", "finished", "queued", "held", "cancelled", "queued"],
    "queue": ["a", "b", "b", "a", "a", "b", "b"],
    "priority": [500, 100, 500, 900, 500, 500, 500],
    "tenant": ["acme", "", "acme", "", "", "umbrella", "umbrella"],
    "team": ["nlp", "", "", "", "", "", ""],
    "tasks": [2, 1, 1, 1, 1, 1, 2],
    "cpu": [4000, 1000, 4000, 1000, 1000, 1000, 2000],
    "memory": [2048, 0, 0, 0, 0, 0, 0],
    "gpu": [8000, 500, 0, 8000, 0, 8000, 16_000],
    "reason": ["", "", "", "WaitingForQuota", "OnHold", "", "InsufficientCapacity"],
    "wait": [0, 0, 0, 25 * S, 25 * S, 15 * S, 10 * S],
    "age": [30 * S, 25 * S, 25 * S, 25 * S, 25 * S, 25 * S, 10 * S],
    "run": [30 * S, 25 * S, 10 * S, None, None, None, None],
    "estimate": [100 * S, 0, 60 * S, 60 * S, 60 * S, 60 * S, 60 * S],
    "submitted": [0, 5 * S, 5 * S, 5 * S, 5 * S, 5 * S, 20 * S],
    "started": [0, 5 * S, 5 * S, None, None, None, None],
    "ended": [None, None, 15 * S, None, None, 20 * S, None],
    "attempts": [1, 1, 1, 0, 0, 0, 0],
    # Of two tasks nine tenths of half a node's devices, and a tenth of 19 parts of 1076 of CPU and memory, for 30 s; …
    "cost": [150_588, 7928, 242, 0, 0, 0, 0],
    "wasted": [0, 0, 0, 0, 0, 0, 0],
    "array": ["", "", "", "", "", "", ""],
}
NODES: dict[str, list[Any]] = {
    "id": ["g0", "g1", "c0"],
    "state": ["ready", "ready", "cordoned"],
    "pool": ["gpu", "gpu", "cpu"],
    "zone": ["z0", "z0", "z0"],
    "block": ["b0", "b0", "b0"],
    "rack": ["r0", "r0", "rc"],
    "gpu_model": ["H100", "H100", ""],
    "cpu": [64_000, 64_000, 32_000],
    "cpu_free": [60_000, 63_000, 32_000],
    "memory": [512_000, 512_000, 128_000],
    "memory_free": [509_952, 512_000, 128_000],
    "gpu": [8000, 8000, 0],
    "gpu_free": [0, 7500, 0],
    "use": [1000, 62, 0],
    "workloads": [1, 1, 0],
    "cpu_physical": [64_000, 64_000, 32_000],
    "cpu_allocatable": [64_000, 64_000, 32_000],
    "memory_physical": [512_000, 512_000, 128_000],
    "memory_allocatable": [512_000, 512_000, 128_000],
    "overcommit": [1000, 1000, 1000],
    "memory_used": [0, 0, 0],
}
QUEUES: dict[str, list[Any]] = {
    "name": ["root", "a", "b"],
    "parent": ["", "root", "root"],
    "depth": [0, 1, 1],
    "state": ["open", "open", "open"],
    "queued": [2, 1, 1],
    "held": [1, 1, 0],
    "waiting": [0, 0, 0],
    "suspended": [0, 0, 0],
    "running": [2, 1, 1],
    "oldest_wait": [25 * S, 25 * S, 10 * S],
    "gpu_used": [8500, 8000, 500],
    "gpu_nominal": [2**40, 12_000, 0],
    "cpu_used": [5000, 4000, 1000],
    "cpu_nominal": [None, None, None],
    "memory_used": [2048, 2048, 0],
    "memory_nominal": [None, None, None],
    "gpu_borrowed": [0, 0, 500],
    "gpu_lent": [0, 0, 0],
    "cpu_borrowed": [0, 0, 0],
    "cpu_lent": [0, 0, 0],
    "share": [0, 0, 31],
    "past_share": [0, 0, 0],
    "burst": ["", "", ""],
    "burst_left": [None, None, None],
    "weight": [1, 1, 1],
    "burn": [None, None, None],
    "burn_6h": [None, None, None],
}


@pytest.mark.parametrize(("kind", "expected"), zip(KINDS, (WORKLOADS, NODES, QUEUES), strict=True))
def test_every_column_of_every_kind(engine: Engine, kind: Kind, expected: dict[str, list[Any]]) -> None:
    assert list(expected) == [column.name for column in COLUMNS[kind]], "a column without a value worked out by hand"
    for name, values in expected.items():
        assert [row[0] for row in rows(engine, kind, name)] == values, name
    page = engine.query(Query(kind=kind, columns=tuple(expected)))
    assert page.rows == [list(row) for row in zip(*expected.values(), strict=True)]
    assert (page.matched, page.total, page.at_ms, page.version) == (
        len(page.rows),
        len(page.rows),
        30 * S,
        engine.version,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_columns_the_default_ones_are_given(engine: Engine, kind: Kind) -> None:
    page = engine.query(Query(kind=kind))
    assert page.columns == DEFAULT_COLUMNS[kind]
    assert page.rows == engine.query(Query(kind=kind, columns=DEFAULT_COLUMNS[kind])).rows


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_cell_answers_every_column_sort_and_overview(kind: Kind) -> None:
    engine = Engine.open(None)
    for column in COLUMNS[kind]:
        for sort in ((), (column.name,), (f"-{column.name}",)):
            page = engine.query(Query(kind=kind, columns=(column.name,), sort=sort))
            assert (page.rows, page.matched, page.total) == ([], 0, 0)
    assert engine.overview().pools == ()


# -- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ([("state", "=", "queued")], "quota big"),
        ([("state", "=", "queued"), ("state", "=", "held")], "quota on-hold big"),
        ([("state", "=", "queued"), ("state", "~", "el")], "quota on-hold gone big"),
        ([("state", "=", "queued"), ("queue", "=", "b")], "big"),
        ([("state", "!=", "queued"), ("state", "!=", "held")], "gang share done gone"),
        ([("id", "=", "g*")], "gang gone"),
        ([("id", "=", "*o*")], "done quota on-hold gone"),
        ([("id", "!=", "*o*")], "gang share big"),
        ([("id", "=", "g")], ""),
        ([("id", "=", "G*")], ""),
        ([("id", "~", "G")], "gang gone big"),
        ([("id", "!~", "G")], "share done quota on-hold"),
        ([("name", "~", "train 7")], "gang"),
        ([("name", "=", "Train*")], "gang"),
        ([("name", "=", "[T]rain*")], ""),
        ([("name", "~", "")], "gang share done quota on-hold gone big"),
        ([("tenant", "=", "")], "share quota on-hold"),
        ([("tenant", "=", "acme"), ("tenant", "=", "umbrella")], "gang done gone big"),
        ([("tenant", "=", "nobody")], ""),
        ([("reason", "=", "OnHold")], "on-hold"),
        ([("reason", "~", "waiting")], "quota"),
        ([("text", "~", "TRAIN")], "gang"),
        ([("text", "~", "gang")], "gang"),
        ([("text", "!~", "gang")], "share done quota on-hold gone big"),
        ([("text", "!~", "train")], "share done quota on-hold gone big"),
        ([("text", "~", "gang"), ("text", "~", "big")], "gang big"),
        ([("text", "!~", "gang"), ("text", "!~", "big")], "share done quota on-hold gone"),
        ([("gpu", "=", 8000)], "gang quota gone"),
        ([("gpu", "=", 8000), ("gpu", "=", 500)], "gang share quota gone"),
        ([("gpu", "!=", 8000)], "share done on-hold big"),
        ([("gpu", "<", 8000)], "share done on-hold"),
        ([("gpu", "<=", 8000)], "gang share done quota on-hold gone"),
        ([("gpu", ">", 8000)], "big"),
        ([("gpu", ">=", 500), ("gpu", "<", 8001)], "gang share quota gone"),
        ([("gpu", ">", 10**30)], ""),
        ([("gpu", ">", -(10**30))], "gang share done quota on-hold gone big"),
        ([("run", "<", 20_000)], "done"),
        ([("run", "=", -1)], ""),
        ([("ended", ">=", 0)], "done gone"),
        ([("wait", ">", 10_000), ("priority", "<", 900)], "on-hold gone"),
    ],
)
def test_filters(engine: Engine, where: list[tuple[str, Any, Any]], expected: str) -> None:
    terms = tuple(Term(*term) for term in where)
    assert ids(engine, *terms) == expected.split()
    page = engine.query(Query(kind="workloads", where=terms, limit=0))
    assert (page.rows, page.matched, page.total) == ([], len(expected.split()), 7)


def test_filters_on_nodes_and_queues(engine: Engine) -> None:
    assert rows(engine, "nodes", "id", where=(Term("rack", "=", "r*"), Term("gpu_free", ">", 0))) == [["g1"]]
    assert rows(engine, "nodes", "id", where=(Term("gpu_model", "=", ""),)) == [["c0"]]
    assert rows(engine, "nodes", "id", where=(Term("text", "~", "G"),)) == [["g0"], ["g1"]]
    assert rows(engine, "queues", "name", where=(Term("gpu_nominal", ">", 0),)) == [["root"], ["a"]]
    assert rows(engine, "queues", "name", where=(Term("text", "!~", "root"),)) == []


@pytest.mark.parametrize(
    ("kind", "wrong", "near"),
    [("workloads", "stat", "state"), ("workloads", "prioirty", "priority"), ("nodes", "pol", "pool"),
     ("nodes", "gpufree", "gpu_free"), ("queues", "held_", "held")],
)  # fmt: skip
def test_an_unknown_column_names_the_nearest(engine: Engine, kind: Kind, wrong: str, near: str) -> None:
    asked = (
        Query(kind=kind, columns=(wrong,)),
        Query(kind=kind, sort=(wrong,)),
        Query(kind=kind, sort=(f"-{wrong}",)),
        Query(kind=kind, where=(Term(wrong, "=", "x"),)),
    )
    for query in asked:
        with pytest.raises(SpecError, match=f"'{wrong}'") as raised:
            engine.query(query)
        assert near in raised.value.remedy


def test_an_unknown_column_that_is_near_nothing_lists_them_all(engine: Engine) -> None:
    with pytest.raises(SpecError) as raised:
        engine.query(Query(kind="nodes", columns=("zzzzzz",)))
    assert all(column.name in raised.value.remedy for column in COLUMNS["nodes"])


@pytest.mark.parametrize(
    "term",
    [Term("state", "<", "queued"), Term("id", ">=", "a"), Term("gpu", "~", 8), Term("gpu", "!~", 8),
     Term("gpu", "=", "8"), Term("gpu", "<", "many"), Term("text", "<", "a")],
)  # fmt: skip
def test_a_comparison_that_makes_no_sense_is_refused_with_what_would(engine: Engine, term: Term) -> None:
    with pytest.raises(SpecError) as raised:
        engine.query(Query(kind="workloads", where=(term,)))
    assert raised.value.where == f"filter {term.column}"
    assert raised.value.remedy


# -- sorting and windows ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy() -> Engine:
    """Some hundred workloads in every state, with many ties."""
    engine = Engine.open(None, cell=small_cell(2, 2, {"gpu_milli": 12_000}))
    for i in range(240):
        spec = workload(
            f"w{i * 7919 % 240:03}", queue="ab"[i % 2], count=1 + i % 3, gpu=(0, 500, 1000, 4000)[i % 4],
            priority=("low", "normal", "high")[i // 5 % 3], held=i % 11 == 0,
            tenant=("", "Zeta", "acme", "beta")[i % 4], run=1 + i % 9 * 1000, estimate=i % 5 * 2000,
        )  # fmt: skip
        engine.command(submit(spec))
        engine.advance(engine.now_ms + i % 3 * 400)
        if i % 13 == 0:
            engine.command(cmd.Cancel(ids=(spec.id,))) if engine.workload(spec.id).ended_ms is None else None
    assert min(engine.overview().states[s] for s in ("queued", "held", "running", "finished", "cancelled")) > 3
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_each_column_sorts_both_ways_with_absent_last_and_ties_in_creation_order(busy: Engine, kind: Kind) -> None:
    for column in COLUMNS[kind]:
        values = [row[0] for row in rows(busy, kind, column.name, limit=1000)]
        present = [i for i, value in enumerate(values) if value is not None]
        absent = [i for i, value in enumerate(values) if value is None]
        for sign, backwards in (("", False), ("-", True)):
            order = sorted(present, key=lambda i: values[i], reverse=backwards)
            # `reverse` keeps ties in their original order, as the answer must.
            expected = [rows(busy, kind, COLUMNS[kind][0].name, limit=1000)[i] for i in order + absent]
            got = rows(busy, kind, COLUMNS[kind][0].name, sort=(sign + column.name,), limit=1000)
            assert got == expected, f"{sign}{column.name}"


def test_sorting_by_several_columns_takes_the_first_first(busy: Engine) -> None:
    shown = rows(busy, "workloads", "tenant", "gpu", "id", sort=("tenant", "-gpu", "id"), limit=1000)
    assert shown == sorted(shown, key=lambda row: (row[0], -row[1], row[2]))


@pytest.mark.parametrize("sort", [(), ("state",), ("-wait", "queue"), ("-ended",)])
@pytest.mark.parametrize("where", [(), (Term("queue", "=", "a"), Term("gpu", ">", 0))])
def test_windows_put_together_are_the_whole_list(busy: Engine, sort: tuple[str, ...], where: tuple[Term, ...]) -> None:
    whole = busy.query(Query(kind="workloads", where=where, sort=sort, limit=10_000))
    assert whole.matched == len(whole.rows)
    for size in (1, 7, 100):
        pages = [
            busy.query(Query(kind="workloads", where=where, sort=sort, offset=offset, limit=size))
            for offset in range(0, whole.matched, size)
        ]
        assert [row for page in pages for row in page.rows] == whole.rows
        assert {(page.matched, page.total) for page in pages} == {(whole.matched, whole.total)}
    beyond = busy.query(Query(kind="workloads", where=where, sort=sort, offset=whole.matched, limit=5))
    assert (beyond.rows, beyond.matched) == ([], whole.matched)


@pytest.mark.parametrize(("offset", "limit"), [(-1, 10), (0, -1), (0, 10_001)])
def test_a_window_that_is_none_is_refused(busy: Engine, offset: int, limit: int) -> None:
    with pytest.raises(SpecError) as raised:
        busy.query(Query(kind="workloads", offset=offset, limit=limit))
    assert raised.value.where == "limit"
    assert "10000" in raised.value.remedy


def test_an_answer_is_of_the_present_even_when_the_same_was_asked_before() -> None:
    engine = Engine.open(None, cell=small_cell())
    engine.command(submit(workload("x", gpu=8000)))
    query = Query(kind="workloads", columns=("id", "state", "age"), where=(Term("state", "=", "running"),))
    assert engine.query(query).rows == [["x", "running", 0]]
    engine.advance(1000)
    assert engine.query(query).rows == [["x", "running", 1000]]
    engine.command(submit(workload("y")))
    assert [row[0] for row in engine.query(query).rows] == ["x", "y"]
    engine.command(cmd.Cancel(ids=("x",)))
    assert [row[0] for row in engine.query(query).rows] == ["y"]


@pytest.mark.thorough
def test_a_hundred_thousand_workloads_are_filtered_sorted_and_paged() -> None:
    engine = Engine.open(None, cell=small_cell(1, 0))
    engine.command(submit(workload("now", gpu=8000)))
    group = TaskGroup(request=Resources(gpu_milli=8000))
    engine.command(
        submit(
            *(
                WorkloadSpec(id=f"w{i}", queue="ab"[i % 2], groups=(group,), tenant=f"t{i % 7}", estimate_ms=i % 100)
                for i in range(100_000)
            )
        )
    )
    where = (Term("queue", "=", "b"), Term("tenant", "=", "t3"), Term("text", "~", "w"))
    page = engine.query(
        Query(
            kind="workloads",
            columns=("id", "estimate", "reason"),
            where=where,
            sort=("-estimate", "id"),
            offset=200,
            limit=50,
        )
    )
    expected = sorted((i for i in range(100_000) if i % 2 and i % 7 == 3), key=lambda i: (-(i % 100), f"w{i}"))
    assert page.matched == len(expected)
    assert page.total == 100_001
    assert page.rows == [[f"w{i}", i % 100, "InsufficientCapacity"] for i in expected[200:250]]


# -- single objects -------------------------------------------------------------------------------------------------


def test_the_detail_of_what_runs(engine: Engine) -> None:
    detail = engine.workload("gang")
    assert (detail.name, detail.state, detail.since_ms, detail.queue) == ("Train 7B", "running", 0, "a")
    assert (detail.priority_class, detail.priority, detail.tenant, detail.team) == ("normal", 500, "acme", "nlp")
    assert detail.tags == {"cost": "r&d", "a": "1"}
    assert (detail.estimate_ms, detail.submitted_ms, detail.started_ms, detail.ended_ms) == (100 * S, 0, 0, None)
    assert (detail.attempts, detail.position, detail.reasons, detail.start_not_before_ms) == (1, None, (), None)
    assert detail.placement == (TaskPlace(group="main", node="g0", rack="r0", tasks=2, devices=tuple(range(8))),)
    assert detail.placement_total == 1
    assert [(g.name, g.count, g.cpu_milli, g.memory_mib, g.gpu_milli) for g in detail.groups] == [
        ("main", 2, 2000, 1024, 4000)
    ]
    assert [(item.at_ms, item.what, item.detail) for item in detail.history] == [
        (0, "submitted", ""),
        (0, "placed", "on 1 node"),
        (0, "running", ""),
    ]


def test_the_detail_of_what_waits_and_of_what_ended(engine: Engine) -> None:
    waits = engine.workload("big")
    assert (waits.position, waits.started_ms, waits.ended_ms, waits.placement) == (1, None, None, ())
    assert [reason.token for reason in waits.reasons] == ["InsufficientCapacity"]
    done = engine.workload("done")
    assert (done.state, done.started_ms, done.ended_ms, done.placement) == ("finished", 5 * S, 15 * S, ())
    assert [(item.at_ms, item.what) for item in done.history] == [
        (5 * S, "submitted"),
        (5 * S, "placed"),
        (5 * S, "running"),
        (15 * S, "finished"),
    ]


def test_the_history_of_a_life_with_every_turn() -> None:
    engine = Engine.open(None, cell=small_cell(2, 0))
    steps: list[cmd.AnyCommand] = [
        submit(workload("x", gpu=8000, count=2, run=500)),
        cmd.Requeue(ids=("x",)),
        cmd.Drain(ids=("g0",)),
        cmd.Hold(ids=("x",)),
        cmd.Uncordon(ids=("g0",)),
        cmd.Release(ids=("x",)),
    ]
    for command in steps:
        engine.command(command)
        engine.advance(engine.now_ms + 100)
    engine.advance(10_000)
    assert [(item.at_ms, item.what, item.detail) for item in engine.workload("x").history] == [
        (0, "submitted", ""),
        (0, "placed", "on 2 nodes"),
        (0, "running", ""),
        (100, "requeued", "asked"),
        (100, "placed", "on 2 nodes"),
        (100, "running", ""),
        (200, "requeued", "drain"),
        (300, "held", ""),
        (500, "released", ""),
        (500, "placed", "on 2 nodes"),
        (500, "running", ""),
        (1000, "finished", ""),
    ]
    assert rows(engine, "workloads", "run", "wait", "attempts") == [[500, 500, 3]]


def test_time_spent_waiting_again_is_no_run_time() -> None:
    """Ran 10 s, was put back, waited on hold, and was cancelled."""
    engine = Engine.open(None, cell=small_cell(1, 0))
    engine.command(submit(workload("x", gpu=8000, run=3600 * S)))
    engine.advance(10 * S)
    engine.commands([cmd.Requeue(ids=("x",)), cmd.Hold(ids=("x",))])
    engine.advance(100 * S)
    engine.command(cmd.Cancel(ids=("x",)))
    assert rows(engine, "workloads", "run", "started", "ended") == [[None, None, 100 * S]]


def test_the_detail_of_a_node(engine: Engine) -> None:
    node = engine.node("g1")
    assert (node.id, node.state, node.since_ms, node.pool, node.gpu_model) == ("g1", "ready", 0, "gpu", "H100")
    assert (node.zone, node.block, node.rack) == ("z0", "b0", "r0")
    assert node.capacity == {"cpu_milli": 64_000, "memory_mib": 512_000, "gpu_milli": 8000, "disk_mib": 100_000}
    assert node.free == {"cpu_milli": 63_000, "memory_mib": 512_000, "gpu_milli": 7500, "disk_mib": 99_000}
    assert node.devices == (500, *[1000] * 7)
    assert node.workloads == (("share", 1),)
    assert (engine.node("c0").state, engine.node("c0").since_ms) == ("cordoned", 20 * S)
    assert engine.node("g0").workloads == (("gang", 2),)


def test_what_does_not_exist_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFoundError, match="'ghost'"):
        engine.workload("ghost")
    with pytest.raises(NotFoundError, match="'g9'"):
        engine.node("g9")


# -- sums -----------------------------------------------------------------------------------------------------------


def sums_agree(engine: Engine) -> None:
    """Overview, pools, nodes, queues and workloads tell the same story."""
    overview = engine.overview()
    w = [engine.workload(name) for name in ids(engine)]
    assert overview.states == {s: sum(x.state == s for x in w) for s in overview.states}
    nodes = [engine.node(row[0]) for row in rows(engine, "nodes", "id", limit=1000)]
    for name in ("cpu_milli", "memory_mib", "gpu_milli", "disk_mib"):
        assert overview.capacity[name] == sum(n.capacity[name] for n in nodes)
        assert overview.used[name] == sum(n.capacity[name] - n.free[name] for n in nodes)
        bound = [x for x in w if x.state in ("placed", "running")]
        assert overview.used[name] == sum(getattr(g, name) * g.count for x in bound for g in x.groups)
        for pool in overview.pools:
            mine = [n for n in nodes if n.pool == pool.name]
            assert pool.capacity[name] == sum(n.capacity[name] for n in mine)
            assert pool.used[name] == sum(n.capacity[name] - n.free[name] for n in mine)
    for pool in overview.pools:
        states = Counter(n.state for n in nodes if n.pool == pool.name)
        assert pool.nodes == sum(states.values())
        assert (pool.ready, pool.cordoned, pool.draining, pool.down) == tuple(
            states[s] for s in ("ready", "cordoned", "draining", "down")
        )
    waiting = [x for x in w if x.state == "queued"]
    assert dict(overview.blocked) == Counter(x.reasons[0].token for x in waiting)
    assert overview.oldest_wait_ms == max((engine.now_ms - x.submitted_ms for x in waiting), default=0)
    if waiting:
        assert engine.workload(overview.oldest_waiting).submitted_ms == min(x.submitted_ms for x in waiting)
    else:
        assert overview.oldest_waiting == ""
    counted = rows(engine, "queues", "name", "parent", "queued", "held", "running", "gpu_used", "cpu_used")
    root = next(row for row in counted if not row[1])
    for i, leaves in enumerate(zip(*(row[2:] for row in counted if row[1]), strict=True), 2):
        assert root[i] == sum(leaves)
    for name, parent, queued, held, running, gpu, cpu in counted:
        if parent:
            mine = [x for x in w if x.queue == name]
            assert (queued, held) == tuple(sum(x.state == s for x in mine) for s in ("queued", "held"))
            bound = [x for x in mine if x.state in ("placed", "running")]
            assert running == len(bound)
            assert gpu == sum(g.gpu_milli * g.count for x in bound for g in x.groups)
            assert cpu == sum(g.cpu_milli * g.count for x in bound for g in x.groups)


def test_the_sums_agree_in_the_small_and_in_the_busy_cell(engine: Engine, busy: Engine) -> None:
    sums_agree(engine)
    sums_agree(busy)


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(
    policy=st.sampled_from(["fcfs", "easy"]),
    work=st.lists(
        st.tuples(
            st.sampled_from([0, 300, 1000, 4000, 8000]), st.integers(1, 3), st.sampled_from("ab"),
            st.sampled_from(["low", "normal", "high"]), st.booleans(), st.integers(0, 40),
        ),
        min_size=1, max_size=16,
    ),
)  # fmt: skip
def test_the_sums_agree_whatever_happens(policy: str, work: list[tuple[int, int, str, str, bool, int]]) -> None:
    engine = Engine.open(None, cell=small_cell(3, 1, {"gpu_milli": 24_000}))
    engine.command(cmd.SetPolicy(policy=policy))
    for i, (gpu, count, queue, priority, held, gap) in enumerate(work):
        spec = workload(f"w{i}", gpu=gpu, count=count, queue=queue, priority=priority, held=held, cpu=3000)
        engine.command(submit(spec))
        engine.advance(engine.now_ms + gap * S)
    engine.command(cmd.Drain(ids=("g1",)))
    engine.command(cmd.Cordon(ids=("c0",)))
    sums_agree(engine)


def test_the_overview_tells_waits_rates_and_the_use_curve() -> None:
    engine = Engine.open(None, cell=small_cell(1, 0))
    for i in range(4):  # one after the other: they wait 0, 60, 120 and 180 s
        engine.command(submit(workload(f"w{i}", gpu=8000)))
    engine.advance(200 * S)
    overview = engine.overview()
    assert (overview.wait_p50_ms, overview.wait_p95_ms) == (120 * S, 180 * S)
    assert (overview.started_last_hour, overview.finished_last_hour) == (4, 3)
    assert overview.history[-1][1:] == (1000, 0)
    engine.advance(2 * 3600 * S)
    assert (engine.overview().started_last_hour, engine.overview().finished_last_hour) == (0, 0)
    assert engine.overview().history[-1][1:] == (0, 0)
