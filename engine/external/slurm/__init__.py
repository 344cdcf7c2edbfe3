"""A cell that Slurm decides: what slurmrestd shows, and Slurm's own commands where they are at hand, becomes what the
cell is said to have, and approved changes become requests to it. It imports what the rooms of all outside schedulers
share, and the door `engine.control`. Start at `connection`, then read `mirror_passes` and `change_carrier`."""
