"""The pending order against a plain sorted list."""

from __future__ import annotations

import numpy as np
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.state.pending_work import Key, NewArrivals, Pending

VALUES = [-5, 0, 900, 0]
"""Integer priorities of the priority classes; two share one."""


class Line(RuleBasedStateMachine):
    """Rows come (also old ones again) and go, from the front and from the middle."""

    @initialize(by_class=st.booleans())
    def empty(self, by_class: bool) -> None:
        self.pending = Pending(by_class=by_class)
        self.facts: dict[int, tuple[int, int, int, int]] = {}
        """Row -> (priority class, queue, class, tenant) of everything ever seen."""
        self.waiting: set[int] = set()

    def key(self, row: int) -> Key:
        return self.pending.key(*self.facts[row])

    @rule(
        count=st.integers(1, 150),
        priority=st.integers(0, 3),
        queue=st.integers(0, 1),
        cls=st.integers(0, 2),
        tenant=st.integers(-1, 1),
    )
    def submit(self, count: int, priority: int, queue: int, cls: int, tenant: int) -> None:
        for row in self.new(count, priority, queue, cls, tenant):
            self.pending.add(self.key(row), row)

    @rule(
        count=st.integers(1, 150),
        priority=st.integers(0, 3),
        queue=st.integers(0, 1),
        cls=st.integers(0, 2),
        tenant=st.integers(-1, 1),
        started=st.booleans(),
    )
    def come_together(self, count: int, priority: int, queue: int, cls: int, tenant: int, started: bool) -> None:
        rows = self.new(count, priority, queue, cls, tenant)
        self.pending.arrive(NewArrivals(rows, *([fact] * count for fact in (priority, queue, cls, tenant))))
        alone = self.pending.all_new()
        if started and alone is not None:
            assert self.pending.leave_together(alone[::-1])
            self.waiting.clear()
        elif started:
            assert not self.pending.leave_together(np.array(rows, np.int32))

    def new(self, count: int, priority: int, queue: int, cls: int, tenant: int) -> range:
        rows = range(len(self.facts), len(self.facts) + count)
        self.facts.update(dict.fromkeys(rows, (priority, queue, cls, tenant)))
        self.waiting.update(rows)
        return rows

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), count=st.integers(1, 100))
    def start_first(self, data, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.pending.groups)))
        for _ in range(count):
            if key in self.pending.groups:
                group = self.pending.groups[key]
                row = group.rows[group.front]
                self.pending.discard(key, row)
                self.waiting.remove(row)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def take_any(self, data) -> None:
        row = data.draw(st.sampled_from(sorted(self.waiting)))
        self.pending.discard(self.key(row), row)
        self.waiting.remove(row)

    @precondition(lambda self: len(self.waiting) < len(self.facts))
    @rule(data=st.data())
    def come_back(self, data) -> None:
        row = data.draw(st.sampled_from(sorted(self.facts.keys() - self.waiting)))
        self.pending.add(self.key(row), row)
        self.waiting.add(row)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pending"):
            return
        groups: dict[Key, list[int]] = {}
        for row in sorted(self.waiting):
            groups.setdefault(self.key(row), []).append(row)
        assert {key: group.rows[group.front :] for key, group in self.pending.groups.items()} == groups
        assert {key: len(group) for key, group in self.pending.groups.items()} == {k: len(v) for k, v in groups.items()}
        for queue in (0, 1):
            mine = (r for r in self.waiting if self.facts[r][1] == queue)
            line = sorted(mine, key=lambda r: (-VALUES[self.facts[r][0]], r))
            shown = {*line[:3], *line[len(line) // 2 : len(line) // 2 + 3], *line[-3:]}
            for place, row in enumerate(line, 1):
                if row in shown:
                    assert self.pending.position(self.key(row), row, VALUES) == place


Line.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=25, deadline=None, derandomize=True)
TestLine = Line.TestCase


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(by_class=st.booleans(), classes=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_only_where_a_verdict_holds_for_all_do_rows_share_a_group(by_class: bool, classes: list[int]) -> None:
    """Strict order knows one line to a queue; otherwise each kind of request has its own."""
    pending = Pending(by_class=by_class)
    for row, cls in enumerate(classes):
        pending.add(pending.key(0, 0, cls, -1), row)
    assert len(pending.groups) == (len(set(classes)) if by_class else 1)
