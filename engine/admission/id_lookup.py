"""The ids that people type become rows, and back; what is unknown is named."""

from __future__ import annotations

from engine.model.errors import NotFoundError, SpecError
from engine.model.specs import WorkloadState
from engine.state.cell_state import State


def rows_of(state: State, ids: tuple[str, ...]) -> list[int]:
    """Rows of all the ids, each once; the id of an array stands for its members. Names every unknown id."""
    known, arrays = state.workloads.row_of, state.workloads.array_names.index
    unknown = [i for i in ids if i not in known and i not in arrays]
    if unknown:
        raise NotFoundError(f"there is no workload {listed(unknown)}", "List them with: muster get workloads")
    if not ids:
        raise SpecError("ids", "is empty", "Name at least one")
    rows: list[int] = []
    for name in dict.fromkeys(ids):
        if name in known:
            rows.append(known[name])
        else:
            rows += [row for row in members_of(state, name) if not WorkloadState(state.workloads.state[row]).terminal]
    return list(dict.fromkeys(rows))


def members_of(state: State, array_name: str) -> list[int]:
    """Rows of the members of an array."""
    array_row = state.workloads.array_names.index[array_name]
    return [row for row, member in enumerate(state.workloads.array) if member == array_row]


def nodes_of(state: State, ids: tuple[str, ...]) -> list[int]:
    known = state.capacity.row_of
    unknown = [i for i in ids if i not in known]
    if unknown:
        raise NotFoundError(f"there is no node {listed(unknown)}", "List them with: muster get nodes")
    if not ids:
        raise SpecError("ids", "is empty", "Name at least one")
    return [known[i] for i in dict.fromkeys(ids)]


def ids_of(state: State, rows: list[int]) -> tuple[str, ...]:
    return tuple(state.workloads.ids[row] for row in rows)


def listed(ids: list[str]) -> str:
    shown = ", ".join(f"'{i[:64].encode('unicode_escape').decode()}'" for i in ids[:5])
    return shown + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
