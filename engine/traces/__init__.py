"""Readers of public traces, generated days, and their replay. Imports model and the engine's door. Start at
`replay`."""
