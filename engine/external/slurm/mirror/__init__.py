"""Slurm's jobs and nodes as a cell. Imports the client and the records. Start at `mirror_passes`."""
