"""A workload that is there, as a spec to be submitted anew."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.model.specs import WorkloadSpec
from engine.state.cell_state import State


def spec_of(state: State, row: int, name: str, **changes: Any) -> WorkloadSpec:
    """As if it were submitted now under the id `name`, with other fields changed. Dependencies and arrays are left
    out: it stands alone."""
    w = state.workloads
    workload_class, terms = w.class_at(row), w.terms_at(row)
    spec = WorkloadSpec(
        id=name,
        name=w.names[row],
        queue=state.queues.specs[w.queue[row]].name,
        groups=workload_class.groups,
        priority_class=w.priority_classes[w.priority[row]].name,
        tenant=w.tenants.names[w.tenant[row]],
        team=w.teams.names[w.team[row]],
        tags=msgspec.json.decode(w.tag_sets.names[w.tags[row]], type=dict[str, str]),
        estimate_ms=workload_class.estimate_ms,
        checkpoint_interval_ms=w.checkpoint[row],
        checkpoint_cost_ms=w.checkpoint_cost[row],
        elastic=bool(w.elastic[row]),
        hot_swap=bool(w.hot_swap[row]),
        not_before_ms=terms.not_before_ms,
        deadline_ms=terms.deadline_ms,
        max_runtime_ms=terms.max_runtime_ms,
        retries=terms.retries,
        backoff_ms=terms.backoff_ms,
        restore_ms=terms.restore_ms,
        qos=workload_class.bonds.qos,
        service=terms.service,
        simulated_usage_permille=terms.simulated_usage_permille,
        run=terms.run,
        reservation=workload_class.reservation,
        topology=workload_class.bonds.topology,
        near=workload_class.bonds.near,
        apart=workload_class.bonds.apart,
        data=workload_class.bonds.data,
        simulated_runtime_ms=w.simulated[row],
        simulated_failures=w.failing[row],
    )
    return msgspec.structs.replace(spec, **changes)
