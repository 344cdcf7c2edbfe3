"""Use of quota as one of Kueue's cycles sees it: that of its start, with what the cycle has decided since.

Source of the rules: kubernetes-sigs/kueue v0.19.2, `pkg/cache/scheduler/resource_node.go` and
`pkg/scheduler/preemption/classical/hierarchical_preemption.go`. The tree itself is `engine.state.queue_tree`, which has
the same words for the same numbers: `quota` is Kueue's subtree quota, `local` what is not lent, `drawn` its usage.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.state.queue_tree import NO_LIMIT, Charge, QueueTree


class _Draws(dict[int, int]):
    """Index into `QueueTree.drawn` -> the draw when it was first looked at, with what was changed since."""

    def __init__(self, tree: QueueTree) -> None:
        self._drawn = tree.drawn

    def __missing__(self, i: int) -> int:
        found = self[i] = self._drawn[i]
        return found


class QuotaUsage:
    """Draws on a queue tree that may be changed without changing the tree. They are copied as they are looked at, so
    whoever changes the tree has them held before (`hold`)."""

    def __init__(self, tree: QueueTree) -> None:
        self._tree = tree
        self._drawn = _Draws(tree)
        self._heights: dict[int, int] = {}
        self._vertices = 0
        """Those that the tree had when `_heights` was begun."""

    def begin(self) -> None:
        """See the draws that the tree has now."""
        self._drawn = _Draws(self._tree)
        if self._vertices != len(self._tree.specs):
            self._vertices = len(self._tree.specs)
            self._heights.clear()

    def hold(self, queue: int) -> None:
        """Keep the draws that the queue and those above it have now, whatever becomes of them in the tree."""
        drawn, slots = self._tree.drawn, self._tree.slots
        for vertex in self._tree.path[queue]:
            for i in range(vertex * slots, (vertex + 1) * slots):
                self._drawn.setdefault(i, drawn[i])

    def add(self, queue: int, charge: Charge) -> None:
        tree, drawn = self._tree, self._drawn
        for slot, rest in charge:
            for vertex in tree.path[queue]:
                i = vertex * tree.slots + slot
                kept = max(0, tree.local[i] - drawn[i])
                drawn[i] += rest
                rest -= kept
                if rest <= 0:
                    break

    def remove(self, queue: int, charge: Charge) -> None:
        tree, drawn = self._tree, self._drawn
        for slot, rest in charge:
            for vertex in tree.path[queue]:
                i = vertex * tree.slots + slot
                above = drawn[i] - tree.local[i]
                drawn[i] -= rest
                if above <= 0:
                    break
                rest = min(rest, above)

    def available(self, queue: int, slot: int) -> int:
        """The most that may still be charged; below 0 where more is in use than there is now."""
        tree, most = self._tree, NO_LIMIT
        for vertex in reversed(tree.path[queue]):
            i = vertex * tree.slots + slot
            quota, local, drawn = tree.quota[i], tree.local[i], self._drawn[i]
            if vertex == tree.path[queue][-1]:
                most = quota - drawn
                continue
            if tree.borrowing_limit[i] != NO_LIMIT:
                most = min(most, quota - local - max(0, drawn - local) + tree.borrowing_limit[i])
            most += max(0, local - drawn)
        return most

    def potential(self, queue: int, slot: int) -> int:
        """The most that could be charged if nothing were in use."""
        tree, most = self._tree, 0
        for vertex in reversed(tree.path[queue]):
            i = vertex * tree.slots + slot
            if vertex == tree.path[queue][-1]:
                most = tree.quota[i]
                continue
            most += tree.local[i]
            if tree.borrowing_limit[i] != NO_LIMIT:
                most = min(most, tree.quota[i] + tree.borrowing_limit[i])
        return most

    def fits(self, queue: int, charge: Charge, *, borrow: bool = True) -> bool:
        return all(
            quantity <= self.available(queue, slot) and (borrow or not self.borrows(queue, slot, quantity))
            for slot, quantity in charge
        )

    def borrows(self, vertex: int, slot: int, more: int = 0) -> bool:
        """True if the vertex draws above its quota, with so much more."""
        i = vertex * self._tree.slots + slot
        return self._drawn[i] + more > self._tree.quota[i]

    def within_quota(self, vertex: int, slots: Iterable[int]) -> bool:
        return not any(self.borrows(vertex, slot) for slot in slots)

    def below_quota(self, queue: int, slots: Iterable[int]) -> bool:
        """True if the queue draws less than its own quota of each."""
        return not any(self.borrows(queue, slot, 1) for slot in slots)

    def room_to_nominal(self, queue: int, slot: int) -> int:
        i = queue * self._tree.slots + slot
        return self._tree.quota[i] - self._drawn[i]

    def room_to_limit(self, queue: int, slot: int) -> int:
        """Up to nominal quota and borrowing limit together; NO_LIMIT where it has none."""
        limit = self._tree.borrowing_limit[queue * self._tree.slots + slot]
        return NO_LIMIT if limit == NO_LIMIT else self.room_to_nominal(queue, slot) + limit

    def distance(self, queue: int, slot: int, quantity: int) -> tuple[int, bool]:
        """(height of the lowest subtree around the queue whose quota holds so much more, whether it is not the whole
        tree). 0: the queue itself."""
        path = self._tree.path[queue]
        if not self.borrows(queue, slot, quantity) or len(path) == 1:
            return 0, len(path) > 1
        rest = quantity - self._kept(queue, slot)
        for vertex in path[1:]:
            if not self.borrows(vertex, slot, rest):
                return self._height(vertex), vertex != path[-1]
            rest -= self._kept(vertex, slot)
        return self._height(path[-1]), False

    def ancestors_in_reach(self, queue: int, charge: Charge) -> list[tuple[int, bool]]:
        """(cohort, whether quota below it already holds the charge) from the queue's own cohort to the root: work of
        others there that draws above quota is in the way of what the queue or its cohort has a right to."""
        entitled, rest = self._takes(queue, charge)
        found = []
        for vertex in self._tree.path[queue][1:]:
            found.append((vertex, entitled))
            holds, rest = self._takes(vertex, rest)
            entitled = entitled or holds
        return found

    def _takes(self, vertex: int, charge: Charge) -> tuple[bool, Charge]:
        """Whether its quota holds the charge, and what of the charge is passed on upwards."""
        holds = not any(self.borrows(vertex, slot, quantity) for slot, quantity in charge)
        return holds, tuple((slot, max(0, quantity - self._kept(vertex, slot))) for slot, quantity in charge)

    def _kept(self, vertex: int, slot: int) -> int:
        """Free quota that the vertex does not lend."""
        i = vertex * self._tree.slots + slot
        return max(0, self._tree.local[i] - self._drawn[i])

    def _height(self, vertex: int) -> int:
        found = self._heights.get(vertex)
        if found is None:
            children = self._tree.children[vertex]
            found = self._heights[vertex] = 1 + max(map(self._height, children)) if children else 0
        return found
