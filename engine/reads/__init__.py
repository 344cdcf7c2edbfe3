"""Answers to questions: lists, details, reasons, gauges, reports. Imports state and what it explains; changes nothing.
Start at `answers`."""
