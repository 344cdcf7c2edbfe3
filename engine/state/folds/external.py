"""What events of a cell that another scheduler decides change in the state."""

from __future__ import annotations

from array import array
from heapq import heappush
from typing import TYPE_CHECKING

from engine.model import events as ev
from engine.model.specs import WorkloadState
from engine.state import external_caps
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.reconsider import Cause

if TYPE_CHECKING:
    from engine.state.cell_state import State

_ENDS = (wl.FINISHED, wl.FAILED, wl.CANCELLED, wl.VANISHED)


def dated(state: State, event: ev.Dated) -> None:
    row, at_ms = event.row, min(event.at_ms, state.now_ms)
    w = state.workloads
    if event.what == wl.SUBMITTED:
        w.submitted[row] = at_ms
        if w.state[row] in (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.WAITING):
            w.since[row] = at_ms
    elif event.what == wl.RUNNING:
        w.started[row] = at_ms
        if w.state[row] == WorkloadState.RUNNING:
            w.rated[row] = w.since[row] = at_ms
            heappush(state.ends, (w.expected_end(row, state.now_ms), row))
            state.timers.watch(state, row)
    elif event.what in _ENDS and WorkloadState(w.state[row]).terminal:
        w.ended[row] = w.since[row] = at_ms
        if event.what == wl.FINISHED and w.started[row] >= 0 and not w.kept[row]:
            # It may have been seen for a moment only, or not at all.
            w.done[row] = max(at_ms - w.started[row], 1)
            w.note_finished(row)
    entry = w.history[row]
    while entry != NONE and w.history_what[entry] != event.what:
        entry = w.history_previous[entry]
    if entry != NONE:
        w.history_at[entry] = at_ms


def parked(state: State, event: ev.Parked) -> None:
    row, w = event.row, state.workloads
    if w.state[row] == WorkloadState.QUEUED:
        state.dequeue(row)
    if w.state[row] != WorkloadState.WAITING:
        w.set_state(row, WorkloadState.WAITING, wl.WAITING, state.now_ms)
    w.wake[row] = event.wake_at_ms
    state.timers.watch(state, row)


def vanished(state: State, event: ev.Vanished) -> None:
    state.end(event.row, WorkloadState.CANCELLED, wl.VANISHED)


def reestimated(state: State, event: ev.Reestimated) -> None:
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.dequeue(row)
    w = state.workloads
    w.reestimate(row, event.estimate_ms, state.capacity)
    if queued:
        state.enqueue(row)
    elif state.is_bound(row):
        heappush(state.ends, (w.expected_end(row, state.now_ms), row))


def boots_told(state: State, event: ev.BootsTold) -> None:
    state.outside.powered_down(array("i", event.nodes), event.boot_ms)


def outside_said(state: State, event: ev.OutsideSaid) -> None:
    state.outside.say(zip(array("i", event.rows), event.words, strict=True))


def runs_told(state: State, event: ev.RunsTold) -> None:
    state.past.tell(event.runs, event.until_ms)


def caps_told(state: State, event: ev.CapsTold) -> None:
    if event.most is not None:
        state.caps.limit(event.most)
        state.reconsider.ask(Cause.RULES)
    for row, draws in zip(array("i", event.rows), event.draws, strict=True):
        external_caps.draw(state, row, draws)
