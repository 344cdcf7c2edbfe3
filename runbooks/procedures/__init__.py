"""Runbook files: parsed, linted, compiled to plans and registered; `library/` holds the ones that come with Muster. It
imports the rooms of the runbooks below it, from gate to untrusted, and the engine. Start at `program`."""
