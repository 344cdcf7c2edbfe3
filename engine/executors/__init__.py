"""Executors, which run the tasks, simulated or as processes of this machine; agents' reports, and the watch over nodes.
It imports placement, state, capacity and model of the engine; `task_shim`, which keeps one task, needs the standard
library alone. Start at `protocol`."""
