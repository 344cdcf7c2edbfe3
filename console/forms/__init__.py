"""Text that people write: work files, filters, datetimes, settings, arguments of commands. Imports the engine's specs;
nothing of a screen. Start at `settings`."""
