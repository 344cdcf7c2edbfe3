"""Copies of the process for twins and readers. Imports nothing of the engine's decisions. Start at `child_process`."""
