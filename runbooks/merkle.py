"""Proofs in the Merkle tree of RFC 6962: that a leaf is in a tree, and that one tree goes on from another.

Checking them is in `runbooks/verify.py`, which needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runbooks.verify import node_of


class Tree:
    """The leaves of a log: those from `first` on by number, what is before by the roots of complete subtrees."""

    def __init__(
        self, leaves: list[bytes], first: int = 0, known: Mapping[tuple[int, int], bytes] | None = None
    ) -> None:
        """`known`: (first leaf, end) -> root of that complete subtree."""
        self._leaves = leaves
        self._first = first
        self._known = dict(known or {})

    def root(self, start: int, end: int) -> bytes:
        """Root over the leaves from `start` to before `end`. Raises KeyError for leaves that are not known."""
        if (found := self._known.get((start, end))) is not None:
            return found
        if end - start == 1:
            if start < self._first:
                raise KeyError(start)
            return self._leaves[start - self._first]
        middle = start + _split(end - start)
        found = node_of(self.root(start, middle), self.root(middle, end))
        self._known[(start, end)] = found
        return found

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Path from a leaf to the root of the tree of `size` leaves (RFC 6962, 2.1.1)."""
        return _path(index, 0, size, self.root)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """Nodes that lead to the roots of both trees (RFC 6962, 2.1.2)."""
        return _nodes(old, 0, new, True, self.root)


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _path(index: int, start: int, end: int, root: Callable[[int, int], bytes]) -> list[bytes]:
    if end - start == 1:
        return []
    middle = start + _split(end - start)
    if index < middle:
        return [*_path(index, start, middle, root), root(middle, end)]
    return [*_path(index, middle, end, root), root(start, middle)]


def _nodes(old: int, start: int, end: int, whole: bool, root: Callable[[int, int], bytes]) -> list[bytes]:
    """`old` is where the old tree ends; `whole`: the subtree is the old tree itself, whose root is known."""
    if old == end:
        return [] if whole else [root(start, end)]
    middle = start + _split(end - start)
    if old <= middle:
        return [*_nodes(old, start, middle, whole, root), root(middle, end)]
    return [*_nodes(old, middle, end, False, root), root(start, middle)]


def subtrees(size: int, nodes: list[bytes]) -> dict[tuple[int, int], bytes]:
    """The nodes of a frontier as `known` of a tree."""
    found, start = {}, 0
    for node in nodes:
        width = 1 << (size - start).bit_length() - 1
        found[(start, start + width)] = node
        start += width
    return found
