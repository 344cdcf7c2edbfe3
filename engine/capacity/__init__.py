"""Free capacity: the index of nodes, devices and MIG, topology, and the scores that compare nodes. It imports
`engine.model` only. Start at `index`."""
