"""What runs the tasks: simulated, or processes of this machine. Imports model and the state it reports on. Start at
`protocol`."""
