"""What the releases of Slurm say and want to hear. Reading takes either shape wherever it comes (`entry`, `jobs`,
`nodes`, `accounts`, `history`); asking differs by release (`v38`, `v42`)."""
