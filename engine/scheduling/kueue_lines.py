"""The work that waits where the policy is `kueue`: the line of each queue, and what is parked.

Like workloads stand and are parked together, as one group. So a start costs one step in the line of its queue, a group
that is refused leaves its line as a whole, and work that is looked at again costs its groups, however many wait.

In a queue that is strictly first in, first out, all that waits is one group. Its first alone is parked; those behind it
are set aside. They stand in line again in the next run, which looks at the first whatever has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain

from engine.state.cell_state import State

Likeness = tuple[int, int, int]
"""(queue row, priority value, class row): what is alike is parked together. Of all in a strict queue: STRICT."""
Entry = tuple[int, int, int]
"""(minus priority value, time of submission, row): the place in line."""
STRICT = (0, -1)
MIN_STALE = 32
"""Entries of workloads that have left, for which no group is put in order."""


class WaitingGroup:
    """Workloads that stand in line, or are parked, together."""

    __slots__ = ("_heap", "entries", "like", "parked", "standing")

    def __init__(self, like: Likeness, *, parked: bool = False) -> None:
        self.like = like
        self.parked = parked
        self.entries: dict[int, Entry] = {}
        """By row."""
        self._heap: list[Entry] = []
        """An entry is stale unless its row has it."""
        self.standing: Entry | None = None
        """The entry by which the group stands in its line; others are dropped when met."""

    def add(self, entry: Entry) -> None:
        self.entries[entry[2]] = entry
        heappush(self._heap, entry)

    def discard(self, row: int) -> None:
        del self.entries[row]
        if len(self._heap) > 2 * len(self.entries) + MIN_STALE:
            self._heap = list(self.entries.values())
            heapify(self._heap)

    def first(self) -> Entry | None:
        heap, entries = self._heap, self.entries
        while heap and entries.get(heap[0][2]) != heap[0]:
            heappop(heap)
        return heap[0] if heap else None


class QueueLine:
    """Groups of one queue, the one whose first goes first in front."""

    __slots__ = ("_heap", "groups")

    def __init__(self) -> None:
        self.groups: dict[Likeness, WaitingGroup] = {}
        self._heap: list[tuple[Entry, Likeness]] = []

    def enter(self, group: WaitingGroup) -> None:
        """Have the group stand where its first belongs."""
        self.groups[group.like] = group
        first = group.first()
        if first is not None and first != group.standing:
            group.standing = first
            heappush(self._heap, (first, group.like))

    def first(self) -> Entry | None:
        while self._heap:
            entry, like = self._heap[0]
            group = self.groups.get(like)
            if group is not None and entry == group.standing == group.first():
                return entry
            heappop(self._heap)
            if group is not None and entry == group.standing:
                group.standing = None
                self.enter(group)
        return None


class KueueLines:
    """All that waits is in one of its groups, but for what is being looked at."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._group_of: dict[int, WaitingGroup] = {}
        """By row."""
        self._lines: dict[int, QueueLine] = {}
        """By queue, as far as anybody stands there."""
        self._aside: dict[int, WaitingGroup] = {}
        """By strict queue: who stands behind its parked first."""
        self._parked: dict[int, dict[Likeness, WaitingGroup]] = {}
        """By root of the queue tree."""
        self._refused: dict[int, set[Likeness]] = {}
        """By root: those like them are parked as they come."""
        self._left: set[int] = set()
        """What was parked and waits no longer. If it comes back before anything is looked at again, it is parked."""
        self._strict: set[int] = set()
        """Queues whose work is kept as one group."""
        self.preemptors: dict[int, int] = {}
        """Queue -> who goes before all of it."""

    def __contains__(self, row: int) -> bool:
        return row in self._group_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._group_of)

    # -- changes between runs -----------------------------------------------------------------------------------------

    def note(self, row: int, *, waits: bool) -> None:
        """Take in what has become of a workload."""
        group = self._group_of.get(row)
        if not waits:
            if group is not None:
                self._remove(row)
                if group.parked:
                    self._left.add(row)
        elif group is None:
            (self.park if row in self._left else self.enter)(row)
        elif (group.like, group.entries[row]) != (self._likeness(row), self._entry(row)):
            (self.park if group.parked else self.enter)(row)

    def restore_strict(self) -> None:
        """Have all work of strict queues stand in line."""
        for queue in self._strict:
            parked = self._parked.get(self._state.queues.path[queue][-1], {})
            for group in (parked.pop((queue, *STRICT), None), self._aside.pop(queue, None)):
                if group is not None:
                    self._stand(group)

    def follow_rules(self) -> None:
        """Group the work of queues anew that have become strictly first in, first out, or are so no longer."""
        strict = {queue for queue in range(len(self._state.queues.specs)) if self._state.is_strict(queue)}
        changed, self._strict = strict ^ self._strict, strict
        if not changed:
            return
        for row, group in list(self._group_of.items()):
            if self._state.workloads.queue[row] in changed:
                (self.park if group.parked else self.enter)(row)

    # -- standing and parked ------------------------------------------------------------------------------------------

    def heads(self) -> list[int]:
        """The first of every queue that is open, taken out of its line: whoever has preempted, if he stands there."""
        found = []
        for queue, line in list(self._lines.items()):
            if not self._state.queues.is_open(queue):
                self._park_line(queue)
                continue
            row = self.preemptors.get(queue)
            if row is None or not self._stands(row, line):
                entry = line.first()
                row = None if entry is None else entry[2]
            if row is not None:
                self._remove(row)
                found.append(row)
            if not line.groups:
                del self._lines[queue]
        return found

    def enter(self, row: int) -> None:
        """Have it stand in line, unless those like it were refused."""
        like = self._likeness(row)
        if like in self._refused.get(self._root_of(row), ()):
            self.park(row)
            return
        self._remove(row)
        line = self._lines.setdefault(like[0], QueueLine())
        group = line.groups.get(like) or WaitingGroup(like)
        self._add(group, row)
        line.enter(group)

    def park(self, row: int) -> None:
        """Look at it no more until its tree is looked at again."""
        self._remove(row)
        like = self._likeness(row)
        parked = self._parked.setdefault(self._root_of(row), {})
        group = parked.get(like)
        if group is None:
            group = parked[like] = WaitingGroup(like, parked=True)
        self._add(group, row)

    def refuse(self, row: int, *, alike: bool) -> None:
        """Park it, and with `alike` those like it that have not preempted. Nobody stands behind it in a strict queue
        until the next run."""
        self.park(row)
        like = self._likeness(row)
        line = self._lines.get(like[0])
        if like[0] in self._strict:
            if line is not None:
                del self._lines[like[0]]
                self._set_aside(line.groups[like])
        elif alike:
            self._refused.setdefault(self._root_of(row), set()).add(like)
            if line is not None and like in line.groups:
                self._park_alike(line, like)

    def unpark(self, roots: Iterable[int] | None) -> None:
        """Have all stand in line again that is parked in these trees; in all, where None is given."""
        self._left.clear()
        for root in list(chain(self._parked, self._refused)) if roots is None else roots:
            self._refused.pop(root, None)
            for group in self._parked.pop(root, {}).values():
                self._stand(group)

    # -- groups -------------------------------------------------------------------------------------------------------

    def _likeness(self, row: int) -> Likeness:
        w = self._state.workloads
        queue = w.queue[row]
        return (queue, *STRICT) if queue in self._strict else (queue, w.value_at(row), w.cls[row])

    def _entry(self, row: int) -> Entry:
        w = self._state.workloads
        return -w.value_at(row), w.submitted[row], row

    def _root_of(self, row: int) -> int:
        return self._state.queues.path[self._state.workloads.queue[row]][-1]

    def _stands(self, row: int, line: QueueLine) -> bool:
        group = self._group_of.get(row)
        return group is not None and line.groups.get(group.like) is group

    def _add(self, group: WaitingGroup, row: int) -> None:
        group.add(self._entry(row))
        self._group_of[row] = group

    def _remove(self, row: int) -> None:
        group = self._group_of.pop(row, None)
        if group is None:
            return
        group.discard(row)
        if group.entries:
            return
        queue = group.like[0]
        root = self._state.queues.path[queue][-1]
        for groups in (self._parked.get(root, {}), self._lines[queue].groups if queue in self._lines else {}):
            if groups.get(group.like) is group:
                del groups[group.like]
        if self._aside.get(queue) is group:
            del self._aside[queue]

    def _stand(self, group: WaitingGroup) -> None:
        group.parked = False
        group.standing = None
        line = self._lines.setdefault(group.like[0], QueueLine())
        line.enter(self._joined(group, line.groups.get(group.like)))

    def _park_group(self, group: WaitingGroup) -> None:
        group.parked = True
        parked = self._parked.setdefault(self._state.queues.path[group.like[0]][-1], {})
        parked[group.like] = self._joined(group, parked.get(group.like))

    def _park_alike(self, line: QueueLine, like: Likeness) -> None:
        group, preemptor = line.groups.pop(like), self.preemptors.get(like[0], -1)
        if preemptor in group.entries:
            group.discard(preemptor)
            alone = WaitingGroup(like)
            self._add(alone, preemptor)
            line.enter(alone)
        if group.entries:
            self._park_group(group)

    def _park_line(self, queue: int) -> None:
        for group in self._lines.pop(queue).groups.values():
            self._park_group(group)

    def _set_aside(self, group: WaitingGroup) -> None:
        queue = group.like[0]
        self._aside[queue] = self._joined(group, self._aside.get(queue))

    def _joined(self, group: WaitingGroup, other: WaitingGroup | None) -> WaitingGroup:
        """Both as one: the smaller is added to the larger."""
        if other is None:
            return group
        small, large = sorted((group, other), key=lambda each: len(each.entries))
        for row, entry in small.entries.items():
            large.add(entry)
            self._group_of[row] = large
        return large
