"""Changes carried to Slurm, and evidence that they took effect. Imports the client and the mirror's records. Start at
`change_carrier`."""
