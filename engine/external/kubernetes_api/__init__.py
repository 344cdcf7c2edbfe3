"""Kubernetes as it is reached from outside: the kubeconfig, a thin client of its own, and objects as they are listed
and watched; nothing here knows a cell. It imports `engine.model` and the cutter of long lists beside it. Start at
`observation`, then read `reflector`."""
