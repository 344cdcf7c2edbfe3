"""Pools that grow and shrink: scaling decisions, providers, spot machines and services. Imports state, placement and
scheduling; start at `scale_up`.
"""
