"""Drafts of plans, runbooks and hand-overs, made from facts by rules, and the form of a model's answer. Holds no engine
that can act: it works on forks. Imports actions, gate, plans and procedures. Start at `rule_drafter`."""
