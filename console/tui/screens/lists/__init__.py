"""Pages that are a list of one kind. Imports the list pane and the columns of the views. Start at `workloads`."""
