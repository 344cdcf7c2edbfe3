"""Columns of arrays and texts, with windows over their rows. Imports nothing of the engine. Start at `columns`."""
