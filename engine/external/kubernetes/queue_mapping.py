"""Cohorts and ClusterQueues of Kueue as the queue tree of a cell.

A ClusterQueue is a leaf, because Kueue orders and admits work by ClusterQueues; a LocalQueue is the team of a workload
and its namespace the tenant. Quota of a flavor becomes quota of the pool that it stands for. Where a flavor of a tree
stands for several pools, or two flavors for the same, quotas of all flavors count for all pools together in that tree,
and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from engine.external.kubernetes.names import cluster_queue_id, cohort_id
from engine.external.kubernetes_api.kueue_objects import (
    ClusterQueue,
    ClusterQueueSpec,
    Cohort,
    Quantity,
    ResourceGroup,
    ResourceQuotas,
)
from engine.external.kubernetes_api.resources import ResourceReader, number
from engine.external.mirror_report import UnsupportedCounts
from engine.model import external_cells as seen
from engine.model.specs import RESOURCES, FlavorQuota, KueueRules, QueueSpec

_RECLAIM: dict[str, Literal["never", "lower_priority", "any"]] = {
    "Never": "never", "LowerPriority": "lower_priority", "Any": "any",
}  # fmt: skip
_WITHIN: dict[str, Literal["never", "lower_priority", "lower_or_newer_equal"]] = {
    "Never": "never", "LowerPriority": "lower_priority", "LowerOrNewerEqualPriority": "lower_or_newer_equal",
}  # fmt: skip
MAX_WEIGHT = 1_000_000
_FIELDS = ("nominal", "borrowing_limit", "lending_limit")
Quotas = dict[str, dict[str, int]]
"""Field of a queue's spec -> resource -> quantity."""


class QueueMapping:
    """The tree of one look. `pools_of`: flavor -> its pools."""

    def __init__(
        self,
        reader: ResourceReader,
        cohorts: Iterable[Cohort],
        queues: Iterable[ClusterQueue],
        pools_of: Mapping[str, tuple[str, ...]],
        left: UnsupportedCounts,
    ) -> None:
        self._reader = reader
        self._left = left
        self._pools_of = pools_of
        self._cohorts = {each.metadata.name: each for each in cohorts}
        self._queues = {each.metadata.name: each for each in queues}
        self._parents = self._tree()
        self._flavored = self._flavored_roots()

    def observed(self) -> list[seen.QueueSeen]:
        """All queues, parents first."""
        names = sorted(self._parents, key=lambda name: (len(self._path(name)), name))
        return [self._cohort(name) for name in names] + [self._queue(each) for _, each in sorted(self._queues.items())]

    def pools(self, queue: str) -> tuple[str, ...]:
        """The pools of a ClusterQueue's flavors in their order; empty: of all pools, or it is not known."""
        found = self._queues.get(queue)
        groups = found.spec.resource_groups if found is not None else ()
        of = dict.fromkeys(pool for name in _flavors(groups) for pool in self._pools_of.get(name, ()))
        return tuple(of)

    def is_by_pool(self, queue: str) -> bool:
        """True if quota of the ClusterQueue is of single pools."""
        found = self._queues.get(queue)
        return found is not None and self._root(found.spec.cohort_name or "", queue) in self._flavored

    # -- the tree -----------------------------------------------------------------------------------------------------

    def _tree(self) -> dict[str, str]:
        """Cohort -> the one above it; a cohort that only others name is there too."""
        parents = {name: each.spec.parent_name for name, each in self._cohorts.items()}
        for name in [*parents.values(), *(each.spec.cohort_name for each in self._queues.values())]:
            if name:
                parents.setdefault(name, "")
        for name in list(parents):
            if len(self._path_in(parents, name)) > len(parents):
                self._left.note("cohorts in a circle are taken apart: Kueue admits nothing there", name)
                parents[name] = ""
        return parents

    def _path(self, cohort: str) -> list[str]:
        return self._path_in(self._parents, cohort)

    @staticmethod
    def _path_in(parents: Mapping[str, str], cohort: str) -> list[str]:
        """From the cohort up; longer than there are cohorts where they form a circle."""
        path: list[str] = []
        while cohort and len(path) <= len(parents):
            path.append(cohort)
            cohort = parents.get(cohort, "")
        return path

    def _root(self, cohort: str, queue: str) -> str:
        return f"cohort/{self._path(cohort)[-1]}" if cohort else queue

    def _flavored_roots(self) -> set[str]:
        """Roots of trees whose flavors stand for one pool each, no two for the same."""
        flavors: dict[str, set[str]] = {}
        for name, queue in self._queues.items():
            found = flavors.setdefault(self._root(queue.spec.cohort_name, name), set())
            found.update(_flavors(queue.spec.resource_groups))
        for name, cohort in self._cohorts.items():
            flavors.setdefault(self._root(name, name), set()).update(_flavors(cohort.spec.resource_groups))
        return {root for root, names in flavors.items() if self._is_one_to_one(root, names)}

    def _is_one_to_one(self, root: str, names: set[str]) -> bool:
        pools = [self._pools_of.get(name, ()) for name in names]
        if len(names) < 2 or not any(pools):
            return False
        met = [pool for each in pools for pool in each]
        if all(len(each) <= 1 for each in pools) and len(met) == len(set(met)):
            return True
        self._left.note("quotas of flavors that stand for several pools, or share one, count for all pools together",
                        root.removeprefix("cohort/"))  # fmt: skip
        return False

    # -- vertices -----------------------------------------------------------------------------------------------------

    def _cohort(self, name: str) -> seen.QueueSeen:
        cohort = self._cohorts.get(name)
        parent = self._parents[name]
        root = self._root(name, name)
        spec = QueueSpec(
            name=cohort_id(name),
            parent=cohort_id(parent) if parent else "",
            weight=self._weight(cohort.spec.fair_sharing.weight, name) if cohort is not None else 1,
            **self._quota(cohort.spec.resource_groups if cohort is not None else (), root, bool(parent)),  # type: ignore[arg-type]
        )
        return seen.QueueSeen(queue=spec)

    def _queue(self, queue: ClusterQueue) -> seen.QueueSeen:
        name, spec = queue.metadata.name, queue.spec
        self._note_rules(queue)
        made = QueueSpec(
            name=cluster_queue_id(name),
            parent=cohort_id(spec.cohort_name) if spec.cohort_name else "",
            weight=self._weight(spec.fair_sharing.weight, name),
            **self._quota(spec.resource_groups, self._root(spec.cohort_name, name), bool(spec.cohort_name)),  # type: ignore[arg-type]
        )
        return seen.QueueSeen(queue=with_rules(made, spec), open=spec.stop_policy == "None")

    def _quota(self, groups: Sequence[ResourceGroup], root: str, has_parent: bool) -> dict[str, object]:
        by_flavor = {flavor.name: self._limits(flavor.resources, has_parent)
                     for group in groups for flavor in group.flavors}  # fmt: skip
        if root not in self._flavored:
            return dict(_together(list(by_flavor.values())))
        flavors = [FlavorQuota(pool=self._pools_of[name][0], **quotas)
                   for name, quotas in by_flavor.items() if self._pools_of.get(name)]  # fmt: skip
        return {"flavors": tuple(flavors)}

    def _limits(self, resources: Sequence[ResourceQuotas], has_parent: bool) -> Quotas:
        found: Quotas = {field: {} for field in _FIELDS}
        for each in resources:
            given = (each.nominal_quota, each.borrowing_limit, each.lending_limit)
            for field, text in zip(_FIELDS, given, strict=True):
                if text is None or (field != "nominal" and not has_parent):
                    continue
                read = self._reader.quantity(each.name, text)
                if read is None:
                    self._left.note(f"quota of '{each.name}' is not counted", each.name)
                else:
                    name = RESOURCES[read[0]]
                    found[field][name] = found[field].get(name, 0) + read[1]
        return found

    def _weight(self, text: Quantity, name: str) -> int:
        weight = number(text)
        if weight != int(weight) or weight < 1:
            self._left.note("weights below 1 or with a fraction are rounded to whole numbers", name)
        return min(max(round(weight), 1), MAX_WEIGHT)

    def _note_rules(self, queue: ClusterQueue) -> None:
        """Name the rules of a queue that the model does not follow."""
        spec, name, note = queue.spec, queue.metadata.name, self._left.note
        if spec.flavor_fungibility.preference:
            note("preference between borrowing and preemption (flavorFungibility) is not modelled", name)
        if spec.admission_checks_strategy.admission_checks:
            note("admission checks are shown, and not modelled", name)
        if queue.status.fair_sharing is not None:
            note("fair sharing of cohorts is on, and not modelled: Kueue gives and takes by weight there", name)
        if spec.admission_scope is not None and spec.admission_scope.admission_mode:
            note("fair sharing of admission by past use is not modelled", name)
        for flavor in _flavors(spec.resource_groups):
            if not self._pools_of.get(flavor):
                note("flavors that match no node", flavor)


def with_rules(queue: QueueSpec, spec: ClusterQueueSpec) -> QueueSpec:
    """The queue with the order, the preemption and the search for a pool that the ClusterQueue has."""
    preemption, fungibility = spec.preemption, spec.flavor_fungibility
    return msgspec.structs.replace(
        queue,
        order="strict_fifo" if spec.queueing_strategy == "StrictFIFO" else "best_effort",
        reclaim=_RECLAIM.get(preemption.reclaim_within_cohort, "never"),
        kueue=KueueRules(
            within_queue=_WITHIN.get(preemption.within_cluster_queue, "never"),
            borrow_within_cohort=(
                "lower_priority" if preemption.borrow_within_cohort.policy == "LowerPriority" else "never"
            ),
            borrow_max_priority=preemption.borrow_within_cohort.max_priority_threshold,
            when_can_borrow="try_next" if fungibility.when_can_borrow == "TryNextFlavor" else "stop",
            when_can_preempt="try_next" if fungibility.when_can_preempt == "TryNextFlavor" else "stop",
        ),
    )


def _flavors(groups: Iterable[ResourceGroup]) -> list[str]:
    return [flavor.name for group in groups for flavor in group.flavors]


def _together(all_quotas: list[Quotas]) -> Quotas:
    """Quotas of several flavors as one: a limit only where each of them has it."""
    if len(all_quotas) == 1:
        return all_quotas[0]
    total: Quotas = {field: {} for field in _FIELDS}
    for quotas in all_quotas:
        for name, quantity in quotas["nominal"].items():
            total["nominal"][name] = total["nominal"].get(name, 0) + quantity
    for field in _FIELDS[1:]:
        for name in total["nominal"]:
            having = [quotas[field].get(name) for quotas in all_quotas if name in quotas["nominal"]]
            limits = [limit for limit in having if limit is not None]
            if len(limits) == len(having):
                total[field][name] = sum(limits)
    return total
