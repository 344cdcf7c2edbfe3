"""The `Client`: every question that can be asked of a cell, declared once, and the ways to ask it from another process.
It imports `console.forms` and `console.text`, and typed answers of the other packages. Start at `protocol`."""
