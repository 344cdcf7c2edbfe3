"""Several cells as one: the process that routes submissions among them, and its client. It imports the rooms of the
console below it, from server to text, and the routing rules of `engine.admission`. Start at `coordinator`, then read
`routing`."""
