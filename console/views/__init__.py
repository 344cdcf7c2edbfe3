"""View models: one drawing of each thing for page, shell, linear mode and browser. Imports text and the typed answers.
No Textual. Start at `sections`."""
