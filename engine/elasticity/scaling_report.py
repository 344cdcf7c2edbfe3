"""The autoscaler's inputs, and the present and wanted size of each growing pool, for reports and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine.model.spec_parts import Autoscaling, ScalingSpec

if TYPE_CHECKING:
    from engine.state.cell_state import State
    from engine.state.demand import Forecaster


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, in nodes."""

    pool: str
    scaling: ScalingSpec | None
    """None: it does not grow by itself."""
    ready: int
    booting: int
    other: int
    """Cordoned, draining, down or not heard of."""
    ordered: int
    """Asked for and not granted yet."""
    asked: int
    """Nodes that running work fills and waiting work, as far as quota allows, would fill."""
    wanted: int
    """Nodes it should have in any case: the largest of its minimum, its target and its forecast."""
    set_for: tuple[tuple[int, int], ...] = ()
    """(cell ms, nodes) that people have set."""
    noted_hours: int = 0
    """Hours of demand that a forecast can go by."""


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    settings: Autoscaling
    pools: tuple[PoolSize, ...]
    forecast: str = ""
    """The source of the demand forecast, in words."""


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
