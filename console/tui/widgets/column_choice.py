"""Which columns a person wants of each list: kept for every later opening of the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from console.views.lists import every_column

if TYPE_CHECKING:
    from console.forms.session_state import SessionState
    from engine.model.queries import Kind


def kept_columns(app: Any, kind: Kind) -> tuple[str, ...]:
    """None chosen: empty. What is not a column (any more) is left out."""
    kept = _session(app).recall(_key(kind))
    known = every_column(kind)
    return tuple(name for name in kept if name in known) if isinstance(kept, list) else ()


def keep_columns(app: Any, kind: Kind, names: Sequence[str]) -> None:
    """None: forget the choice. The file is written beside the keys."""
    write = partial(_session(app).remember, _key(kind), list(names) or None)
    Thread(target=write, daemon=True, name="muster-columns").start()


def _key(kind: Kind) -> str:
    return f"columns {kind}"


def _session(app: Any) -> SessionState:
    """That of the app; one that ends with the process where it has none."""
    if getattr(app, "session", None) is None:
        from console.forms.session_state import SessionState

        app.session = SessionState()
    session: SessionState = app.session
    return session
