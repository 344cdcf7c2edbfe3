"""Proposals from request to effect: policy, simulation, votes, claim, execution, verification, rollback. Imports
actions, audit, plans and untrusted. Start at `approval_gate`."""
