"""Findings in what an engine and its history show, the suggestions made of them, and the record of each. Imports
history and estimates. Start at `suggestions`."""
