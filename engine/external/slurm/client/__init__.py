"""The line to slurmrestd and its commands: sessions, tokens, reading and writing. Imports the dialects. Start at
`connection`."""
