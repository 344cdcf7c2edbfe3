"""The allocation engine: specs, events, state, scheduling, journal. Imports no screen and no model package."""
