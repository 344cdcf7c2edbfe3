"""Modules that declarations need only when an action is used: the shell reads every declaration before each command,
and `muster --help` answers before msgspec is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ("commands", "consolidation", "model", "money", "msgspec", "plan", "query", "scaling")


class Late:
    """Stands for a module, which is imported with the first name that is asked of it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


if TYPE_CHECKING:
    import msgspec

    from engine.model import autoscaling as scaling
    from engine.model import commands, money
    from engine.model import queries as query
    from engine.model import specs as model
    from engine.twin import consolidation
    from runbooks.plans import typed_plan as plan
else:
    commands, consolidation, model = (
        Late("engine.model.commands"),
        Late("engine.twin.consolidation"),
        Late("engine.model.specs"),
    )
    money, query, scaling = Late("engine.model.money"), Late("engine.model.queries"), Late("engine.model.autoscaling")
    plan, msgspec = Late("runbooks.plans.typed_plan"), Late("msgspec")
