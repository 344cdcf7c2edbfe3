"""Runbook files: parse, lint, compile, register; `library/` holds the runbooks that come with Muster. Imports actions
and plans. Start at `program`."""
