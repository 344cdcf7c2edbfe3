"""The allocation engine: what a cell is, what may be asked of it, how it decides, and the journal of what happened. It
imports no other package of the project, and no screen, model or HTTP library. Start at `engine.control`, the one door,
then read `engine.scheduling.cycle`."""
