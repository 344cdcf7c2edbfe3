"""What people write: work files, filters, datetimes, settings. Imports the engine's specs; nothing of a screen. Start
at `settings`."""
