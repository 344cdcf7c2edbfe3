"""Runbook files: parse, lint, compile, register; `library/` holds the runbooks that come with Muster. Imports actions,
gate, plans and untrusted. Start at `program`."""
