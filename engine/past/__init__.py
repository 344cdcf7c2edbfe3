"""The cell as it was: states of earlier times, rebuilt from the journal by a process of its own, and the difference of
two times. It imports the door `engine.control`, `engine.read_replica`, and the rooms reads, journal and below. Start at
`replicas`."""
