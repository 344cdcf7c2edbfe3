"""Modules that declarations need only when an action is used: the shell reads every declaration before each command,
and `muster --help` answers before msgspec is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class Late:
    """Stands for a module, which is imported with the first name that is asked of it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


if TYPE_CHECKING:
    import msgspec as msgspec

    from engine import commands as commands
    from engine import consolidation as consolidation
    from engine import model as model
    from engine import money as money
    from engine import query as query
    from engine import scaling as scaling
    from runbooks import plan as plan
else:
    commands, consolidation, model = Late("engine.commands"), Late("engine.consolidation"), Late("engine.model")
    money, query, scaling = Late("engine.money"), Late("engine.query"), Late("engine.scaling")
    plan, msgspec = Late("runbooks.plan"), Late("msgspec")
