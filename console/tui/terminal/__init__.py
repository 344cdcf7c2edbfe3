"""The terminal under Textual: its driver, what is sent to it, and putting it back as it was. Imports Textual only.
Start at `driver`."""
