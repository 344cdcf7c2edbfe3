"""The typed plan, its checks, the identity of callers, and the answers to clients. Imports `engine.model`, and
`engine.reads` for readings. Start at `typed_plan`."""
