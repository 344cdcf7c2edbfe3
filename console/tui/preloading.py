"""What is likely to be opened next is loaded while the first page is read: the first key for it is answered as quickly
as the second. Beside the keys, and a part at a time, so that none of them waits."""

from __future__ import annotations

import threading
import time
from importlib import import_module

AFTER_S = 0.5
"""When the first page has its data, as a rule."""
BETWEEN_S = 0.02
PARTS = (
    "console.tui.screens.lists.workloads",
    "console.tui.screens.workload",
    "console.tui.widgets.prompt_bar",
    "console.actions.line_completion",
    "console.actions.completion_values",
    "console.tui.dialogs.columns",
    "console.tui.screens.lists.queues",
    "console.tui.screens.queue",
    "console.tui.screens.lists.nodes",
    "console.tui.screens.node",
    "console.tui.screens.events",
    "console.tui.dialogs.help",
    "console.tui.screens.proposals",
    "console.tui.screens.recommendations",
    "console.tui.screens.topology",
    "console.tui.bookmarks",
)


def load_ahead() -> None:
    """Returns at once."""
    threading.Thread(target=_load, daemon=True, name="muster-load").start()


def _load() -> None:
    for part in PARTS:
        import_module(part)
        time.sleep(BETWEEN_S)
