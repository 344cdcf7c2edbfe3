"""Cells that another scheduler decides: observations of it become events, and commands become intents that are carried
to it. Imports state, admission and capacity. Start at `observed_changes` for what comes in, and at `change_carrier` for
what goes out."""
