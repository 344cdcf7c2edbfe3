"""Random operation sequences against the invariants: whatever people and time do, the books balance."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cells import small_cell, submit
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from invariants import check_settled, check_state

from engine import commands as cmd
from engine.control import Engine
from engine.errors import MusterError
from engine.model import Resources, TaskGroup, WorkloadSpec

groups = st.builds(
    TaskGroup,
    name=st.just("main"),
    count=st.integers(1, 6),
    request=st.builds(
        Resources,
        cpu_milli=st.sampled_from([1, 500, 1000, 4000, 16_000, 33_000]),
        memory_mib=st.sampled_from([0, 100, 4000, 60_000]),
        gpu_milli=st.sampled_from([0, 0, 250, 333, 500, 1000, 2000, 8000]),
        disk_mib=st.sampled_from([0, 0, 0, 40_000]),
    ),
)


class Cell(RuleBasedStateMachine):
    """One durable engine. Everything people can ask for, in any order, and time passing."""

    @initialize(
        quota=st.sampled_from([{}, {"gpu_milli": 12_000}, {"cpu_milli": 40_000}]),
        policy=st.sampled_from(["fcfs", "easy"]),
    )
    def open(self, quota: dict[str, int], policy: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "journal.db"
        self.engine = Engine.open(self.path, cell=small_cell(3, 2, quota), seed=7, snapshot_every=40)
        self.engine.command(cmd.SetPolicy(policy=policy))
        self.submitted: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
            self.folder.cleanup()

    def ask(self, command: cmd.AnyCommand) -> bool:
        """Whether it was accepted; a refusal must leave no trace."""
        before = self.engine.version
        answer = self.engine.commands([command])[0]
        refused = isinstance(answer, MusterError)
        assert not refused or self.engine.version == before, f"refused, yet something changed: {answer}"
        return not refused

    @rule(
        sizes=st.lists(groups, min_size=1, max_size=2),
        queue=st.sampled_from(["a", "b"]),
        priority=st.sampled_from(["low", "normal", "high"]),
        estimate=st.sampled_from([0, 1000, 60_000, 600_000]),
        run=st.sampled_from([1, 900, 60_000, 700_000]),
        checkpoint=st.sampled_from([0, 500]),
        held=st.booleans(),
    )
    def submit(self, sizes, queue, priority, estimate, run, checkpoint, held) -> None:
        name = f"w{len(self.submitted)}"
        spec = WorkloadSpec(
            id=name,
            queue=queue,
            priority_class=priority,
            groups=tuple(
                TaskGroup(name=f"g{i}", count=group.count, request=group.request) for i, group in enumerate(sizes)
            ),
            estimate_ms=estimate,
            simulated_runtime_ms=run,
            checkpoint_interval_ms=checkpoint,
            held=held,
        )
        if self.ask(submit(spec)):
            self.submitted.add(name)

    @rule(milliseconds=st.sampled_from([1, 899, 1000, 30_000, 600_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.engine.advance(self.engine.now_ms + milliseconds)

    @precondition(lambda self: self.submitted)
    @rule(
        data=st.data(),
        action=st.sampled_from([cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue]),
    )
    def act_on_workload(self, data, action) -> None:
        self.ask(action(ids=(data.draw(st.sampled_from(sorted(self.submitted))),)))

    @rule(
        node=st.sampled_from(["g0", "g1", "g2", "c0", "c1"]),
        action=st.sampled_from([cmd.Cordon, cmd.Uncordon, cmd.Drain]),
    )
    def act_on_node(self, node, action) -> None:
        self.ask(action(ids=(node,)))

    @rule(policy=st.sampled_from(["fcfs", "easy"]))
    def change_policy(self, policy) -> None:
        self.ask(cmd.SetPolicy(policy=policy))

    @rule()
    def restart(self) -> None:
        """A new process with the same journal has the same state, from the snapshot and from every event."""
        before = self.engine.state.digest()
        now = self.engine.state.now_ms
        self.engine._journal.close()
        whole = Engine.open(self.path, use_snapshot=False)
        assert whole.state.digest() == before
        whole._journal.close()
        self.engine = Engine.open(self.path, snapshot_every=40)
        assert self.engine.state.digest() == before
        assert self.engine.now_ms == now

    @rule(milliseconds=st.sampled_from([1000, 100_000]))
    def fork(self, milliseconds: int) -> None:
        """A fork changes nothing here, and left alone it is this cell's future."""
        before = self.engine.state.digest()
        twin = self.engine.fork()
        assert twin.state.digest() == before
        twin.advance(twin.now_ms + milliseconds)
        check_state(twin.state)
        assert self.engine.state.digest() == before
        self.engine.advance(self.engine.now_ms + milliseconds)
        assert self.engine.state.digest() == twin.state.digest()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine"):
            check_state(self.engine.state)
            check_settled(self.engine)
            known = set(self.engine.state.workloads.ids)
            assert known == self.submitted, "a workload appeared or disappeared"


Cell.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCell = Cell.TestCase
