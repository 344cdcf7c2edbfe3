"""Views of workloads, queues, nodes' topology and processes. Imports text and the engine's answers. Start at
`workload`."""
