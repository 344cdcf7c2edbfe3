"""Reports on scaling: the autoscaler's inputs, the present and wanted size of each growing pool, orders with their
likely times, and the reasons why no pool grows for some work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.elasticity.providers import ANSWER_MS
from engine.elasticity.scale_up import Planner
from engine.model.columns import view
from engine.model.details import Reason
from engine.model.quantities import utc
from engine.model.reports import PoolSize, ScalingReport
from engine.model.specs import NodeState
from engine.placement.node_choice import grows
from engine.state.cell_state import State
from engine.state.machines import OrderState

if TYPE_CHECKING:
    from engine.state.demand import Forecaster


def scaling(state: State, now_ms: int, forecaster: Forecaster | None = None) -> ScalingReport:
    """Every pool, in the order of its definition. `forecaster`: None for the built-in one."""
    # Imported here, so that clients need not load what decides.
    from engine.elasticity.capacity_ahead import Foresight, asked_nodes
    from engine.model.specs import NodeState
    from engine.state.demand import SeasonalBaseline

    c = state.capacity
    forecaster = SeasonalBaseline() if forecaster is None else forecaster
    wanted, asked = Foresight(state, forecaster).wanted(now_ms), asked_nodes(state, now_ms)
    counts = [[0] * len(NodeState) for _ in c.pools]
    for node in c.row_of.values():
        counts[c.pool[node]][c.state[node]] += 1
    found = []
    for pool, spec in enumerate(c.pools):
        ready, booting = counts[pool][NodeState.READY], counts[pool][NodeState.BOOTING]
        found.append(
            PoolSize(
                pool=spec.name,
                scaling=spec.scaling,
                ready=ready,
                booting=booting,
                other=sum(counts[pool]) - ready - booting,
                ordered=state.orders.due(pool),
                asked=asked[pool],
                wanted=wanted.get(pool, 0),
                set_for=tuple(state.sizing.targets.get(pool, ())),
                noted_hours=len(state.sizing.demand.get(pool, ())),
            )
        )
    return ScalingReport(
        version=state.version,
        now_ms=now_ms,
        settings=state.settings.autoscaling,
        pools=tuple(found),
        forecast=str(forecaster),
    )


NODES = "WaitingForNodes"
NEVER = -1
MAX_NAMED = 3
"""Orders or pools that a sentence names."""


def ready_ms(state: State, order: int) -> int | None:
    """Cell time at which its machines are likely to be ready, by the median of their boot time; None when nothing more
    comes of it."""
    orders, c = state.orders, state.capacity
    scaling = c.pools[orders.pool[order]].scaling
    if scaling is None or not orders.matters(order):
        return None
    granted = np.flatnonzero((view(c.order) == order) & (view(c.state) == NodeState.BOOTING))
    from_ms = int(view(c.born)[granted].max()) if len(granted) else NEVER
    if orders.state[order] == OrderState.OPEN:
        from_ms = max(from_ms, orders.ordered_ms[order] + sum(ANSWER_MS) // 2)
    return None if from_ms == NEVER else from_ms + scaling.boot_ms[0]


def _kept_back(state: State, row: int) -> str:
    """The reason why a workload that lacks room would not start if it had some."""
    w = state.workloads
    budget = state.budgets.stopping(state, row)
    if budget is not None:
        return f"budget {state.budgets.specs[budget].name} keeps it from starting"
    if not state.queues.is_open(w.queue[row]):
        return "its queue is held"
    if w.class_at(row).reservation:
        return "it may use only the nodes of its reservation"
    if state.bookings.clearing_for(row) is not None:
        return "others are being preempted to make room for it"
    if w.at_array_limit(row):
        return "its array is at its limit of running members"
    return "work ahead of it would use the quota of its queue"


def outlook(state: State, row: int) -> Reason | None:
    """The autoscaler's plans for a workload that waits for room; None where no pool grows, or where it would fit by
    now.
    """
    pools = state.capacity.pools
    if not any(map(grows, pools)):
        return None
    settings = state.settings.autoscaling
    if not settings.enabled:
        return Reason(token=NODES, text="the autoscaler is off")
    planner = Planner(state, state.now_ms, explained=row)
    planner.orders()
    coming = _coming(state, row)
    if planner.outcome == "young":
        return Reason(
            token=NODES, text=f"nodes are ordered for work that has waited {settings.scale_up_after_ms / 1000:g} s"
        )
    own = row in state.orders.workload and bool(coming)
    if planner.outcome == "incoming" or own or (coming and planner.outcome == "ordered"):
        return Reason(token=NODES, text=f"waiting for nodes: {coming or 'they are on their way'}")
    if planner.outcome in ("ordered", "next"):
        return Reason(token=NODES, text="the next scan of the autoscaler orders nodes for it")
    if planner.outcome == "passed over":
        return Reason(token=NODES, text=f"no nodes are ordered for it: {_kept_back(state, row)}")
    if planner.outcome == "free":
        return None
    said = [f"{pools[pool].name} {why}" for pool, why in sorted(planner.reasons.items())]
    if not said:
        return None
    more = f", and {len(said) - 2 * MAX_NAMED} more" if len(said) > 2 * MAX_NAMED else ""
    text = f"no autoscaled pool could hold it: {'; '.join(said[: 2 * MAX_NAMED])}{more}"
    return Reason(token=NODES, text=text)


def _coming(state: State, row: int) -> str:
    """The orders that it is likely to get nodes of: those for it, else those for whoever comes, oldest first."""
    orders = state.orders
    rows = [r for r in range(len(orders.pool)) if ready_ms(state, r) is not None]
    own = [r for r in rows if orders.workload[r] == row]
    usable = {pool for shape in state.workloads.class_at(row).shapes for pool in shape.pools}
    return _listed(state, own or [r for r in rows if orders.pool[r] in usable])


def _listed(state: State, rows: Sequence[int]) -> str:
    orders, now_ms = state.orders, state.now_ms
    texts = []
    for row in rows[:MAX_NAMED]:
        left = orders.wanted[row] - orders.granted[row] if orders.state[row] == OrderState.OPEN else 0
        at_ms = ready_ms(state, row)
        when = f"ready about {utc(at_ms)}" if at_ms is not None and at_ms > now_ms else "due any moment"
        pool = state.capacity.pools[orders.pool[row]].name
        texts.append(f"order {row}, {left + orders.booting[row]} of {pool}, {when}")
    more = f", and {len(rows) - MAX_NAMED} more orders" if len(rows) > MAX_NAMED else ""
    return "; ".join(texts) + more
