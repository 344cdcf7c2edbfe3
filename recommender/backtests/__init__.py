"""Every estimator against simple rules, on what was known then. Imports the estimators; nothing imports it but the
shell. Start at `run_times`."""
