"""What part of a cell's work a caller may see. Types only; `engine.reads.visible_work` applies them."""

from __future__ import annotations

import msgspec

OTHERS = "work of others"
"""In place of the name of anything that a caller may not see."""


class VisiblePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work of any of these; nothing named: no work at all."""

    tenants: tuple[str, ...] = ()
    teams: tuple[tuple[str, str], ...] = ()
    """(tenant, team); an empty tenant: the team of that name in any of them."""
    queues: tuple[str, ...] = ()
    """Queues that take work, and those above them."""


class Visibility(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work that is in each of the parts. Whoever sees the whole cell has none of these (`None`)."""

    parts: tuple[VisiblePart, ...]
