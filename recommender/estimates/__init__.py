"""Estimates as distributions: run times, demand, sizes of requests, machines, quotes. It imports `recommender.history`,
`recommender.findings` and the engine. Start at `run_time_model`, then read `queries` for what clients are answered."""
