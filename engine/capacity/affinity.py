"""Bonds between workloads: who must be near whom, and who keeps apart from whom.

A term is a set of tags and a level of the topology. Of every term that some workload names it is counted, domain by
domain, how many tasks there are of work that carries the tags, and how many of work that keeps apart from it: the
second because keeping apart holds both ways. So whether a node will do takes a look-up for each term of the request,
however large the cell.

A node whose place at a level is not known is alone there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.model.specs import LEVELS, Affinity, Qos, TopologyRequest, WorkloadSpec
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.capacity.node_attributes import NodeTable
    from engine.capacity.task_shapes import BondTerms

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Marks = tuple[tuple[int, ...], tuple[int, ...]]
"""(terms whose tags a workload carries, terms by which it keeps apart)"""


class Bonds(msgspec.Struct, frozen=True, array_like=True):
    """What the tasks of a workload ask for together, besides what each asks for itself. As in WorkloadSpec."""

    topology: TopologyRequest | None = None
    near: tuple[Affinity, ...] = ()
    apart: tuple[Affinity, ...] = ()
    data: tuple[str, ...] = ()
    shunned: tuple[int, ...] = ()
    """Terms by which others keep apart from work that carries its tags."""
    qos: Qos = "guaranteed"


FREE = Bonds()
"""Of a workload that asks for nothing of the kind."""


def bonds_of(spec: WorkloadSpec, shunned: tuple[int, ...] = ()) -> Bonds:
    if spec.topology is None and not (spec.near or spec.apart or spec.data or shunned) and spec.qos == "guaranteed":
        return FREE
    return Bonds(spec.topology, spec.near, spec.apart, spec.data, shunned, spec.qos)


class Company:
    """Who is where, as far as somebody wants to be near to them or apart from them."""

    __slots__ = (
        "carried_by", "carriers", "keepers", "kept_apart", "level", "number", "placed", "terms", "version", "wanted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.terms: list[Affinity] = []
        self.number: dict[Affinity, int] = {}
        self.level: list[int] = []
        """Index into LEVELS of each term."""
        self.kept_apart: list[bool] = []
        """Whether somebody keeps apart by the term."""
        self.wanted: list[bool] = []
        """Whether somebody wants to be near by the term."""
        self.carriers: list[dict[int, int]] = []
        """Term -> domain -> tasks of work that carries the tags."""
        self.keepers: list[dict[int, int]] = []
        """Term -> domain -> tasks of work that keeps apart from such."""
        self.version = 0
        """Changes whenever a domain becomes free of such work, or stops being it."""
        self.carried_by: dict[int, tuple[int, ...]] = {}
        """Row of a set of tags -> the terms whose tags it has, as far as somebody has asked."""
        self.placed: tuple[dict[int, int], ...] = ()
        """While a workload grows: by group, the nodes its tasks are on already, and how many on each."""

    def copy(self) -> Company:
        other = Company()
        other.terms, other.number, other.level = list(self.terms), dict(self.number), list(self.level)
        other.kept_apart, other.wanted = list(self.kept_apart), list(self.wanted)
        other.carriers = [dict(counts) for counts in self.carriers]
        other.keepers = [dict(counts) for counts in self.keepers]
        other.version = self.version
        other.carried_by = dict(self.carried_by)
        return other

    # -- terms --------------------------------------------------------------------------------------------------------

    def name(self, near: Sequence[Affinity], apart: Sequence[Affinity]) -> list[int]:
        """Numbers for the terms that have none yet. Returns those by which nobody kept apart before."""
        newly: list[int] = []
        for term, uses in [(term, self.wanted) for term in near] + [(term, self.kept_apart) for term in apart]:
            number = self.number.get(term)
            if number is None:
                number = self.number[term] = len(self.terms)
                self.carried_by.clear()
                self.terms.append(term)
                self.level.append(LEVELS.index(term.level))
                self.kept_apart.append(False)
                self.wanted.append(False)
                self.carriers.append({})
                self.keepers.append({})
            if uses is self.kept_apart and not uses[number]:
                newly.append(number)
            uses[number] = True
        return newly

    def carried(self, tags: Mapping[str, str]) -> tuple[int, ...]:
        """Terms whose tags are all among these."""
        return tuple(number for number, term in enumerate(self.terms) if term.tags.items() <= tags.items())

    def shunners(self, tags: Mapping[str, str]) -> tuple[int, ...]:
        """Those of them by which somebody keeps apart."""
        return tuple(number for number in self.carried(tags) if self.kept_apart[number]) if self.terms else ()

    # -- counts -------------------------------------------------------------------------------------------------------

    def shift(self, nodes: NodeTable, marks: Marks, at: Iterable[tuple[int, int]]) -> bool:
        """Count (node, tasks) of work with these marks in, or out where tasks are negative. Returns whether a domain
        that others want to be near to has got its first."""
        first = False
        for counts_of, terms in ((self.carriers, marks[0]), (self.keepers, marks[1])):
            for term in terms:
                counts, level = counts_of[term], self.level[term]
                for node, tasks in at:
                    domain = nodes.domain_of(level, node)
                    before = counts.get(domain, 0)
                    if before + tasks:
                        counts[domain] = before + tasks
                    else:
                        del counts[domain]
                    if not before or not before + tasks:
                        self.version += 1
                        first |= not before and counts_of is self.carriers and self.wanted[term]
        return first

    # -- questions ----------------------------------------------------------------------------------------------------

    def admits(self, nodes: NodeTable, node: int, terms: BondTerms) -> bool:
        """Whether work with these terms may be on the node, besides what is where now."""
        for term in terms.near:
            if self.carriers[term] and nodes.domain_of(self.level[term], node) not in self.carriers[term]:
                return False
        for term in terms.apart:
            if nodes.domain_of(self.level[term], node) in self.carriers[term]:
                return False
        return all(nodes.domain_of(self.level[term], node) not in self.keepers[term] for term in terms.shunned)

    def mask(self, nodes: NodeTable, terms: BondTerms) -> Mask:
        """`admits` of every node."""
        mask: Mask = np.ones(len(nodes.node_ids), bool)
        for term in terms.near:
            if self.carriers[term]:
                mask &= self._there(nodes, term, self.carriers[term])
        for wanted, counts in ((terms.apart, self.carriers), (terms.shunned, self.keepers)):
            for term in wanted:
                if counts[term]:
                    mask &= ~self._there(nodes, term, counts[term])
        return mask

    def _there(self, nodes: NodeTable, term: int, domains: dict[int, int]) -> Mask:
        """Nodes in one of the domains."""
        rows = [-1 - domain for domain in domains if domain < 0]
        mask: Mask = np.zeros(len(nodes.node_ids), bool)
        if len(rows) < len(domains):
            named: Mask = np.zeros(len(nodes.places.names), bool)
            named[[domain for domain in domains if domain > 0]] = True
            mask = named[view(getattr(nodes, LEVELS[self.level[term]]))]
        mask[rows] = True
        return mask
