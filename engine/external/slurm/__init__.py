"""A Slurm cluster as it is reached from outside: its REST API, its commands where they are at hand, and records of what
both say. Imports `engine.model` and `engine.state`. Start at `connection`."""
