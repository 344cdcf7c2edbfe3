"""Shell commands that replay traces, backtest and run published scenarios. Imports `engine.scenarios`, `engine.traces`
and `recommender.backtests`; nothing imports it. Start at `replay`."""
