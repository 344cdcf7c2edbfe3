"""One page a module: what it asks and how it lays its view out. Imports widgets and views. Start at `overview`."""
