"""Reasons to look again at what the scheduler has refused, or promised a time. Whoever changes something that may let
refused work start, or that breaks a promise, asks with the cause; the cycle takes the causes and starts over.

Room that a node gains is not asked for here: it is counted where it is given back (`Capacity.gains`).
"""

from __future__ import annotations

from enum import IntEnum


class Cause(IntEnum):
    FIRST_LOOK = 0
    """This scheduler has looked at nothing yet."""
    ROOM = 1
    """A node has room that it did not have."""
    OVERDUE = 2
    """Work that a promise counted on has outrun its expected end."""
    STARTED = 3
    """What has just started may be preempted by something that was refused before."""
    LEFT = 4
    """Something waits no longer: it may have been first, or promised its time."""
    ORDER = 5
    """Priorities, or kinds of workloads, have changed."""
    RULES = 6
    """The policy, settings, prices, a queue or a cap have changed."""
    BUDGET = 7
    """A budget stops other work than before."""
    ELASTIC = 8
    """Elastic work has tasks it can do without, or could have more."""
    NEIGHBOURS = 9
    """Work runs that others want to be near to."""
    TIME = 10
    """A time has come: of a reservation, a burst, a minimum run time, a turn or a pause."""


class Reconsider:
    """Causes that nobody has taken yet."""

    __slots__ = ("causes", "times")

    def __init__(self) -> None:
        self.causes: set[Cause] = set()
        self.times = 0
        """How often it was asked for."""

    def ask(self, cause: Cause) -> None:
        self.causes.add(cause)
        self.times += 1

    def take(self) -> set[Cause]:
        causes, self.causes = self.causes, set()
        return causes

    def copy(self) -> Reconsider:
        other = Reconsider()
        other.causes, other.times = set(self.causes), self.times
        return other
