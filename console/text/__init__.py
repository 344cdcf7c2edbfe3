"""Text for a terminal: neutralised, measured, coloured, tabulated, charted. Imports no other room of the console.
Start at `terminal_text`."""
