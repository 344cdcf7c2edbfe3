"""Advice from history, with its evidence and its track record; it never acts. It imports `engine` only. Start at
`recommender.findings.suggestions`."""
