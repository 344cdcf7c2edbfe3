"""The pages of the terminal: each asks the client for something and lays out its view model. It imports the widgets,
the app's frame and the rooms below `console.tui`. Start at `overview`."""
