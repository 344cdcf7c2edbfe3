"""What each release of Slurm calls a field. Imports the records only. Start at `dialect`."""
