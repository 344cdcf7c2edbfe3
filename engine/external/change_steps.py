"""An intent's changes, one thing at a time, and what is read of that thing there."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from engine.model.external_cells import StepStanding

D = TypeVar("D", bound=str)


class ChangeStep(msgspec.Struct, Generic[D], frozen=True):
    """One change to one thing: whether it is done already, how it is done, and whether it then is. It can be tried
    again, because it is looked at first."""

    do: D
    target: str
    value: str = ""


class StepReading(msgspec.Struct, frozen=True):
    """A reading of the thing that a step changes."""

    standing: StepStanding
    text: str
