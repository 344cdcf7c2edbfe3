"""Several cells as one: the fleet's process, its client and its pages. Imports the server and the client. Start at
`coordinator`."""
