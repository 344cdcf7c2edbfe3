"""Forks of the live cell: what-if, start-time estimates, rehearsals, counterfactuals. Imports the door and forks.
Start at `live_twin`."""
