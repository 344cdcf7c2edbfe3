"""The scheduling cycle: the order of what waits, admission, preemption, backfill, and work that is moved. It imports
the rooms of the engine below it: admission, placement, state, capacity and model. Start at `cycle`."""
