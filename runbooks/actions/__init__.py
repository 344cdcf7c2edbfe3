"""The catalogue of actions, each declared once: its parameters, risk, effect, inverse and words. It imports
`runbooks.plans` and the engine. Start at `declaration`, then read `workloads` for examples."""
