"""From advice to an approved, executed, audited plan: the only way an action reaches the engine."""
