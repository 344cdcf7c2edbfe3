"""From advice to an approved, executed, audited plan: the only way an action reaches the engine. Imports `engine` and
nothing of `console` or `recommender`. Start at `runbooks.gate.approval_gate`."""
