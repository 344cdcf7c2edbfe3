"""How events change the state, by subject. Imports the state's tables. Start at `nodes`."""
