"""The parts of the overview. Imports text and the typed answers. Start at `page`."""
