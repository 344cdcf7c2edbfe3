"""Why work of a mirrored cell waits: what its scheduler says, in words, before what the mirror itself makes of it."""

from __future__ import annotations

import re

from engine.external.slurm.limits import is_limit
from engine.external.slurm.reason_codes import said
from engine.model.queries import Reason
from engine.model.specs import WorkloadState
from engine.state.cell_state import State

UNSEEN = "AwaitingEvaluation"
"""The engine's own token where no gate is closed."""
FITS = "FitsNow"
_WAITS = (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.WAITING, WorkloadState.SUSPENDED)
_TOKEN = re.compile(r"[A-Za-z0-9_:.-]{1,64}")


def outside_token(state: State, row: int) -> str:
    """The scheduler's word, as far as it can stand in a list; empty where it says nothing or the work does not wait."""
    word = state.outside.word_of(row) if state.outside.word else ""
    if not word or state.workloads.state[row] not in _WAITS:
        return ""
    found = _TOKEN.match(word)
    return found[0] if found else ""


def outside_reasons(state: State, row: int) -> tuple[Reason, ...]:
    """One, or none. The text holds the scheduler's own words: untrusted."""
    token = outside_token(state, row)
    if not token:
        return ()
    word = state.outside.word_of(row)
    known = said(word)
    if known is None:
        return (Reason(token=token, text=f"Slurm says {word}"),)
    return (Reason(token=token, text=f"Slurm says {word}: {known.text}", unblock=known.helps),)


def not_foretold(state: State, row: int) -> str:
    """The limit of the scheduler that holds it, where no forecast knows when that lets go; empty for all others."""
    word = outside_token(state, row)
    if not word or state.workloads.state[row] != WorkloadState.WAITING or not is_limit(word):
        return ""
    return (
        f"{word} holds it, which no forecast knows: it tells no start, and there is none before that limit or what is "
        "asked for is changed, or what it counts has decayed"
    )


def without_cycle(own: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The mirror waits for no cycle of its own: where it sees nothing in the way it says so."""
    text = "as far as the mirror sees, it would fit now: a rule of Slurm's holds it, or Slurm has not looked yet"
    return tuple(Reason(token=FITS, text=text) if reason.token == UNSEEN else reason for reason in own)
