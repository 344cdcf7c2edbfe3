"""Kubernetes as it is reached from outside: the kubeconfig, a thin client of its own, and objects as they are listed
and watched. Nothing here knows a cell. Imports `engine.model` only. Start at `observation`, then read `reflector`."""
