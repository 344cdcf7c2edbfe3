"""What people write, as typed values: settings, command arguments, filters, work and cell files. It imports
`console.text`, and declarations of the engine and the runbooks. Start at `settings`, then read `work_files`."""
