"""Plans drafted from facts, by rules or by a model. Imports actions, plans and facts; holds no engine. Start at
`rule_drafter`."""
