"""A cell that Kubernetes with Kueue decides: its objects become what the cell is said to have, and approved changes
become requests to the API server. It imports the way to that server beside it, `engine.external.kubernetes_api`, and
what the rooms of all outside schedulers share. Start at `cluster_mirror`, then read `acting`."""
