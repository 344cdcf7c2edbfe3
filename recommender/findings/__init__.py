"""Findings: what is out of order in a cell, what would mend it, and what became of each suggestion. It imports
`recommender.history` and the engine. Start at `suggestions`."""
