"""Backtests of every estimator beside simple rules, each on what was known at the time. It imports the other rooms of
the recommender and `engine.traces`; only `console.evals` and tests import it. Start at `run_times`."""
