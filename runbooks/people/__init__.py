"""Who decides: identities, keys and signatures. Imports `engine.model` only. Start at `identity`."""
