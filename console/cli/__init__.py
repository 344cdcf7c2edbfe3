"""The shell: one module for each noun, found by the table in `main`. Imports every other room of the console but the
terminal's, which it starts. Start at `main`."""
