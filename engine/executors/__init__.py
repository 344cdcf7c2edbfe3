"""Executors run the tasks: simulated, or as processes of this machine. Agents on nodes report from elsewhere. Imports
the model and the state it reports on. Start at `protocol`."""
