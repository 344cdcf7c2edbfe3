"""The choice of nodes for tasks: filters, scores, gangs and fragmentation. Imports capacity and state; start at
`node_choice`.
"""
