"""The allocation engine: specs, events, state, scheduling, journal. Imports no screen and no model package. Start at
`engine.control`, the one door, then `engine.scheduling.cycle`."""
