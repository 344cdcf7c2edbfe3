"""The parts that pages are made of. Imports text and forms. Start at `pane` and `list_pane`."""
