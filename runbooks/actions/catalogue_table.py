"""The catalogue as people read it: for `muster actions` and the manual."""

from __future__ import annotations

import msgspec

from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import Action
from runbooks.plans.amounts import span
from runbooks.plans.typed_plan import ActionName, Tier


class ActionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action, everything that is declared of it."""

    name: ActionName
    targets: str
    """Kind of them, and how many at a time."""
    when: str
    """What must hold of each before it is done."""
    parameters: tuple[str, ...]
    tier: Tier
    raised: str
    """What makes the tier higher; empty when nothing does."""
    inverse: str
    verified: str
    timeout_ms: int


def lines() -> tuple[ActionLine, ...]:
    return tuple(_line(row) for row in CATALOG.values())


def _line(row: Action) -> ActionLine:
    count = "one" if row.most == 1 else f"up to {row.most:,}"
    return ActionLine(
        name=row.name,
        targets=f"{row.kind}, {count}",
        when=" or ".join(sorted(row.states)) if len(row.states) < 6 else "not ended",
        parameters=row.fields,
        tier=row.tier,
        raised=row.raised,
        inverse=row.inverse.format(them="them", was="what was"),
        verified=row.verified,
        timeout_ms=row.timeout_ms,
    )


def markdown(shell: dict[str, str]) -> list[str]:
    """A table for the manual. `shell`: action -> how it is typed."""
    head = ("action", "targets", "tier", "raised by", "taken back by", "read back", "within")
    rows = [
        (
            f"`{shell[line.name]}`", line.targets, line.tier, line.raised or "-", line.inverse, line.verified,
            span(line.timeout_ms),
        )
        for line in lines()
    ]  # fmt: skip
    cells = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(text.replace('|', '/') for text in row)} |" for row in cells]
