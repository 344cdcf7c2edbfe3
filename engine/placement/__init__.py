"""The choice of nodes for tasks: which nodes are eligible, which is best, whole gangs, and fragmentation. It imports
the rooms of the engine below it: state, capacity and model. Start at `gang_placement`, then read `node_choice`."""
