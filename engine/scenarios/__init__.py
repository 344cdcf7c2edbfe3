"""Published runs and scripted days, replayed. Imports the engine's door and traces; nothing imports it but the shell
and tests. Start at `live_scenarios`."""
