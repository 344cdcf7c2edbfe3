"""The only path from advice or a wish to an action of the engine: drafted, planned, voted on, executed, verified and
audited. It imports `engine` only; advice reaches it as data. Start at `runbooks.plans.typed_plan`, then read
`runbooks.gate.approval_gate`."""
