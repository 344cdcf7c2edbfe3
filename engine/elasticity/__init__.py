"""Pools and services that grow and shrink: the autoscaler, providers of machines, spot interruptions, replicas. It
imports the rooms of the engine below it, from scheduling down to model. Start at `scale_up`, then read `providers`."""
