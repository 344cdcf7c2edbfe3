"""What the model of Kueue decides on a fork, beside what Kueue did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.control import Engine
from engine.external.kubernetes import model_comparison
from engine.external.kubernetes.model_comparison import EVERY_S, ModelComparison
from engine.model import external_cells as seen
from engine.model.commands import Define, Observe
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)

NOW_MS = 1_000_000
CPU = 1000


class Cell:
    """Two queues of 8 CPU in cohorts of their own, and nodes of 16 CPU in all, beside what Kueue says of work."""

    def __init__(self) -> None:
        self.engine = Engine.open(None)
        self.engine.advance(NOW_MS)
        self.engine.command(Define(cell=CellSpec(settings=Settings(decided_by="kubernetes"))))
        self.forks = 0
        self.at_s = 0.0
        self.comparison = ModelComparison(self._call, lambda: self.at_s)
        self.tell(
            seen.PolicySeen(policy="kueue"),
            seen.PriorityClassSeen(priority_class=PriorityClassSpec(name="normal-0", value=0)),
            seen.PoolSeen(pool=PoolSpec(name="c8", capacity=Resources(cpu_milli=8 * CPU, memory_mib=1000))),
            *(seen.NodeSeen(node=NodeSpec(id=name, pool="c8")) for name in ("n0", "n1")),
            *(seen.QueueSeen(queue=QueueSpec(name=name, nominal={"cpu_milli": 8 * CPU})) for name in ("a", "b")),
        )

    def _call(self, function: Callable[[Engine], Any]) -> Any:
        self.forks += function is model_comparison._fork
        return function(self.engine)

    def tell(self, *observed: seen.AnySeen) -> None:
        self.engine.command(Observe(seen=observed))

    def look(self, *admitted: seen.WorkloadSeen, changed: bool = True, after_s: float = EVERY_S) -> tuple[int, ...]:
        """A look so long after the last; `admitted` is told once the fork is made. Returns what is counted."""
        self.at_s += after_s
        fork = self.comparison.fork(changed=changed)
        if admitted:
            self.tell(*admitted)
        self.comparison.look(fork, admitted, self.at_s)
        found = self.comparison.report()
        return found.compared, found.kept, found.started


def work(name: str, cpu: int, queue: str = "a", *, word: str = "Pending", **more: Any) -> seen.WorkloadSeen:
    spec = WorkloadSpec(
        id=name, queue=queue, priority_class="normal-0",
        groups=(TaskGroup(count=more.pop("pods", 1), request=Resources(cpu_milli=cpu * CPU, memory_mib=1),
                          node_labels=more.pop("labels", {})),),
    )  # fmt: skip
    more.setdefault("phase", "queued")
    return seen.WorkloadSeen(spec=spec, submitted_ms=NOW_MS, word=word, **more)


def admitted(name: str, cpu: int, queue: str = "a", **more: Any) -> seen.WorkloadSeen:
    """Kueue has reserved quota for it, and its pods have no nodes yet."""
    share = seen.QuotaShare(resources=Resources(cpu_milli=cpu * CPU * more.get("pods", 1)))
    return work(name, cpu, queue, reserves=(share,), **more)


@pytest.fixture
def cell() -> Cell:
    return Cell()


def test_what_kueue_keeps_and_a_fork_starts_is_counted_once_at_the_second_look(cell: Cell) -> None:
    cell.tell(work("one", 6), work("two", 6))
    assert cell.look() == (2, 0, 0)
    assert not cell.comparison.disagrees("one")
    assert cell.look() == cell.look() == (2, 1, 0), "both fit alone, the queue has room for one of them"
    assert (cell.comparison.disagrees("one"), cell.comparison.disagrees("two")) == (True, False)
    assert [each.workload for each in cell.comparison.report().last] == ["one"]


def test_where_kueue_says_something_else_the_two_looks_begin_anew(cell: Cell) -> None:
    cell.tell(work("one", 6))
    cell.look()
    cell.tell(work("one", 6, word="AdmissionCheck"))
    assert cell.look()[1] == 0
    assert cell.look()[1] == 1


def test_a_fork_is_made_only_from_time_to_time_and_where_anything_was_told(cell: Cell) -> None:
    cell.tell(work("one", 6))
    before = cell.engine.state.digest()
    cell.look()
    cell.look(after_s=EVERY_S / 2)
    assert (cell.forks, cell.comparison.report().kept) == (1, 0)
    cell.look(changed=False)
    assert (cell.forks, cell.comparison.report().kept) == (2, 1), "something was told since the last fork"
    cell.look(changed=False)
    assert cell.forks == 2
    assert cell.engine.state.digest() == before


def test_where_nothing_is_told_the_last_fork_stands_for_the_second_look(cell: Cell) -> None:
    cell.tell(work("one", 6))
    assert [cell.look(changed=changed)[1] for changed in (True, False)] == [0, 1]
    assert cell.forks == 1


def test_what_kueue_admits_and_a_fork_leaves_waiting_for_quota_is_counted(cell: Cell) -> None:
    cell.tell(work("one", 6), work("large", 5, pods=2), work("fits", 2, "b"))
    assert cell.look(admitted("large", 5, pods=2), admitted("fits", 2, "b")) == (3, 0, 1)
    assert "above the nominal 8 CPU of queue a" in cell.comparison.report().last[0].text
    assert cell.comparison.report().last[0].workload == "large"


def test_kueue_does_not_look_at_nodes(cell: Cell) -> None:
    cell.tell(work("one", 6, labels={"disk": ("none-such",)}))
    assert cell.look(admitted("one", 6, labels={"disk": ("none-such",)})) == (1, 0, 0)


def test_no_decision_is_compared_where_the_fork_cannot_start_what_kueue_has_admitted(cell: Cell) -> None:
    """What that holds is free in the fork."""
    cell.tell(admitted("lost", 6, labels={"disk": ("none-such",)}), work("one", 6), work("other", 6, "b"))
    cell.look()
    assert cell.look() == (1, 1, 0)
    assert cell.comparison.disagrees("other")
