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
    "console.screens.workloads",
    "console.screens.workload",
    "console.prompt_bar",
    "console.command_completion",
    "console.known_values",
    "console.column_dialog",
    "console.screens.queues",
    "console.screens.queue",
    "console.screens.nodes",
    "console.screens.node",
    "console.screens.events",
    "console.help_dialog",
    "console.screens.proposals",
    "console.screens.recommendations",
    "console.screens.topology",
    "console.bookmarks",
)


def load_ahead() -> None:
    """Returns at once."""
    threading.Thread(target=_load, daemon=True, name="muster-load").start()


def _load() -> None:
    for part in PARTS:
        import_module(part)
        time.sleep(BETWEEN_S)
