"""The words of the engine: specs, commands, events, queries, answers and errors, with quantities and money. It imports
no other room. Start at `specs`, then `commands` and `events`."""
