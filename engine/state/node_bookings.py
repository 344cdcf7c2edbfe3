"""Nodes that are kept for somebody: advance reservations, and what a preemption is clearing for its preemptor.

A kept node leaves the index of its pool (`Capacity.book`), so nobody else finds it. Before an advance reservation
starts, its nodes stay usable for work that is expected to be gone by then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.model.errors import NotFoundError
from engine.model.specs import ReservationSpec
from engine.tables.columns import Table


class Reservation(msgspec.Struct, frozen=True, array_like=True):
    """An advance reservation and the number its nodes are kept under."""

    booking: int
    spec: ReservationSpec


class Clearing(msgspec.Struct, frozen=True, array_like=True):
    """A preemption whose victims still write their checkpoints."""

    booking: int
    row: int
    """The preemptor."""
    victims: tuple[int, ...]
    causes: tuple[int, ...]
    """Index into events.REQUEUE_CAUSES for each victim."""
    nodes: tuple[int, ...]
    at_ms: int


class Bookings(Table):
    """All of them, oldest first."""

    columns = ("issued", "reservations", "clearings")

    def __init__(self) -> None:
        self.issued = 0
        """Numbers given out so far; a number is never given twice."""
        self.reservations: list[Any] = []
        self.clearings: list[Any] = []

    def derive(self) -> None:
        self.reservations = [msgspec.convert(r, Reservation) for r in self.reservations]
        self.clearings = [msgspec.convert(c, Clearing) for c in self.clearings]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {
            "reservations": msgspec.to_builtins(self.reservations),
            "clearings": msgspec.to_builtins(self.clearings),
        }

    def reserve(self, spec: ReservationSpec) -> Reservation:
        reservation = Reservation(self.issued, spec)
        self.issued += 1
        self.reservations.append(reservation)
        return reservation

    def reservation(self, name: str) -> Reservation:
        for reservation in self.reservations:
            if reservation.spec.name == name:
                return Reservation(reservation.booking, reservation.spec)
        raise NotFoundError(f"there is no reservation '{name}'", "List them with: muster get reservations")

    def unreserve(self, name: str) -> Reservation:
        reservation = self.reservation(name)
        self.reservations.remove(reservation)
        return reservation

    def clear(self, row: int, victims: list[int], causes: list[int], nodes: list[int], at_ms: int) -> Clearing:
        clearing = Clearing(self.issued, row, tuple(victims), tuple(causes), tuple(nodes), at_ms)
        self.issued += 1
        self.clearings.append(clearing)
        return clearing

    def clearing_for(self, row: int) -> Clearing | None:
        return next((c for c in self.clearings if c.row == row), None)

    def drop(self, clearing: Clearing) -> None:
        self.clearings.remove(clearing)

    def usable(self, row: int, own: str, queues: frozenset[str], now_ms: int, end_ms: int) -> tuple[int, ...]:
        """Bookings whose nodes the workload may use now.

        `own`: the reservation it names, `queues`: the names of its queue and those above, `end_ms`: when it is
        expected to end if it starts now.
        """
        found = [c.booking for c in self.clearings if c.row == row]
        for booking, spec in ((r.booking, r.spec) for r in self.reservations):
            if own:
                may = own == spec.name and now_ms >= spec.start_ms
            else:
                may = end_ms <= spec.start_ms or (now_ms >= spec.start_ms and not queues.isdisjoint(spec.queues))
            if may:
                found.append(booking)
        return tuple(found)
