"""The engine's process beside the console: launch it, attach to it, find it again. Imports forms and auth. Start at
`attach`."""
