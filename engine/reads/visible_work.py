"""The work, queues and names of a state that a caller may see (`engine.model.visibility`).

A workload is visible by its tenant, team or queue. A queue is visible if it holds visible work, stands above such a
queue, or was named. Nodes and pools are visible to all: others' work is known by the load it puts on them. All else
that has a name is hidden unless it belongs to visible work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from engine.model.columns import Names, Numbers, view
from engine.model.errors import NotFoundError, not_found
from engine.model.list_queries import Kind
from engine.model.visibility import OTHERS, Visibility, VisiblePart
from engine.reads.lists import RowSource
from engine.state.cell_state import State

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
"""What may be the name of something."""
_EDGES = "._/+-"
_SEVERAL = re.compile(rf"{OTHERS}(?:(?:, | and |, and ){OTHERS})+")


class VisibleWork:
    """What may be seen of one state as it is. Never changes it."""

    def __init__(self, state: State, visibility: Visibility) -> None:
        self._state = state
        self.visibility = visibility
        self._parts = [_PartCodes(state, part) for part in visibility.parts]

    # -- workloads ----------------------------------------------------------------------------------------------------

    def row(self, row: int) -> bool:
        w = self._state.workloads
        return all(part.holds(w.tenant[row], w.team[row], w.queue[row]) for part in self._parts)

    def account(self, row: int) -> bool:
        """The same of an account of the ledger."""
        books = self._state.ledger
        where = books.account_tenant[row], books.account_team[row], books.account_queue[row]
        return all(part.holds(*where) for part in self._parts)

    @cached_property
    def rows(self) -> Numbers:
        """Mask of the visible rows."""
        w = self._state.workloads
        found = np.ones(len(w.ids), bool)
        for part in self._parts:
            found &= part.mask(view(w.tenant), view(w.team), view(w.queue))
        return found

    def check(self, workload_id: str) -> int:
        """Row of the workload. Raises NotFoundError, the same for what is hidden and for what does not exist."""
        row = self._state.workloads.row_of.get(workload_id)
        if row is None or not self.row(row):
            raise not_found("workload", [workload_id], ())
        return row

    def shown_id(self, workload_id: str) -> str:
        row = self._state.workloads.row_of.get(workload_id)
        return workload_id if row is None or self.row(row) else OTHERS

    # -- queues -------------------------------------------------------------------------------------------------------

    @cached_property
    def queues(self) -> Numbers:
        """Mask of the visible queues."""
        tree = self._state.queues
        found = np.zeros(len(tree.specs), bool)
        holding = set(np.unique(view(self._state.workloads.queue)[self.rows]).tolist())
        named = {tree.row_of[name] for part in self.visibility.parts for name in part.queues if name in tree.row_of}
        for queue in holding | named:
            found[list(tree.path[queue])] = True
        return found

    def check_queue(self, name: str) -> int:
        """Row of the queue. Raises NotFoundError, the same for what is hidden and for what does not exist."""
        row = self._state.queues.row_of.get(name)
        if row is None or not self.queues[row]:
            raise not_found("queue", [name], ())
        return row

    # -- names --------------------------------------------------------------------------------------------------------

    @cached_property
    def tenants(self) -> frozenset[str]:
        """Tenants that are named, and those of visible work."""
        named = {name for part in self.visibility.parts for name in part.tenants}
        named.update(tenant for part in self.visibility.parts for tenant, _ in part.teams)
        w = self._state.workloads
        return frozenset(named | _names_at(w.tenants, view(w.tenant)[self.rows]))

    @cached_property
    def teams(self) -> frozenset[str]:
        """The same of teams."""
        named = {team for part in self.visibility.parts for _, team in part.teams}
        w = self._state.workloads
        return frozenset(named | _names_at(w.teams, view(w.team)[self.rows]))

    @cached_property
    def arrays(self) -> frozenset[str]:
        w = self._state.workloads
        return frozenset(_names_at(w.array_names, view(w.array)[self.rows]))

    @cached_property
    def reservations(self) -> frozenset[str]:
        """Reservations that visible queues may use."""
        tree = self._state.queues
        seen = {spec.name for spec, shown in zip(tree.specs, self.queues.tolist(), strict=True) if shown}
        return frozenset(
            each.spec.name for each in self._state.bookings.reservations if seen.intersection(each.spec.queues)
        )

    @cached_property
    def budgets(self) -> frozenset[str]:
        """Budgets that visible work is charged to."""
        seen = {"tenant": self.tenants, "team": self.teams, "queue": self._queue_names}
        return frozenset(spec.name for spec in self._state.budgets.specs if spec.of in seen[spec.scope])

    @cached_property
    def _queue_names(self) -> frozenset[str]:
        return frozenset(
            spec.name for spec, shown in zip(self._state.queues.specs, self.queues.tolist(), strict=True) if shown
        )

    @cached_property
    def _hidden_names(self) -> tuple[tuple[Callable[[str], bool], Callable[[str], bool]], ...]:
        """(whether something is called so, whether it may be seen), for each kind of names."""
        state = self._state
        w, queues = state.workloads, state.queues
        reservations = {each.spec.name for each in state.bookings.reservations}
        budgets = {spec.name for spec in state.budgets.specs}
        return (
            (w.row_of.__contains__, lambda name: self.row(w.row_of[name])),
            (queues.row_of.__contains__, lambda name: bool(self.queues[queues.row_of[name]])),
            (w.tenants.index.__contains__, self.tenants.__contains__),
            (w.teams.index.__contains__, self.teams.__contains__),
            (w.array_names.index.__contains__, self.arrays.__contains__),
            (reservations.__contains__, self.reservations.__contains__),
            (budgets.__contains__, self.budgets.__contains__),
        )

    def is_hidden(self, word: str) -> bool:
        """True if something is called so and nothing of that name may be seen. A single letter tells nothing, and is
        in every sentence."""
        if len(word) < 2:
            return False
        called = [seen(word) for known, seen in self._hidden_names if known(word)]
        return bool(called) and not any(called)

    def hidden(self, text: str) -> Iterator[re.Match[str]]:
        """The words of a text that may not be seen: whole names, or names with a slash between."""
        for found in WORD.finditer(text):
            word = found.group().rstrip(_EDGES)
            if self.is_hidden(word) or ("/" in word and any(map(self.is_hidden, word.split("/")))):
                yield found

    def redacted(self, text: str) -> str:
        """The text, with `OTHERS` for each name that may not be seen, and how many for several in a row."""
        parts, end = [], 0
        for found in self.hidden(text):
            word = found.group().rstrip(_EDGES)
            parts += [text[end : found.start()], OTHERS]
            end = found.start() + len(word)
        if not parts:
            return text
        whole = "".join((*parts, text[end:]))
        return _SEVERAL.sub(lambda each: f"{OTHERS} ({each.group().count(OTHERS)})", whole)

    # -- lists --------------------------------------------------------------------------------------------------------

    def limit(self, kind: Kind, source: RowSource) -> None:
        """Hide from a list what may not be seen: before it is counted, filtered, sorted or paged."""
        if kind == "workloads":
            source.hidden = ~self.rows
        elif kind == "queues":
            source.hidden = ~self.queues
        elif kind == "reservations":
            source.hidden = np.array([name not in self.reservations for name in source.texts["name"]], bool)
            source.texts["queues"] = [
                ", ".join(name for name in names.split(", ") if name in self._queue_names)
                for names in source.texts["queues"]
            ]
        elif kind == "orders":
            source.texts["workload"] = [name and self.shown_id(name) for name in source.texts["workload"]]
        elif kind not in ("nodes", "pools"):
            raise NotFoundError(f"there is no list of {kind}", "")


class _PartCodes:
    """One part, as codes of the columns."""

    def __init__(self, state: State, part: VisiblePart) -> None:
        w, tree = state.workloads, state.queues
        self.tenants = {w.tenants.index[name] for name in part.tenants if name in w.tenants.index}
        self.teams = {
            (w.tenants.index.get(tenant, -1) if tenant else None, w.teams.index[team])
            for tenant, team in part.teams
            if team in w.teams.index
        }
        self.queues = {
            row for row, path in enumerate(tree.path) if any(tree.specs[each].name in part.queues for each in path)
        } if part.queues else set()  # fmt: skip

    def holds(self, tenant: int, team: int, queue: int) -> bool:
        return (
            tenant in self.tenants or queue in self.queues or (None, team) in self.teams or (tenant, team) in self.teams
        )

    def mask(self, tenant: Numbers, team: Numbers, queue: Numbers) -> Numbers:
        found: Numbers = np.isin(tenant, list(self.tenants)) | np.isin(queue, list(self.queues))
        for of, code in self.teams:
            found |= (team == code) & (True if of is None else tenant == of)
        return found


def _names_at(names: Names, codes: Numbers) -> set[str]:
    return {names.names[code] for code in np.unique(codes).tolist() if code >= 0}
