"""Cells that another scheduler decides: what was observed, what is to be done there. Imports state and the door's
commands. Start at `observed_changes`."""
