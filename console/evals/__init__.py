"""Scripted incidents with expected answers, backtests and published benchmarks. Imports the service and the gate;
only the shell imports it. Start at `eval_drafts`."""
