"""Scripted incidents with expected answers, to score drafters and models. Imports the service and the gate; no other
room imports it. Start at `eval_drafts`."""
