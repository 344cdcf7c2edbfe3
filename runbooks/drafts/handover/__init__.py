"""The shift's handover, from facts. Imports the facts of drafts. Start at `shift_facts`."""
