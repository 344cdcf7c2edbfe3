"""Rules of routing work over several cells. Imports model. Start at `routing_policy`."""
