"""The audit log: its hash chain, checkpoints and anchors, its export, and the stand-alone verifier. It imports
`runbooks.plans`, `runbooks.actions` and the engine's journal; `verify` imports nothing of the project. Start at
`log`."""
