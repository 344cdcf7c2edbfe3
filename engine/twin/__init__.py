"""Forks of the live cell: what-if, start-time estimates, rehearsals and counterfactuals. Imports the engine's entry
point; start at `live_twin`.
"""
