"""The gate, the only way an action reaches the engine: proposals, votes, execution and rollback, under the approval
policy. It imports audit, actions, plans and untrusted of the runbooks, and the engine. Start at `approval_gate`, then
read `executor`."""
