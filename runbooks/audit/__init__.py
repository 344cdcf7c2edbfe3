"""The audit log: hash chain, checkpoints, anchors, export, and the stand-alone verifier. Imports `engine.journal`,
`runbooks.actions` and `runbooks.plans`; `verify` imports nothing of the project. Start at `log`."""
