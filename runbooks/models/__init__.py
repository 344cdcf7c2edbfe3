"""A language model as a drafter: its prompt, its process, its limits, and the checks on its answer. It imports the
other rooms of the runbooks and the engine; the child process that asks the model imports neither. Start at
`drafter`."""
