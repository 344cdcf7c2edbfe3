"""Slurm as it is reached from outside: its REST API, its command line where at hand, and what both say. Imports
`engine.model` and `engine.external`. Start at `mirror`."""
