"""Slurm as it is reached from outside: slurmrestd, its own commands where they are at hand, and what both answer. It
imports `engine.model` and `engine.state` only. Start at `connection`."""
