"""Backtests of every estimator against simple rules, on what was known at the time. Imports the estimators; only the
shell imports it. Start at `run_times`."""
