"""Choosing nodes for tasks: filters, scores, gangs, fragmentation. Imports capacity and state. Start at
`node_choice`."""
