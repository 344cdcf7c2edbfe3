"""Views of a cell that another scheduler decides: mirror, intents, its rules. Imports text and `engine.external`'s
answers. Start at `mirror`."""
