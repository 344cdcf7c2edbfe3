"""The history of a cell: measurements and ended work, collected, summed up over time, or imported. It imports
`engine.journal` for its tables, `engine.traces` for files of ended work, and `engine.model`. Start at `telemetry`."""
