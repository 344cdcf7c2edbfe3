"""Published runs and scripted days, played through the engine. It may import every other room of the engine; only the
shell, `console.evals` and tests import it. Start at `live_scenarios`."""
