"""Proposals from request to effect: simulation, votes, claim, execution, verification, rollback. Imports actions,
policy, audit and plans. Start at `approval_gate`."""
