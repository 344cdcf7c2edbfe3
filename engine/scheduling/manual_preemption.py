"""Work that somebody has give way to others: by the rules by which the scheduler itself might preempt it."""

from __future__ import annotations

from collections import Counter

from engine.admission.definitions import Checked
from engine.admission.id_lookup import ids_of, rows_of
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import RefusedError
from engine.model.specs import WorkloadState
from engine.state.cell_state import BOUND, State
from engine.state.workloads import NONE

GAVE_WAY = ev.REQUEUE_CAUSES.index("gave way")


def preempt(state: State, command: cmd.Preempt, now_ms: int) -> Checked:
    """Raises RefusedError naming the first that may not be preempted, and why."""
    rows = rows_of(state, command.ids)
    w = state.workloads
    for row in rows:
        why = _why_not(state, row, now_ms)
        if why:
            raise RefusedError(f"cannot preempt: '{w.ids[row]}' {why}", "Leave it out; requeue stops it all the same")
    for queue, count in Counter(w.queue[row] for row in rows).items():
        left = state.queues.disruptions_left(queue, now_ms)
        if count > left:
            raise RefusedError(
                f"cannot preempt: queue '{state.queues.specs[queue].name}' may be disrupted {left} times more for now",
                f"Preempt at most {left} of it, or requeue them all the same",
            )
    wake_at_ms = now_ms + cmd.YIELD_MS
    return [ev.Requeued(row, GAVE_WAY, saved=w.saves_when_asked(row), wake_at_ms=wake_at_ms) for row in rows], ids_of(
        state, rows
    )


def _why_not(state: State, row: int, now_ms: int) -> str:
    """Why the scheduler would never preempt it now; empty when it might."""
    w = state.workloads
    if w.state[row] not in BOUND:
        return f"is {WorkloadState(w.state[row]).label}"
    if w.preempting[row] != NONE:
        return f"makes room for '{w.ids[w.preempting[row]]}' already"
    if not w.priority_classes[w.priority[row]].preemptible:
        return f"is of priority class '{w.priority_classes[w.priority[row]].name}', which is not preemptible"
    least_ms = state.queues.specs[w.queue[row]].min_runtime_ms
    ran_ms = now_ms - w.started[row]
    if ran_ms < least_ms:
        return f"has run for {ran_ms} of the {least_ms} ms for which its queue lets nobody preempt it"
    return ""
