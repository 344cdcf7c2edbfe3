"""The rules of the drafter: from a symptom to the smallest plan that helps. Imports facts and typed drafts. Start at
`symptom_rules`."""
