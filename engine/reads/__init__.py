"""Answers to questions about the cell: lists, details, reasons, reports and search. It imports the rooms of the engine
that it explains, from elasticity down to model, and changes nothing. Start at `answers`."""
