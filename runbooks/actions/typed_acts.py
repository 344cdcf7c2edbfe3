"""What the parameters of a runbook's step come to: the typed act, made for the cell as it is.

Quantities that are given as more or less are added to what there is after the steps before; times are from now on the
cell's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.model.errors import NotFoundError
from engine.twin import consolidation
from runbooks.actions.catalogue import find
from runbooks.actions.declaration import Given
from runbooks.actions.pool_sizes import nodes_of
from runbooks.plans.typed_plan import Act, ActionName

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.elasticity.scaling_report import PoolSize
    from engine.model.money import BudgetSpec
    from engine.model.queries import Consolidation, ConsolidationRequest
    from engine.model.specs import QueueSpec


class Maker:
    """Makes the acts of one run, in order: it remembers what the earlier ones change, as far as later ones build on
    it. It is the `PlannedCell` that declarations ask."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queues: dict[str, QueueSpec] = {}
        self._budgets: dict[str, BudgetSpec] = {}
        self._nodes: dict[str, int] = {}
        """Pool -> nodes it shall have."""

    def act(self, action: ActionName, given: Given) -> Act:
        """Raises NotFoundError for what does not exist, and RefusedError for what cannot be made here, such as moves
        that nobody finds."""
        row = find(action)
        if row.make is not None:
            return self._remembered(row.make(given, self))
        targets = next(given[name] for name, parameter in row.parameters.items() if parameter.target)
        return row.act(targets if isinstance(targets, tuple) else (targets,), given)

    def _remembered(self, act: Act) -> Act:
        if act.queue is not None:
            self._queues[act.queue.to.name] = act.queue.to
        if act.money is not None and act.money.budget is not None:
            self._budgets[act.money.budget.name] = act.money.budget
        if act.nodes is not None:
            self._nodes[act.targets[0]] = act.nodes
        return act

    # -- the planned cell -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._engine.state.cell

    @property
    def now_ms(self) -> int:
        return self._engine.now_ms

    def queue(self, name: str) -> QueueSpec:
        """Raises NotFoundError."""
        return self._queues.get(name) or self._engine.queue(name).spec

    def budget(self, name: str) -> BudgetSpec:
        """Raises NotFoundError."""
        if name in self._budgets:
            return self._budgets[name]
        for line in self._engine.budgets().budgets:
            if line.spec.name == name:
                return line.spec
        raise NotFoundError(f"there is no budget '{name}'", "See `muster budgets`")

    def size(self, pool: str) -> PoolSize | None:
        """None: there is no such pool."""
        return next((size for size in self._engine.scaling().pools if size.pool == pool), None)

    def nodes(self, pool: str) -> int:
        """Raises NotFoundError."""
        if pool in self._nodes:
            return self._nodes[pool]
        size = self.size(pool)
        if size is None:
            raise NotFoundError(f"there is no pool '{pool}'", "See `muster pools`")
        return nodes_of(size)

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        return consolidation.plan(self._engine, request)
