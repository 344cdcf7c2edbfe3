"""Work that waits goes to another queue."""

from __future__ import annotations

from engine.admission.clone_spec import spec_of
from engine.admission.definitions import Checked
from engine.admission.id_lookup import ids_of, listed, rows_of
from engine.admission.submissions import check_place
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import RefusedError
from engine.model.specs import WorkloadState
from engine.state.cell_state import BOUND, State


def move_to_queue(state: State, command: cmd.MoveToQueue) -> Checked:
    """Raises NotFoundError for workloads, RefusedError for those that hold capacity or have ended, and SpecError for a
    queue that there is not, that takes no work, or in which one of them could never start."""
    w = state.workloads
    rows = rows_of(state, command.ids)
    ended = [w.ids[row] for row in rows if WorkloadState(w.state[row]).terminal]
    if ended:
        raise RefusedError(f"cannot move: {listed(ended)} has ended", "Leave it out")
    running = [w.ids[row] for row in rows if w.state[row] in BOUND]
    if running:
        raise RefusedError(
            f"cannot move: {listed(running)} holds capacity, charged to its queue",
            "Requeue or suspend it first, or move it when it has ended",
        )
    events: list[ev.AnyEvent] = []
    for row in rows:
        check_place(state, spec_of(state, row, w.ids[row], queue=command.queue), f"workload '{w.ids[row]}'")
        to = state.queues.row(command.queue)
        if to != w.queue[row]:
            events.append(ev.Moved(row, to))
    return events, ids_of(state, rows)
