"""Pools that grow and shrink: autoscaler, providers, spot, services. Imports state, placement and scheduling. Start at
`autoscaler`."""
