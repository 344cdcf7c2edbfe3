"""Run time and usage of a workload, learnt from ended ones. Imports history. Start at `run_time_model`."""
