"""Several cells as one: the fleet's process, its client and its pages. Imports the server, the client and
`engine.fleet`. Start at `coordinator`."""
