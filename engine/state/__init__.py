"""The state of a cell, in columns that events are folded into; nothing else changes them. It imports `engine.model` and
`engine.capacity`. Start at `cell_state`."""
