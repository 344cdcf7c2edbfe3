"""Gangs of many tasks take the vectorised path: the books balance all the same, and restarts agree."""

from __future__ import annotations

import numpy as np
from cells import CLASSES, submit, workload
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_settled, check_state

from engine.control import Engine, recover
from engine.journal.event_journal import Journal
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources
from engine.state import allocations
from engine.state.cell_state import State

NODES = 150


def large_cell() -> CellSpec:
    small = PoolSpec(name="small", capacity=Resources(cpu_milli=4000, memory_mib=16_000))
    large = PoolSpec(name="large", capacity=Resources(cpu_milli=64_000, memory_mib=64_000, disk_mib=1000))
    return CellSpec(
        pools=(small, large),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="small" if i % 3 else "large") for i in range(NODES)),
        queues=(QueueSpec(name="a"), QueueSpec(name="b")),
        priority_classes=CLASSES,
    )


gangs = st.tuples(
    st.sampled_from([1, 20, 33, 60, 100, 140, 400]),
    st.sampled_from([500, 1500, 4000, 5000, 33_000]),
    st.sampled_from([0, 100, 9000, 16_000]),
    st.sampled_from([0, 0, 10]),
    st.sampled_from([1000, 30_000]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), gangs),
        st.tuples(st.just("time"), st.sampled_from([500, 1000, 40_000])),
        st.tuples(st.sampled_from(["cancel", "requeue"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["cordon", "uncordon", "drain"]), st.integers(0, NODES - 1)),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(steps=steps, policy=st.sampled_from(["easy", "fcfs"]))
def test_whatever_happens_to_large_gangs_the_books_balance(tmp_path_factory, steps, policy):
    path = tmp_path_factory.mktemp("bulk") / "journal.db"
    engine = Engine.open(path, cell=large_cell(), snapshot_every=30)
    engine.command(cmd.SetPolicy(policy=policy))
    names: list[str] = []
    for what, detail in steps:
        if what == "submit":
            count, cpu, memory, disk, run = detail
            names.append(f"w{len(names)}")
            command = submit(workload(names[-1], count=count, cpu=cpu, memory=memory, disk=disk, run=run, estimate=run))
        elif what == "time":
            engine.advance(engine.now_ms + detail)
            continue
        elif what in ("cancel", "requeue"):
            name = names[detail % len(names)] if names else "none"
            command = (cmd.Cancel if what == "cancel" else cmd.Requeue)(ids=(name,))
        else:
            command = {"cordon": cmd.Cordon, "uncordon": cmd.Uncordon, "drain": cmd.Drain}[what](ids=(f"n{detail}",))
        if isinstance(engine.commands([command])[0], MusterError) and what == "submit":
            names.pop()
        check_state(engine.state)
        check_settled(engine)
    digest = engine.state.digest()
    engine._journal.close()
    for use_snapshot in (True, False):
        journal = Journal(path, 0)
        assert recover(journal, use_snapshot=use_snapshot).digest() == digest
        journal.close()


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(
    rows=st.lists(st.integers(0, NODES - 1), min_size=allocations.LEAST, max_size=NODES, unique=True),
    cpu=st.sampled_from([500, 4000]),
)
def test_many_at_once_is_the_same_as_one_after_another(rows, cpu):
    engine = Engine.open(None, cell=large_cell())
    engine.command(cmd.Cordon(ids=("n3", "n4")))
    engine.command(submit(workload("shape", cpu=cpu, count=1)))
    one: State = engine.state.copy()
    shape = one.workloads.class_at(0).shapes[0]
    rows = [row for row in rows if one.capacity.fits(row, shape)]
    many: State = one.copy()
    nodes = np.array(rows, np.int32)
    allocations.shift_many(many.capacity, shape, nodes, np.full(len(rows), -1))
    for row in rows:
        one.capacity.take(row, shape, 1, 0)
    assert one.digest() == many.digest()
    assert list(one.capacity.key) == list(many.capacity.key)
    for a, b in zip(one.capacity.indexes, many.capacity.indexes, strict=True):
        assert {k: n for k, n in a.counts.items() if n} == {k: n for k, n in b.counts.items() if n}
        assert (a.gpu_bits, a.cpu_bits, a.free_cpu, a.free_memory) == (
            b.gpu_bits,
            b.cpu_bits,
            b.free_cpu,
            b.free_memory,
        )
    for _ in range(20):
        found = one.capacity.find(shape)
        assert many.capacity.find(shape) == found
        if found >= 0:
            one.capacity.claim(found, shape, 1)
            many.capacity.claim(found, shape, 1)


def test_gangs_that_share_nodes_leave_in_any_order() -> None:
    """Three gangs have a task each on the same nodes: whichever goes first, the others stay where they are."""
    for order in (("x", "y", "z"), ("y", "x", "z"), ("z", "y", "x"), ("x", "z", "y")):
        engine = Engine.open(None, cell=large_cell())
        for name, cpu in (("x", 3000), ("y", 600), ("z", 300)):
            engine.command(submit(workload(name, count=100, cpu=cpu, memory=100, pools=("small",))))
        assert engine.node("n1").workloads == (("x", 1), ("y", 1), ("z", 1))
        for name in order:
            check_state(engine.state)
            engine.command(cmd.Cancel(ids=(name,)))
        check_state(engine.state)
        assert not any(engine.node(f"n{i}").workloads for i in range(NODES))


def test_a_node_that_is_only_partly_taken_can_still_be_found() -> None:
    """33 tasks of 500 fill four nodes of 4000 and take one eighth of a fifth, which stays in its bucket."""
    engine = Engine.open(None, cell=large_cell())
    engine.command(submit(workload("x", count=33, cpu=500, pools=("small",))))
    check_state(engine.state)
    engine.command(submit(workload("y", count=800 - 33, cpu=500, pools=("small",))))
    assert engine.workload("y").state == "running"
    check_state(engine.state)
