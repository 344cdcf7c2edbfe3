"""The `Client`: every question that can be asked of a cell, declared once, and the ways to ask it from another process.
It imports `console.forms` and `console.text`, and typed answers of the other packages. Start at `protocol`."""

import sys

# Of httpx not its own command line, with rich, click and pygments: 40 of the 330 ms of a plain `muster get`.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
