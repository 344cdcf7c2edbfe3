"""Estimates of run times, demand, sizes, machines and quotes, each with its measured skill. Imports history and the
engine's model. Start at `run_time_model`."""
