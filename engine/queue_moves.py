"""Work that waits goes to another queue."""

from __future__ import annotations

from engine import commands as cmd
from engine import events as ev
from engine.definitions import Checked
from engine.errors import RefusedError
from engine.model import WorkloadState
from engine.naming import ids_of, listed, rows_of
from engine.respec import spec_of
from engine.state import BOUND, State
from engine.submission import check_place


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
