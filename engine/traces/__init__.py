"""Readers of public workload traces, and a generator for machines that have none."""
