"""Drafts: plans and hand-overs written by rule, from facts that each of them cites. It imports the rooms of the
runbooks below it, from procedures to untrusted, and only reads the engine. Start at `rule_drafter`."""
