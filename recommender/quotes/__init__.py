"""When would it start and what would it cost. Imports runtimes, forecasts and the twin. Start at `cost_estimates`."""
